"""`mx.optimizer`: optimizers by name and by class, with states of NDArrays.

>>> import jfit.mx as mx
>>> updater = mx.optimizer.get_updater(mx.optimizer.create("sgd", learning_rate=0.5, momentum=0.9))
>>> weight = mx.nd.ones((2,))
>>> updater(0, mx.nd.ones((2,)), weight)
>>> weight.asnumpy().tolist(), updater.states[0].asnumpy().tolist()
([0.5, 0.5], [-0.5, -0.5])
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NoReturn

from jfit.mxnet.ndarray import NDArray
from jfit.mxnet.optimizer import named as _named
from jfit.mxnet.optimizer import updater as _facade
from jfit.mxnet.optimizer.base import Optimizer
from jfit.mxnet.optimizer.named import *  # noqa: F403  one list of the classes, in `named`
from jfit.mxnet.spelling import absent

__all__ = [
    "Optimizer",
    "Updater",
    "contrib",
    "get_updater",
    "opt_registry",
]
__all__ += _named.__all__

# `mx.optimizer.contrib.GroupAdaGrad`
contrib = SimpleNamespace(GroupAdaGrad=_named.GroupAdaGrad, register=Optimizer.register)
# class by lower-case name, one table for everything that makes optimizers
opt_registry = Optimizer.opt_registry


class Updater(_facade.Updater):
    """`updater(index, grad, weight)` in place on NDArrays; states that come from a file are NDArrays too.

    Args:
        optimizer: an `Optimizer`.

    Example:
        >>> import numpy as np
        >>> updater = Updater(create("adam"))
        >>> updater.set_states({0: (np.ones(2, "float32"), np.ones(2, "float32"))})
        >>> [type(part).__name__ for part in updater.states[0]]
        ['NDArray', 'NDArray']
    """

    def _box(self, array: Any) -> NDArray:
        return NDArray(array)


def get_updater(optimizer: Optimizer) -> Updater:
    """`Updater(optimizer)`: the function `(index, grad, weight)` that a key-value store calls."""
    return Updater(optimizer)


def __getattr__(name: str) -> NoReturn:
    absent("mx.optimizer", name, __all__)
