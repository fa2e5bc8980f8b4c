"""`mx.optimizer`: optimizers by name and by class, with states of NDArrays.

>>> import jfit.mx as mx
>>> updater = mx.optimizer.get_updater(mx.optimizer.create("sgd", learning_rate=0.5, momentum=0.9))
>>> weight = mx.nd.ones((2,))
>>> updater(0, mx.nd.ones((2,)), weight)
>>> weight.asnumpy().tolist(), updater.states[0].asnumpy().tolist()
([0.5, 0.5], [-0.5, -0.5])
"""

from types import SimpleNamespace
from typing import NoReturn

from jfit.mxnet.namespaces import absent
from jfit.mxnet.ndarray_classes import Updater, get_updater
from jfit.mxnet.optimizer import Optimizer, named
from jfit.mxnet.optimizer.named import *  # noqa: F403  one list of the classes, in `named`

__all__ = ["Optimizer", "Updater", "contrib", "get_updater", "opt_registry"]
__all__ += named.__all__

# `mx.optimizer.contrib.GroupAdaGrad`
contrib = SimpleNamespace(GroupAdaGrad=named.GroupAdaGrad, register=Optimizer.register)
# class by lower-case name, one table for everything that makes optimizers
opt_registry = Optimizer.opt_registry


def __getattr__(name: str) -> NoReturn:
    absent("mx.optimizer", name, __all__)
