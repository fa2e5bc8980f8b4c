"""Between floats and eight-bit integers: quantize, quantize_v2, quantize_asym, requantize, dequantize.

An integer q stands for q · range / steps, where range is the largest magnitude of (min, max).  MXNet's CPU build counts steps
in two ways, and files are made for both: 127 of int8 and 255 of uint8, or half a step more (127.5 and 255.5).
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from jfit.ops.attributes import DTYPES, Attrs, choice, maybe_number
from jfit.ops.context import Ctx
from jfit.ops.registry import operator
from jfit.ops.rows import LOST
from jfit.ops.rules import batch_rows, dtype_of

STEPS = {"int8": 127.0, "uint8": 255.0, "int32": float(2**31 - 1)}
FINE_STEPS = {"int8": 127.5, "uint8": 255.5}
OUTPUTS = ("output0", "output1", "output2")
CALIBRATED = {"min_calib_range": maybe_number(), "max_calib_range": maybe_number()}


def largest(low: Array, high: Array) -> Array:
    """The largest magnitude of a range, as one number."""
    return jnp.maximum(jnp.abs(low), jnp.abs(high)).astype(jnp.float32).reshape(())


def steps_of(op: str, data: Array, steps: dict[str, float]) -> float:
    """How many steps the integers of `data` divide their range into."""
    if data.dtype.name not in steps:
        raise ValueError(f"{op}: data is {data.dtype}, needed {' or '.join(steps)}; quantize it first")
    return steps[data.dtype.name]


def as_integers(values: Array, name: str) -> Array:
    """Rounded to the nearest integer (halves to the even one), cut off at the ends of the dtype."""
    ends = np.iinfo(DTYPES[name])
    return jnp.clip(jnp.round(values), ends.min, ends.max).astype(dtype_of(name))


def one(value: Any) -> Array:
    """A range's end as the operators hand it on: (1,) float32."""
    return jnp.asarray(value, jnp.float32).reshape(1)


def range_shapes(attrs: Attrs, ins: list, outs: list) -> list:
    """Data as it is, every range of one number."""
    return [ins[0], *[(1,)] * (len(ins) - 1)]


def _quantized_types(attrs: Attrs, ins: list[Any]) -> tuple[list[Any], list[Any]]:
    floats = [DTYPES["float32"]]
    return [ins[0] or floats[0], *floats * (len(ins) - 1)], [DTYPES[_kind(attrs)], *floats * 2]


def _kind(attrs: Attrs) -> str:
    """The dtype of the result; auto is uint8 where calibration saw nothing negative."""
    if attrs.out_type != "auto":
        return attrs.out_type
    return "uint8" if _is_calibrated(attrs) and attrs.min_calib_range >= 0 else "int8"


def _is_calibrated(attrs: Attrs) -> bool:
    return attrs.min_calib_range is not None and attrs.max_calib_range is not None


def _kept_rows(attrs, rows, shapes, outs):
    """The integers keep the rows of the data; a range found in the data depends on all rows."""
    found = batch_rows(attrs, [rows[0]], shapes, outs[:1])
    free = rows[0] is None or _is_calibrated(attrs)
    return [*found, *[None if free else LOST] * 2]


def _ends(ctx: Ctx, data: Array) -> tuple[Array, Array]:
    """Smallest and largest value, rows of weight 0 left out."""
    mask = ctx.row_mask(data.ndim)
    if mask is None:
        return jnp.min(data), jnp.max(data)
    inside, ends = mask > 0, (jnp.iinfo if jnp.issubdtype(data.dtype, jnp.integer) else jnp.finfo)(data.dtype)
    return jnp.min(jnp.where(inside, data, ends.max)), jnp.max(jnp.where(inside, data, ends.min))


@operator(
    "_contrib_quantize",
    inputs=("data", "min_range", "max_range"),
    outputs=OUTPUTS,
    attrs={"out_type": choice("int8", "uint8", default="uint8")},
    fill=range_shapes,
    types=_quantized_types,
    rows=lambda attrs, rows, shapes, outs: [*batch_rows(attrs, rows[:1], shapes, outs[:1]), *rows[1:]],
)
def quantize(ctx: Ctx, attrs: Attrs, data: Array, min_range: Array, max_range: Array) -> tuple[Array, Array, Array]:
    """q = round(x · 127 / range) as int8 (· 255 as uint8), range = max(|min|, |max|); and the range."""
    size = largest(min_range, max_range)
    q = as_integers(data.astype(jnp.float32) * (STEPS[attrs.out_type] / size), attrs.out_type)
    if attrs.out_type == "uint8":
        return q, one(min_range), one(max_range)
    return q, one(-size), one(size)


@operator(
    "_contrib_quantize_v2",
    outputs=OUTPUTS,
    attrs={"out_type": choice("auto", "int8", "uint8", default="int8"), **CALIBRATED},
    types=_quantized_types,
    rows=_kept_rows,
)
def quantize_v2(ctx: Ctx, attrs: Attrs, data: Array) -> tuple[Array, Array, Array]:
    """q = round(x · 127.5 / range) as int8 (· 255.5 as uint8), the range calibrated or that of the data; and the range."""
    kind = _kind(attrs)
    if data.dtype.name in FINE_STEPS:  # integers already; as in MXNet, a step is one then
        steps = FINE_STEPS[data.dtype.name]
        return data, one(0.0 if data.dtype == jnp.uint8 else -steps), one(steps)
    low, high = (attrs.min_calib_range, attrs.max_calib_range) if _is_calibrated(attrs) else _ends(ctx, data)
    size = largest(jnp.asarray(low, jnp.float32), jnp.asarray(high, jnp.float32))
    q = as_integers(data.astype(jnp.float32) * (FINE_STEPS[kind] / size), kind)
    return (q, one(low), one(high)) if kind == "uint8" else (q, one(-size), one(size))


@operator(
    "_contrib_quantize_asym",
    outputs=("output", "scale", "shift"),
    attrs=CALIBRATED,
    types=lambda attrs, ins: ([ins[0] or DTYPES["float32"]], [DTYPES["uint8"], DTYPES["float32"], DTYPES["float32"]]),
    rows=_kept_rows,
)
def quantize_asym(ctx: Ctx, attrs: Attrs, data: Array) -> tuple[Array, Array, Array]:
    """q = round(x · scale + shift) as uint8, scale = 255 / (max - min), shift = 255 - max · scale; and scale and shift."""
    low, high = (attrs.min_calib_range, attrs.max_calib_range) if _is_calibrated(attrs) else _ends(ctx, data)
    low, high = jnp.asarray(low, jnp.float32), jnp.asarray(high, jnp.float32)
    scale = 255.0 / (high - low)
    shift = 255.0 - high * scale
    return as_integers(data.astype(jnp.float32) * scale + shift, "uint8"), one(scale), one(shift)


@operator(
    "_contrib_dequantize",
    inputs=("data", "min_range", "max_range"),
    attrs={"out_type": choice("float32", default="float32")},
    fill=range_shapes,
    types=lambda attrs, ins: ([ins[0], *[DTYPES["float32"]] * 2], [DTYPES["float32"]]),
    rows=lambda attrs, rows, shapes, outs: batch_rows(attrs, rows[:1], shapes, outs),
)
def dequantize(ctx: Ctx, attrs: Attrs, data: Array, min_range: Array, max_range: Array) -> Array:
    """x = q · range / 127.5 of int8, q · range / 255.5 of uint8."""
    scale = largest(min_range, max_range) / steps_of("_contrib_dequantize", data, FINE_STEPS)
    return data.astype(jnp.float32) * scale


@operator(
    "_contrib_requantize",
    inputs=("data", "min_range", "max_range"),
    outputs=OUTPUTS,
    attrs={"out_type": choice("auto", "int8", "uint8", default="int8"), **CALIBRATED},
    fill=range_shapes,
    types=lambda attrs, ins: ([DTYPES["int32"], *[DTYPES["float32"]] * 2], _quantized_types(attrs, ins)[1]),
    rows=_kept_rows,
)
def requantize(ctx: Ctx, attrs: Attrs, data: Array, min_range: Array, max_range: Array) -> tuple[Array, Array, Array]:
    """q = round(x · 127 / range) as int8 (· 255 as uint8) of x = p · old range / (2³¹ - 1), p int32; and the new range."""
    step = largest(min_range, max_range) / steps_of("_contrib_requantize", data, {"int32": STEPS["int32"]})
    if _is_calibrated(attrs):
        low, high = one(attrs.min_calib_range), one(attrs.max_calib_range)
    else:
        low, high = (end.astype(jnp.float32) * step for end in _ends(ctx, data))
    size, kind = largest(low, high), _kind(attrs)
    q = as_integers(data.astype(jnp.float32) * (step * (STEPS[kind] / size)), kind)
    return q, one(0.0 if kind == "uint8" else -size), one(size)
