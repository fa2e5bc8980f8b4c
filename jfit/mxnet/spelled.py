"""The classes of `jfit.mx`: those of `jfit.mxnet` that hand out NDArrays and `mx.sym.Symbol`.

Each entry is a class of this package with `arrays = NDARRAYS`, in one flat list.  The numbers, arguments, defaults and errors
are those of the class it derives from; its docstring describes them.
"""

from __future__ import annotations

from typing import Any

from jfit.mxnet import files, initializer
from jfit.mxnet.context import current_context
from jfit.mxnet.errors import translated
from jfit.mxnet.feedforward import feedforward
from jfit.mxnet.feedforward import modules as fed
from jfit.mxnet.gluon import parameter, parameter_dict, trainer
from jfit.mxnet.kvstore import store
from jfit.mxnet.module import base, bucketing, module, python, sequential, svrg
from jfit.mxnet.module.exec_group import ExecGroup
from jfit.mxnet.monitor import monitor
from jfit.mxnet.ndarray.array import NDArray
from jfit.mxnet.ndarray.create import boxed
from jfit.mxnet.optimizer import Optimizer, updater
from jfit.mxnet.seam import Arrays
from jfit.mxnet.symbol import Symbol, load


def _array(value: Any) -> NDArray:
    return value if isinstance(value, NDArray) else NDArray(value)


def _symbol(graph: Any) -> Symbol:
    return graph if isinstance(graph, Symbol) else Symbol(graph.heads)


NDARRAYS = Arrays(_array, NDArray, _symbol)


# ------------------------------------------------------------------------------------------------ mx.optimizer, mx.kv
class Updater(updater.Updater):
    """`jfit.mxnet.optimizer.Updater` in NDArrays: states that it makes, or that come from a file, are NDArrays too."""

    arrays = NDARRAYS


def get_updater(optimizer: Optimizer) -> Updater:
    """`Updater(optimizer)`: the function `(index, grad, weight)` that a key-value store calls."""
    return Updater(optimizer)


class KVStore(store.KVStore):
    """`jfit.KVStore` in NDArrays: an updater is called with NDArrays, and what is pulled without `out` is one."""

    arrays = NDARRAYS
    _updater_class = Updater


def create(name: str = "local") -> store.KVStoreBase:
    """A store by type name; see `jfit.mxnet.kvstore.create`.

    Example:
        >>> create("local_update_cpu").type
        'local_update_cpu'
    """
    return store.create(name, KVStore)


# ------------------------------------------------------------------------------------------------ mx.gluon
class Parameter(parameter.Parameter):
    """`jfit.mxnet.gluon.Parameter` in NDArrays: what `data` and `grad` return is the parameter's own, not a copy."""

    arrays = NDARRAYS
    _current_context = staticmethod(current_context)
    _initializer_of = staticmethod(initializer.create)


class Constant(parameter_dict.Constant, Parameter):
    """`jfit.mxnet.gluon.Constant` in NDArrays."""


class ParameterDict(parameter_dict.ParameterDict):
    """`jfit.mxnet.gluon.ParameterDict` of these parameters."""

    _parameter, _constant = Parameter, Constant


class Trainer(trainer.Trainer):
    """`jfit.Trainer` over Parameters only, with a store of NDArrays."""

    _trees = False
    _updater_class, _store_class = Updater, KVStore


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
    """The Module that the FeedForward of MXNet's Python package trains with."""


class JuliaFed(PythonFed, fed.JuliaFed):
    """The Module that the FeedForward of MXNet.jl trains with."""


class PythonBuckets(BucketingModule, fed.PythonBuckets):
    """The BucketingModule of a FeedForward whose symbol is a function of the bucket key."""

    _module_class = PythonFed


class FeedForward(feedforward.FeedForward):
    """`jfit.FeedForward` in NDArrays."""

    arrays = NDARRAYS
    _python_module, julia_module, _bucket_module = PythonFed, JuliaFed, PythonBuckets


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
    return boxed(args), boxed(aux)
