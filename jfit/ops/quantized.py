"""Quantized operators: conversion between floats and 8-bit integers, and layers that compute on 8-bit integers."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jfit.ops import (
    conv,
    nn,
    pooling,
    rnn,  # noqa: F401  registers RNN
)
from jfit.ops.attributes import DTYPES, Attrs, choice, flag, integer, maybe_number, number
from jfit.ops.context import Ctx
from jfit.ops.registry import lookup, operator
from jfit.ops.rows import LOST, RowLayout
from jfit.ops.rules import along, batch_rows, common_rows, data_rows, dtype_of, size_of, unify

# ----------------------------------------------------------------------------------------------------
# Conversion: quantize, quantize_v2, quantize_asym, requantize, dequantize. An integer q represents q · range / steps,
# where range = max(|min|, |max|). MXNet's CPU build uses two numbers of steps, and models exist that were calibrated for each:
# 127 for int8 and 255 for uint8 (STEPS), or half a step more, 127.5 and 255.5 (FINE_STEPS).

STEPS = {"int8": 127.0, "uint8": 255.0, "int32": float(2**31 - 1)}
FINE_STEPS = {"int8": 127.5, "uint8": 255.5}
OUTPUTS = ("output0", "output1", "output2")
CALIBRATED = {"min_calib_range": maybe_number(), "max_calib_range": maybe_number()}


def magnitude(low: Array, high: Array) -> Array:
    """Return max(|low|, |high|) as a float32 scalar."""
    return jnp.maximum(jnp.abs(low), jnp.abs(high)).astype(jnp.float32).reshape(())


def steps_of(data: Array, steps: dict[str, float]) -> float:
    """Return the number of quantization steps for the dtype of `data`, from the table `steps`."""
    if data.dtype.name not in steps:
        raise ValueError(f"data has dtype {data.dtype}, expected {' or '.join(steps)}; quantize it first")
    return steps[data.dtype.name]


def as_integers(values: Array, name: str) -> Array:
    """Round to the nearest integer (ties to even), clip to the range of the dtype `name` and cast to it."""
    ends = np.iinfo(DTYPES[name])
    return jnp.clip(jnp.round(values), ends.min, ends.max).astype(dtype_of(name))


def range_end(value: Any) -> Array:
    """Convert one end of a range (minimum or maximum) to the form of the operators' outputs: (1,) float32."""
    return jnp.asarray(value, jnp.float32).reshape(1)


def range_shapes(attrs: Attrs, ins: list, outs: list) -> list:
    """Infer input shapes: that of the data is unchanged; each end of a range has shape (1,)."""
    return [ins[0], *[(1,)] * (len(ins) - 1)]


def _quantized_types(attrs: Attrs, ins: list[Any]) -> tuple[list[Any], list[Any]]:
    floats = [DTYPES["float32"]]
    return [ins[0] or floats[0], *floats * (len(ins) - 1)], [DTYPES[_kind(attrs)], *floats * 2]


def _kind(attrs: Attrs) -> str:
    """Return the output dtype: out_type, where auto means uint8 if min_calib_range >= 0, else int8."""
    if attrs.out_type != "auto":
        return attrs.out_type
    return "uint8" if _is_calibrated(attrs) and attrs.min_calib_range >= 0 else "int8"


def _is_calibrated(attrs: Attrs) -> bool:
    return attrs.min_calib_range is not None and attrs.max_calib_range is not None


def _quantize_rows(attrs, rows, shapes, outs):
    """Return where the batch rows are in the outputs (`RowLayout`).

    On axis 0 of the integers, as in the data; a range that is computed from the data depends on all rows, so that they are LOST
    in it (cannot be distinguished).
    """
    layout = batch_rows(attrs, [rows[0]], shapes, outs[:1])
    independent = rows[0] is None or _is_calibrated(attrs)
    return [*layout, *[None if independent else LOST] * 2]


def _min_max(ctx: Ctx, data: Array) -> tuple[Array, Array]:
    """Return (minimum, maximum) over the rows with weight > 0."""
    mask = ctx.row_mask(data.ndim)
    if mask is None:
        return jnp.min(data), jnp.max(data)
    inside, ends = mask > 0, (jnp.iinfo if jnp.issubdtype(data.dtype, jnp.integer) else jnp.finfo)(data.dtype)
    return jnp.min(jnp.where(inside, data, ends.max)), jnp.max(jnp.where(inside, data, ends.min))


@operator(
    "_contrib_quantize",
    outputs=OUTPUTS,
    attrs={"out_type": choice("int8", "uint8", default="uint8")},
    fill=range_shapes,
    types=_quantized_types,
    rows=lambda attrs, rows, shapes, outs: [*batch_rows(attrs, rows[:1], shapes, outs[:1]), *rows[1:]],
)
def quantize(ctx: Ctx, attrs: Attrs, data: Array, min_range: Array, max_range: Array) -> tuple[Array, Array, Array]:
    """q = round(x · 127 / range) as int8 (· 255 / range as uint8), range = max(|min|, |max|); and the ends of the range."""
    size = magnitude(min_range, max_range)
    q = as_integers(data.astype(jnp.float32) * (STEPS[attrs.out_type] / size), attrs.out_type)
    if attrs.out_type == "uint8":
        return q, range_end(min_range), range_end(max_range)
    return q, range_end(-size), range_end(size)


@operator(
    "_contrib_quantize_v2",
    outputs=OUTPUTS,
    attrs={"out_type": choice("auto", "int8", "uint8", default="int8"), **CALIBRATED},
    types=_quantized_types,
    rows=_quantize_rows,
)
def quantize_v2(ctx: Ctx, attrs: Attrs, data: Array) -> tuple[Array, Array, Array]:
    """q = round(x · 127.5 / range) as int8 (· 255.5 / range as uint8), range calibrated or of the data; and its two ends."""
    kind = _kind(attrs)
    if data.dtype.name in FINE_STEPS:  # integers already: return them with a range in which one step is 1, as MXNet does
        steps = FINE_STEPS[data.dtype.name]
        return data, range_end(0.0 if data.dtype == jnp.uint8 else -steps), range_end(steps)
    low, high = (attrs.min_calib_range, attrs.max_calib_range) if _is_calibrated(attrs) else _min_max(ctx, data)
    size = magnitude(jnp.asarray(low, jnp.float32), jnp.asarray(high, jnp.float32))
    q = as_integers(data.astype(jnp.float32) * (FINE_STEPS[kind] / size), kind)
    return (q, range_end(low), range_end(high)) if kind == "uint8" else (q, range_end(-size), range_end(size))


@operator(
    "_contrib_quantize_asym",
    outputs=("output", "scale", "shift"),
    attrs=CALIBRATED,
    types=lambda attrs, ins: ([ins[0] or DTYPES["float32"]], [DTYPES["uint8"], DTYPES["float32"], DTYPES["float32"]]),
    rows=_quantize_rows,
)
def quantize_asym(ctx: Ctx, attrs: Attrs, data: Array) -> tuple[Array, Array, Array]:
    """q = round(x · scale + shift) as uint8, scale = 255 / (max - min), shift = 255 - max · scale; and scale, shift."""
    low, high = (attrs.min_calib_range, attrs.max_calib_range) if _is_calibrated(attrs) else _min_max(ctx, data)
    low, high = jnp.asarray(low, jnp.float32), jnp.asarray(high, jnp.float32)
    scale = 255.0 / (high - low)
    shift = 255.0 - high * scale
    return as_integers(data.astype(jnp.float32) * scale + shift, "uint8"), range_end(scale), range_end(shift)


@operator(
    "_contrib_dequantize",
    attrs={"out_type": choice("float32", default="float32")},
    fill=range_shapes,
    types=lambda attrs, ins: ([ins[0], *[DTYPES["float32"]] * 2], [DTYPES["float32"]]),
    rows=data_rows,
)
def dequantize(ctx: Ctx, attrs: Attrs, data: Array, min_range: Array, max_range: Array) -> Array:
    """y = q · range / 127.5 for int8, q · range / 255.5 for uint8; range = max(|min|, |max|)."""
    scale = magnitude(min_range, max_range) / steps_of(data, FINE_STEPS)
    return data.astype(jnp.float32) * scale


@operator(
    "_contrib_requantize",
    outputs=OUTPUTS,
    attrs={"out_type": choice("auto", "int8", "uint8", default="int8"), **CALIBRATED},
    fill=range_shapes,
    types=lambda attrs, ins: ([DTYPES["int32"], *[DTYPES["float32"]] * 2], _quantized_types(attrs, ins)[1]),
    rows=_quantize_rows,
)
def requantize(ctx: Ctx, attrs: Attrs, data: Array, min_range: Array, max_range: Array) -> tuple[Array, Array, Array]:
    """q = round(x · 127 / range) as int8 (· 255 as uint8) for x = p · old range / (2³¹ - 1), p int32; and the new range."""
    step = magnitude(min_range, max_range) / steps_of(data, {"int32": STEPS["int32"]})
    if _is_calibrated(attrs):
        low, high = range_end(attrs.min_calib_range), range_end(attrs.max_calib_range)
    else:
        low, high = (end.astype(jnp.float32) * step for end in _min_max(ctx, data))
    size, kind = magnitude(low, high), _kind(attrs)
    q = as_integers(data.astype(jnp.float32) * (step * (STEPS[kind] / size)), kind)
    return q, range_end(0.0 if kind == "uint8" else -size), range_end(size)


# ----------------------------------------------------------------------------------------------------
# Layers on 8-bit integers: int8 or uint8 data and weights, int32 sums, and a range (min, max) for every array. The results
# equal those of MXNet's CPU build. None of these operators has a gradient: quantized models are for inference only.

QUANTIZED_OUTPUTS = ("output", "min_output", "max_output")
FLOAT = DTYPES["float32"]
_operator = functools.partial(operator, outputs=QUANTIZED_OUTPUTS)


# ------------------------------------------------------------------------------------------ rules
def _sums_types(attrs: Attrs, ins: list[Any]) -> tuple[list[Any], list[Any]]:
    """Infer dtypes: weights and bias are int8, ranges float32, sums int32."""
    arrays = 2 if attrs.no_bias else 3
    return [ins[0], *[DTYPES["int8"]] * (arrays - 1), *[FLOAT] * 2 * arrays], [DTYPES["int32"], FLOAT, FLOAT]


def _same_types(attrs: Attrs, ins: list[Any]) -> tuple[list[Any], list[Any]]:
    return [ins[0], *[FLOAT] * (len(ins) - 1)], [ins[0], FLOAT, FLOAT]


def _data_rows(attrs, rows, shapes, outs):
    """Return where the batch rows are in the outputs (`RowLayout`).

    On axis 0 of the integers, as in the data; in the ranges, as in the input ranges.
    """
    ranges = [r for r, s in zip(rows[1:], shapes[1:], strict=True) if s == (1,)]
    return [*batch_rows(attrs, rows[:1], shapes, outs[:1]), *[common_rows(ranges)] * (len(outs) - 1)]


def _ranged(*names: str) -> tuple[str, ...]:
    """Return the input names: those of the arrays, then min_ and max_ of each."""
    return (*names, *(f"{end}_{name}" for name in names for end in ("min", "max")))


def _layer(name: str, float_name: str):
    """Return a decorator that registers a layer; its parameters have the shapes of those of the operator `float_name`."""

    def fill(attrs: Attrs, ins: list, outs: list) -> list:
        arrays, rule = 2 if attrs.no_bias else 3, lookup(float_name).fill
        assert rule is not None
        return [*rule(attrs, ins[:arrays], outs[:1]), *[(1,)] * 2 * arrays]

    record: dict[str, Any] = {"attrs": lookup(float_name).attrs, "fill": fill, "types": _sums_types, "rows": _data_rows}
    inputs = lambda attrs: _ranged(*("data", "weight", "bias")[: 2 if attrs.no_bias else 3])  # noqa: E731
    return _operator(name, inputs=inputs, **record)


def _wide(data: Array) -> Array:
    """Cast int8 or uint8 to int32; raise for any other dtype."""
    steps_of(data, FINE_STEPS)
    return data.astype(jnp.int32)


# ------------------------------------------------------------------------------------------ sums of products
@_layer("_contrib_quantized_fully_connected", "FullyConnected")
def fully_connected(ctx: Ctx, attrs: Attrs, data: Array, weight: Array, *rest: Array) -> tuple[Array, Array, Array]:
    """p = x Wᵀ + trunc(b · ratio of the units) in int32; the unit of p is (data range / steps) (weight range / 127)."""
    bias, ends = (None, rest) if attrs.no_bias else (rest[0], rest[1:])
    d, w = magnitude(*ends[:2]), magnitude(*ends[2:4])
    sums = nn.fully_connected(ctx, attrs, _wide(data), weight.astype(jnp.int32))
    if bias is not None:
        fine = (FINE_STEPS[data.dtype.name] / d) * (FINE_STEPS["int8"] / w)
        ratio = fine * magnitude(*ends[4:6]) / FINE_STEPS["int8"]
        sums = sums + along(jnp.trunc(bias.astype(jnp.float32) * ratio).astype(jnp.int32), sums.ndim - 1, sums.ndim)
    size = (d / STEPS[data.dtype.name]) * (w / STEPS["int8"]) * STEPS["int32"]
    return sums, range_end(-size), range_end(size)


def int_convolution(ctx: Ctx, attrs: Attrs, data: Array, weight: Array) -> Array:
    """Return W ⋆ x in int32; accelerators do not support integer convolutions and compute it exactly in float32."""

    def integers(data: Array, weight: Array) -> Array:
        return conv.convolution(ctx, attrs, data, weight.astype(jnp.int32))

    return lax.platform_dependent(data, weight, cpu=integers, default=functools.partial(float_convolution, ctx, attrs))


def float_convolution(ctx: Ctx, attrs: Attrs, data: Array, weight: Array) -> Array:
    """Return W ⋆ x of 8-bit integers in int32, computed in float32.

    Two convolutions with four bits of the weights each, so that sums of up to 4386 products are exact.
    """
    wide = weight.astype(jnp.int32)
    with jax.default_matmul_precision("float32"):
        high, low = (
            conv.convolution(ctx, attrs, data.astype(jnp.float32), w.astype(jnp.float32)) for w in (wide >> 4, wide & 15)
        )
    return high.astype(jnp.int32) * 16 + low.astype(jnp.int32)


@_layer("_contrib_quantized_conv", "Convolution")
def convolution(ctx: Ctx, attrs: Attrs, data: Array, weight: Array, *rest: Array) -> tuple[Array, Array, Array]:
    """p = W ⋆ x + b in int32; the unit of p is (data range / 127) (weight range / 127).

    For int8 data the bias is converted to that unit first. For uint8 data it is not, and the unit is still based on 127, not
    255: MXNet's CPU build, which supports only uint8 data, does so, and its models were calibrated that way.
    """
    bias, ends = (None, rest) if attrs.no_bias else (rest[0], rest[1:])
    d, w = magnitude(*ends[:2]), magnitude(*ends[2:4])
    sums = int_convolution(ctx, attrs, _wide(data), weight)
    unit = (d / STEPS["int8"]) * (w / STEPS["int8"])
    if bias is not None:
        offset = bias.astype(jnp.int32)
        if data.dtype == jnp.int8:
            offset = as_integers(bias.astype(jnp.float32) * (magnitude(*ends[4:6]) / STEPS["int8"] / unit), "int32")
        channel = (attrs.layout or "NC").index("C")
        sums = sums + along(offset, channel, sums.ndim)
    return sums, range_end(-unit * STEPS["int32"]), range_end(unit * STEPS["int32"])


# ------------------------------------------------------------------------------------------ layers that keep the range
def _same_range_operator(name: str, **record: Any):
    """Return a decorator that registers an operator on one array whose output has the range of its input."""
    fields: dict[str, Any] = {"fill": range_shapes, "types": _same_types, "rows": _data_rows} | record
    return _operator(name, inputs=_ranged("data"), **fields)


@_same_range_operator(
    "_contrib_quantized_pooling", attrs={**lookup("Pooling").attrs, "pool_type": choice("avg", "max", default="max")}
)
def pool(ctx: Ctx, attrs: Attrs, data: Array, low: Array, high: Array) -> tuple[Array, Array, Array]:
    """q = maximum or rounded mean of each window; the range is unchanged."""
    wide = _wide(data).astype(jnp.float32)
    if attrs.pool_type == "max" or attrs.global_pool or attrs.count_include_pad is False:
        values = pooling.pooling(ctx, attrs, wide)
    else:  # the divisor is always the kernel size, even where a window extends beyond the padding (unlike float Pooling)
        sums = pooling.pooling(ctx, Attrs({**attrs, "pool_type": "sum"}), wide)
        values = sums / size_of(attrs.kernel)
    return as_integers(values, data.dtype.name), range_end(low), range_end(high)


@_same_range_operator("_contrib_quantized_flatten")
def flatten(ctx: Ctx, attrs: Attrs, data: Array, low: Array, high: Array) -> tuple[Array, Array, Array]:
    """q = x of shape (n, everything else); the range is unchanged."""
    return data.reshape(data.shape[0], size_of(data.shape[1:])), range_end(low), range_end(high)


@_same_range_operator("_contrib_quantized_act", attrs={"act_type": choice("relu")})
def activation(ctx: Ctx, attrs: Attrs, data: Array, low: Array, high: Array) -> tuple[Array, Array, Array]:
    """q = max(x, 0); the range is unchanged.

    MXNet reinterprets uint8 data as int8 of the same bits; here it stays uint8.
    """
    return jnp.maximum(data, jnp.zeros((), data.dtype)), range_end(low), range_end(high)


@_operator(
    "_contrib_quantized_embedding",
    inputs=("data", "weight", "min_weight", "max_weight"),
    attrs=lookup("Embedding").attrs,
    fill=lambda attrs, ins, outs: [ins[0], (attrs.input_dim, attrs.output_dim), (1,), (1,)],
    types=lambda attrs, ins: ([ins[0] or FLOAT, DTYPES["int8"], FLOAT, FLOAT], [DTYPES["int8"], FLOAT, FLOAT]),
    rows=lambda attrs, rows, shapes, outs: [rows[0], *rows[2:4]],
)
def embedding(ctx: Ctx, attrs: Attrs, data: Array, weight: Array, low: Array, high: Array) -> tuple[Array, Array, Array]:
    """q = weight[clip(x, 0, input_dim - 1)]; the range is that of the weight."""
    return nn.embedding(ctx, attrs, data, weight), range_end(low), range_end(high)


# ------------------------------------------------------------------------------------------ several arrays
def _concat_inputs(attrs: Attrs) -> tuple[str, ...]:
    names = [f"arg{i}" for i in range(attrs.num_args)]
    return (*names, *(f"{name}_{end}" for name in names for end in ("min", "max")))


def _concat_rows(attrs, rows, shapes, outs):
    data = rows[: attrs.num_args]
    axis = attrs.dim % len(shapes[0])
    mixed = any(isinstance(r, RowLayout) and r.axis == axis for r in data)
    ranges = common_rows(rows[attrs.num_args :])
    return [LOST if mixed else common_rows(data), ranges, ranges]


def _concat_types(attrs: Attrs, ins: list[Any]) -> tuple[list[Any], list[Any]]:
    data = ins[: attrs.num_args]
    return [*data, *[FLOAT] * 2 * attrs.num_args], [_common(data), FLOAT, FLOAT]


def _common(dtypes: list[Any]) -> Any:
    """Return uint8 if all dtypes are uint8, else int8."""
    return DTYPES["uint8"] if all(t is not None and t == DTYPES["uint8"] for t in dtypes) else DTYPES["int8"]


@_operator(
    "_contrib_quantized_concat",
    inputs=_concat_inputs,
    attrs={"num_args": integer(), "dim": integer(1)},
    fill=lambda attrs, ins, outs: [*ins[: attrs.num_args], *[(1,)] * 2 * attrs.num_args],
    types=_concat_types,
    rows=_concat_rows,
)
def concat(ctx: Ctx, attrs: Attrs, *arrays: Array) -> tuple[Array, Array, Array]:
    """q = the arrays concatenated along `dim`, rescaled to the union of their ranges; uint8 if all are uint8, else int8."""
    data, ends = arrays[: attrs.num_args], arrays[attrs.num_args :]
    kind = _common([x.dtype for x in data]).name
    low, high = jnp.min(jnp.stack(ends[::2])), jnp.max(jnp.stack(ends[1::2]))
    size, parts = magnitude(low, high), []
    for x, a, b in zip(data, ends[::2], ends[1::2], strict=True):
        ratio = (magnitude(a, b) / steps_of(x, STEPS)) / (size / STEPS[kind])
        parts.append(as_integers(x.astype(jnp.float32) * ratio, kind))
    return jnp.concatenate(parts, axis=attrs.dim), range_end(low), range_end(high)


PAIR = ("lhs", "rhs", "lhs_min", "lhs_max", "rhs_min", "rhs_max")


def _pair_fill(attrs: Attrs, ins: list, outs: list) -> list:
    both = unify(ins[:2])
    return [both, both, *[(1,)] * 4]


def _pair_kind(attrs: Attrs, dtypes: list[Any]) -> str:
    """Return the dtype name of a sum or product: int32 without a calibrated range, else an 8-bit dtype."""
    if not _is_calibrated(attrs):
        return "int32"
    return _common(dtypes).name


def _pair_rows(attrs, rows, shapes, outs):
    return [common_rows(rows[:2]), *[common_rows(rows[2:])] * (len(outs) - 1)]


def _fine(x: Array, low: Array, high: Array) -> Array:
    """Return the size of one quantization step of x, whose range is (low, high)."""
    return magnitude(low, high) / steps_of(x, FINE_STEPS)


_pair_operator = functools.partial(_operator, inputs=PAIR, fill=_pair_fill, rows=_pair_rows)


@_pair_operator(
    "_contrib_quantized_elemwise_add",
    attrs=CALIBRATED,
    types=lambda attrs, ins: ([*ins[:2], *[FLOAT] * 4], [DTYPES[_pair_kind(attrs, ins[:2])], FLOAT, FLOAT]),
)
def add(ctx: Ctx, attrs: Attrs, lhs: Array, rhs: Array, *ends: Array) -> tuple[Array, Array, Array]:
    """q = lhs + rhs, in 8 bits of the calibrated range; without one, in int32 with the sum of both ranges."""
    kind = _pair_kind(attrs, [lhs.dtype, rhs.dtype])
    if kind == "int32":
        size = magnitude(*ends[:2]) + magnitude(*ends[2:])
        low, high, steps = range_end(-size), range_end(size), STEPS[kind]
    else:
        low, high, steps = range_end(attrs.min_calib_range), range_end(attrs.max_calib_range), FINE_STEPS[kind]
    scale = steps / magnitude(low, high)
    if lhs.dtype != rhs.dtype:  # convert uint8 to int8 of the same range first
        lhs, rhs = (x if x.dtype == jnp.int8 else (x // 2).astype(jnp.int8) for x in (lhs, rhs))
    left, right = (_fine(x, *r) * scale for x, r in ((lhs, ends[:2]), (rhs, ends[2:])))
    return as_integers(lhs.astype(jnp.float32) * left + rhs.astype(jnp.float32) * right, kind), low, high


@_pair_operator(
    "_contrib_quantized_elemwise_mul",
    outputs=lambda attrs: ("output",) if attrs.enable_float_output else QUANTIZED_OUTPUTS,
    attrs={**CALIBRATED, "enable_float_output": flag(False)},
    types=lambda attrs, ins: (
        [*ins[:2], *[FLOAT] * 4],
        [FLOAT] if attrs.enable_float_output else [DTYPES[_pair_kind(attrs, ins[:2])], FLOAT, FLOAT],
    ),
)
def multiply(ctx: Ctx, attrs: Attrs, lhs: Array, rhs: Array, *ends: Array) -> Array | tuple[Array, Array, Array]:
    """q = lhs · rhs, truncated to 8 bits of the calibrated range; without one, in int32; floats with enable_float_output."""
    products, step = _wide(lhs) * _wide(rhs), _fine(lhs, *ends[:2]) * _fine(rhs, *ends[2:])
    if attrs.enable_float_output:
        return products.astype(jnp.float32) * step
    kind = _pair_kind(attrs, [lhs.dtype, rhs.dtype])
    if kind == "int32":
        exact = [magnitude(*r) / STEPS[x.dtype.name] for x, r in ((lhs, ends[:2]), (rhs, ends[2:]))]
        size = exact[0] * exact[1] * STEPS["int32"]
        return products, range_end(-size), range_end(size)
    low, high = range_end(attrs.min_calib_range), range_end(attrs.max_calib_range)
    truncated = jnp.trunc(products.astype(jnp.float32) * (step * FINE_STEPS[kind] / magnitude(low, high)))
    return as_integers(truncated, kind), low, high


# ------------------------------------------------------------------------------------------ batch normalisation
NORM = {**lookup("BatchNorm").attrs, "eps": number(0.001), "momentum": number(0.9)}


def _norm_fill(attrs: Attrs, ins: Any, outs: Any) -> Any:
    channels = None if ins[0] is None else ins[0][attrs.axis : attrs.axis + 1]
    return [ins[0], channels, channels, (1,), (1,), channels, channels][: len(ins)]


@_operator(
    "_contrib_quantized_batch_norm",
    inputs=("data", "gamma", "beta", "min_data", "max_data"),
    aux=("moving_mean", "moving_var"),
    aux_at=3,
    attrs=NORM,
    fill=_norm_fill,
    types=lambda attrs, ins: ([ins[0], *[FLOAT] * (len(ins) - 1)], [DTYPES["int8"], FLOAT, FLOAT]),
    rows=_data_rows,
)
def batch_norm(
    ctx: Ctx, attrs: Attrs, data: Array, gamma: Array, beta: Array, low: Array, high: Array, mean: Array, var: Array
):
    """q = gamma (x - mean) / √(var + eps) + beta in int8 of the calibrated range; fix_gamma is ignored, as in MXNet."""
    if not _is_calibrated(attrs):
        raise ValueError("min_calib_range and max_calib_range are needed: calibrate the model, or leave BatchNorm float")
    size = magnitude(jnp.asarray(attrs.min_calib_range), jnp.asarray(attrs.max_calib_range))
    data = (data // 2).astype(jnp.int8) if data.dtype == jnp.uint8 else data  # uint8 -> int8 of the same range
    step = _fine(data, low, high)
    scale = gamma / jnp.sqrt(var + attrs.eps)
    shift = beta - mean * scale
    x = data.astype(jnp.float32)
    steps = FINE_STEPS["int8"] / size
    values = x * along(scale * step * steps, attrs.axis, x.ndim) + along(shift * steps, attrs.axis, x.ndim)
    return (as_integers(values, "int8"), range_end(attrs.min_calib_range), range_end(attrs.max_calib_range)), (mean, var)


# ----------------------------------------------------------------------------------------------------
# RNN on quantized data: MXNet's files hold its weights as floats, so this dequantizes the data and runs the float operator.

RNN = lookup("RNN")


def _fill(attrs: Attrs, ins: list, outs: list) -> list:
    assert RNN.fill is not None
    return [*RNN.fill(attrs, ins[:-2], outs), (1,), (1,)]


@operator(
    "_contrib_quantized_rnn",
    inputs=lambda attrs: (*RNN.input_names(attrs), "data_scale", "data_shift"),
    outputs=RNN.outputs,
    attrs=RNN.attrs,
    fill=_fill,
    types=lambda attrs, ins: ([DTYPES["uint8"], *[FLOAT] * (len(ins) - 1)], [FLOAT] * len(RNN.output_names(attrs))),
    rows=lambda attrs, rows, shapes, outs: RNN.rows(attrs, rows[:-2], shapes[:-2], outs),
    needs_rng=True,
)
def quantized_rnn(ctx: Ctx, attrs: Attrs, data: Array, *rest: Array) -> Array | tuple[Array, ...]:
    """y = RNN((q - shift) / scale) in floats; MXNet also quantizes the weights, so its results differ by about one step."""
    *weights, scale, shift = rest
    values = (data.astype(jnp.float32) - shift.reshape((1,) * data.ndim)) / scale.reshape((1,) * data.ndim)
    return RNN.fn(ctx, attrs, values, *weights)
