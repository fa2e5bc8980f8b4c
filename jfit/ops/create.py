"""Arrays created from attributes (_zeros, _arange, _eye, ...) or from a shape (arange_like, index_array, shape_array, ...)."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jfit.ops.attributes import (
    CAST_TO,
    CAST_TO_NUMBERS,
    DTYPES,
    REQUIRED,
    choice,
    flag,
    integer,
    maybe_integer,
    maybe_number,
    maybe_shape,
    number,
    several,
    shape,
    text,
)
from jfit.ops.registry import operator
from jfit.ops.rows import RowLayout, lost_rows, no_rows
from jfit.ops.rules import dtype_attr_types, dtype_of, fixed_types, normalize_axis

RECORD: dict[str, Any] = {"inputs": (), "types": dtype_attr_types, "rows": no_rows}
SHAPED = {"shape": shape(()), "ctx": text(""), "dtype": choice(*CAST_TO, default="float32")}

RANGE = {
    "step": number(1.0),
    "repeat": integer(1),
    "infer_range": flag(False),
    "ctx": text(""),
    "dtype": choice(*CAST_TO_NUMBERS, default="float32"),
}


def _add_constant(name: str, value: int) -> None:
    def fn(ctx: Any, attrs: Any) -> Array:
        return jnp.full(attrs.shape, value, dtype_of(attrs.dtype))

    fn.__doc__ = f"y = {value} everywhere."
    operator(name, attrs=SHAPED, **RECORD)(fn)


_add_constant("_zeros", 0)
_add_constant("_ones", 1)


@operator("_full", attrs=SHAPED | {"value": number()}, **RECORD)
def full(ctx, attrs):
    """y = value everywhere."""
    return jnp.full(attrs.shape, attrs.value, dtype_of(attrs.dtype))


@operator("_arange", attrs={"start": number(), "stop": maybe_number(None), **RANGE}, **RECORD)
def arange(ctx, attrs):
    """y = start, start + step, ... below stop, each repeated `repeat` times; without stop the range is [0, start)."""
    if attrs.infer_range:
        raise ValueError("infer_range leaves the size of the array unknown, but jfit needs it to compile; pass stop")
    start, stop = (0.0, attrs.start) if attrs.stop is None else (attrs.start, attrs.stop)
    count = max(math.ceil((stop - start) / attrs.step), 0)
    return jnp.repeat(_stepped(start, attrs.step, jnp.arange(count, dtype=jnp.int32), dtype_of(attrs.dtype)), attrs.repeat)


def _stepped(start: float, step: float, numbers: Array, dtype: Any) -> Array:
    """Return start + step * numbers; for an integer dtype, start and step are truncated first, as in MXNet."""
    if jnp.issubdtype(dtype, jnp.floating):
        return (start + step * numbers.astype(dtype_of("float64"))).astype(dtype)
    return (int(start) + int(step) * numbers).astype(dtype)


@operator(
    "_zeros_without_dtype",
    attrs={"shape": shape(()), "ctx": text(""), "dtype": integer(-1)},
    types=lambda attrs, ins: (ins, [_numbered(attrs.dtype)]),
    rows=no_rows,
)
def zeros_without_dtype(ctx, attrs):
    """y = 0 everywhere; dtype is MXNet's dtype code, -1 for float32."""
    return jnp.zeros(attrs.shape, dtype_of(_numbered(attrs.dtype).name))


def _numbered(code: int) -> np.dtype:
    return DTYPES["float32"] if code < 0 else list(DTYPES.values())[code]


@operator(
    "_eye",
    attrs=several(integer, N=REQUIRED, M=0, k=0) | {"ctx": text(""), "dtype": choice(*CAST_TO_NUMBERS[1:], default="float32")},
    **RECORD,
)
def eye(ctx, attrs):
    """y[i, i + k] = 1, else 0, with N rows and M columns (N columns if M is 0)."""
    return jnp.eye(attrs.N, attrs.M if attrs.M > 0 else attrs.N, attrs.k, dtype_of(attrs.dtype))


@operator(
    "_linspace",
    attrs={"start": number(), "stop": maybe_number(None), "num": integer(50), "endpoint": flag(True), **RANGE},
    **RECORD,
)
def linspace(ctx, attrs):
    """y = num evenly spaced numbers from start to stop (endpoint=False excludes stop); step and repeat are ignored."""
    # computed in float64 on the host, because MXNet rounds only the result
    return jnp.asarray(np.linspace(attrs.start, attrs.stop, attrs.num, attrs.endpoint), dtype_of(attrs.dtype))


def _arange_like_rows(attrs, rows, shapes, outs):
    """Return where the batch rows are in the output (`RowLayout`).

    Without `axis`, as in the data.  A range along the axis of the rows has them on axis 0; a range along another axis
    does not depend on the batch (None).
    """
    first = rows[0]
    if not isinstance(first, RowLayout) or attrs.axis is None:
        return [first]
    return [first._replace(axis=0) if normalize_axis(attrs.axis, len(shapes[0])) == first.axis else None]


@operator(
    "_contrib_arange_like",
    attrs=several(number, start=0.0, step=1.0) | {"repeat": integer(1), "ctx": text(""), "axis": maybe_integer()},
    aliases=("_npx_arange_like",),
    rows=_arange_like_rows,
)
def arange_like(ctx, attrs, data):
    """y = start, start + step, ..., each repeated `repeat` times; with the shape of x, or a vector with the size of `axis`."""
    size = data.shape if attrs.axis is None else (data.shape[normalize_axis(attrs.axis, data.ndim)],)
    numbers = jnp.arange(math.prod(size), dtype=jnp.int32) // attrs.repeat
    return _stepped(attrs.start, attrs.step, numbers, data.dtype).reshape(size)


@operator(
    "_contrib_index_array",
    attrs={"axes": maybe_shape(None)},
    types=fixed_types("int64"),
    rows=lambda attrs, rows, shapes, outs: list(rows),
)
def index_array(ctx, attrs, data):
    """y[i, j, ..., :] = (i, j, ...), the index of each entry of x, or its components for `axes` only."""
    axes = range(data.ndim) if attrs.axes is None else [normalize_axis(a, data.ndim, "axes") for a in attrs.axes]
    places = [lax.broadcasted_iota(dtype_of("int64"), data.shape, a) for a in axes]
    return jnp.stack(places, -1) if places else jnp.zeros((*data.shape, 0), dtype_of("int64"))


@operator("shape_array", aliases=("_npx_shape_array",), types=fixed_types("int64"), rows=lost_rows)
def shape_array(ctx, attrs, data):
    """y = the shape of x; it includes the padding rows of the batch, which cannot be excluded."""
    return jnp.asarray(data.shape, dtype_of("int64"))


@operator("size_array", types=fixed_types("int64"), rows=lost_rows)
def size_array(ctx, attrs, data):
    """y = the number of entries of x; it includes the padding rows of the batch, which cannot be excluded."""
    return jnp.asarray([data.size], dtype_of("int64"))
