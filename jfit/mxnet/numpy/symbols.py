"""Symbols with the operators and methods of `mx.np.ndarray`, for blocks that are hybridized with NumPy semantics."""

from __future__ import annotations

import functools
import numbers
from typing import Any

import jax.numpy as jnp

from jfit.graph.nodes import Entry
from jfit.graph.scopes import raw_name_of
from jfit.mxnet import numpy
from jfit.mxnet.numpy.arrays import OPERATORS, compute, ndarray
from jfit.mxnet.numpy.functions import CREATED, METHODS
from jfit.mxnet.recording.calls import function_call
from jfit.mxnet.symbol.symbol import Symbol


class NumpySymbol(Symbol):
    """A Symbol whose operators broadcast and promote as those of `mx.np.ndarray`.

    It stands for one array: functions with several results return several symbols.
    """

    def __getitem__(self, key: Any) -> Any:
        """Index the value of this symbol by integers and slices; select one of several outputs, or an output by name.

        Raises:
            IndexError: the key has other entries.  (An integer out of range raises when the shapes are known, an MXNetError.)
        """
        if len(self) > 1 or isinstance(key, str):
            return super().__getitem__(key)
        keys = key if isinstance(key, tuple) else (key,)
        other = [k for k in keys if isinstance(k, bool) or not isinstance(k, (slice, numbers.Integral))]
        if other:
            remedy = "use F.np.take(x, indices), with the indices as an input of the block"
            raise IndexError(f"a hybridized block indexes by integers and slices, found {other[0]!r}; {remedy}")
        parts = [(k.start, k.stop, k.step) if isinstance(k, slice) else int(k) for k in keys]
        return compute(_sliced, (self, parts))

    def reshape(self, *shape: Any) -> Any:
        """Reshape; one size can be -1."""
        return compute(jnp.reshape, (self, shape[0] if isinstance(shape[0], tuple) else shape))


def _sliced(x: Any, parts: tuple[Any, ...]) -> Any:
    for axis, (size, part) in enumerate(zip(x.shape, parts, strict=False)):
        if isinstance(part, int) and not -size <= part < size:  # JAX would take the last entry
            raise IndexError(f"index {part} is out of range on axis {axis}, which has {size} entries")
    return x[tuple([slice(*p) if isinstance(p, tuple) else p for p in parts])]


for _name in (*METHODS, *OPERATORS):
    setattr(NumpySymbol, _name, getattr(ndarray, _name))
NumpySymbol.T = property(ndarray.transpose, doc="The value with its axes reversed.")  # type: ignore[attr-defined]


class _Functions:
    """`F.np` of hybridized blocks: the functions of `mx.np`, of which those that create an array return a constant symbol."""

    def __getattr__(self, name: str) -> Any:
        function = getattr(numpy, name)
        return (lambda *args, **kwargs: _constant(function(*args, **kwargs))) if name in CREATED else function


def _constant(value: Any) -> Any:
    """Return an array as a symbol; others, such as `ones_like` of a symbol, are unchanged."""
    if not isinstance(value, ndarray):
        return value
    # not kept by `function_call`, so that the array is released with the graph
    call = function_call.__wrapped__(functools.partial(jnp.asarray, value.asnumpy()), 0)
    return NumpySymbol([Entry(call.node(raw_name_of(None, "np_constant", True), [], False), 0)])


np = _Functions()


def as_numpy_symbol(graph: Any) -> NumpySymbol:
    """Convert a graph to a NumpySymbol of the same outputs.

    Example:
        >>> import jfit.mx as mx
        >>> (as_numpy_symbol(mx.sym.var("x")) + 1).list_arguments()
        ['x']
    """
    return graph if isinstance(graph, NumpySymbol) else NumpySymbol(graph.heads)
