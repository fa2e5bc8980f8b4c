"""Optimizers as objects: counters, rates and multipliers on the host, `jfit.optim` for the arithmetic.

base         what every optimizer knows: counts, rates and multipliers of an index, its update
named        sgd, adam ... by name; the classes by family in momentum, moments, rms, large_batch
apply        one dispatch for many parameters, and states as MXNet nests them
updater      states by index
shared       scalars that all parameters have in common
settings     an optimizer as plain data, for files; saved: what such data have to be
lr_scheduler MXNet's schedulers, which remember
"""

from jfit.mxnet.optimizer import named
from jfit.mxnet.optimizer.apply import apply_update, slot_names, state_from_mxnet, state_to_mxnet
from jfit.mxnet.optimizer.base import Optimizer
from jfit.mxnet.optimizer.named import *  # noqa: F403  one list of the classes, in `named`
from jfit.mxnet.optimizer.updater import Updater, get_updater

__all__ = [
    "Optimizer",
    "Updater",
    "apply_update",
    "get_updater",
    "slot_names",
    "state_from_mxnet",
    "state_to_mxnet",
]
__all__ += named.__all__
