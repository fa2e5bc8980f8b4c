"""Convolutions whose samples move (Dai and others, 2017), and may be weighted one by one (Zhu and others, 2018)."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import Array, lax

from jfit.ops.attributes import Attrs, flag, integer, maybe_choice, shape
from jfit.ops.registry import operator
from jfit.ops.rules import accumulating, along, known_or, shared_batch_rows


def _pair(attrs: Attrs, key: str, default: int) -> tuple[int, int]:
    given = attrs[key] or (default, default)
    if len(given) != 2:
        raise ValueError(f"{key} is {attrs[key]}, needed two numbers (height, width); change {key}")
    return given


def _outputs(attrs: Attrs, data: tuple[int, ...]) -> tuple[int, int]:
    """Height and width of the output."""
    sizes = []
    kernel, stride = _pair(attrs, "kernel", 1), _pair(attrs, "stride", 1)
    for n, k, s, d, p in zip(data[2:], kernel, stride, _pair(attrs, "dilate", 1), _pair(attrs, "pad", 0), strict=True):
        sizes.append((n + 2 * p - (d * (k - 1) + 1)) // s + 1 if n else 0)
    return sizes[0], sizes[1]


def _fill(attrs: Attrs, ins: list, outs: list) -> list:
    data = ins[0]
    if data is None:
        return ins
    groups, parts = attrs.num_group, attrs.num_deformable_group
    if len(data) != 4 or data[1] % max(groups, 1) or data[1] % max(parts, 1) or attrs.num_filter % max(groups, 1):
        raise ValueError(
            f"data has shape {data}, needed (batch, channels, height, width) with channels that num_group {groups} and "
            f"num_deformable_group {parts} divide; num_group must divide num_filter {attrs.num_filter} too"
        )
    taps = attrs.kernel[0] * attrs.kernel[1] * parts
    weight = (attrs.num_filter, data[1] // groups, *_pair(attrs, "kernel", 1))
    moved = [(data[0], 2 * taps, *_outputs(attrs, data)), (data[0], taps, *_outputs(attrs, data))]
    bias = [] if attrs.no_bias else [(attrs.num_filter,)]
    wanted = [*moved[: len(ins) - 2 - len(bias)], weight, *bias]
    return [data, *(known_or(given, shape) for given, shape in zip(ins[1:], wanted, strict=True))]


def _record(extra: tuple[str, ...], **more) -> dict:
    head = ("data", "offset", *extra, "weight")
    return {
        "inputs": lambda attrs: head if attrs.no_bias else (*head, "bias"),
        "attrs": {
            "kernel": shape(),
            "stride": shape(()),
            "dilate": shape(()),
            "pad": shape(()),
            "num_filter": integer(),
            "num_group": integer(1),
            "num_deformable_group": integer(1),
            "workspace": integer(1024),
            "no_bias": flag(False),
            **more,
            "layout": maybe_choice("NCDHW", "NCHW", "NCW"),
        },
        "fill": _fill,
        "rows": shared_batch_rows,
    }


def _sampled(fade: bool, maps: Array, y: Array, x: Array) -> Array:
    """Bilinear samples of maps (height, width, channels) at y, x (...).

    Outside they are 0.  With `fade` they fall to 0 over the pixel beyond each edge; without it the last pixel is held up
    to `height` and `width`, and they are 0 at once before the first: MXNet's modulated and plain operators differ so.
    """
    height, width = maps.shape[:2]
    here = (y >= 0) & (y < height) & (x >= 0) & (x < width)
    if not fade:
        y, x = jnp.minimum(y, height - 1), jnp.minimum(x, width - 1)
    low_y, low_x = jnp.floor(y), jnp.floor(x)
    part_y, part_x = y - low_y, x - low_x
    total: Array | float = 0.0
    for step_y in (0, 1):
        for step_x in (0, 1):
            row, column = low_y + step_y, low_x + step_x
            weight = (part_y if step_y else 1 - part_y) * (part_x if step_x else 1 - part_x)
            counts = (row >= 0) & (row < height) & (column >= 0) & (column < width) if fade else here
            row, column = (jnp.clip(v, 0, n - 1).astype(jnp.int32) for v, n in ((row, height), (column, width)))
            total = total + maps[row, column] * jnp.where(counts, weight, 0)[..., None]
    return jnp.asarray(total)


def _columns(attrs: Attrs, data: Array, offset: Array, mask: Array | None) -> Array:
    """What each tap of the kernel sees at each place of the output, (batch, channels, taps, places)."""
    batch, channels, height, width = data.shape
    parts, (kernel_y, kernel_x) = attrs.num_deformable_group, _pair(attrs, "kernel", 1)
    taps, (out_y, out_x) = kernel_y * kernel_x, _outputs(attrs, data.shape)
    (stride_y, stride_x), (dilate_y, dilate_x) = _pair(attrs, "stride", 1), _pair(attrs, "dilate", 1)
    pad_y, pad_x = _pair(attrs, "pad", 0)
    moves = offset.reshape(batch, parts, taps, 2, out_y, out_x)
    tap_y, tap_x = jnp.divmod(jnp.arange(taps, dtype=data.dtype), kernel_x)
    rows = (tap_y * dilate_y - pad_y)[:, None] + (jnp.arange(out_y, dtype=data.dtype) * stride_y)[None]
    columns = (tap_x * dilate_x - pad_x)[:, None] + (jnp.arange(out_x, dtype=data.dtype) * stride_x)[None]
    y = moves[:, :, :, 0] + rows[None, None, :, :, None]  # (batch, parts, taps, out_y, out_x)
    x = moves[:, :, :, 1] + columns[None, None, :, None, :]
    maps = jnp.transpose(data.reshape(batch, parts, -1, height, width), (0, 1, 3, 4, 2))
    seen = jax.vmap(jax.vmap(functools.partial(_sampled, mask is not None)))(
        maps, y, x
    )  # (batch, parts, taps, out_y, out_x, channels of a part)
    if mask is not None:
        seen = seen * mask.reshape(*y.shape, 1)
    return jnp.moveaxis(seen, -1, 2).reshape(batch, channels, taps, out_y * out_x)


def _convolve(op: str, attrs: Attrs, data: Array, moved: list[Array], weight: Array, bias: Array | None) -> Array:
    given = [data.shape, *(m.shape for m in moved), weight.shape, *([] if bias is None else [bias.shape])]
    blank = [data.shape, *[None] * (len(given) - 1)]
    needed = _fill(attrs, blank, [None])
    if given != needed:
        raise ValueError(f"{op}: inputs have shapes {given}, needed {needed} because of kernel, stride, dilate, pad and groups")
    wide, groups = accumulating(data.dtype), attrs.num_group
    data_wide, *moves = (v.astype(wide) for v in (data, *moved))
    columns = _columns(attrs, data_wide, moves[0], moves[1] if len(moves) > 1 else None)
    split = columns.reshape(data.shape[0], groups, -1, *columns.shape[2:])
    kernel = weight.astype(wide).reshape(groups, attrs.num_filter // groups, -1, columns.shape[2])
    out = jnp.einsum("ngckl,gfck->ngfl", split, kernel, precision=lax.Precision.HIGHEST)
    out = out.reshape(data.shape[0], attrs.num_filter, *_outputs(attrs, data.shape))
    return (out if bias is None else out + along(bias.astype(wide), 1, 4)).astype(data.dtype)


@operator("_contrib_DeformableConvolution", **_record(()))
def deformable_convolution(ctx, attrs, data, offset, weight, bias=None):
    """y = Σₖ w[k] · x(place of tap k + offset[k]) + b, x read bilinearly, 0 outside the data.

    offset (batch, 2 * taps * num_deformable_group, height, width) holds (y, x) of each tap.
    """
    return _convolve("DeformableConvolution", attrs, data, [offset], weight, bias)


@operator("_contrib_ModulatedDeformableConvolution", **_record(("mask",), im2col_step=integer(64)))
def modulated_deformable_convolution(ctx, attrs, data, offset, mask, weight, bias=None):
    """y = Σₖ w[k] · mask[k] · x(place of tap k + offset[k]) + b, x read bilinearly, 0 outside the data."""
    return _convolve("ModulatedDeformableConvolution", attrs, data, [offset, mask], weight, bias)
