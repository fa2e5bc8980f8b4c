"""Several numbers of one array, and one number of several arrays: moments, cumsum, sums of squares, tests for finite values."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from jfit.ops.attributes import DTYPES, flag, integer, maybe_choice, maybe_integer, maybe_shape, number
from jfit.ops.reduce import REDUCE_ATTRS, reduce_rows, reduced_axes
from jfit.ops.registry import operator
from jfit.ops.rows import LOST, RowLayout, lost_rows
from jfit.ops.rules import accumulating, dtype_of, positive, removed, unify


def _moments_rows(attrs, rows, shapes, outs):
    axes = tuple(positive(a, len(shapes[0]), "axes") for a in attrs.axes or ())
    return [removed(rows[0], axes, attrs.keepdims)] * 2


@operator(
    "moments",
    outputs=("output0", "output1"),
    attrs={"axes": maybe_shape(None), "keepdims": flag(False)},
    rows=_moments_rows,
)
def moments(ctx, attrs, data):
    """y₀ = mean of x over the axes, y₁ = mean of (x - y₀)²."""
    if not attrs.axes:
        raise ValueError(f"axes is {attrs.axes}, moments needs the axes to go over; name all of them for the whole array")
    axes = tuple(positive(a, data.ndim, "axes") for a in attrs.axes)
    wide = data.astype(accumulating(data.dtype))
    mean = jnp.mean(wide, axes, keepdims=True)
    variance = jnp.mean(jnp.square(wide - mean), axes, keepdims=attrs.keepdims)
    mean = mean if attrs.keepdims else mean.reshape(variance.shape)
    return tuple((m.reshape((1,)) if m.ndim == 0 else m).astype(data.dtype) for m in (mean, variance))


def _cumsum_rows(attrs, rows, shapes, outs):
    first = rows[0]
    mixed = isinstance(first, RowLayout) and (attrs.axis is None or positive(attrs.axis, len(shapes[0])) == first.axis)
    return [LOST if mixed else first]


@operator(
    "cumsum",
    inputs=("a",),
    attrs={
        "axis": maybe_integer(None),
        "dtype": maybe_choice("float16", "float32", "float64", "int32", "int64", "int8"),
    },
    types=lambda attrs, ins: (ins, [ins[0] if attrs.dtype is None else DTYPES[attrs.dtype]]),
    aliases=("_np_cumsum",),  # the name that MXNet writes into files
    rows=_cumsum_rows,
)
def cumsum(ctx, attrs, a):
    """y[k] = x[0] + ... + x[k] along the axis; without axis the data is flattened first."""
    dtype = a.dtype if attrs.dtype is None else dtype_of(attrs.dtype)
    lined, axis = (a.reshape(-1), 0) if attrs.axis is None else (a, positive(attrs.axis, a.ndim))
    return jnp.cumsum(lined.astype(accumulating(dtype)), axis, dtype=accumulating(dtype)).astype(dtype)


@operator("_square_sum", attrs=REDUCE_ATTRS, rows=reduce_rows)
def square_sum(ctx, attrs, data):
    """y = Σ x² over the axes."""
    axes = reduced_axes(attrs, data.ndim)
    total = jnp.sum(jnp.square(data.astype(accumulating(data.dtype))), axes, keepdims=attrs.keepdims).astype(data.dtype)
    return total.reshape((1,)) if total.ndim == 0 else total


def _array_names(attrs):
    return tuple(f"array_{i}" for i in range(attrs.num_arrays))


def _float_types(attrs, ins):
    return ins, [np.dtype(np.float32)]


SEVERAL: dict[str, Any] = {"inputs": _array_names, "variadic": "num_arrays", "types": _float_types, "rows": lost_rows}


@operator("multi_sum_sq", attrs={"num_arrays": integer()}, **SEVERAL)
def multi_sum_sq(ctx, attrs, *arrays):
    """y[i] = Σ xᵢ², in float32."""
    return jnp.stack([jnp.sum(jnp.square(a.astype(jnp.float32))) for a in arrays])


def _finite(arrays: Any) -> Any:
    found = [jnp.all(jnp.isfinite(a)) for a in arrays]
    return jnp.all(jnp.stack(found)).astype(jnp.float32).reshape((1,))


@operator("all_finite", attrs={"init_output": flag(True)}, types=_float_types, rows=lost_rows)
def all_finite(ctx, attrs, data):
    """y = 1 where every entry of x is finite, else 0."""
    return _finite([data])


@operator("multi_all_finite", attrs={"num_arrays": integer(1), "init_output": flag(True)}, **SEVERAL)
def multi_all_finite(ctx, attrs, *arrays):
    """y = 1 where every entry of every array is finite, else 0."""
    return _finite(arrays)


@operator(
    "_contrib_allclose",
    inputs=("a", "b"),
    attrs={"rtol": number(1e-5), "atol": number(1e-8), "equal_nan": flag(True)},
    fill=lambda attrs, ins, outs: [unify(ins)] * 2,
    types=lambda attrs, ins: ([ins[0] or ins[1]] * 2, [DTYPES["uint8"]]),
    rows=lost_rows,
)
def allclose(ctx, attrs, a, b):
    """y = 1 where |a - b| <= atol + rtol |b| everywhere, else 0; a single number without axes."""
    return jnp.allclose(a, b, attrs.rtol, attrs.atol, equal_nan=attrs.equal_nan).astype(jnp.uint8)
