"""Layers on eight-bit integers, and the way between floats and them."""

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
from jfit.ops.attributes import DTYPES, Attr, Attrs, choice, flag, integer, maybe_number, number
from jfit.ops.context import Ctx
from jfit.ops.registry import lookup, operator
from jfit.ops.rows import LOST, RowLayout
from jfit.ops.rules import along, batch_rows, common_rows, dtype_of, size_of, unify

# ----------------------------------------------------------------------------------------------------
# Between floats and eight-bit integers: quantize, quantize_v2, quantize_asym, requantize, dequantize. An integer q stands for
# q · range / steps, where range is the largest magnitude of (min, max).  MXNet's CPU build counts steps in two ways, and
# files are made for both: 127 of int8 and 255 of uint8, or half a step more (127.5 and 255.5).

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


# ----------------------------------------------------------------------------------------------------
# Layers on eight-bit integers: data and weights int8 or uint8, sums int32, and a range (min, max) beside every array. The
# numbers are those of MXNet's CPU build.  Nothing here has a gradient: quantized nets only predict.

QUANTIZED_OUTPUTS = ("output", "min_output", "max_output")
FLOAT = DTYPES["float32"]
INTEGERS = ("int8", "uint8")


# ------------------------------------------------------------------------------------------ rules
def _sums_types(attrs: Attrs, ins: list[Any]) -> tuple[list[Any], list[Any]]:
    """Weights and bias are int8, ranges float32, sums int32."""
    whole = 2 if attrs.no_bias else 3
    return [ins[0], *[DTYPES["int8"]] * (whole - 1), *[FLOAT] * 2 * whole], [DTYPES["int32"], FLOAT, FLOAT]


def _same_types(attrs: Attrs, ins: list[Any]) -> tuple[list[Any], list[Any]]:
    return [ins[0], *[FLOAT] * (len(ins) - 1)], [ins[0], FLOAT, FLOAT]


def _data_rows(attrs, rows, shapes, outs):
    """The rows of the data stay on axis 0; ranges go with their arrays, whatever they depend on."""
    ranges = [r for r, s in zip(rows[1:], shapes[1:], strict=True) if s == (1,)]
    return [*batch_rows(attrs, rows[:1], shapes, outs[:1]), *[common_rows(ranges)] * (len(outs) - 1)]


def _ranged(*names: str) -> tuple[str, ...]:
    """Inputs, then the ends of the range of each."""
    return (*names, *(f"{end}_{name}" for name in names for end in ("min", "max")))


def _layer_inputs(attrs: Attrs) -> tuple[str, ...]:
    return _ranged("data", "weight") if attrs.no_bias else _ranged("data", "weight", "bias")


def _layer_fill(name: str):
    """The parameter shapes of the float operator, and one number for every end of a range."""

    def fill(attrs: Attrs, ins: list, outs: list) -> list:
        whole, rule = 2 if attrs.no_bias else 3, lookup(name).fill
        assert rule is not None
        return [*rule(attrs, ins[:whole], outs[:1]), *[(1,)] * 2 * whole]

    return fill


def _wide(op: str, data: Array) -> Array:
    """Eight-bit integers as int32."""
    if data.dtype.name not in INTEGERS:
        raise ValueError(f"{op}: data is {data.dtype}, needed int8 or uint8; quantize it first")
    return data.astype(jnp.int32)


# ------------------------------------------------------------------------------------------ sums of products
@operator(
    "_contrib_quantized_fully_connected",
    inputs=_layer_inputs,
    outputs=QUANTIZED_OUTPUTS,
    attrs=lookup("FullyConnected").attrs,
    fill=_layer_fill("FullyConnected"),
    types=_sums_types,
    rows=_data_rows,
)
def fully_connected(ctx: Ctx, attrs: Attrs, data: Array, weight: Array, *rest: Array) -> tuple[Array, Array, Array]:
    """p = x Wᵀ + ⌊b · ratio of the units⌋ in int32; one p is (data range / steps) (weight range / 127)."""
    bias, ends = (None, rest) if attrs.no_bias else (rest[0], rest[1:])
    d, w = largest(*ends[:2]), largest(*ends[2:4])
    sums = nn.fully_connected(ctx, attrs, _wide("_contrib_quantized_fully_connected", data), weight.astype(jnp.int32))
    if bias is not None:
        fine = (steps_of("bias", data, FINE_STEPS) / d) * (FINE_STEPS["int8"] / w)
        ratio = fine * largest(*ends[4:6]) / FINE_STEPS["int8"]
        sums = sums + along(jnp.trunc(bias.astype(jnp.float32) * ratio).astype(jnp.int32), sums.ndim - 1, sums.ndim)
    size = (d / STEPS[data.dtype.name]) * (w / STEPS["int8"]) * STEPS["int32"]
    return sums, one(-size), one(size)


def convolved(ctx: Ctx, attrs: Attrs, data: Array, weight: Array) -> Array:
    """W ⋆ x in int32.  Accelerators convolve no such integers, so there floats do it."""

    def integers(data: Array, weight: Array) -> Array:
        return conv.convolution(ctx, attrs, data, weight.astype(jnp.int32))

    return lax.platform_dependent(data, weight, cpu=integers, default=functools.partial(in_floats, ctx, attrs))


def in_floats(ctx: Ctx, attrs: Attrs, data: Array, weight: Array) -> Array:
    """W ⋆ x of small integers by float32: four bits of the weights at a time, so that sums of 4386 products stay exact."""
    wide = weight.astype(jnp.int32)
    with jax.default_matmul_precision("float32"):
        high, low = (
            conv.convolution(ctx, attrs, data.astype(jnp.float32), w.astype(jnp.float32)) for w in (wide >> 4, wide & 15)
        )
    return high.astype(jnp.int32) * 16 + low.astype(jnp.int32)


@operator(
    "_contrib_quantized_conv",
    inputs=_layer_inputs,
    outputs=QUANTIZED_OUTPUTS,
    attrs=lookup("Convolution").attrs,
    fill=_layer_fill("Convolution"),
    types=_sums_types,
    rows=_data_rows,
)
def convolution(ctx: Ctx, attrs: Attrs, data: Array, weight: Array, *rest: Array) -> tuple[Array, Array, Array]:
    """p = W ⋆ x + b in int32, one p is (data range / 127) (weight range / 127).

    Int8 data has its bias brought to that unit first.  Uint8 data has not, and its unit is not 1 / 255: so does MXNet's CPU
    build, which takes no other data, and files made with it were calibrated against that.
    """
    bias, ends = (None, rest) if attrs.no_bias else (rest[0], rest[1:])
    d, w = largest(*ends[:2]), largest(*ends[2:4])
    sums = convolved(ctx, attrs, _wide("_contrib_quantized_conv", data), weight)
    unit = (d / STEPS["int8"]) * (w / STEPS["int8"])
    if bias is not None:
        added = bias.astype(jnp.int32)
        if data.dtype == jnp.int8:
            added = as_integers(bias.astype(jnp.float32) * (largest(*ends[4:6]) / STEPS["int8"] / unit), "int32")
        channel = (attrs.layout or "NC").index("C")
        sums = sums + along(added, channel, sums.ndim)
    return sums, one(-unit * STEPS["int32"]), one(unit * STEPS["int32"])


# ------------------------------------------------------------------------------------------ layers that keep the range
def _passes(name: str, **record: Any):
    """A layer of one array whose range stays as it is."""
    given: dict[str, Any] = {"fill": range_shapes, "types": _same_types, "rows": _data_rows} | record
    return operator(name, inputs=_ranged("data"), outputs=QUANTIZED_OUTPUTS, **given)


@_passes("_contrib_quantized_pooling", attrs=lookup("Pooling").attrs)
def pool(ctx: Ctx, attrs: Attrs, data: Array, low: Array, high: Array) -> tuple[Array, Array, Array]:
    """q = maximum or rounded mean of each window; the range stays."""
    if attrs.pool_type not in ("max", "avg"):
        raise ValueError(f"_contrib_quantized_pooling: pool_type is {attrs.pool_type!r}, needed 'max' or 'avg'; pool floats")
    wide = _wide("_contrib_quantized_pooling", data).astype(jnp.float32)
    if attrs.pool_type == "max" or attrs.global_pool or attrs.count_include_pad is False:
        values = pooling.pooling(ctx, attrs, wide)
    else:  # what a window reaches beyond the padding counts too, other than in the pooling of floats
        sums = pooling.pooling(ctx, Attrs({**attrs, "pool_type": "sum"}), wide)
        values = sums / size_of(attrs.kernel)
    return as_integers(values, data.dtype.name), one(low), one(high)


@_passes("_contrib_quantized_flatten")
def flatten(ctx: Ctx, attrs: Attrs, data: Array, low: Array, high: Array) -> tuple[Array, Array, Array]:
    """q = x with all axes but the first made one; the range stays."""
    return data.reshape(data.shape[0], size_of(data.shape[1:])), one(low), one(high)


@_passes("_contrib_quantized_act", attrs={"act_type": choice("relu", "sigmoid", "softrelu", "softsign", "tanh")})
def activation(ctx: Ctx, attrs: Attrs, data: Array, low: Array, high: Array) -> tuple[Array, Array, Array]:
    """q = max(x, 0); the range stays.

    MXNet hands uint8 on as the int8 of the same bits; here it stays uint8.
    """
    if attrs.act_type != "relu":
        raise ValueError(f"_contrib_quantized_act: act_type is {attrs.act_type!r}, needed 'relu'; activate floats")
    return jnp.maximum(data, jnp.zeros((), data.dtype)), one(low), one(high)


@operator(
    "_contrib_quantized_embedding",
    inputs=("data", "weight", "min_weight", "max_weight"),
    outputs=QUANTIZED_OUTPUTS,
    attrs=lookup("Embedding").attrs,
    fill=lambda attrs, ins, outs: [ins[0], (attrs.input_dim, attrs.output_dim), (1,), (1,)],
    types=lambda attrs, ins: ([ins[0] or FLOAT, DTYPES["int8"], FLOAT, FLOAT], [DTYPES["int8"], FLOAT, FLOAT]),
    rows=lambda attrs, rows, shapes, outs: [rows[0], *rows[2:4]],
)
def embedding(ctx: Ctx, attrs: Attrs, data: Array, weight: Array, low: Array, high: Array) -> tuple[Array, Array, Array]:
    """q = weight[x], the rows of these numbers (cut off at both ends); the range is that of the weight."""
    ids = jnp.clip(data.astype(jnp.int32), 0, attrs.input_dim - 1)
    return jnp.take(weight, ids, axis=0, mode="clip"), one(low), one(high)


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
    return [*data, *[FLOAT] * 2 * attrs.num_args], [_met(data), FLOAT, FLOAT]


def _met(dtypes: list[Any]) -> Any:
    """Uint8 where all are, else int8."""
    return DTYPES["uint8"] if all(t is not None and t == DTYPES["uint8"] for t in dtypes) else DTYPES["int8"]


@operator(
    "_contrib_quantized_concat",
    inputs=_concat_inputs,
    outputs=QUANTIZED_OUTPUTS,
    attrs={"num_args": integer(), "dim": integer(1)},
    fill=lambda attrs, ins, outs: [*ins[: attrs.num_args], *[(1,)] * 2 * attrs.num_args],
    types=_concat_types,
    rows=_concat_rows,
)
def concat(ctx: Ctx, attrs: Attrs, *arrays: Array) -> tuple[Array, Array, Array]:
    """q = the arrays one after the other along `dim`, brought to the widest range; uint8 if all are, else int8."""
    data, ends = arrays[: attrs.num_args], arrays[attrs.num_args :]
    kind = _met([x.dtype for x in data]).name
    low, high = jnp.min(jnp.stack(ends[::2])), jnp.max(jnp.stack(ends[1::2]))
    size, parts = largest(low, high), []
    for x, a, b in zip(data, ends[::2], ends[1::2], strict=True):
        ratio = (largest(a, b) / steps_of("_contrib_quantized_concat", x, STEPS)) / (size / STEPS[kind])
        parts.append(as_integers(x.astype(jnp.float32) * ratio, kind))
    return jnp.concatenate(parts, axis=attrs.dim), one(low), one(high)


PAIR = ("lhs", "rhs", "lhs_min", "lhs_max", "rhs_min", "rhs_max")


def _pair_fill(attrs: Attrs, ins: list, outs: list) -> list:
    both = unify(ins[:2])
    return [both, both, *[(1,)] * 4]


def _pair_kind(attrs: Attrs, dtypes: list[Any]) -> str:
    """The dtype of a sum or product: int32 where it is not calibrated."""
    if attrs.min_calib_range is None or attrs.max_calib_range is None:
        return "int32"
    return _met(dtypes).name


def _pair_rows(attrs, rows, shapes, outs):
    return [common_rows(rows[:2]), *[common_rows(rows[2:])] * (len(outs) - 1)]


def _fine(op: str, x: Array, low: Array, high: Array) -> Array:
    """What one step of x stands for."""
    return largest(low, high) / steps_of(op, x, FINE_STEPS)


@operator(
    "_contrib_quantized_elemwise_add",
    inputs=PAIR,
    outputs=QUANTIZED_OUTPUTS,
    attrs=CALIBRATED,
    fill=_pair_fill,
    types=lambda attrs, ins: ([*ins[:2], *[FLOAT] * 4], [DTYPES[_pair_kind(attrs, ins[:2])], FLOAT, FLOAT]),
    rows=_pair_rows,
)
def add(ctx: Ctx, attrs: Attrs, lhs: Array, rhs: Array, *ends: Array) -> tuple[Array, Array, Array]:
    """q = x + y in the calibrated range; without one in int32, whose range is the sum of both."""
    op = "_contrib_quantized_elemwise_add"
    kind = _pair_kind(attrs, [lhs.dtype, rhs.dtype])
    if kind == "int32":
        size = largest(*ends[:2]) + largest(*ends[2:])
        low, high, steps = one(-size), one(size), STEPS[kind]
    else:
        low, high, steps = one(attrs.min_calib_range), one(attrs.max_calib_range), FINE_STEPS[kind]
    scale = steps / largest(low, high)
    if lhs.dtype != rhs.dtype:  # uint8 becomes int8 of the same range first
        lhs, rhs = (x if x.dtype == jnp.int8 else (x // 2).astype(jnp.int8) for x in (lhs, rhs))
    left, right = (_fine(op, x, *r) * scale for x, r in ((lhs, ends[:2]), (rhs, ends[2:])))
    return as_integers(lhs.astype(jnp.float32) * left + rhs.astype(jnp.float32) * right, kind), low, high


@operator(
    "_contrib_quantized_elemwise_mul",
    inputs=PAIR,
    outputs=lambda attrs: ("output",) if attrs.enable_float_output else QUANTIZED_OUTPUTS,
    attrs={**CALIBRATED, "enable_float_output": flag(False)},
    fill=_pair_fill,
    types=lambda attrs, ins: (
        [*ins[:2], *[FLOAT] * 4],
        [FLOAT] if attrs.enable_float_output else [DTYPES[_pair_kind(attrs, ins[:2])], FLOAT, FLOAT],
    ),
    rows=_pair_rows,
)
def multiply(ctx: Ctx, attrs: Attrs, lhs: Array, rhs: Array, *ends: Array) -> Array | tuple[Array, Array, Array]:
    """q = x · y cut to integers of the calibrated range; without one the int32 products; or floats where wanted."""
    op = "_contrib_quantized_elemwise_mul"
    products, step = _wide(op, lhs) * _wide(op, rhs), _fine(op, lhs, *ends[:2]) * _fine(op, rhs, *ends[2:])
    if attrs.enable_float_output:
        return products.astype(jnp.float32) * step
    kind = _pair_kind(attrs, [lhs.dtype, rhs.dtype])
    if kind == "int32":
        exact = [largest(*r) / steps_of(op, x, STEPS) for x, r in ((lhs, ends[:2]), (rhs, ends[2:]))]
        size = exact[0] * exact[1] * STEPS["int32"]
        return products, one(-size), one(size)
    low, high = one(attrs.min_calib_range), one(attrs.max_calib_range)
    cut = jnp.trunc(products.astype(jnp.float32) * (step * FINE_STEPS[kind] / largest(low, high)))
    return as_integers(cut, kind), low, high


# ------------------------------------------------------------------------------------------ batch normalisation
NORM: dict[str, Attr] = {
    "eps": number(0.001),
    "momentum": number(0.9),
    "fix_gamma": flag(True),
    "use_global_stats": flag(False),
    "output_mean_var": flag(False),
    "axis": integer(1),
    "cudnn_off": flag(False),
    "min_calib_range": maybe_number(),
    "max_calib_range": maybe_number(),
}


def _norm_fill(attrs: Attrs, ins: Any, outs: Any) -> Any:
    channels = None if ins[0] is None else ins[0][attrs.axis : attrs.axis + 1]
    return [ins[0], channels, channels, (1,), (1,), channels, channels][: len(ins)]


@operator(
    "_contrib_quantized_batch_norm",
    inputs=("data", "gamma", "beta", "min_data", "max_data"),
    aux=("moving_mean", "moving_var"),
    aux_init=("zero", "one"),
    aux_at=3,
    outputs=QUANTIZED_OUTPUTS,
    attrs=NORM,
    fill=_norm_fill,
    types=lambda attrs, ins: ([ins[0], *[FLOAT] * (len(ins) - 1)], [DTYPES["int8"], FLOAT, FLOAT]),
    rows=_data_rows,
)
def batch_norm(
    ctx: Ctx, attrs: Attrs, data: Array, gamma: Array, beta: Array, low: Array, high: Array, mean: Array, var: Array
):
    """q = gamma (x - mean) / √(var + eps) + beta in int8 of the calibrated range; fix_gamma is not looked at, as in MXNet."""
    if attrs.min_calib_range is None or attrs.max_calib_range is None:
        raise ValueError("_contrib_quantized_batch_norm: no calibrated range, and it needs one; calibrate the quantized model")
    size = largest(jnp.asarray(attrs.min_calib_range), jnp.asarray(attrs.max_calib_range))
    data = (data // 2).astype(jnp.int8) if data.dtype == jnp.uint8 else data  # of the same range
    step = largest(low, high) / steps_of("_contrib_quantized_batch_norm", data, FINE_STEPS)
    scale = gamma / jnp.sqrt(var + attrs.eps)
    shift = beta - mean * scale
    x = data.astype(jnp.float32)
    steps = FINE_STEPS["int8"] / size
    values = x * along(scale * step * steps, attrs.axis, x.ndim) + along(shift * steps, attrs.axis, x.ndim)
    return (as_integers(values, "int8"), one(attrs.min_calib_range), one(attrs.max_calib_range)), (mean, var)


# ----------------------------------------------------------------------------------------------------
# The recurrent operator on quantized data: its weights are floats in the file, so it is the float operator on floats again.

RNN = lookup("RNN")
SCALES = ("data_scale", "data_shift")


def _inputs(attrs: Attrs) -> tuple[str, ...]:
    return (*RNN.input_names(attrs), *SCALES)


def _fill(attrs: Attrs, ins: list, outs: list) -> list:
    assert RNN.fill is not None
    return [*RNN.fill(attrs, ins[:-2], outs), (1,), (1,)]


def _types(attrs: Attrs, ins: list[Any]) -> tuple[list[Any], list[Any]]:
    floats = [DTYPES["float32"]]
    return [DTYPES["uint8"], *floats * (len(ins) - 1)], floats * len(RNN.output_names(attrs))


@operator(
    "_contrib_quantized_rnn",
    inputs=_inputs,
    outputs=RNN.outputs,
    attrs=RNN.attrs,
    fill=_fill,
    types=_types,
    rows=lambda attrs, rows, shapes, outs: RNN.rows(attrs, rows[:-2], shapes[:-2], outs),
    needs_rng=True,
)
def quantized_rnn(ctx: Ctx, attrs: Attrs, data: Array, *rest: Array) -> Array | tuple[Array, ...]:
    """y = RNN((q - shift) / scale) in floats; MXNet also rounds the weights, so its numbers differ by about one step."""
    *weights, scale, shift = rest
    values = (data.astype(jnp.float32) - shift.reshape((1,) * data.ndim)) / scale.reshape((1,) * data.ndim)
    return RNN.fn(ctx, attrs, values, *weights)
