"""`mx.optimizer`: MXNet's optimizers, by name or class, which update NDArrays in place.

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
from jfit.mxnet.optimizer.named import *  # noqa: F403  `named.__all__` is the only list of the optimizer classes

__all__ = ["Optimizer", "Updater", "contrib", "get_updater", "opt_registry"]
__all__ += named.__all__

contrib = SimpleNamespace(GroupAdaGrad=named.GroupAdaGrad, register=Optimizer.register)
# lower-case name -> class: the registry that `create` uses
opt_registry = Optimizer.opt_registry


def __getattr__(name: str) -> NoReturn:
    absent("mx.optimizer", name, __all__)
