"""The classes of `jfit.mx`: those of `jfit.mxnet` that hand out NDArrays and `mx.sym.Symbol`.

Each entry is a class of this package with `arrays = NDARRAYS`, in one flat list.  The numbers, arguments, defaults and errors
are the class's own; its docstring tells them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jfit.mxnet import files
from jfit.mxnet.base import translated
from jfit.mxnet.feedforward import feedforward
from jfit.mxnet.feedforward import modules as fed
from jfit.mxnet.module import base, bucketing, module, python, sequential, svrg
from jfit.mxnet.module.exec_group import ExecGroup
from jfit.mxnet.monitor import monitor
from jfit.mxnet.ndarray.array import NDArray, held
from jfit.mxnet.seam import Arrays
from jfit.mxnet.symbol import Symbol, load


def _array(value: Any) -> NDArray:
    return value if isinstance(value, NDArray) else NDArray(value)


def _symbol(graph: Any) -> Symbol:
    return graph if isinstance(graph, Symbol) else Symbol(graph.heads)


NDARRAYS = Arrays(_array, NDArray, _symbol)


# ------------------------------------------------------------------------------------------------ mx.mod
class BaseModule(base.BaseModule):
    """`jfit.mxnet.module.BaseModule` in NDArrays."""

    arrays = NDARRAYS


class Module(BaseModule, module.Module):
    """`jfit.Module` in NDArrays."""

    _exec_group = property(ExecGroup)


class BucketingModule(BaseModule, bucketing.BucketingModule):
    """`jfit.BucketingModule` in NDArrays."""

    _module_class = Module


class SequentialModule(BaseModule, sequential.SequentialModule):
    """`jfit.SequentialModule` in NDArrays."""


class PythonModule(BaseModule, python.PythonModule):
    """`jfit.PythonModule` in NDArrays."""


class PythonLossModule(PythonModule, python.PythonLossModule):
    """`jfit.PythonLossModule` in NDArrays."""


class SVRGModule(Module, svrg.SVRGModule):
    """`jfit.mxnet.module.SVRGModule` in NDArrays."""

    _aux_class = Module


# ------------------------------------------------------------------------------------------------ mx.mon
class Monitor(monitor.Monitor):
    """`jfit.Monitor` in NDArrays."""

    arrays = NDARRAYS


# ------------------------------------------------------------------------------------------------ mx.model
class PythonFed(Module, fed.PythonFed):
    """The module under a FeedForward of the Python tradition."""


class JuliaFed(PythonFed, fed.JuliaFed):
    """The module under a FeedForward of the Julia tradition."""


class PythonBuckets(BucketingModule, fed.PythonBuckets):
    """The modules under a FeedForward whose symbol is a function of the bucket key."""

    _module_class = PythonFed


class FeedForward(feedforward.FeedForward):
    """`jfit.FeedForward` in NDArrays."""

    arrays = NDARRAYS
    _python_module, _julia_module, _bucket_module = PythonFed, JuliaFed, PythonBuckets


def load_checkpoint(prefix: str, epoch: int) -> tuple[Symbol, dict[str, NDArray], dict[str, NDArray]]:
    """(symbol, parameters, auxiliary states) of a checkpoint that MXNet or jfit wrote.

    Raises:
        MXNetError: a file is missing (a FileNotFoundError too), or damaged.
    """
    return load(f"{prefix}-symbol.json"), *load_params(prefix, epoch)


def load_params(prefix: str, epoch: int) -> tuple[dict[str, NDArray], dict[str, NDArray]]:
    """(parameters, auxiliary states) of `prefix-%04d.params`."""
    with translated():
        args, aux = files.load_params(prefix, epoch)
    return _held(args), _held(aux)


def _held(arrays: Mapping[str, Any]) -> dict[str, NDArray]:
    return {k: NDArray(held(v, v.dtype)) for k, v in arrays.items()}
