"""Convolution and transposed convolution in 1, 2 and 3 dimensions, deformable convolution, im2col and col2im."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from jfit.ops.attributes import REQUIRED, Attrs, flag, integer, maybe_choice, several, shape
from jfit.ops.context import Ctx
from jfit.ops.conv_forms import Window, at_taps, conv, convolve, folds, runs_in_forms, varying_alike
from jfit.ops.registry import Shape, operator
from jfit.ops.rules import CHANNELS_FIRST, accumulating, along, batch_rows, fill_unknown, per_axis, shared_batch_rows

LAYOUTS = ("NCDHW", "NCHW", "NCW", "NDHWC", "NHWC")
WINDOW = {"stride": 1, "pad": 0, "dilate": 1}  # attribute -> what it is for every axis if it is empty


def window_of(attrs: Attrs) -> Window:
    """Return stride, padding and dilation of an operator with the attribute `kernel`."""
    stride, pad, dilate = (per_axis(attrs, key, len(attrs.kernel), usual) for key, usual in WINDOW.items())
    return Window(stride, tuple((p, p) for p in pad), dilate)


def _layout(attrs: Attrs, data: tuple[int, ...]) -> str:
    dims = len(attrs.kernel)
    layout = attrs.layout or CHANNELS_FIRST.get(dims, "")
    if not len(layout) == len(data) == dims + 2:
        raise ValueError(f"data has shape {data}, expected {dims + 2} axes {layout} because kernel is {attrs.kernel}")
    return layout


def _channels(attrs: Attrs, data: tuple[int, ...]) -> int:
    channels = data[_layout(attrs, data).index("C")]
    for what, count in (("data channels", channels), ("num_filter", attrs.num_filter)):
        if count % max(attrs.num_group, 1):
            raise ValueError(f"{what} {count} cannot be split into num_group={attrs.num_group} groups; change one of them")
    return channels


def _arranged(layout: str, channels: int, spatial: tuple[int, ...]) -> tuple[int, ...]:
    """Return (channels, *spatial), the last axes of data or of a weight, or (*spatial, channels) if they are channels-last."""
    return (channels, *spatial) if layout[1] == "C" else (*spatial, channels)


def _bias(attrs: Attrs) -> list:
    return [] if attrs.no_bias else [(attrs.num_filter,)]


def _inputs(attrs: Attrs) -> tuple[str, ...]:
    return ("data", "weight") if attrs.no_bias else ("data", "weight", "bias")


def _batch_known(data: tuple[int, ...] | None, outs: list) -> tuple[int, ...] | None:
    """Fill in an unknown batch size of the data from the output shape (for initial states of convolutional RNN cells)."""
    if data and not data[0] and outs and outs[0]:
        return (outs[0][0], *data[1:])
    return data


def _image_known(attrs: Attrs, data: tuple[int, ...], outs: list) -> tuple[int, ...]:
    """Fill in unknown sizes of the image along axes of stride 1 from the output shape."""
    if 0 not in data or not outs or not outs[0] or len(outs[0]) != len(data):
        return data
    window, start = window_of(attrs), 2 if _layout(attrs, data)[1] == "C" else 1
    sizes = list(data)
    for i, (k, s, (before, after), d) in enumerate(zip(attrs.kernel, *window, strict=True), start):
        if not sizes[i] and s == 1 and outs[0][i]:
            sizes[i] = outs[0][i] + d * (k - 1) - before - after
    return tuple(sizes)


def _fill_by(op: str, attrs: Attrs, ins: list, outs: list) -> list:
    data = _batch_known(ins[0], outs)
    if data is None:
        return [None, ins[1], *_bias(attrs)]
    data = _image_known(attrs, data, outs) if op == "Convolution" else data
    channels, groups = _channels(attrs, data), attrs.num_group
    first, second = (attrs.num_filter, channels // groups) if op == "Convolution" else (channels, attrs.num_filter // groups)
    return [data, (first, *_arranged(_layout(attrs, data), second, attrs.kernel)), *_bias(attrs)]


_conv_fill = functools.partial(_fill_by, "Convolution")


def _attributes(workspace: int, no_bias: bool, **shapes: Any) -> dict:
    return (
        several(shape, kernel=REQUIRED, stride=(), dilate=(), pad=(), **shapes)
        | several(integer, num_filter=REQUIRED, num_group=1, workspace=workspace)
        | {
            "no_bias": flag(no_bias),
            "cudnn_tune": maybe_choice("fastest", "limited_workspace", "off"),
            "cudnn_off": flag(False),
            "layout": maybe_choice(*LAYOUTS),
        }
    )


def _as_passed(ctx: Ctx, attrs: Attrs, data: Array, weight: Array) -> tuple[str, Array]:
    """Return the layout in which the data is passed, and the weight with its channels before the spatial axes.

    The layout is NHWC if the lowering has transposed the data, else that of the graph.
    """
    layout = _layout(attrs, data.shape)
    if layout[-1] == "C":
        weight = jnp.moveaxis(weight, -1, 1)
    return "NHWC" if ctx.channels_last else layout, weight


def _convolve(data: Array, weight: Array, layout: str, window: Window, groups: int, plain: bool = False) -> Array:
    """Convolve data of the given layout with a weight of shape (out, in / groups, *kernel); `plain`: see `Ctx`."""
    last = layout[-1] == "C"
    sizes, kernel = data.shape[1:-1] if last else data.shape[2:], weight.shape[2:]
    if plain or not (runs_in_forms(data) or folds(sizes, kernel, window)):
        return conv(data, _kernel_last(weight) if last else weight, window, groups, last)
    out = convolve(data if last else jnp.moveaxis(data, 1, -1), _kernel_last(weight), window, groups)
    return out if last else jnp.moveaxis(out, -1, 1)


def _kernel_last(weight: Array) -> Array:
    """Transpose a weight from (out, in, *kernel) to (*kernel, in, out)."""
    return jnp.transpose(weight, (*range(2, weight.ndim), 1, 0))


def _conv_outputs(attrs: Attrs, shapes: Sequence[Shape]) -> list[Shape] | None:
    """Compute the output shape; None if the inputs do not fit, because tracing `convolution` then raises a precise error."""
    data = shapes[0]
    if list(shapes) != _conv_fill(attrs, [data, None, None], []):
        return None
    layout = _layout(attrs, data)
    start = 2 if layout[1] == "C" else 1
    spatial = window_of(attrs).output(data[start : start + len(attrs.kernel)], attrs.kernel)
    return [(data[0], *_arranged(layout, attrs.num_filter, spatial))]


_RECORD: dict[str, Any] = {"inputs": _inputs, "rows": batch_rows, "layout": "channels"}
_CONVOLUTION = _RECORD | {"attrs": _attributes(1024, no_bias=False), "fill": _conv_fill}


@operator("Convolution_v1", **_CONVOLUTION)
@operator("Convolution", aliases=("_npx_convolution",), infer_outputs=_conv_outputs, **_CONVOLUTION)
def convolution(ctx: Ctx, attrs: Attrs, data: Array, weight: Array, bias: Array | None = None) -> Array:
    """y[o] = Σᵢ w[o, i] ⋆ x[i] + b[o] (cross-correlation), weight (num_filter, channels / num_group, *kernel)."""
    runs, weight = _as_passed(ctx, attrs, data, weight)
    out = _convolve(data, weight.astype(data.dtype), runs, window_of(attrs), attrs.num_group, ctx.plain)
    return out if bias is None else out + along(bias.astype(out.dtype), runs.index("C"), out.ndim)


def deconv_pads(attrs: Attrs, sizes: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return (pad, adj) of each spatial axis; a nonzero target_shape determines both."""
    dims, window = len(attrs.kernel), window_of(attrs)
    if not any(attrs.target_shape):
        return [(pad, adj) for (pad, _), adj in zip(window.pads, per_axis(attrs, "adj", dims, 0), strict=True)]
    pads = []
    targets = per_axis(attrs, "target_shape", dims)
    for n, s, d, k, target in zip(sizes, window.stride, window.dilate, attrs.kernel, targets, strict=True):
        full = s * (n - 1) + d * (k - 1) + 1
        if target > full:
            raise ValueError(f"target_shape is {targets}, but {n} entries with stride {s} produce at most {full}")
        pads.append(((full - target + 1) // 2, (full - target) % 2))
    return pads


@operator(
    "Deconvolution",
    attrs=_attributes(512, no_bias=True, adj=(), target_shape=()),
    aliases=("_npx_deconvolution",),
    fill=functools.partial(_fill_by, "Deconvolution"),
    **_RECORD,
)
def deconvolution(ctx: Ctx, attrs: Attrs, data: Array, weight: Array, bias: Array | None = None) -> Array:
    """y = Convolutionᵀ(x) of size (n - 1) stride - 2 pad + dilate (k - 1) + 1 + adj, weight (channels, num_filter / g, *k)."""
    (runs, weight), window = _as_passed(ctx, attrs, data, weight), window_of(attrs)
    start = 2 if runs[1] == "C" else 1
    pads = deconv_pads(attrs, data.shape[start : start + len(attrs.kernel)])
    out = transposed(data, weight, window.stride, window.dilate, pads, attrs.num_group, runs, ctx.plain)
    return out if bias is None else out + along(bias.astype(out.dtype), runs.index("C"), out.ndim)


def transposed(data: Array, weight: Array, stride, dilate, pads, groups: int, runs: str = "NCHW", plain: bool = False) -> Array:
    """Compute a transposed convolution with weight (channels, filters / groups, *kernel) and (pad, adj) of each axis.

    plain=True: by `lax.conv_general_dilated` even where another form is faster.
    """
    first = 1 if runs[-1] == "C" else 2
    entries = zip(data.shape[first:], stride, dilate, weight.shape[2:], pads, strict=False)
    sizes = tuple(s * (n - 1) - 2 * p + d * (k - 1) + 1 + a for n, s, d, k, (p, a) in entries)
    if min(sizes) < 1:
        raise ValueError(f"the output would have {sizes} entries; expected at least 1 each: use a smaller pad or more data")
    window = Window(tuple(stride), tuple((p, p - a) for p, a in pads), tuple(dilate))
    shape = (data.shape[0], *_arranged(runs, weight.shape[1] * groups, sizes))
    data, weight, zeros = varying_alike(data, weight, jnp.zeros(shape, data.dtype))
    convolve_with_weight = lambda x: _convolve(x, weight.astype(data.dtype), runs, window, groups, plain)  # noqa: E731
    if plain:  # without the forward pass, so that its operations are not counted
        return jax.linear_transpose(convolve_with_weight, zeros)(data)[0]
    # the gradient of the convolution with the same weight, which runs in a faster form, too
    return jax.vjp(convolve_with_weight, zeros)[1](data)[0]


# ----------------------------------------------------------------------------------------------------
# Deformable convolution (Dai et al., 2017) and modulated deformable convolution (Zhu et al., 2018).


def _outputs(attrs: Attrs, data: tuple[int, ...]) -> tuple[int, ...]:
    """Return the height and width of the output, 0 where that of the data is unknown."""
    sizes = window_of(attrs).output(data[2:], attrs.kernel)
    return tuple(size if n else 0 for n, size in zip(data[2:], sizes, strict=True))


def _fill(attrs: Attrs, ins: list, outs: list) -> list:
    data = ins[0]
    if data is None:
        return ins
    taps = attrs.kernel[0] * attrs.kernel[1] * attrs.num_deformable_group
    weight = (attrs.num_filter, data[1] // attrs.num_group, *attrs.kernel)
    offset_and_mask = [(data[0], 2 * taps, *_outputs(attrs, data)), (data[0], taps, *_outputs(attrs, data))]
    bias = _bias(attrs)
    expected = [*offset_and_mask[: len(ins) - 2 - len(bias)], weight, *bias]
    return [data, *(fill_unknown(actual, shape) for actual, shape in zip(ins[1:], expected, strict=True))]


def _record(extra: tuple[str, ...], **more) -> dict:
    head = ("data", "offset", *extra, "weight")
    return {
        "inputs": lambda attrs: head if attrs.no_bias else (*head, "bias"),
        "attrs": several(shape, kernel=REQUIRED, stride=(), dilate=(), pad=())
        | several(integer, num_filter=REQUIRED, num_group=1, num_deformable_group=1, workspace=1024)
        | {"no_bias": flag(False), **more, "layout": maybe_choice("NCDHW", "NCHW", "NCW")},
        "fill": _fill,
        "rows": shared_batch_rows,
    }


def _sampled(fade: bool, maps: Array, y: Array, x: Array) -> Array:
    """Sample maps (height, width, channels) bilinearly at the positions y, x (...); the result is (..., channels).

    Samples outside the map are 0.  MXNet's operators differ in what is outside: the modulated operator (fade=True) pads the map
    with zeros, so that samples fall linearly to 0 within one pixel beyond each edge.  The plain operator (fade=False) returns 0
    for y < 0, y >= height, x < 0 or x >= width, and repeats the last row and column for y > height - 1 and x > width - 1.
    """
    height, width = maps.shape[:2]
    inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
    if not fade:
        y, x = jnp.minimum(y, height - 1), jnp.minimum(x, width - 1)
    low_y, low_x = jnp.floor(y), jnp.floor(x)
    part_y, part_x = y - low_y, x - low_x
    total: Array | float = 0.0
    for step_y in (0, 1):
        for step_x in (0, 1):
            row, column = low_y + step_y, low_x + step_x
            weight = (part_y if step_y else 1 - part_y) * (part_x if step_x else 1 - part_x)
            valid = (row >= 0) & (row < height) & (column >= 0) & (column < width) if fade else inside
            row, column = (jnp.clip(v, 0, n - 1).astype(jnp.int32) for v, n in ((row, height), (column, width)))
            total = total + maps[row, column] * jnp.where(valid, weight, 0)[..., None]
    return jnp.asarray(total)


def _columns(attrs: Attrs, data: Array, offset: Array, mask: Array | None) -> Array:
    """Sample the input of each kernel tap at each output position, (batch, channels, taps, output height * width)."""
    batch, channels, height, width = data.shape
    parts, (kernel_y, kernel_x) = attrs.num_deformable_group, attrs.kernel
    taps, (out_y, out_x) = kernel_y * kernel_x, _outputs(attrs, data.shape)
    (stride_y, stride_x), ((pad_y, _), (pad_x, _)), (dilate_y, dilate_x) = window_of(attrs)
    offsets = offset.reshape(batch, parts, taps, 2, out_y, out_x)
    tap_y, tap_x = jnp.divmod(jnp.arange(taps, dtype=data.dtype), kernel_x)
    rows = (tap_y * dilate_y - pad_y)[:, None] + (jnp.arange(out_y, dtype=data.dtype) * stride_y)[None]
    columns = (tap_x * dilate_x - pad_x)[:, None] + (jnp.arange(out_x, dtype=data.dtype) * stride_x)[None]
    y = offsets[:, :, :, 0] + rows[None, None, :, :, None]  # (batch, parts, taps, out_y, out_x)
    x = offsets[:, :, :, 1] + columns[None, None, :, None, :]
    maps = jnp.transpose(data.reshape(batch, parts, -1, height, width), (0, 1, 3, 4, 2))
    samples = jax.vmap(jax.vmap(functools.partial(_sampled, mask is not None)))(
        maps, y, x
    )  # (batch, deformable groups, taps, out_y, out_x, channels of a group)
    if mask is not None:
        samples = samples * mask.reshape(*y.shape, 1)
    return jnp.moveaxis(samples, -1, 2).reshape(batch, channels, taps, out_y * out_x)


def _convolve_sampled(attrs: Attrs, data: Array, sampling: list[Array], weight: Array, bias: Array | None) -> Array:
    """Deformable convolution; `sampling` is [offset] or [offset, mask]."""
    shapes = [data.shape, *(s.shape for s in sampling), weight.shape, *([] if bias is None else [bias.shape])]
    expected = _fill(attrs, [data.shape, *[None] * (len(shapes) - 1)], [None])
    if shapes != expected:
        raise ValueError(f"inputs have shapes {shapes}, expected {expected}; change them, kernel, stride, dilate or pad")
    wide, groups = accumulating(data.dtype), attrs.num_group
    data_wide, *sampling = (v.astype(wide) for v in (data, *sampling))
    columns = _columns(attrs, data_wide, sampling[0], sampling[1] if len(sampling) > 1 else None)
    split = columns.reshape(data.shape[0], groups, -1, *columns.shape[2:])
    kernel = weight.astype(wide).reshape(groups, attrs.num_filter // groups, -1, columns.shape[2])
    out = jnp.einsum("ngckl,gfck->ngfl", split, kernel, precision=lax.Precision.HIGHEST)
    out = out.reshape(data.shape[0], attrs.num_filter, *_outputs(attrs, data.shape))
    return (out if bias is None else out + along(bias.astype(wide), 1, 4)).astype(data.dtype)


@operator("_contrib_DeformableConvolution", **_record(()))
def deformable_convolution(ctx, attrs, data, offset, weight, bias=None):
    """y = Σₖ w[k] · x(position of tap k + offset[k]) + b, x sampled bilinearly, 0 outside the data.

    offset has shape (batch, 2 * taps * num_deformable_group, height, width), in the order (y, x) for each tap.
    """
    return _convolve_sampled(attrs, data, [offset], weight, bias)


@operator("_contrib_ModulatedDeformableConvolution", **_record(("mask",), im2col_step=integer(64)))
def modulated_deformable_convolution(ctx, attrs, data, offset, mask, weight, bias=None):
    """y = Σₖ w[k] · mask[k] · x(position of tap k + offset[k]) + b, x sampled bilinearly, 0 outside the data."""
    return _convolve_sampled(attrs, data, [offset, mask], weight, bias)


# ----------------------------------------------------------------------------------------------------
# im2col: patches of images as columns; col2im: its transpose, columns summed into images.


def _patch_columns(attrs: Attrs, data: Array) -> Array:
    """Return the patches as (rows, channels * kernel entries, windows), kernel entries in C order within each channel."""
    window = window_of(attrs)
    counts = window.output(data.shape[2:], attrs.kernel)
    padded = jnp.pad(data, ((0, 0), (0, 0), *window.pads))
    taps = at_taps(padded, 2, attrs.kernel, window.stride, window.dilate, counts)
    return jnp.stack(taps, axis=2).reshape(data.shape[0], -1, math.prod(counts))


_ATTRS = {"kernel": shape(), "stride": shape(()), "dilate": shape(()), "pad": shape(())}


@operator("im2col", attrs=_ATTRS, rows=batch_rows)
def im2col(ctx: Ctx, attrs: Attrs, data: Array) -> Array:
    """y[n, (c, k), w] = x[n, c, start of window w + k]: the patches that a convolution multiplies by its kernel, as columns."""
    return _patch_columns(attrs, data)


@operator("col2im", attrs={"output_size": shape(), **_ATTRS}, rows=batch_rows)
def col2im(ctx: Ctx, attrs: Attrs, data: Array) -> Array:
    """y = im2colᵀ(x): every entry is added to the position that im2col reads it from; `output_size` is the size of y."""
    channels = data.shape[1] // math.prod(attrs.kernel)
    image = jax.ShapeDtypeStruct((data.shape[0], channels, *attrs.output_size), data.dtype)
    (out,) = jax.linear_transpose(functools.partial(_patch_columns, attrs), image)(data)
    return out
