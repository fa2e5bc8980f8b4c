"""Symbols with the operators and methods of `mx.np.ndarray`, for blocks that are hybridized with NumPy semantics."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from jfit.mxnet.numpy.arrays import OPERATORS, compute, ndarray
from jfit.mxnet.numpy.functions import METHODS
from jfit.mxnet.symbol.symbol import Symbol


class NumpySymbol(Symbol):
    """A Symbol whose operators broadcast and promote as those of `mx.np.ndarray`; each of its nodes has one output."""

    def reshape(self, *shape: Any) -> Any:
        """Reshape; one size can be -1."""
        return compute(jnp.reshape, (self, shape[0] if isinstance(shape[0], tuple) else shape))


for _name in (*METHODS, *OPERATORS):
    setattr(NumpySymbol, _name, getattr(ndarray, _name))


def as_numpy_symbol(graph: Any) -> NumpySymbol:
    """Convert a graph to a NumpySymbol of the same outputs.

    Example:
        >>> import jfit.mx as mx
        >>> (as_numpy_symbol(mx.sym.var("x")) + 1).list_arguments()
        ['x']
    """
    return graph if isinstance(graph, NumpySymbol) else NumpySymbol(graph.heads)
