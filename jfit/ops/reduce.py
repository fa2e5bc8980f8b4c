"""Reductions over axes.  A reduction over everything gives shape (1,), as MXNet's legacy shapes have no scalars."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jfit.ops.attributes import DTYPES, flag, integer, maybe_choice, maybe_integer, maybe_shape
from jfit.ops.registry import operator
from jfit.ops.rules import accumulating, dtype_of, positive, removed
from jfit.ops.unary import magnitude

REDUCE_ATTRS = {"axis": maybe_shape(None), "keepdims": flag(False), "exclude": flag(False)}


def reduced_axes(attrs: Any, ndim: int) -> tuple[int, ...]:
    """The axes that a reduction takes away, none negative, in order.

    Raises:
        ValueError: an axis does not exist.
    """
    if not attrs.axis:
        return tuple(range(ndim))  # MXNet: no axes are all axes, also with exclude
    axes = {positive(a, ndim) for a in attrs.axis}
    return tuple(a for a in range(ndim) if (a in axes) != bool(attrs.get("exclude")))


def _shaped(result: Array, keepdims: bool, ndim: int) -> Array:
    return result.reshape((1,)) if result.ndim == 0 and not (keepdims and ndim == 0) else result


def reduce_rows(attrs, rows, shapes, outs):
    """Row rule: the batch axis moves up past reduced axes; reducing it loses the rows."""
    return [removed(rows[0], reduced_axes(attrs, len(shapes[0])), attrs.keepdims)]


@partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def _max(data: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    return jnp.max(data, axes, keepdims=keepdims)


@_max.defjvp
def _max_jvp(axes, keepdims, primals, tangents):
    # MXNet gives every tied maximum the whole gradient, JAX would share it out
    (data,), (change,) = primals, tangents
    top = jnp.max(data, axes, keepdims=True)
    chosen = jnp.where(data == top, change, jnp.zeros_like(change))
    return _max(data, axes, keepdims), jnp.sum(chosen, axes, keepdims=keepdims)


def _plain(function: Callable[..., Array]) -> Callable[[Array, tuple[int, ...], bool], Array]:
    return lambda data, axes, keepdims: function(data, axes, keepdims=keepdims)


# name, aliases, function, formula
TABLE: list[tuple[str, str, Callable[[Array, tuple[int, ...], bool], Array], str]] = [
    ("sum", "_sparse_sum sum_axis", _plain(jnp.sum), "y = Σ x over the axes."),
    ("mean", "_sparse_mean", _plain(jnp.mean), "y = Σ x / n over the axes."),
    ("prod", "", _plain(jnp.prod), "y = Π x over the axes."),
    ("nansum", "", _plain(jnp.nansum), "y = Σ x over the axes, NaN counted as 0."),
    ("nanprod", "", _plain(jnp.nanprod), "y = Π x over the axes, NaN counted as 1."),
    ("max", "max_axis", _max, "y = max x over the axes; each of several equal maxima gets the whole gradient."),
    (
        "min",
        "min_axis",
        lambda data, axes, keepdims: -_max(-data, axes, keepdims),
        "y = min x over the axes; each of several equal minima gets the whole gradient.",
    ),
]


def _add(name: str, aliases: str, function: Callable[..., Array], formula: str) -> None:
    def fn(ctx: Any, attrs: Any, data: Array) -> Array:
        axes = reduced_axes(attrs, data.ndim)
        return _shaped(function(data, axes, attrs.keepdims).astype(data.dtype), attrs.keepdims, data.ndim)

    fn.__doc__ = formula
    operator(name, attrs=REDUCE_ATTRS, aliases=tuple(aliases.split()), rows=reduce_rows)(fn)


for row in TABLE:
    _add(*row)


def _norm_types(attrs, ins):
    return ins, [ins[0] if attrs.out_dtype is None else DTYPES[attrs.out_dtype]]


@operator(
    "norm",
    attrs={
        "ord": integer(2),
        "axis": maybe_shape(None),
        "out_dtype": maybe_choice("float16", "float32", "float64", "int32", "int64", "int8"),
        "keepdims": flag(False),
    },
    aliases=("_sparse_norm",),
    types=_norm_types,
    rows=reduce_rows,
)
def norm(ctx, attrs, data):
    """y = Σ|x| (ord 1) or √Σx² (ord 2) over the axes; the gradient at x = 0 is 0."""
    if attrs.ord not in (1, 2):
        raise ValueError(f"ord is {attrs.ord}, norm knows 1 (sum of magnitudes) and 2 (Euclidean); choose one of them")
    axes = reduced_axes(attrs, data.ndim)
    if attrs.ord == 1:
        result = jnp.sum(magnitude(data.astype(accumulating(data.dtype))), axes, keepdims=attrs.keepdims)
    else:  # squares are too large for half precision from 256 on, for small integers sooner
        wide = data.astype(jnp.promote_types(data.dtype, jnp.float32))
        squares = jnp.sum(jnp.square(wide), axes, keepdims=attrs.keepdims)
        result = jnp.where(squares == 0, jnp.zeros_like(squares), jnp.sqrt(jnp.where(squares == 0, 1, squares)))
    result = result.astype(data.dtype if attrs.out_dtype is None else dtype_of(attrs.out_dtype))
    return _shaped(result, attrs.keepdims, data.ndim)


def _arg_rows(attrs, rows, shapes, outs):
    ndim = len(shapes[0])
    axes = tuple(range(ndim)) if attrs.axis is None else (positive(attrs.axis, ndim),)
    return [removed(rows[0], axes, attrs.keepdims)]


def _add_arg(name: str, function: Callable[..., Array], formula: str) -> None:
    def fn(ctx: Any, attrs: Any, data: Array) -> Array:
        axis = None if attrs.axis is None else positive(attrs.axis, data.ndim)
        found = function(data, axis, keepdims=attrs.keepdims).astype(data.dtype)
        return found.reshape((1,)) if found.ndim == 0 else found

    fn.__doc__ = formula
    attrs = {"axis": maybe_integer(None), "keepdims": flag(False)}
    operator(name, attrs=attrs, rows=_arg_rows)(fn)


_add_arg("argmax", jnp.argmax, "y = position of the first maximum along the axis, in the dtype of x; zero gradient.")
_add_arg("argmin", jnp.argmin, "y = position of the first minimum along the axis, in the dtype of x; zero gradient.")


@operator("argmax_channel", rows=lambda attrs, rows, shapes, outs: [removed(rows[0], (1,))])
def argmax_channel(ctx, attrs, data):
    """y = position of the first maximum along axis 1, in the dtype of x; zero gradient."""
    return jnp.argmax(data, 1).astype(data.dtype)
