"""`mx.mod`: modules whose arrays are NDArrays.

>>> import jfit.mx as mx, numpy as np
>>> net = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2), name="softmax")
>>> x = np.eye(2, dtype="float32").repeat(20, axis=0)
>>> mod = mx.mod.Module(net, context=mx.cpu())
>>> mod.fit(mx.io.NDArrayIter(x, x.argmax(1), 8), num_epoch=20, optimizer_params={"learning_rate": 1.0})
>>> mod.predict(mx.io.NDArrayIter(x, batch_size=8)).asnumpy().argmax(1).tolist() == x.argmax(1).tolist()
True
"""

from __future__ import annotations

from typing import Any, NoReturn

from jfit.mxnet.initializer.base import InitDesc
from jfit.mxnet.module import base as base_module
from jfit.mxnet.module import bucketing, module, sequential
from jfit.mxnet.module import python as python_module
from jfit.mxnet.module.initial import DEFAULT, writes_in_place
from jfit.mxnet.ndarray.array import NDArray
from jfit.mxnet.spelling import absent
from jfit.mxnet.symbol import Symbol

__all__ = ["BaseModule", "BucketingModule", "Module", "PythonLossModule", "PythonModule", "SequentialModule"]


class Boxed:
    """Arrays come out as NDArrays, graphs from files as `mx.sym.Symbol`."""

    def _box(self, array: Any) -> NDArray:
        return array if isinstance(array, NDArray) else NDArray(array)

    _box_cell = _box

    @classmethod
    def _symbol_of(cls, symbol: Any) -> Symbol:
        return symbol if isinstance(symbol, Symbol) else Symbol(symbol.heads)


class BoxedModule(Boxed):
    """A module whose initializer may be any function `(desc, array)`: `desc` is MXNet's, a str."""

    def init_params(self, initializer: Any = DEFAULT, *args: Any, **kwargs: Any) -> None:
        """Draw the parameters that are not given; see `jfit.mxnet.module.base.BaseModule.init_params`."""
        if writes_in_place(initializer) and not hasattr(initializer, "describe"):
            initializer = _Described(initializer)
        super().init_params(initializer, *args, **kwargs)  # type: ignore[misc]


class _Described:
    """A function that writes initial values, and how a parameter is described to it."""

    describe = InitDesc

    def __init__(self, write: Any) -> None:
        self._write = write

    def __call__(self, desc: InitDesc, array: NDArray) -> None:
        self._write(desc, array)


class BaseModule(BoxedModule, base_module.BaseModule):
    """Base of modules; see `jfit.mxnet.module.base.BaseModule`."""


class Module(BoxedModule, module.Module):
    """A symbol bound to shapes and devices; see `jfit.Module`."""

    @property
    def _exec_group(self) -> _Gradients:
        """MXNet's executors; scripts clear accumulated gradients through them: `g[:] = 0`."""
        assert self.binded
        return _Gradients(self._passes, self._param_names, len(self._devices))


class BucketingModule(BoxedModule, bucketing.BucketingModule):
    """A module with a symbol for each bucket; see `jfit.mxnet.module.bucketing.BucketingModule`."""

    _module_class = Module


class SequentialModule(BoxedModule, sequential.SequentialModule):
    """Modules one after the other; see `jfit.mxnet.module.sequential.SequentialModule`."""


class PythonModule(BoxedModule, python_module.PythonModule):
    """A module written in Python; see `jfit.mxnet.module.python.PythonModule`."""


class PythonLossModule(BoxedModule, python_module.PythonLossModule):
    """A loss written in Python; see `jfit.mxnet.module.python.PythonLossModule`."""


class _Gradients:
    """The gradients of a bound module, as MXNet's executor group shows them."""

    def __init__(self, passes: Any, names: list[str], devices: int) -> None:
        self._passes, self.param_names, self._count = passes, list(names), devices

    @property
    def grad_arrays(self) -> list[list[Gradient | None]]:
        """For each parameter, its gradient on each device; None where it has none."""
        asked = self._passes.requests
        return [[Gradient(self._passes, n, k) if n in asked else None for k in range(self._count)] for n in self.param_names]


class Gradient(NDArray):
    """A gradient inside a module: reading gives what `backward` left there, writing replaces it."""

    __slots__ = ("_at", "_name", "_passes")

    def __init__(self, passes: Any, name: str, at: int) -> None:
        self._passes, self._name, self._at = passes, name, at

    @property
    def value(self) -> Any:
        """The gradient of this device."""
        return self._passes.gradient_slices(self._name)[self._at]

    @value.setter
    def value(self, new: Any) -> None:
        slices = self._passes.gradient_slices(self._name)
        slices[self._at] = new
        self._passes.set_gradient(self._name, slices)


def __getattr__(name: str) -> NoReturn:
    absent("mx.mod", name, __all__)
