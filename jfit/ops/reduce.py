"""Reductions over axes. A reduction over all axes has shape (1,), because MXNet's legacy shapes have no scalars."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jfit.ops.attributes import DTYPES, flag, integer, maybe_choice, maybe_integer, maybe_shape, number, numbers
from jfit.ops.elementwise import magnitude
from jfit.ops.registry import operator
from jfit.ops.rows import lost_rows
from jfit.ops.rules import accumulating, axis_or_all, cast_types, dtype_of, fixed_types, normalize_axis, reduced, unify, unmixed

REDUCE_ATTRS = {"axis": maybe_shape(None), "keepdims": flag(False), "exclude": flag(False)}


def reduced_axes(attrs: Any, ndim: int) -> tuple[int, ...]:
    """Return the axes to reduce, non-negative and sorted, from the attributes `axis` and `exclude`.

    Raises:
        ValueError: an axis is out of range.
    """
    if not attrs.axis:
        return tuple(range(ndim))  # as in MXNet, an empty axis means all axes, even with exclude
    axes = {normalize_axis(a, ndim) for a in attrs.axis}
    return tuple(a for a in range(ndim) if (a in axes) != bool(attrs.get("exclude")))


def _shaped(result: Array, keepdims: bool, ndim: int) -> Array:
    return result.reshape((1,)) if result.ndim == 0 and not (keepdims and ndim == 0) else result


@partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def _max(data: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    return jnp.max(data, axes, keepdims=keepdims)


@_max.defjvp
def _max_jvp(axes, keepdims, primals, tangents):
    # As in MXNet, each of several equal maxima gets the whole gradient; JAX would divide it among them.
    (data,), (change,) = primals, tangents
    top = jnp.max(data, axes, keepdims=True)
    chosen = jnp.where(data == top, change, jnp.zeros_like(change))
    return _max(data, axes, keepdims), jnp.sum(chosen, axes, keepdims=keepdims)


def _plain(function: Callable[..., Array]) -> Callable[[Array, tuple[int, ...], bool], Array]:
    return lambda data, axes, keepdims: function(data, axes, keepdims=keepdims)


def _square_sum(data: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    return jnp.sum(jnp.square(data.astype(accumulating(data.dtype))), axes, keepdims=keepdims)


# name, aliases, function, formula
TABLE: list[tuple[str, str, Callable[[Array, tuple[int, ...], bool], Array], str]] = [
    ("sum", "_sparse_sum sum_axis", _plain(jnp.sum), "y = Σ x over the axes."),
    ("mean", "_sparse_mean", _plain(jnp.mean), "y = Σ x / n over the axes, n the number of entries summed."),
    ("prod", "", _plain(jnp.prod), "y = Π x over the axes."),
    ("_square_sum", "", _square_sum, "y = Σ x² over the axes."),
    ("nansum", "", _plain(jnp.nansum), "y = Σ x over the axes, with NaN as 0."),
    ("nanprod", "", _plain(jnp.nanprod), "y = Π x over the axes, with NaN as 1."),
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
    operator(name, attrs=REDUCE_ATTRS, aliases=tuple(aliases.split()), rows=reduced(reduced_axes))(fn)


for row in TABLE:
    _add(*row)


@operator(
    "norm",
    attrs={
        "ord": integer(2),
        "axis": maybe_shape(None),
        "out_dtype": maybe_choice("float16", "float32", "float64", "int32", "int64", "int8"),
        "keepdims": flag(False),
    },
    aliases=("_sparse_norm",),
    types=lambda attrs, ins: (ins, [ins[0] if attrs.out_dtype is None else DTYPES[attrs.out_dtype]]),
    rows=reduced(reduced_axes),
)
def norm(ctx, attrs, data):
    """y = Σ|x| (ord 1) or √Σx² (ord 2) over the axes; the gradient at x = 0 is 0."""
    if attrs.ord not in (1, 2):
        raise ValueError(f"ord is {attrs.ord}, norm supports 1 (sum of magnitudes) and 2 (Euclidean); choose one of them")
    axes = reduced_axes(attrs, data.ndim)
    if attrs.ord == 1:
        result = jnp.sum(magnitude(data.astype(accumulating(data.dtype))), axes, keepdims=attrs.keepdims)
    else:  # float32, because squares overflow float16 from 256 on, and 8-bit integers sooner
        wide = data.astype(jnp.promote_types(data.dtype, jnp.float32))
        squares = jnp.sum(jnp.square(wide), axes, keepdims=attrs.keepdims)
        result = jnp.where(squares == 0, jnp.zeros_like(squares), jnp.sqrt(jnp.where(squares == 0, 1, squares)))
    result = result.astype(data.dtype if attrs.out_dtype is None else dtype_of(attrs.out_dtype))
    return _shaped(result, attrs.keepdims, data.ndim)


def _add_arg(name: str, function: Callable[..., Array], formula: str) -> None:
    def fn(ctx: Any, attrs: Any, data: Array) -> Array:
        axis = None if attrs.axis is None else normalize_axis(attrs.axis, data.ndim)
        result = function(data, axis, keepdims=attrs.keepdims).astype(data.dtype)
        return jnp.atleast_1d(result)

    fn.__doc__ = formula
    attrs = {"axis": maybe_integer(None), "keepdims": flag(False)}
    operator(name, attrs=attrs, rows=reduced(axis_or_all))(fn)


_add_arg("argmax", jnp.argmax, "y = index of the first maximum along the axis, in the dtype of x; zero gradient.")
_add_arg("argmin", jnp.argmin, "y = index of the first minimum along the axis, in the dtype of x; zero gradient.")


@operator("argmax_channel", rows=reduced(lambda attrs, ndim: (1,)))
def argmax_channel(ctx, attrs, data):
    """y = index of the first maximum along axis 1, in the dtype of x; zero gradient."""
    return jnp.argmax(data, 1).astype(data.dtype)


# ----------------------------------------------------------------------------------------------------
# moments, cumsum, sums of squares, tests for finite or close values.


def _moments_axes(attrs, ndim):
    return tuple(normalize_axis(a, ndim, "axes") for a in attrs.axes or range(ndim))


@operator(
    "moments",
    outputs=("output0", "output1"),
    attrs={"axes": maybe_shape(None), "keepdims": flag(False)},
    rows=reduced(_moments_axes),
)
def moments(ctx, attrs, data):
    """y₀ = mean of x over the axes, y₁ = mean of (x - y₀)²."""
    axes = _moments_axes(attrs, data.ndim)
    wide = data.astype(accumulating(data.dtype))
    mean = jnp.mean(wide, axes, keepdims=True)
    variance = jnp.mean(jnp.square(wide - mean), axes, keepdims=attrs.keepdims)
    mean = mean if attrs.keepdims else mean.reshape(variance.shape)
    return tuple(jnp.atleast_1d(m).astype(data.dtype) for m in (mean, variance))


@operator(
    "cumsum",
    attrs={"axis": maybe_integer(None), "dtype": maybe_choice("float16", "float32", "float64", "int32", "int64", "int8")},
    types=cast_types,
    aliases=("_np_cumsum",),  # the name that MXNet writes into files
    rows=unmixed(axis_or_all),
)
def cumsum(ctx, attrs, a):
    """y[k] = x[0] + ... + x[k] along the axis; without axis the data is flattened first."""
    dtype = a.dtype if attrs.dtype is None else dtype_of(attrs.dtype)
    data, axis = (a.reshape(-1), 0) if attrs.axis is None else (a, normalize_axis(attrs.axis, a.ndim))
    return jnp.cumsum(data.astype(accumulating(dtype)), axis, dtype=accumulating(dtype)).astype(dtype)


SEVERAL: dict[str, Any] = {
    "inputs": lambda attrs: tuple(f"array_{i}" for i in range(attrs.num_arrays)),
    "variadic": "num_arrays",
    "types": fixed_types("float32"),
    "rows": lost_rows,
}


@operator("multi_sum_sq", attrs={"num_arrays": integer()}, **SEVERAL)
def multi_sum_sq(ctx, attrs, *arrays):
    """y[i] = Σ xᵢ², in float32."""
    return jnp.stack([jnp.sum(jnp.square(a.astype(jnp.float32))) for a in arrays])


def _finite(arrays: Any) -> Any:
    finite = [jnp.all(jnp.isfinite(a)) for a in arrays]
    return jnp.all(jnp.stack(finite)).astype(jnp.float32).reshape((1,))


@operator("all_finite", attrs={"init_output": flag(True)}, types=fixed_types("float32"), rows=lost_rows)
def all_finite(ctx, attrs, data):
    """y = 1 if every entry of x is finite, else 0; shape (1,)."""
    return _finite([data])


@operator("multi_all_finite", attrs={"num_arrays": integer(1), "init_output": flag(True)}, **SEVERAL)
def multi_all_finite(ctx, attrs, *arrays):
    """y = 1 if every entry of every array is finite, else 0; shape (1,)."""
    return _finite(arrays)


@operator(
    "_contrib_allclose",
    attrs={"rtol": number(1e-5), "atol": number(1e-8), "equal_nan": flag(True)},
    fill=lambda attrs, ins, outs: [unify(ins)] * 2,
    types=lambda attrs, ins: ([ins[0] or ins[1]] * 2, [DTYPES["uint8"]]),
    rows=lost_rows,
)
def allclose(ctx, attrs, a, b):
    """y = 1 if |a - b| <= atol + rtol |b| everywhere, else 0; a scalar of shape ()."""
    return jnp.allclose(a, b, attrs.rtol, attrs.atol, equal_nan=attrs.equal_nan).astype(jnp.uint8)


# ----------------------------------------------------------------------------------------------------
# Counting entries: _histogram, _contrib_getnnz.


@operator(
    "_histogram",
    inputs=lambda attrs: ("data",) if attrs.bin_cnt is not None else ("data", "bins"),
    outputs=("output0", "output1"),
    attrs={"bin_cnt": maybe_integer(None), "range": numbers(())},
    types=lambda attrs, ins: ([ins[0]] * len(ins), [DTYPES["int64"], ins[0]]),
    rows=lost_rows,
)
def histogram(ctx, attrs, data, bins=None):
    """y₀[k] = number of entries in [edge k, edge k + 1), the last bin including its upper edge; y₁ = the edges."""
    if bins is None:
        low, high = attrs.range
        bins = jnp.asarray(np.linspace(low, high, attrs.bin_cnt + 1), data.dtype)
    entries = data.reshape(-1)
    count = bins.shape[0] - 1
    at = jnp.searchsorted(bins, entries, side="right").astype(jnp.int32) - 1
    inside = (entries >= bins[0]) & (entries <= bins[-1])
    at = jnp.where(inside, jnp.minimum(at, count - 1), count)
    return jnp.zeros((count + 1,), dtype_of("int64")).at[at].add(1)[:-1], bins


@operator("_contrib_getnnz", attrs={"axis": maybe_integer(None)}, types=fixed_types("int64"), rows=reduced(axis_or_all))
def getnnz(ctx, attrs, data):
    """y = number of nonzero entries of a matrix, in total or along an axis."""
    axis = None if attrs.axis is None else normalize_axis(attrs.axis, data.ndim)
    counts = jnp.sum(data != 0, axis, dtype=dtype_of("int64"))
    return jnp.atleast_1d(counts)
