"""Nodes without inputs, such as `sym.zeros`, and other functions of MXNet's Python interface that choose an operator."""

from __future__ import annotations

from typing import Any

from jfit.graph.compose import apply_op
from jfit.graph.nodes import G, Graph


def _node(operator: str, cls: type[G], inputs: tuple[Graph, ...] = (), **kwargs: Any) -> G:
    name, attr = kwargs.pop("name", None), kwargs.pop("attr", None)
    return apply_op(operator, inputs, kwargs, node_name=name, attr=attr, cls=cls)


def zeros(shape: Any, dtype: Any = "float32", *, cls: type[G], **kwargs: Any) -> G:
    """Create a node whose output is filled with 0.

    Args:
        shape: int or tuple; 0 for a size to infer.
        dtype: float32 by default.
        cls: class of the result.
        kwargs: `name` and attributes of the node.

    Returns:
        Symbol.

    Example:
        >>> import jfit
        >>> jfit.sym.zeros((2, 3)).infer_shape()[1]
        [(2, 3)]
    """
    return _node("_zeros", cls, shape=shape, dtype=dtype or "float32", **kwargs)


def ones(shape: Any, dtype: Any = "float32", *, cls: type[G], **kwargs: Any) -> G:
    """Create a node whose output is filled with 1.

    Args:
        shape: int or tuple; 0 for a size to infer.
        dtype: float32 by default.
        cls: class of the result.
        kwargs: `name` and attributes of the node.

    Returns:
        Symbol.

    Example:
        >>> import jfit
        >>> jfit.sym.ones((2,)).infer_shape()[1]
        [(2,)]
    """
    return _node("_ones", cls, shape=shape, dtype=dtype or "float32", **kwargs)


def full(shape: Any, val: float, dtype: Any = "float32", *, cls: type[G], **kwargs: Any) -> G:
    """Create a node whose output is filled with one value.

    Args:
        shape: int or tuple; 0 for a size to infer.
        val: the value.
        dtype: float32 by default.
        cls: class of the result.
        kwargs: `name` and attributes of the node.

    Returns:
        Symbol.

    Example:
        >>> import jfit
        >>> jfit.sym.full((2,), 3).list_attr()["value"]
        '3.0'
    """
    return _node("_full", cls, shape=shape, value=float(val), dtype=dtype or "float32", **kwargs)


def arange(start: float, stop: float | None = None, step: float = 1.0, repeat: int = 1, *, cls: type[G], **kwargs: Any) -> G:
    """Create a node of evenly spaced values in [start, stop), each repeated `repeat` times.

    Args:
        start: first value; with `stop=None` it is the end, and the first value is 0.
        stop: end, not included.
        step: spacing.
        repeat: number of times each value is repeated.
        cls: class of the result.
        kwargs: `name`, `dtype` (float32 by default) and attributes of the node.

    Returns:
        Symbol.

    Example:
        >>> import jfit
        >>> jfit.sym.arange(1, 3, repeat=2).infer_shape()[1]
        [(4,)]
    """
    return _node("_arange", cls, start=start, stop=stop, step=step, repeat=repeat, **kwargs)


def linspace(start: float, stop: float, num: int, endpoint: bool = True, *, cls: type[G], **kwargs: Any) -> G:
    """Create a node of `num` evenly spaced values from `start` to `stop`.

    Args:
        start: first value.
        stop: last value; excluded if `endpoint` is False.
        num: number of values.
        endpoint: include `stop`.
        cls: class of the result.
        kwargs: `name`, `dtype` (float32 by default) and attributes of the node.

    Returns:
        Symbol.

    Example:
        >>> import jfit
        >>> jfit.sym.linspace(0, 1, 3).infer_shape()[1]
        [(3,)]
    """
    return _node("_linspace", cls, start=start, stop=stop, num=num, endpoint=endpoint, **kwargs)


def eye(N: int, M: int = 0, k: int = 0, *, cls: type[G], **kwargs: Any) -> G:
    """Create a node with ones on a diagonal and zeros elsewhere.

    Args:
        N: number of rows.
        M: number of columns; 0 means N.
        k: diagonal; positive values are above the main diagonal.
        cls: class of the result.
        kwargs: `name`, `dtype` (float32 by default) and attributes of the node.

    Returns:
        Symbol.

    Example:
        >>> import jfit
        >>> jfit.sym.eye(2, 3).infer_shape()[1]
        [(2, 3)]
    """
    return _node("_eye", cls, N=N, M=M, k=k, **kwargs)


def histogram(a: Graph, bins: Any = 10, range: Any = None, *, cls: type[G], **kwargs: Any) -> G:
    """Count the entries of an array in bins, as `numpy.histogram`.

    Args:
        a: symbol of the array.
        bins: number of bins of equal width, or a symbol of the edges.
        range: lower edge of the first and upper edge of the last bin, if `bins` is a number.
        cls: class of the result.
        kwargs: `name` and attributes of the node.

    Returns:
        Symbol with two outputs, the counts and the edges.

    Raises:
        ValueError: `bins` is a number and `range` is missing.

    Example:
        >>> import jfit
        >>> jfit.sym.histogram(jfit.sym.Variable("a"), bins=3, range=(0, 3)).infer_shape(a=(5,))[1]
        [(3,), (4,)]
    """
    if isinstance(bins, Graph):
        return _node("_histogram", cls, (a, bins), **kwargs)
    if range is None:
        raise ValueError(f"histogram with {bins} bins needs range=(lowest, highest edge)")
    return _node("_histogram", cls, (a,), bin_cnt=bins, range=range, **kwargs)
