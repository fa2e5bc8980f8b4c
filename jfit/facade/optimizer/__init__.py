"""Optimizers as objects: counters, rates and multipliers on the host, `jfit.optim` for the arithmetic.

base            what every optimizer knows            named: sgd, adam ... by name
updater         one dispatch for many parameters; state by index
lr_scheduler    MXNet's schedulers, which remember
"""

from jfit.facade.optimizer.base import Optimizer
from jfit.facade.optimizer.named import NAG, SGD, Adam, AdamW, RMSProp, ccSGD, create, register
from jfit.facade.optimizer.updater import Updater, apply_update, get_updater, slot_names, state_from_mxnet, state_to_mxnet

__all__ = [
    "NAG",
    "SGD",
    "Adam",
    "AdamW",
    "Optimizer",
    "RMSProp",
    "Updater",
    "apply_update",
    "ccSGD",
    "create",
    "get_updater",
    "register",
    "slot_names",
    "state_from_mxnet",
    "state_to_mxnet",
]
