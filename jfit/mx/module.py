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

from typing import Any

from jfit.facade import base_module, module
from jfit.mx.nd.array import NDArray
from jfit.mx.symbol import Symbol

__all__ = ["BaseModule", "Module"]


class _Boxed:
    """Arrays come out as NDArrays, graphs from files as `mx.sym.Symbol`."""

    def _box(self, array: Any) -> NDArray:
        return array if isinstance(array, NDArray) else NDArray(array)

    _box_cell = _box

    @classmethod
    def _symbol_of(cls, symbol: Any) -> Symbol:
        return symbol if isinstance(symbol, Symbol) else Symbol(symbol.heads)


class BaseModule(_Boxed, base_module.BaseModule):
    """Base of modules; see `jfit.facade.base_module.BaseModule`."""


class Module(_Boxed, module.Module):
    """A symbol bound to shapes and devices; see `jfit.Module`."""
