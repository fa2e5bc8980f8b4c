"""Cropping and resizing images: Crop, UpSampling, BilinearResize2D, AdaptiveAvgPooling2D, OpenCV's interpolations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jfit.ops.attributes import REQUIRED, Attrs, choice, flag, integer, maybe_number, several, shape
from jfit.ops.context import Ctx
from jfit.ops.conv import transposed
from jfit.ops.registry import operator
from jfit.ops.rules import accumulating, along, argument_names, batch_rows, data_rows, need_shape, shared_batch_rows


def _sizes(image: Array) -> tuple[int, int]:
    """Return (height, width) of an array (rows, channels, height, width)."""
    _, _, high, wide = image.shape
    return high, wide


def sides(what: str, value: tuple[int, ...]) -> tuple[int, ...]:
    """Return an attribute of one or two sizes as two: a single one is that of both sides."""
    pair = value * 2 if len(value) == 1 else value
    if len(pair) != 2 or min(pair) < 1:
        raise ValueError(f"{what} is {value}, expected one or two sizes of at least 1")
    return pair


# ------------------------------------------------------------------------------------------ Crop
def cut(data: Array, axes: Sequence[int], starts: Sequence[int], sizes: Sequence[int]) -> Array:
    """Return the entries from start to start + size along each of `axes`."""
    for axis, start, size in zip(axes, starts, sizes, strict=True):
        if start < 0 or size < 1:  # JAX would count from the end of the axis
            raise ValueError(f"size {tuple(sizes)} at offset {tuple(starts)} is not inside {data.shape}; change one of them")
        data = lax.slice_in_dim(data, start, start + size, axis=axis)
    return data


@operator(
    "Crop",
    inputs=argument_names,
    variadic="num_args",
    attrs={"num_args": integer(), "offset": shape((0, 0)), "h_w": shape((0, 0)), "center_crop": flag(False)},
    rows=data_rows,
)
def crop(ctx: Ctx, attrs: Attrs, data: Array, crop_like: Array | None = None) -> Array:
    """y = x[:, :, top : top + h, left : left + w]; (h, w) = h_w or the second input's; (top, left) = offset, or centred."""
    target, start = attrs.h_w if crop_like is None else _sizes(crop_like), attrs.offset
    if attrs.center_crop:
        start = [(n - size) // 2 for n, size in zip(_sizes(data), target, strict=True)]
    return cut(data, (2, 3), start, target)


# ------------------------------------------------------------------------------------------ UpSampling
def _upsampling_fill(attrs: Attrs, ins: list, outs: list) -> list:
    if attrs.sample_type != "bilinear" or ins[0] is None:
        return ins
    side = 2 * attrs.scale - attrs.scale % 2
    return [ins[0], (ins[0][1], 1, side, side)]


def _upsampling_rows(attrs, rows, shapes, outs):
    if attrs.sample_type == "bilinear":
        return batch_rows(attrs, rows, shapes, outs)
    return shared_batch_rows(attrs, rows, shapes, outs)


@operator(
    "UpSampling",
    inputs=lambda attrs: ("data", "weight") if attrs.sample_type == "bilinear" else argument_names(attrs),
    variadic="num_args",
    attrs=several(integer, scale=REQUIRED, num_filter=0)
    | {"sample_type": choice("bilinear", "nearest"), "multi_input_mode": choice("concat", "sum", default="concat")}
    | several(integer, num_args=REQUIRED, workspace=512),
    init=dict.fromkeys(("weight", "arg1"), '["bilinear", {}]'),  # arg1: MXNet does so for nearest, too
    fill=_upsampling_fill,
    rows=_upsampling_rows,
)
def up_sampling(ctx: Ctx, attrs: Attrs, *arrays: Array) -> Array:
    """y = x with every pixel repeated `scale` times in height and width (nearest), or a Deconvolution per channel (bilinear).

    nearest accepts several inputs: each is repeated to the size of the first one times `scale`, then they are concatenated
    along the channels or summed (multi_input_mode). bilinear reads its kernels from the second input, `weight`.
    """
    data, scale = arrays[0], attrs.scale
    high, wide = _sizes(data)
    if scale < 1:
        raise ValueError(f"scale is {scale}, expected at least 1")
    if attrs.sample_type == "bilinear":
        pads = ((scale // 2, 0),) * 2
        return transposed(data, arrays[1], (scale, scale), (1, 1), pads, groups=data.shape[1], plain=ctx.plain)
    resized_inputs = []
    for array in arrays:
        size = _sizes(array)
        times = (high * scale // size[0], wide * scale // size[1])
        split = array.reshape(*array.shape[:2], size[0], 1, size[1], 1)
        spread = jnp.broadcast_to(split, (*array.shape[:2], size[0], times[0], size[1], times[1]))
        resized_inputs.append(spread.reshape(*array.shape[:2], high * scale, wide * scale))
    if attrs.multi_input_mode == "concat":
        return jnp.concatenate(resized_inputs, axis=1)
    for i, array in enumerate(resized_inputs):
        need_shape(f"arg{i}, resized for multi_input_mode='sum',", array.shape, resized_inputs[0].shape)
    return sum(resized_inputs[1:], resized_inputs[0])


# ------------------------------------------------------------------------------------------ BilinearResize2D
def _new_size(attrs: Attrs, n: int, size: int, scale: Any, like: Any) -> int:
    """Return the resized number of pixels of an axis of `n` pixels, by `attrs.mode`.

    `size` and `scale` are the attributes for this axis, `like` is the size of this axis in the second input.
    """
    mode = attrs.mode
    if mode == "like":
        return like
    if mode == "odd_scale":
        return int(n * scale) if n % 2 == 0 else int((n - 1) * scale) + 1
    if mode != "size":
        odd, step = mode.startswith("to_odd"), -1 if mode.endswith("down") else 1
        return n if n % 2 == odd else n + step
    return size if scale is None else int(n * scale)


def linear_taps(old: int, new: int, align: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return (entry before, share of the entry after it) of each of `new` interpolated entries, both (new,).

    `align` aligns the centres of the first and last entries, else the borders.
    """
    if new == 1:
        position = np.zeros(1)  # as in MXNet, a single output pixel is the first input pixel, with either alignment
    elif align:
        position = np.arange(new) * ((old - 1) / (new - 1))
    else:
        position = np.maximum((np.arange(new) + 0.5) * (old / new) - 0.5, 0.0)
    low = np.minimum(position.astype(np.int64), old - 1)
    return low, position - low


def linear_weights(old: int, new: int, align: bool) -> np.ndarray:
    """Return the matrix (new, old) of linear interpolation, see `linear_taps`."""
    low, part = linear_taps(old, new, align)
    rows = np.eye(old)
    return rows[low] * (1 - part[:, None]) + rows[np.minimum(low + 1, old - 1)] * part[:, None]


def _interpolated(wide: Array, axis: int, size: int, align: bool) -> Array:
    """Interpolate linearly along an axis, see `linear_taps`."""
    old = wide.shape[axis]
    if size == old:
        return wide
    low, part = linear_taps(old, size, align)
    below, above = jnp.take(wide, low, axis=axis), jnp.take(wide, np.minimum(low + 1, old - 1), axis=axis)
    return below + along(jnp.asarray(part, wide.dtype), axis, wide.ndim) * (above - below)


@operator(
    "_contrib_BilinearResize2D",
    inputs=lambda a: ("data", "like") if a.mode == "like" else ("data",),
    attrs=several(integer, height=1, width=1)
    | several(maybe_number, scale_height=None, scale_width=None)
    | {"mode": choice("like", "odd_scale", "size", "to_even_down", "to_even_up", "to_odd_down", "to_odd_up", default="size")}
    | {"align_corners": flag(True)},
    rows=data_rows,
)
def bilinear_resize(ctx: Ctx, attrs: Attrs, data: Array, like: Array | None = None) -> Array:
    """y = x resized by bilinear interpolation; `mode` selects how the new height and width are computed."""
    likes = (None, None) if like is None else _sizes(like)
    out = data.astype(accumulating(data.dtype))
    requested = zip((attrs.height, attrs.width), (attrs.scale_height, attrs.scale_width), likes, strict=True)
    for axis, (n, (size, scale, same)) in enumerate(zip(_sizes(data), requested, strict=True), 2):
        new = _new_size(attrs, n, size, scale, same)
        if new < 1:
            raise ValueError(f"{n} pixels would become {new}, expected at least 1; change the size or scale")
        out = _interpolated(out, axis, new, attrs.align_corners)
    return out.astype(data.dtype)


# ------------------------------------------------------------------------------------------ AdaptiveAvgPooling2D
def averages(n: int, count: int) -> np.ndarray:
    """Return the averaging matrix (count, n): row i is the mean of entries ⌊i n / count⌋ to ⌈(i + 1) n / count⌉ - 1."""
    i, position = np.arange(count)[:, None], np.arange(n)[None, :]
    inside = (position >= i * n // count) & (position < -(-(i + 1) * n // count))
    return inside / inside.sum(axis=1, keepdims=True)


@operator("_contrib_AdaptiveAvgPooling2D", attrs={"output_size": shape(())}, rows=batch_rows)
def adaptive_average_pooling(ctx: Ctx, attrs: Attrs, data: Array) -> Array:
    """y[i, j] = mean of x over window (i, j) of output_size (height, width) windows that cover the image; default 1 x 1."""
    wide = data.astype(accumulating(data.dtype))
    sizes = zip(_sizes(data), sides("output_size", attrs.output_size or (1,)), strict=True)
    rows, columns = (jnp.asarray(averages(n, k), wide.dtype) for n, k in sizes)
    out = jnp.einsum("nchw,ih,jw->ncij", wide, rows, columns, precision=lax.Precision.HIGHEST)
    return out.astype(data.dtype)


# ----------------------------------------------------------------------------------------------------
# Resizing as OpenCV does it: each axis is multiplied by a small matrix of weights, computed while tracing. uint8 images are
# interpolated in integer arithmetic with weights in units of 1/2048, so that the result equals OpenCV's exactly.

NEAREST, LINEAR, CUBIC, AREA, LANCZOS = range(5)
ONE = 2048  # the integer weight that represents 1 for uint8 images


def resized(data: Array, size: tuple[int, int], interp: int) -> Array:
    """Resize images as OpenCV does.

    Args:
        data: images (..., height, width, channels), uint8 or floating; any dtype if interp is 0.
        size: the new (height, width).
        interp: OpenCV's interpolation: 0 nearest, 1 linear, 2 cubic, 3 area, 4 Lanczos.

    Returns:
        Images (..., *size, channels) with the dtype of data.

    Raises:
        ValueError: `interp` is not 0 to 4, or interpolation of integers other than uint8.
    """
    if interp not in range(5):
        raise ValueError(f"interp is {interp}, expected 0 to 4 (nearest, linear, cubic, area, Lanczos)")
    floating = jnp.issubdtype(data.dtype, jnp.floating)
    if interp != NEAREST and not floating and data.dtype != jnp.uint8:
        raise ValueError(f"data is {data.dtype}, expected uint8 or floats because interp={interp} averages; cast data")
    old = data.shape[-3:-1]
    if interp == NEAREST:
        rows, columns = (np.minimum(np.arange(n) * o // n, o - 1) for n, o in zip(size, old, strict=True))
        return jnp.take(jnp.take(data, rows, axis=-3), columns, axis=-2)
    if interp == AREA and all(n <= o for n, o in zip(size, old, strict=True)):
        return _by_area(data, [_area(o, n) for o, n in zip(old, size, strict=True)])
    taps = [_taps(o, n, interp, cut) for o, n, cut in zip(old, size, (False, True), strict=True)]
    if floating:
        high, wide = (_matrix(o, *t) for o, t in zip(old, taps, strict=True))
        return _apply(data.astype(jnp.float32), high, wide).astype(data.dtype)
    return _bytes(data, taps)


def _apply(data: Array, high: np.ndarray, wide: np.ndarray) -> Array:
    """Multiply images (..., height, width, channels) by the weight matrices of both axes, width first."""
    precise = lax.Precision.HIGHEST
    across = jnp.einsum("...hwc,vw->...hvc", data, jnp.asarray(wide, data.dtype), precision=precise)
    return jnp.einsum("...hvc,uh->...uvc", across, jnp.asarray(high, data.dtype), precision=precise)


def _matrix(old: int, indices: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the dense weight matrix (new, old) for the indices and weights (new, taps) of `_taps`."""
    matrix = np.zeros((len(indices), old), weights.dtype)
    for tap in range(indices.shape[1]):
        np.add.at(matrix, (np.arange(len(indices)), indices[:, tap]), weights[:, tap])
    return matrix


def _taps(old: int, new: int, interp: int, cut: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the input entries that each output entry is a weighted sum of: (indices int32, weights float32), both (new, taps).

    Outside the image, both taps of a linear interpolation are the edge entry.  OpenCV then gives one of them weight 1 along the
    width (`cut`), but keeps both weights along the height, which rounds uint8 images differently.
    """
    scale, at = old / new, np.arange(new)
    if interp == AREA:  # enlargement; `resized` handles shrinking with `_by_area`
        first = np.floor(at * scale)
        part = (at + 1) - (first + 1) / scale
        part = np.where(part <= 0, 0, part - np.floor(part)).astype(np.float32)
    else:
        exact = ((at + 0.5) * scale - 0.5).astype(np.float32)
        first = np.floor(exact)
        part = exact - first
    if interp in (LINEAR, AREA):
        part = np.where((first < 0) | (first >= old - 1), np.float32(0), part) if cut else part
        weights = np.stack([1 - part, part], 1)
    else:
        weights = _cubic(part) if interp == CUBIC else _lanczos(part)
    count = weights.shape[1]
    if count == 2 and cut:
        first = np.clip(first, 0, old - 1)
    indices = first[:, None] + np.arange(count) - (count // 2 - 1)
    return np.clip(indices, 0, old - 1).astype(np.int32), weights.astype(np.float32)


def _cubic(part: np.ndarray) -> np.ndarray:
    """Return the weights (new, 4) of Keys' cubic kernel with a = -0.75 at distances 1 + part, part, 1 - part, 2 - part."""
    a, x = -0.75, part.astype(np.float64)
    outer, inner, next_ = 1 + x, x, 1 - x
    w0 = ((a * outer - 5 * a) * outer + 8 * a) * outer - 4 * a
    w1 = ((a + 2) * inner - (a + 3)) * inner * inner + 1
    w2 = ((a + 2) * next_ - (a + 3)) * next_ * next_ + 1
    return np.stack([w0, w1, w2, 1 - w0 - w1 - w2], 1)


def _lanczos(part: np.ndarray) -> np.ndarray:
    """Return the weights (new, 8) sinc(t) sinc(t / 4) at the eight nearest entries, normalized to sum 1."""
    t = part.astype(np.float64)[:, None] + 3 - np.arange(8)
    weights = np.sinc(t) * np.sinc(t / 4)
    return weights / weights.sum(1, keepdims=True)


def _bytes(data: Array, taps: Sequence[tuple[np.ndarray, np.ndarray]]) -> Array:
    """Resize uint8 images in integer arithmetic; sums along the width are rounded only after the sum along the height."""
    (rows, down), (columns, right) = ((p, np.round(w * ONE).astype(np.int32)) for p, w in taps)
    ndim = data.ndim
    across = sum(
        jnp.take(data, columns[:, k], axis=-2).astype(jnp.int32) * along(right[:, k], ndim - 2, ndim)
        for k in range(columns.shape[1])
    )
    parts = [(jnp.take(across, rows[:, k], axis=-3), along(down[:, k], ndim - 3, ndim)) for k in range(rows.shape[1])]
    if len(parts) == 2:  # as in OpenCV's 16-bit SIMD code
        total = sum(((part >> 4) * weight) >> 16 for part, weight in parts)
        out = (total + 2) >> 2
    else:
        out = (sum(part * weight for part, weight in parts) + ONE * ONE // 2) >> 22
    return jnp.clip(out, 0, 255).astype(jnp.uint8)


def _area(old: int, new: int) -> np.ndarray:
    """Return weights (new, old) of area interpolation: the fraction of each output entry that each input entry covers."""
    edges, entries = np.arange(new + 1)[:, None] * (old / new), np.arange(old)
    start, end = edges[:-1], np.minimum(edges[1:], old)
    share = np.minimum(end, entries + 1) - np.maximum(start, entries)
    return np.where(share > 1e-3, share / (end - start), 0).astype(np.float32)


def _by_area(data: Array, weights: Sequence[np.ndarray]) -> Array:
    means = _apply(data.astype(jnp.float32), *weights)
    if data.dtype != jnp.uint8:
        return means.astype(data.dtype)
    halves = all(w.shape[1] == 2 * w.shape[0] for w in weights)  # OpenCV rounds the mean of 2 x 2 pixels half up
    return jnp.clip(jnp.floor(means + 0.5) if halves else jnp.round(means), 0, 255).astype(jnp.uint8)
