"""Normalization: BatchNorm and its variants, LayerNorm, InstanceNorm, GroupNorm, L2Normalization, LRN."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jfit.ops.attributes import Attr, Attrs, choice, flag, integer, maybe_number, number, several, text
from jfit.ops.axis import device_axis
from jfit.ops.context import Ctx
from jfit.ops.registry import Shape, ShapeRule, operator
from jfit.ops.rows import LOST, RowLayout
from jfit.ops.rules import (
    accumulating,
    along,
    at_least_one,
    axis_or_all,
    batch_rows,
    from_data,
    need_rank,
    need_shape,
    normalize_axis,
    unmixed,
)


# ------------------------------------------------------------------------------------------ BatchNorm
def _total(x: Array, axis: int, over: str | None) -> Array:
    """Sum over every axis but `axis`, kept as axes of size 1, and over the devices of mesh axis `over` unless it is None."""
    total = jnp.sum(x, axis=tuple(k for k in range(x.ndim) if k != axis), keepdims=True)
    return total if over is None else lax.psum(total, over)


def _count(x: Array, mask: Array | None, axis: int, over: str | None) -> Any:
    """Return the number of entries that the mean of one channel averages over.

    It is the size of `x` without the channel axis `axis`, and without the rows whose `mask` is 0 (padding rows), summed over
    the devices of the mesh axis `over` (None: this device only).  A Python int without a mask, else an array.
    """
    if mask is None:
        return x.size // max(x.shape[axis], 1) * (1 if over is None else lax.psum(1, over))
    count = jnp.sum(mask) * (x.size / max(x.shape[axis] * mask.size, 1))
    return count if over is None else lax.psum(count, over)


def _masked(x: Array, mask: Array | None) -> Array:
    return x if mask is None else x * mask.astype(x.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _normalize(axis: int, eps: float, over: str | None, x: Array, gamma: Array, beta: Array, mask: Array | None):
    """Return (normalized x, mean, variance), with the statistics of the rows where `mask` is 1 (all rows if it is None).

    axis: channel axis.  over: name of the mesh axis whose devices share the statistics, None: each device has its own.  gamma
    and beta are (channels,).
    """
    return _normalize_forward(axis, eps, over, x, gamma, beta, mask)[0]


def _normalize_forward(axis, eps, over, x, gamma, beta, mask):
    wide = x.astype(accumulating(x.dtype))
    count = at_least_one(_count(wide, mask, axis, over))
    mean = _total(_masked(wide, mask), axis, over) / count
    # Two passes: E[x²] - E[x]² loses all significant digits if the mean is large.
    var = _total(_masked(jnp.square(wide - mean), mask), axis, over) / count
    inverse = lax.rsqrt(var + eps)
    out = (wide - mean) * (inverse * along(gamma, axis, x.ndim)) + along(beta, axis, x.ndim)
    return (out.astype(x.dtype), mean.reshape(-1), var.reshape(-1)), (x, gamma, mask, mean, inverse)


def _normalize_backward(axis, eps, over, residuals, cotangents):
    x, gamma, mask, mean, inverse = residuals
    wide = x.astype(accumulating(x.dtype))
    grad = cotangents[0].astype(wide.dtype)
    count = at_least_one(_count(wide, mask, axis, over))  # 1 on a device whose rows are all padding
    unit = (wide - mean) * inverse
    d_beta, d_gamma = _total(grad, axis, None), _total(grad * unit, axis, None)
    # The statistics depend on the rows of every device, so their part of the gradient of x needs the sums over all devices.
    # The gradients of gamma and beta stay per device: the training step sums those.
    all_beta, all_gamma = (d_beta, d_gamma) if over is None else lax.psum((d_beta, d_gamma), over)
    through = _masked(jnp.broadcast_to((all_beta + unit * all_gamma) / count, x.shape), mask)
    d_x = along(gamma, axis, x.ndim) * inverse * (grad - through)
    return d_x.astype(x.dtype), d_gamma.reshape(-1).astype(gamma.dtype), d_beta.reshape(-1).astype(gamma.dtype), None


_normalize.defvjp(_normalize_forward, _normalize_backward)


def _vectors(size: Callable[[Attrs, Shape], int]) -> ShapeRule:
    """Return a rule of shape inference for parameters that are vectors, all of length `size(attrs, shape of the data)`."""
    return from_data(lambda attrs, data, *others: [data, *[(size(attrs, data),)] * len(others)])


def _channels(attrs: Attrs, data: Shape) -> int:
    return data[normalize_axis(attrs.get("axis", 1), len(data))]


_batch_norm_fill = _vectors(_channels)


def _batch_norm_made(attrs: Attrs, shapes: Sequence[Shape]) -> list[Shape] | None:
    data = shapes[0]
    return [data, shapes[1], shapes[1]] if list(shapes) == [data, *[(_channels(attrs, data),)] * 4] else None


def _batch_norm_types(attrs: Attrs, ins: list) -> tuple[list, list]:
    """Infer dtypes: all inputs and outputs have the dtype of data, but parameters of half-precision data are float32."""
    data = ins[0]
    if data is None:
        return list(ins), [None] * 3
    params = np.dtype(np.float32) if np.dtype(data).itemsize == 2 else data
    return [data, *(params if t is None else t for t in ins[1:])], [data, params, params]


def _batch_norm_rows(attrs, rows, shapes, outs):
    first = rows[0]
    if isinstance(first, RowLayout) and first.axis == attrs.get("axis", 1) % len(shapes[0]):
        first = LOST
    return [first, *[None if first is None else LOST] * (len(outs) - 1)]


def _record(**attrs: Attr) -> dict[str, Any]:
    """Return the fields of the `Op` record that the BatchNorm operators share; `attrs` are additional attributes."""
    return {
        "inputs": ("data", "gamma", "beta"),
        "aux": ("moving_mean", "moving_var"),
        "init": {"moving_mean": '["zero", {}]', "moving_var": '["one", {}]'},
        "outputs": ("output", "mean", "var"),
        "visible": lambda a: 3 if a.output_mean_var else 1,
        "attrs": several(number, eps=0.0010000000474974513, momentum=0.899999976)
        | several(flag, fix_gamma=True, use_global_stats=False, output_mean_var=False)
        | {**attrs},
        "fill": _batch_norm_fill,
        "infer_outputs": _batch_norm_made,
        "types": _batch_norm_types,
        "rows": _batch_norm_rows,
        "layout": "channels",
    }


_AXIS = {"axis": integer(1), "cudnn_off": flag(False)} | several(maybe_number, min_calib_range=None, max_calib_range=None)


@operator("BatchNorm", aliases=("_npx_batch_norm",), **_record(**_AXIS))
def batch_norm(ctx: Ctx, attrs: Attrs, data: Array, gamma: Array, beta: Array, moving_mean: Array, moving_var: Array):
    """y = γ (x - μ) / √(σ² + ε) + β; in training with the batch's μ, σ² (biased), and moving ← m * moving + (1 - m) * batch."""
    axis = data.ndim - 1 if ctx.channels_last else normalize_axis(attrs.get("axis", 1), data.ndim)
    wide, vectors = accumulating(data.dtype), (gamma, beta, moving_mean, moving_var)
    for name, vector in zip(("gamma", "beta", "moving_mean", "moving_var"), vectors, strict=True):
        need_shape(name, vector.shape, (data.shape[axis],))
    scale = jnp.ones(gamma.shape, wide) if attrs.fix_gamma else gamma.astype(wide)
    shift = beta.astype(wide)
    if not ctx.train or attrs.use_global_stats:
        mean, var = lax.stop_gradient((moving_mean.astype(wide), moving_var.astype(wide)))
        factor = along(lax.rsqrt(var + attrs.eps) * scale, axis, data.ndim)
        out = (data.astype(wide) - along(mean, axis, data.ndim)) * factor + along(shift, axis, data.ndim)
        return (out.astype(data.dtype), mean, lax.rsqrt(var + attrs.eps)), (moving_mean, moving_var)
    mask, over = ctx.row_mask(data.ndim), None
    if ctx.sync_batch_stats and ctx.axis_name is not None:
        over = device_axis(ctx.axis_name, f"{ctx.node}: batch normalization over all devices")
    out, mean, var = cast(Any, _normalize)(axis, attrs.eps, over, data, scale, shift, mask)
    mean, var = lax.stop_gradient((mean, var))
    moved = []
    for old, new in ((moving_mean, mean), (moving_var, var)):
        updated = (old * attrs.momentum + new * (1.0 - attrs.momentum)).astype(old.dtype)
        moved.append(updated if mask is None else jnp.where(_count(data, mask, axis, over) > 0, updated, old))
    return (out, mean, lax.rsqrt(var + attrs.eps)), tuple(moved)  # MXNet's output named `var` is 1 / √(σ² + ε)


@operator("_contrib_BatchNormWithReLU", **_record(**_AXIS))
def batch_norm_with_relu(ctx: Ctx, attrs: Attrs, *arrays: Array):
    """y = max(BatchNorm(x), 0)."""
    (out, mean, var), moved = batch_norm(ctx, attrs, *arrays)
    return (jax.nn.relu(out), mean, var), moved


@operator("_contrib_SyncBatchNorm", **_record(ndev=integer(1), key=text()))
def sync_batch_norm(ctx: Ctx, attrs: Attrs, *arrays: Array):
    """y = BatchNorm(x) with μ, σ² over the rows of all devices (`ndev` and `key` are ignored); output `var` is σ² itself."""
    return batch_norm_v1(replace(ctx, sync_batch_stats=True), attrs, *arrays)


@operator("BatchNorm_v1", **_record())
def batch_norm_v1(ctx: Ctx, attrs: Attrs, *arrays: Array):
    """y = BatchNorm(x) with the channels on axis 1; its output `var` is σ² itself."""
    (out, mean, inverse), moved = batch_norm(ctx, attrs, *arrays)
    return (out, mean, 1.0 / jnp.square(inverse) - attrs.eps), moved


# ------------------------------------------------------------------------------------------ LayerNorm
_operator = functools.partial(operator, outputs=("output", "mean", "std"), visible=lambda a: 3 if a.output_mean_var else 1)


@_operator(
    "LayerNorm",
    attrs={"axis": integer(-1), "eps": number(9.99999975e-06), "output_mean_var": flag(False)},
    aliases=("_npx_layer_norm",),
    fill=_vectors(lambda attrs, data: data[normalize_axis(attrs.axis, len(data))]),
    rows=unmixed(axis_or_all),
)
def layer_norm(ctx: Ctx, attrs: Attrs, data: Array, gamma: Array, beta: Array) -> tuple[Array, ...]:
    """y = γ (x - μ) / √(σ² + ε) + β, with μ and σ² taken along `axis`; γ and β have the size of that axis."""
    axis = normalize_axis(attrs.axis, data.ndim)
    wide = data.astype(accumulating(data.dtype))
    mean = jnp.mean(wide, axis=axis, keepdims=True)
    var = jnp.mean(jnp.square(wide - mean), axis=axis, keepdims=True)
    unit = (wide - mean) * lax.rsqrt(var + attrs.eps)
    out = unit * along(gamma.astype(wide.dtype), axis, data.ndim) + along(beta.astype(wide.dtype), axis, data.ndim)
    # as in MXNet, the outputs mean and std have no gradient
    statistics = lax.stop_gradient((mean, jnp.sqrt(var + attrs.eps)))
    return out.astype(data.dtype), *(v.astype(data.dtype) for v in statistics)


# ----------------------------------------------------------------------------------------------------
# Normalization within each row: InstanceNorm, GroupNorm, L2Normalization, LRN.


def _standardised(wide: Array, axes: tuple[int, ...], eps: float) -> tuple[Array, Array, Array]:
    """Return ((x - μ) / s, μ, s) with s = √(σ² + ε); μ and s are computed over `axes`, kept as axes of size 1."""
    mean = jnp.mean(wide, axis=axes, keepdims=True)
    centred = wide - mean
    std = jnp.sqrt(jnp.mean(jnp.square(centred), axis=axes, keepdims=True) + eps)
    return centred / std, mean, std


# ------------------------------------------------------------------------------------------ InstanceNorm
def _channels_of_images(attrs: Attrs, data: Shape) -> int:
    need_rank("InstanceNorm", data, 3, "rows, channels and at least one spatial axis")
    return data[1]


@operator(
    "InstanceNorm", attrs={"eps": number(0.00100000005)}, fill=_vectors(_channels_of_images), rows=batch_rows, layout="channels"
)
def instance_norm(ctx: Ctx, attrs: Attrs, data: Array, gamma: Array, beta: Array) -> Array:
    """y = γ (x - μ) / √(σ² + ε) + β, with μ and σ² per row and channel; γ and β are (channels,), channels on axis 1."""
    channel = data.ndim - 1 if ctx.channels_last else 1
    wide = data.astype(accumulating(data.dtype))
    unit, _, _ = _standardised(wide, tuple(k for k in range(1, data.ndim) if k != channel), attrs.eps)
    scale, shift = (along(v.astype(wide.dtype), channel, data.ndim) for v in (gamma, beta))
    return (unit * scale + shift).astype(data.dtype)


# ------------------------------------------------------------------------------------------ GroupNorm
def _groups(attrs: Attrs, data: Shape) -> int:
    need_rank("GroupNorm", data, 3, "rows, channels and at least one spatial axis")
    if attrs.num_groups < 1 or data[1] % attrs.num_groups:
        raise ValueError(f"GroupNorm: {data[1]} channels cannot be split into num_groups={attrs.num_groups} equal groups")
    return attrs.num_groups


@_operator(
    "GroupNorm",
    attrs={"num_groups": integer(1), "eps": number(9.99999975e-06), "output_mean_var": flag(False)},
    fill=_vectors(_groups),
    rows=batch_rows,
)
def group_norm(ctx: Ctx, attrs: Attrs, data: Array, gamma: Array, beta: Array) -> tuple[Array, ...]:
    """y = γ (x - μ) / √(σ² + ε) + β, with μ and σ² per row and group of channels (axis 1); γ and β have one entry per GROUP."""
    rows, groups = data.shape[0], _groups(attrs, data.shape)
    wide = data.astype(accumulating(data.dtype)).reshape(rows, groups, -1)
    unit, mean, std = _standardised(wide, (2,), attrs.eps)
    scale, shift = (v.astype(wide.dtype).reshape(1, groups, 1) for v in (gamma, beta))
    out = (unit * scale + shift).reshape(data.shape)
    statistics = lax.stop_gradient((mean, std))  # as in MXNet, the outputs mean and std have no gradient
    return out.astype(data.dtype), *(v.reshape(rows, groups).astype(data.dtype) for v in statistics)


# ------------------------------------------------------------------------------------------ L2Normalization
def _summed_axes(attrs: Attrs, ndim: int) -> Sequence[int]:
    return {"instance": range(1, ndim), "channel": (1,), "spatial": range(2, ndim)}[attrs.mode]


@operator(
    "L2Normalization",
    attrs={"eps": number(1.00000001e-10), "mode": choice("channel", "instance", "spatial", default="instance")},
    rows=unmixed(_summed_axes),
)
def l2_normalization(ctx: Ctx, attrs: Attrs, data: Array) -> Array:
    """y = x / √(Σ x² + ε), summed over all axes but the first (instance), axis 1 (channel) or axes 2, 3, ... (spatial)."""
    need_rank("L2Normalization", data.shape, 1 if attrs.mode == "instance" else 3, f"mode is {attrs.mode!r}")
    wide = data.astype(accumulating(data.dtype))
    total = jnp.sum(jnp.square(wide), axis=tuple(_summed_axes(attrs, data.ndim)), keepdims=True)
    return (wide * lax.rsqrt(total + attrs.eps)).astype(data.dtype)


# ------------------------------------------------------------------------------------------ LRN
@operator(
    "LRN",
    outputs=("output", "tmp_norm"),
    visible=1,
    attrs={"alpha": number(9.99999975e-05), "beta": number(0.75), "knorm": number(2.0), "nsize": integer()},
    rows=batch_rows,
    layout="channels",
)
def lrn(ctx: Ctx, attrs: Attrs, data: Array) -> tuple[Array, Array]:
    """y = x / (k + α/n Σ x²)^β, summed over a window of n = nsize channels (axis 1) centred at each channel; n is odd."""
    channel, half = (3 if ctx.channels_last else 1), attrs.nsize // 2
    wide = data.astype(accumulating(data.dtype))
    window = [attrs.nsize if k == channel else 1 for k in range(4)]
    pads = [(half, half) if k == channel else (0, 0) for k in range(4)]
    squares = lax.reduce_window(jnp.square(wide), np.zeros((), wide.dtype), lax.add, window, (1,) * 4, pads)
    norm = attrs.knorm + (attrs.alpha / attrs.nsize) * squares
    return (wide * norm**-attrs.beta).astype(data.dtype), norm.astype(data.dtype)
