"""The classes of `jfit.mx`: subclasses of the classes of `jfit.mxnet` that return NDArrays and `mx.sym.Symbol`.

Each subclass overrides `arrays` (see `jfit.mxnet.array_types`) or the classes it creates, and nothing else; the docstring of
its base class describes arguments, defaults, numbers and errors.  Names imported `as` themselves belong to the same modules of
`jfit.mx` (`jfit.mx._modules`), for which type checkers read this file.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from jfit.graph.compose import STORAGE_TYPES
from jfit.mxnet import feedforward, files, initializer
from jfit.mxnet.array_types import ArrayTypes
from jfit.mxnet.callback import BatchEndParam as BatchEndParam
from jfit.mxnet.context import current_context
from jfit.mxnet.files import save_checkpoint as save_checkpoint
from jfit.mxnet.gluon import parameter as parameter
from jfit.mxnet.gluon import parameter_dict
from jfit.mxnet.gluon import trainer as trainer
from jfit.mxnet.gluon import utils as utils
from jfit.mxnet.gluon.parameter import DeferredInitializationError as DeferredInitializationError
from jfit.mxnet.kvstore import KVStoreBase as KVStoreBase
from jfit.mxnet.kvstore import store
from jfit.mxnet.module import base, bucketing, module, python, sequential, svrg
from jfit.mxnet.module.exec_group import ExecGroup
from jfit.mxnet.monitor import monitor
from jfit.mxnet.ndarray.array import NDArray
from jfit.mxnet.ndarray.create import as_ndarrays
from jfit.mxnet.ndarray.sparse import row_sparse_array
from jfit.mxnet.numpy.arrays import ndarray
from jfit.mxnet.numpy.symbols import as_numpy_symbol
from jfit.mxnet.optimizer import Optimizer, updater
from jfit.mxnet.symbol import Symbol, load
from jfit.mxnet.util import is_np_array


def _symbol(graph: Any) -> Symbol:
    return graph if isinstance(graph, Symbol) else Symbol(graph.heads)


def _types(kind: type[NDArray], symbol: Any) -> ArrayTypes:
    return ArrayTypes(lambda value: value if isinstance(value, NDArray) else kind(value), kind, symbol)


NDARRAYS, _NP_ARRAYS = _types(NDArray, _symbol), _types(ndarray, as_numpy_symbol)


# ------------------------------------------------------------------------------------------------ mx.optimizer, mx.kv
class Updater(updater.Updater):
    """`jfit.mxnet.optimizer.Updater` with NDArrays: the optimizer states it creates or loads are NDArrays."""

    arrays = NDARRAYS


def get_updater(optimizer: Optimizer) -> Updater:
    """Return the function `(index, grad, weight)` that applies `optimizer` in place, for use by a key-value store.

    Args:
        optimizer: an `mx.optimizer.Optimizer`.

    Returns:
        Updater, which keeps the optimizer state of every index.

    Example:
        >>> import jfit.mx as mx
        >>> weight = mx.nd.ones(2)
        >>> get_updater(mx.optimizer.SGD(learning_rate=0.5))(0, mx.nd.ones(2), weight)
        >>> weight.asnumpy().tolist()
        [0.5, 0.5]
    """
    return Updater(optimizer)


class KVStore(store.KVStore):
    """`jfit.KVStore` with NDArrays: updaters are called with NDArrays, and `pull` without `out=` returns an NDArray.

    Example:
        >>> import jfit.mx as mx
        >>> store = mx.kv.create("local")
        >>> store.init("w", mx.nd.ones((2,)))
        >>> def add_twice(key, value, stored):
        ...     stored += value * 2
        >>> store.set_updater(add_twice)
        >>> store.push("w", [mx.nd.ones((2,)), mx.nd.ones((2,))])
        >>> store.pull("w").asnumpy().tolist()
        [5.0, 5.0]
    """

    arrays = NDARRAYS
    _updater_class = Updater


def create(name: str = "local") -> store.KVStoreBase:
    """Create a key-value store of NDArrays by type name, as `jfit.mxnet.kvstore.create` does.

    Args:
        name: type such as "local", "device" or "dist_sync".

    Returns:
        KVStore, or the class registered under `name`.

    Example:
        >>> create("local_update_cpu").type
        'local_update_cpu'
    """
    return store.create(name, KVStore)


# ------------------------------------------------------------------------------------------------ mx.gluon
class Parameter(parameter.Parameter):
    """`jfit.mxnet.gluon.Parameter` with NDArrays: `data` and `grad` return the parameter's arrays themselves, not copies."""

    arrays = property(lambda self: _NP_ARRAYS if is_np_array() else NDARRAYS)  # type: ignore[assignment]
    _current_context = staticmethod(current_context)
    _initializer_of = staticmethod(initializer.create)


class Constant(parameter_dict.Constant, Parameter):
    """`jfit.mxnet.gluon.Constant` whose value is an NDArray."""


class ParameterDict(parameter_dict.ParameterDict):
    """`jfit.mxnet.gluon.ParameterDict` whose parameters hold NDArrays."""

    _parameter, _constant = Parameter, Constant


class Trainer(trainer.Trainer):
    """`jfit.Trainer` for `Parameter`s only (no pytrees), with a key-value store of NDArrays.

    Example:
        >>> import jfit.mx as mx
        >>> weight = mx.gluon.Parameter("w", shape=(2,), init="ones")
        >>> weight.initialize()
        >>> trainer = mx.gluon.Trainer([weight], "sgd", {"learning_rate": 0.5})
        >>> weight.grad()[:] = 1
        >>> weight.data()._fresh_grad = True  # as a backward pass does
        >>> trainer.step(1)
        >>> weight.data().asnumpy().tolist()
        [0.5, 0.5]
    """

    _accepts_pytrees = False
    _updater_class, _store_class = Updater, KVStore


# ------------------------------------------------------------------------------------------------ mx.mod
class BaseModule(base.BaseModule):
    """`jfit.mxnet.module.BaseModule` whose methods return NDArrays instead of jax arrays."""

    arrays = NDARRAYS


class Module(BaseModule, module.Module):
    """`jfit.Module` whose methods return NDArrays instead of jax arrays.

    Example:
        >>> import jfit.mx as mx, numpy as np
        >>> net = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2), name="softmax")
        >>> x = np.eye(2, dtype="float32").repeat(20, axis=0)
        >>> mod = mx.mod.Module(net, context=mx.cpu())
        >>> mod.fit(mx.io.NDArrayIter(x, x.argmax(1), 8), num_epoch=20, optimizer_params={"learning_rate": 1.0})
        >>> mod.predict(mx.io.NDArrayIter(x, batch_size=8)).asnumpy().argmax(1).tolist() == x.argmax(1).tolist()
        True
    """

    _exec_group = property(ExecGroup)
    _arg_params = property(lambda self: self.get_params()[0])
    _aux_params = property(lambda self: self.get_params()[1])
    _grad_req = property(lambda self: next(iter(self.binding.grad_reqs.values()), "null"))
    _total_exec_bytes = 0  # XLA allocates memory for each pass

    def get_params(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return copies of (parameters, auxiliary states); of a row_sparse parameter a RowSparseNDArray with all rows."""
        params, aux = super().get_params()
        code = str(STORAGE_TYPES["row_sparse"])
        rows = {name for name, attrs in self.symbol.attr_dict().items() if attrs.get("__storage_type__") == code}
        return {n: row_sparse_array((a, np.arange(len(a)))) if n in rows else a for n, a in params.items()}, aux

    def update(self) -> None:
        """Update all parameters with the gradients of the last `backward`, which are 0 before the first pass."""
        if self.binded and self.params_initialized:
            self.passes.start_gradients()
        super().update()


class BucketingModule(BaseModule, bucketing.BucketingModule):
    """`jfit.BucketingModule` whose methods return NDArrays instead of jax arrays."""

    _module_class = Module


class SequentialModule(BaseModule, sequential.SequentialModule):
    """`jfit.SequentialModule` whose methods return NDArrays instead of jax arrays."""


class PythonModule(BaseModule, python.PythonModule):
    """`jfit.PythonModule` whose methods return NDArrays instead of jax arrays."""


class PythonLossModule(PythonModule, python.PythonLossModule):
    """`jfit.PythonLossModule` whose methods return NDArrays instead of jax arrays."""


class SVRGModule(Module, svrg.SVRGModule):
    """`jfit.mxnet.module.SVRGModule` whose methods return NDArrays instead of jax arrays.

    Example:
        >>> import jfit.mx as mx, numpy as np
        >>> x = np.random.default_rng(0).normal(size=(40, 3)).astype("float32")
        >>> train = mx.io.NDArrayIter(x, x @ np.array([1, 2, 3], "float32"), batch_size=8, label_name="label")
        >>> out = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=1, name="fc1")
        >>> net = mx.sym.LinearRegressionOutput(out, mx.sym.Variable("label"))
        >>> mod = SVRGModule(net, data_names=["data"], label_names=["label"], update_freq=2)
        >>> mod.fit(train, eval_metric="mse", num_epoch=30, optimizer_params=(("learning_rate", 0.1),))
        >>> np.round(mod.get_params()[0]["fc1_weight"].asnumpy(), 3).tolist()
        [[1.0, 2.0, 3.0]]
    """

    _aux_class = Module


# ------------------------------------------------------------------------------------------------ mx.mon
class Monitor(monitor.Monitor):
    """`jfit.Monitor` that calls `stat_func` with NDArrays.

    Example:
        >>> import jfit.mx as mx
        >>> mon = mx.mon.Monitor(1, stat_func=lambda x: x.norm() / x.size**0.5)
        >>> mon.tic()
        >>> mon.collect({"fc_output": mx.nd.ones((2, 2))})
        >>> mon.toc()
        [(1, 'fc_output', '1.0\\t')]
    """

    arrays = NDARRAYS


# ------------------------------------------------------------------------------------------------ mx.model
class FeedForwardModule(Module, feedforward.FeedForwardModule):
    """The Module with which FeedForward trains as MXNet's Python package does."""


class FeedForwardBucketingModule(BucketingModule, feedforward.FeedForwardBucketingModule):
    """The BucketingModule with which FeedForward trains when its symbol is a function of the bucket key."""

    _module_class = FeedForwardModule


class FeedForward(feedforward.FeedForward):
    """`jfit.FeedForward` with NDArrays as parameters and outputs.

    Example:
        >>> import jfit.mx as mx, numpy as np
        >>> net = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2), name="softmax")
        >>> x = np.eye(2, dtype="float32").repeat(20, axis=0)
        >>> model = mx.model.FeedForward(net, ctx=mx.cpu(), num_epoch=20, numpy_batch_size=8, learning_rate=1.0)
        >>> model.fit(x, x.argmax(1))
        >>> model.predict(x).argmax(1).tolist() == x.argmax(1).tolist()
        True
    """

    arrays = NDARRAYS
    _python_module, _bucket_module = FeedForwardModule, FeedForwardBucketingModule


def load_checkpoint(prefix: str, epoch: int) -> tuple[Symbol, dict[str, NDArray], dict[str, NDArray]]:
    """Read `prefix-symbol.json` and `prefix-%04d.params`, written by MXNet or jfit.

    Args:
        prefix: path and first part of the file names.
        epoch: number in the name of the parameter file.

    Returns:
        (symbol, parameters by name, auxiliary states by name), arrays as NDArrays.

    Raises:
        MXNetError: a file is missing (also a FileNotFoundError) or damaged.

    Example:
        >>> import jfit.mx as mx
        >>> net = mx.sym.Variable("x")
        >>> mx.model.save_checkpoint("nets", 1, net, {"w": mx.nd.ones(2)}, {})
        >>> load_checkpoint("nets", 1)[1]["w"].shape
        (2,)
    """
    return load(f"{prefix}-symbol.json"), *load_params(prefix, epoch)


def load_params(prefix: str, epoch: int) -> tuple[dict[str, NDArray], dict[str, NDArray]]:
    """Read the parameter file `prefix-%04d.params`.

    Args:
        prefix: path and first part of the file name.
        epoch: number in the file name.

    Returns:
        (parameters by name, auxiliary states by name), arrays as NDArrays.

    Raises:
        MXNetError: the file is missing (also a FileNotFoundError) or damaged.

    Example:
        >>> import jfit.mx as mx
        >>> mx.model.save_checkpoint("nets", 2, None, {"w": mx.nd.ones(2)}, {})
        >>> load_params("nets", 2)[0]["w"].shape
        (2,)
    """
    args, aux = files.load_params(prefix, epoch)
    return as_ndarrays(args), as_ndarrays(aux)
