"""Optimizers as objects: counters, rates and multipliers on the host, `jfit.optim` for the arithmetic.

base            what every optimizer knows            rates: counts, rates and multipliers of an index
named           sgd, adam ... by name                 momentum, moments, rms, large_batch, langevin: classes
apply           one dispatch for many parameters      nesting: a state as MXNet nests it
updater         states by index                       shared: scalars that all parameters have in common
settings        an optimizer as plain data, for files
lr_scheduler    MXNet's schedulers, which remember
"""

from jfit.facade.optimizer.apply import apply_update, slot_names
from jfit.facade.optimizer.base import Optimizer
from jfit.facade.optimizer.named import (
    DCASGD,
    FTML,
    LAMB,
    LARS,
    LBSGD,
    NAG,
    SGD,
    SGLD,
    AdaDelta,
    AdaGrad,
    Adam,
    Adamax,
    AdamW,
    Ftrl,
    GroupAdaGrad,
    Nadam,
    RMSProp,
    Signum,
    Test,
    ccSGD,
    create,
    register,
)
from jfit.facade.optimizer.nesting import state_from_mxnet, state_to_mxnet
from jfit.facade.optimizer.updater import Updater, get_updater

__all__ = [
    "DCASGD",
    "FTML",
    "LAMB",
    "LARS",
    "LBSGD",
    "NAG",
    "SGD",
    "SGLD",
    "AdaDelta",
    "AdaGrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Ftrl",
    "GroupAdaGrad",
    "Nadam",
    "Optimizer",
    "RMSProp",
    "Signum",
    "Test",
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
