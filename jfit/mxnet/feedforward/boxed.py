"""`mx.model`: checkpoints, and the estimator from before modules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jfit.mxnet import files
from jfit.mxnet.base import translated
from jfit.mxnet.callback import BatchEndParam
from jfit.mxnet.feedforward import feedforward
from jfit.mxnet.feedforward import modules as feedforward_modules
from jfit.mxnet.module.boxed import Boxed, BoxedModule
from jfit.mxnet.ndarray.array import NDArray, held
from jfit.mxnet.symbol import Symbol, load

__all__ = ["BatchEndParam", "FeedForward", "load_checkpoint", "load_params", "save_checkpoint"]

Arrays = dict[str, NDArray]


class _PythonFed(BoxedModule, feedforward_modules.PythonFed):
    """The module under a FeedForward of the Python tradition."""


class _JuliaFed(BoxedModule, feedforward_modules.JuliaFed):
    """The module under a FeedForward of the Julia tradition."""


class _PythonBuckets(BoxedModule, feedforward_modules.PythonBuckets):
    """The modules under a FeedForward whose symbol is a function of the bucket key."""

    _module_class = _PythonFed


class FeedForward(Boxed, feedforward.FeedForward):
    """A network with its parameters, as NDArrays; see `jfit.mxnet.feedforward.feedforward.FeedForward`.

    Example:
        >>> import jfit.mx as mx, numpy as np
        >>> net = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2), name="softmax")
        >>> x = np.eye(2, dtype="float32").repeat(20, axis=0)
        >>> model = FeedForward(net, ctx=mx.cpu(), num_epoch=20, numpy_batch_size=8, learning_rate=1.0)
        >>> model.fit(x, x.argmax(1))
        >>> model.predict(x).argmax(1).tolist() == x.argmax(1).tolist()
        True
    """

    _python_module = _PythonFed
    _julia_module = _JuliaFed
    _bucket_module = _PythonBuckets


def save_checkpoint(
    prefix: str,
    epoch: int,
    symbol: Symbol | None,
    arg_params: Mapping[str, Any],
    aux_params: Mapping[str, Any],
    remove_amp_cast: bool = True,
) -> None:
    """Write `prefix-symbol.json` and `prefix-%04d.params`.

    Example:
        >>> import jfit.mx as mx
        >>> save_checkpoint("note", 1, mx.sym.Variable("x"), {"w": mx.nd.ones(2)}, {})
        >>> load_checkpoint("note", 1)[1]["w"].asnumpy().tolist()
        [1.0, 1.0]
    """
    files.save_checkpoint(prefix, epoch, symbol, arg_params, aux_params, remove_amp_cast)


def load_checkpoint(prefix: str, epoch: int) -> tuple[Symbol, Arrays, Arrays]:
    """(symbol, parameters, auxiliary states) of a checkpoint that MXNet or jfit wrote.

    Raises:
        MXNetError: a file is missing (a FileNotFoundError too), or damaged.
    """
    return load(f"{prefix}-symbol.json"), *load_params(prefix, epoch)


def load_params(prefix: str, epoch: int) -> tuple[Arrays, Arrays]:
    """(parameters, auxiliary states) of `prefix-%04d.params`."""
    with translated():
        args, aux = files.load_params(prefix, epoch)
    return _boxed(args), _boxed(aux)


def _boxed(arrays: Mapping[str, Any]) -> Arrays:
    return {k: NDArray(held(v, v.dtype)) for k, v in arrays.items()}
