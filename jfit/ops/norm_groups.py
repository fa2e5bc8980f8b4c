"""Normalisation within each row: by instance, by group of channels, by length, by neighbouring channels."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jfit.ops.attributes import Attrs, choice, flag, integer, number
from jfit.ops.context import Ctx
from jfit.ops.registry import operator
from jfit.ops.rows import LOST, RowLayout
from jfit.ops.rules import accumulating, along, batch_rows, need_rank, unmixed_rows


def _standardised(wide: Array, axes: tuple[int, ...], eps: float) -> tuple[Array, Array, Array]:
    """((x - μ) / σ, μ, σ = √(σ² + ε)) over `axes`, which stay as axes of size 1."""
    mean = jnp.mean(wide, axis=axes, keepdims=True)
    centred = wide - mean
    std = jnp.sqrt(jnp.mean(jnp.square(centred), axis=axes, keepdims=True) + eps)
    return centred / std, mean, std


# ------------------------------------------------------------------------------------------ InstanceNorm
def _instance_fill(attrs: Attrs, ins: list, outs: list) -> list:
    data = ins[0]
    if data is None:
        return ins
    need_rank("InstanceNorm", data, 3, "rows, channels and at least one spatial axis")
    return [data, (data[1],), (data[1],)]


@operator(
    "InstanceNorm",
    inputs=("data", "gamma", "beta"),
    attrs={"eps": number(0.00100000005)},
    fill=_instance_fill,
    rows=batch_rows,
    layout="channels",
)
def instance_norm(ctx: Ctx, attrs: Attrs, data: Array, gamma: Array, beta: Array) -> Array:
    """y = γ (x - μ) / √(σ² + ε) + β, μ and σ² of each channel of each row; γ, β one per channel (axis 1)."""
    channel = data.ndim - 1 if ctx.channels_last else 1
    wide = data.astype(accumulating(data.dtype))
    unit, _, _ = _standardised(wide, tuple(k for k in range(1, data.ndim) if k != channel), attrs.eps)
    scale, shift = (along(v.astype(wide.dtype), channel, data.ndim) for v in (gamma, beta))
    return (unit * scale + shift).astype(data.dtype)


# ------------------------------------------------------------------------------------------ GroupNorm
def _group_fill(attrs: Attrs, ins: list, outs: list) -> list:
    data = ins[0]
    if data is None:
        return ins
    need_rank("GroupNorm", data, 3, "rows, channels and at least one spatial axis")
    if attrs.num_groups < 1 or data[1] % attrs.num_groups:
        raise ValueError(
            f"GroupNorm: {data[1]} channels cannot be split into num_groups={attrs.num_groups} equal groups; change num_groups"
        )
    return [data, (attrs.num_groups,), (attrs.num_groups,)]


@operator(
    "GroupNorm",
    inputs=("data", "gamma", "beta"),
    outputs=("output", "mean", "std"),
    visible=lambda a: 3 if a.output_mean_var else 1,
    attrs={"num_groups": integer(1), "eps": number(9.99999975e-06), "output_mean_var": flag(False)},
    fill=_group_fill,
    rows=batch_rows,
)
def group_norm(ctx: Ctx, attrs: Attrs, data: Array, gamma: Array, beta: Array) -> tuple[Array, ...]:
    """y = γ (x - μ) / √(σ² + ε) + β, μ and σ² of each group of channels (axis 1) of each row; γ, β one per GROUP."""
    rows, groups = data.shape[0], attrs.num_groups
    wide = data.astype(accumulating(data.dtype)).reshape(rows, groups, -1)
    unit, mean, std = _standardised(wide, (2,), attrs.eps)
    scale, shift = (v.astype(wide.dtype).reshape(1, groups, 1) for v in (gamma, beta))
    out = (unit * scale + shift).reshape(data.shape)
    statistics = lax.stop_gradient((mean, std))  # MXNet's are for looking at: what comes from above ends there
    return out.astype(data.dtype), *(v.reshape(rows, groups).astype(data.dtype) for v in statistics)


# ------------------------------------------------------------------------------------------ L2Normalization
def _length_rows(attrs, rows, shapes, outs):
    if attrs.mode == "channel":
        return unmixed_rows(1, rows, shapes, outs)
    first = rows[0]
    mixed = isinstance(first, RowLayout) and (first.axis > 0 if attrs.mode == "instance" else first.axis > 1)
    return [LOST if mixed else first]


@operator(
    "L2Normalization",
    attrs={"eps": number(1.00000001e-10), "mode": choice("channel", "instance", "spatial", default="instance")},
    rows=_length_rows,
)
def l2_normalization(ctx: Ctx, attrs: Attrs, data: Array) -> Array:
    """y = x / √(Σ x² + ε), Σ over each row (instance), over axis 1 (channel) or over axes 2, 3, ... (spatial)."""
    need_rank("L2Normalization", data.shape, 1 if attrs.mode == "instance" else 3, f"mode is {attrs.mode!r}")
    axes = {"instance": tuple(range(1, data.ndim)), "channel": (1,), "spatial": tuple(range(2, data.ndim))}[attrs.mode]
    wide = data.astype(accumulating(data.dtype))
    return (wide * lax.rsqrt(jnp.sum(jnp.square(wide), axis=axes, keepdims=True) + attrs.eps)).astype(data.dtype)


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
    """y = x / (k + α/n Σ x²)^β, Σ over the n channels (axis 1) around each; n = nsize, odd."""
    if data.ndim != 4:
        raise ValueError(f"LRN: data has shape {data.shape}, needed 4 axes (rows, channels, height, width); reshape the data")
    if attrs.nsize > data.shape[3 if ctx.channels_last else 1] or attrs.nsize % 2 != 1:
        raise ValueError(
            f"LRN: nsize is {attrs.nsize}, needed an odd number of at most as many channels as data has; change nsize"
        )
    channel, half = (3 if ctx.channels_last else 1), attrs.nsize // 2
    wide = data.astype(accumulating(data.dtype))
    window = [attrs.nsize if k == channel else 1 for k in range(4)]
    pads = [(half, half) if k == channel else (0, 0) for k in range(4)]
    squares = lax.reduce_window(jnp.square(wide), np.zeros((), wide.dtype), lax.add, window, (1,) * 4, pads)
    norm = attrs.knorm + (attrs.alpha / attrs.nsize) * squares
    return (wide * norm**-attrs.beta).astype(data.dtype), norm.astype(data.dtype)
