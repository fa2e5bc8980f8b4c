"""Pooling regions of interest (RoIs) to a fixed size: ROIAlign, RROIAlign, PSROIPooling, DeformablePSROIPooling, ROIPooling.

A region is (image index, left, top, right, bottom) in pixels of the image; multiplied by spatial_scale, the coordinates are in
pixels of the feature map.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jfit.ops.attributes import REQUIRED, Attrs, flag, integer, number, several, shape
from jfit.ops.context import Ctx
from jfit.ops.registry import operator
from jfit.ops.rows import LOST, RowLayout
from jfit.ops.rules import accumulating, first_types, need_shape, per_axis

MOST_SAMPLES = 4096  # limit along one side of a bin, so that an infinitely large region does not loop forever
AT_ONCE = 8  # regions processed at once: each one copies the feature map of its image


def region_rows(attrs: Any, rows: Any, shapes: Any, outs: Any) -> list:
    """Return where the batch rows are in the outputs (`RowLayout`).

    As in `rois` if they are on its axis 0 (the regions), else LOST (they cannot be distinguished any more).
    """
    regions = rows[1]
    if regions is None:
        return [None if all(r is None for r in rows) else LOST] * len(outs)
    on_axis_0 = isinstance(regions, RowLayout) and regions.axis == 0
    return [regions if on_axis_0 else LOST] * len(outs)


_operator = functools.partial(operator, rows=region_rows)


def _check(rois: Array, columns: int = 5) -> None:
    if rois.ndim != 2 or rois.shape[1] != columns:
        raise ValueError(f"rois have shape {rois.shape}, expected (regions, {columns}); reshape them")


def _regions(rois: Array, data: Array) -> tuple[Array, Array, Array]:
    """Return (regions without gradient, index of the image of each, whether it is valid); negative indices are invalid."""
    _check(rois)
    regions = lax.stop_gradient(rois).astype(accumulating(data.dtype))
    number = regions[:, 0].astype(jnp.int32)
    return regions, jnp.clip(number, 0, data.shape[0] - 1), number >= 0


def _pooled(data: Array, image: Array, rows: Array, columns: Array, maps_of: Callable[[Array], Array]) -> Array:
    """Return Σ rows[p, h] columns[q, w] maps[..., h, w] for each region: (regions, channels, p, q).

    image: index of the image of each region.  rows: weights (regions, p, h).  columns: weights (regions, q, w).  maps_of:
    function from an image's data (channels, h, w) to its feature maps, (channels, h, w) or separate ones for each bin
    (channels, p, q, h, w).
    """

    def one(region: tuple[Array, Array, Array]) -> Array:
        which, down, across = region
        maps = maps_of(data[which]).astype(down.dtype)
        equation = "ph,chw,qw->cpq" if maps.ndim == 3 else "ph,cpqhw,qw->cpq"
        return jnp.einsum(equation, down, maps, across, precision=lax.Precision.HIGHEST)

    return lax.map(one, (image, rows, columns), batch_size=AT_ONCE)


# ------------------------------------------------------------------------------------------ ROIAlign
def _samples(size: Array, bins: int, ratio: int) -> Array:
    """Return the number of samples per bin along an axis, (regions,) int32: `ratio`, or about one per pixel if `ratio` <= 0."""
    if ratio > 0:
        return jnp.full(size.shape, ratio, jnp.int32)
    return jnp.clip(jnp.ceil(size / bins), 1, MOST_SAMPLES).astype(jnp.int32)


def _inside(position: Array, size: int) -> Array:
    """Return whether a position is inside an axis of `size` pixels or at most one pixel outside; other samples are 0."""
    return (position >= -1) & (position <= size)


def _bin_weights(start: Array, length: Array, bins: int, size: int, ratio: int) -> Array:
    """Return the weight of each pixel of an axis in each bin (regions, bins, size): linear interpolation, mean over samples."""
    count = _samples(length, bins, ratio)
    step = (length / bins)[:, None]
    first = start[:, None] + jnp.arange(bins, dtype=start.dtype)[None] * step  # (regions, bins)
    pixels = jnp.arange(size, dtype=start.dtype)[None, None]

    def add(k: Any, total: Array) -> Array:
        position = first + (k + 0.5) * step / count[:, None]
        used = _inside(position, size) & (k < count)[:, None]
        hat = jnp.maximum(0, 1 - jnp.abs(jnp.clip(position, 0, size - 1)[:, :, None] - pixels))
        return total + jnp.where(used[:, :, None], hat, 0)

    most = ratio if ratio > 0 else jnp.max(count, initial=1)
    total = lax.fori_loop(0, most, add, jnp.zeros((*first.shape, size), start.dtype))
    return total / count[:, None, None]


@_operator(
    "_contrib_ROIAlign",
    attrs={"pooled_size": shape(), "spatial_scale": number(), "sample_ratio": integer(-1)}
    | several(flag, position_sensitive=False, aligned=False),
)
def roi_align(ctx: Ctx, attrs: Attrs, data: Array, rois: Array) -> Array:
    """y[r, c, p, q] = mean of bilinear samples of data in bin (p, q) of region r; rois have gradient 0.

    A bin has sample_ratio² samples, or about one per pixel if sample_ratio is not positive. aligned shifts the regions by half
    a pixel. position_sensitive reads every bin from a separate channel.
    """
    regions, image, valid = _regions(rois, data)
    bins_y, bins_x = per_axis(attrs, "pooled_size", 2, positive=True)
    _, height, width = data.shape[1:]
    left, top, right, bottom = (regions[:, k] * attrs.spatial_scale - 0.5 * attrs.aligned for k in range(1, 5))
    least = 0.0 if attrs.aligned else 1.0
    rows = _bin_weights(top, jnp.maximum(bottom - top, least), bins_y, height, attrs.sample_ratio)
    columns = _bin_weights(left, jnp.maximum(right - left, least), bins_x, width, attrs.sample_ratio)
    rows = jnp.where(valid[:, None, None], rows, 0)

    def maps_of(maps: Array) -> Array:
        return maps.reshape(-1, bins_y, bins_x, height, width) if attrs.position_sensitive else maps

    return _pooled(data, image, rows, columns, maps_of).astype(data.dtype)


# ------------------------------------------------------------------------------------------ RROIAlign
def _blend(take: Callable[[Array, Array], Array], y: Array, x: Array, height: int, width: int) -> Array:
    """Bilinear interpolation at (y, x), clipped to the map; take(row indices, column indices) returns (..., channels)."""
    y, x = jnp.clip(y, 0, height - 1), jnp.clip(x, 0, width - 1)
    low_y, low_x, high_y, high_x = jnp.floor(y), jnp.floor(x), jnp.ceil(y), jnp.ceil(x)
    part_y, part_x = (y - low_y)[..., None], (x - low_x)[..., None]
    rows, columns = [v.astype(jnp.int32) for v in (low_y, high_y)], [v.astype(jnp.int32) for v in (low_x, high_x)]
    upper = take(rows[0], columns[0]) * (1 - part_x) + take(rows[0], columns[1]) * part_x
    lower = take(rows[1], columns[0]) * (1 - part_x) + take(rows[1], columns[1]) * part_x
    return upper * (1 - part_y) + lower * part_y


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _rotated(attrs: Attrs, data: Array, rois: Array) -> Array:
    """Return the mean of the samples of each bin, (regions, p, q, channels), in a loop: their number depends on the regions."""
    steps, add = _rotated_steps(attrs, data.shape, rois)
    bins = (rois.shape[0], *attrs.pooled_size, data.shape[1])
    return lax.fori_loop(0, steps, lambda k, total: total + add(k, data), jnp.zeros(bins, data.dtype))


def _rotated_steps(attrs: Attrs, full: tuple[int, ...], rois: Array) -> tuple[Array, Callable[[Any, Array], Array]]:
    """Return (n, contribution), where no bin of a region has more than n samples.

    contribution(k, data), of shape (regions, p, q, channels), is the value of sample k < n of each bin divided by the number of
    samples of the bin, or 0 in bins with at most k samples.  full: shape of data, (batch, channels, height, width).
    """
    bins_y, bins_x = per_axis(attrs, "pooled_size", 2, positive=True)
    height, width = full[2:]
    image = jnp.clip(rois[:, 0].astype(jnp.int32), 0, full[0] - 1)[:, None, None]
    centre_x, centre_y, across, down = (rois[:, k] * attrs.spatial_scale for k in range(1, 5))
    across, down = jnp.maximum(across, 1), jnp.maximum(down, 1)
    angle = (rois[:, 5] * (math.pi / 180))[:, None, None]
    count_y, count_x = _samples(down, bins_y, attrs.sampling_ratio), _samples(across, bins_x, attrs.sampling_ratio)
    most_y, most_x = jnp.max(count_y, initial=1), jnp.max(count_x, initial=1)

    def positions(k: Array, length: Array, count: Array, bins: int) -> Array:
        step = (length / bins)[:, None]
        return (-length / 2)[:, None] + (jnp.arange(bins, dtype=rois.dtype)[None] + (k + 0.5) / count[:, None]) * step

    def add(k: Any, data: Array) -> Array:
        k_y, k_x = k // most_x, k % most_x
        y = positions(k_y, down, count_y, bins_y)[:, :, None]
        x = positions(k_x, across, count_x, bins_x)[:, None, :]
        turned_x = x * jnp.cos(angle) + y * jnp.sin(angle) + centre_x[:, None, None]
        turned_y = y * jnp.cos(angle) - x * jnp.sin(angle) + centre_y[:, None, None]
        used = (k_y < count_y) & (k_x < count_x) & (rois[:, 0] >= 0)
        used = used[:, None, None] & _inside(turned_y, height) & _inside(turned_x, width)
        last = jnp.transpose(data, (0, 2, 3, 1))
        value = _blend(lambda r, c: last[image, r, c], turned_y, turned_x, height, width)
        share = (1 / (count_y * count_x).astype(data.dtype))[:, None, None, None]
        return jnp.where(used[..., None], value * share, 0)

    return most_y * most_x, add


def _rotated_backward(attrs, residuals, grad):
    data, rois = residuals
    steps, add = _rotated_steps(attrs, data.shape, rois)

    def pull(k, total):
        return total + jax.vjp(functools.partial(add, k), data)[1](grad)[0]

    return lax.fori_loop(0, steps, pull, jnp.zeros_like(data)), jnp.zeros_like(rois)


_rotated.defvjp(lambda attrs, data, rois: (_rotated(attrs, data, rois), (data, rois)), _rotated_backward)


@_operator(
    "_contrib_RROIAlign",
    attrs={"pooled_size": shape(), "spatial_scale": number(), "sampling_ratio": integer(-1)},
)
def rotated_roi_align(ctx: Ctx, attrs: Attrs, data: Array, rois: Array) -> Array:
    """y = ROIAlign of rotated regions (image, centre x, centre y, width, height, angle in degrees).

    data has a gradient (in MXNet it has none); rois have gradient 0.
    """
    _check(rois, 6)
    wide = accumulating(data.dtype)
    out = cast(Array, _rotated(attrs, data.astype(wide), lax.stop_gradient(rois).astype(wide)))
    return jnp.transpose(out, (0, 3, 1, 2)).astype(data.dtype)


# ------------------------------------------------------------------------------------------ position-sensitive pooling
def _rounded(x: Array) -> Array:
    """Round to the nearest integer; ties are rounded away from 0."""
    return jnp.trunc(x + jnp.copysign(jnp.asarray(0.5, x.dtype), x))


def _edges(regions: Array, scale: float, shift: float) -> tuple[Array, Array, Array, Array]:
    """Return (left, top, width, height) of regions in pixels of the feature map, width and height at least 0.1."""
    left, top = (_rounded(regions[:, k]) * scale - shift for k in (1, 2))
    right, bottom = ((_rounded(regions[:, k]) + 1) * scale - shift for k in (3, 4))
    return left, top, jnp.maximum(right - left, 0.1), jnp.maximum(bottom - top, 0.1)


def _groups(bins: int, groups: int) -> np.ndarray:
    """Return the index of the channel group that each bin reads, along one axis, (bins,)."""
    return np.clip(np.arange(bins) * groups // bins, 0, groups - 1)


def _covered(start: Array, length: Array, bins: int, size: int) -> Array:
    """Return averaging weights (regions, bins, size): 1 / (pixels in the bin) for each pixel that the bin touches, else 0."""
    step = (length / bins)[:, None]
    bounds = [jnp.arange(bins, dtype=start.dtype)[None] + k for k in (0, 1)]
    first, last = (start[:, None] + bound * step for bound in bounds)
    first, last = jnp.clip(jnp.floor(first), 0, size), jnp.clip(jnp.ceil(last), 0, size)
    pixels = jnp.arange(size, dtype=start.dtype)[None, None]
    touched = (pixels >= first[:, :, None]) & (pixels < last[:, :, None])
    return touched / jnp.maximum(last - first, 1)[:, :, None]


@_operator(
    "_contrib_PSROIPooling",
    attrs={"spatial_scale": number(), "output_dim": integer(), "pooled_size": integer(), "group_size": integer(0)},
)
def psroi_pooling(ctx: Ctx, attrs: Attrs, data: Array, rois: Array) -> Array:
    """y[r, c, p, q] = mean of channel (c G + g(p)) G + g(q) over the pixels that bin (p, q) of region r touches.

    The image is the one that region r names, G is `group_size`, and g(p) = floor(p G / pooled_size).
    """
    regions, image, valid = _regions(rois, data)
    bins, group = attrs.pooled_size, attrs.group_size or attrs.pooled_size
    _, height, width = data.shape[1:]
    left, top, across, down = _edges(regions, attrs.spatial_scale, 0.0)
    rows = jnp.where(valid[:, None, None], _covered(top, down, bins, height), 0)
    columns = _covered(left, across, bins, width)
    groups = _groups(bins, group)

    def maps_of(maps: Array) -> Array:
        split = maps.reshape(attrs.output_dim, group, group, height, width)
        return split if group == bins else split[:, groups[:, None], groups[None, :]]

    return _pooled(data, image, rows, columns, maps_of).astype(data.dtype)


@_operator(
    "_contrib_DeformablePSROIPooling",
    inputs=lambda attrs: ("data", "rois") if attrs.no_trans else ("data", "rois", "trans"),
    attrs={"spatial_scale": number()}
    | several(integer, output_dim=REQUIRED, group_size=REQUIRED, pooled_size=REQUIRED, part_size=0, sample_per_part=1)
    | {"trans_std": number(0.0), "no_trans": flag(False)},
)
def deformable_psroi_pooling(ctx: Ctx, attrs: Attrs, data: Array, rois: Array, trans: Array | None = None) -> Array:
    """y = PSROIPooling with sample_per_part² bilinear samples per bin, each bin shifted by trans · trans_std · region size."""
    bins, group, dim = attrs.pooled_size, attrs.group_size, attrs.output_dim
    regions, image, valid = _regions(rois, data)
    batch, _, height, width = data.shape
    part = attrs.part_size or bins
    wide = accumulating(data.dtype)
    offsets: Any = jnp.zeros((rois.shape[0], 2, part, part), wide) if trans is None else trans
    need_shape("trans", offsets.shape, (rois.shape[0], offsets.shape[1], part, part))
    classes = offsets.shape[1] // 2
    offsets = offsets.astype(wide).reshape(rois.shape[0], classes, 2, part, part)
    parts = np.arange(bins) * part // bins
    moves = offsets[:, :, :, parts[:, None], parts[None, :]] * attrs.trans_std  # (regions, classes, 2, bins, bins)
    # (batch, classes, groups, groups, height, width, channels of a class)
    maps = jnp.moveaxis(data.reshape(batch, classes, -1, group, group, height, width), 2, -1)
    groups = _groups(bins, group)
    edges = jnp.stack(_edges(regions, attrs.spatial_scale, 0.5), axis=1)  # (regions, 4)

    def one(region: tuple[Array, Array, Array]) -> Array:
        which, (left, top, across, down), move = region
        samples = np.arange(attrs.sample_per_part) / attrs.sample_per_part
        grid = jnp.asarray(np.arange(bins)[:, None] + samples[None], wide) / bins  # (bins, samples)
        y = (top + grid * down)[None, :, None, :, None] + (move[:, 1] * down)[:, :, :, None, None]
        x = (left + grid * across)[None, None, :, None, :] + (move[:, 0] * across)[:, :, :, None, None]
        y, x = jnp.broadcast_arrays(y, x)  # (classes, bins, bins, samples, samples)
        used = (x >= -0.5) & (x <= width - 0.5) & (y >= -0.5) & (y <= height - 0.5)
        index = (np.arange(classes)[:, None, None, None, None], groups[:, None, None, None], groups[:, None, None])
        image_maps = maps[which].astype(wide)
        value = _blend(lambda r, c: image_maps[(*index, r, c)], y, x, height, width)
        total = jnp.sum(jnp.where(used[..., None], value, 0), axis=(3, 4))
        mean = total / jnp.maximum(jnp.sum(used, axis=(3, 4)), 1)[..., None].astype(wide)
        return jnp.moveaxis(mean, -1, 1).reshape(dim, bins, bins)

    out = lax.map(one, (image, edges, moves), batch_size=AT_ONCE)
    return jnp.where(valid[:, None, None, None], out, 0).astype(data.dtype)


# ----------------------------------------------------------------------------------------------------
# ROIPooling: max pooling of regions of interest.


def _roi_fill(attrs: Attrs, ins: list, outs: list) -> list:
    data, rois = ins
    return [data, (0, 5) if rois is None else rois]


def _bins(first: Array, last: Array, count: int, size: int) -> tuple[Array, Array]:
    """Return (begin, end) of `count` bins from pixel `first` to `last`, both (count,) int32, clipped to `size` pixels."""
    # the barrier keeps XLA from multiplying by 1 / count, which rounds differently and moves the ends of bins
    parts = lax.optimization_barrier(jnp.float32(count))
    length = jnp.maximum(last - first + 1, 1).astype(jnp.float32) / parts
    k = jnp.arange(count, dtype=jnp.float32)
    begin = jnp.floor(k * length).astype(jnp.int32) + first
    end = jnp.ceil((k + 1) * length).astype(jnp.int32) + first
    return jnp.clip(begin, 0, size), jnp.clip(end, 0, size)


def _first_largest(values: Array, begin: Array, end: Array, axis: int) -> tuple[Array, Array]:
    """Return (maximum, index of the first maximum) of each bin along `axis`; the bins are a new last axis."""
    position = jnp.arange(values.shape[axis]).reshape([-1 if k == axis else 1 for k in range(values.ndim)])
    maxima = []
    for k in range(begin.shape[0]):
        inside = jnp.where((position >= begin[k]) & (position < end[k]), values, jnp.asarray(-jnp.inf, values.dtype))
        maxima.append((jnp.max(inside, axis=axis), jnp.argmax(inside, axis=axis)))
    return jnp.stack([m[0] for m in maxima], axis=-1), jnp.stack([m[1] for m in maxima], axis=-1)


@_operator(
    "ROIPooling",
    outputs=("output", "maxidx"),
    visible=1,
    attrs={"pooled_size": shape(), "spatial_scale": number()},
    aliases=("_npx_roi_pooling",),
    fill=_roi_fill,
    types=lambda a, ins: (first_types(a, ins)[0], [ins[0]] * 2),
)
def roi_pooling(ctx: Ctx, attrs: Attrs, data: Array, rois: Array) -> tuple[Array, Array]:
    """y[r, c, i, j] = max of data over bin (i, j) of region r = (image, x1, y1, x2, y2), its corners times spatial_scale.

    Corners are rounded to integers, ties away from zero; an empty bin is 0. The gradient goes to the first maximum.
    """
    _check(rois)
    bins_y, bins_x = per_axis(attrs, "pooled_size", 2, positive=True)
    rows, channels, height, width = data.shape
    scaled = rois[:, 1:].astype(jnp.float32) * attrs.spatial_scale
    corners = (jnp.sign(scaled) * jnp.floor(jnp.abs(scaled) + 0.5)).astype(jnp.int32)  # (regions, 4)
    images = rois[:, 0].astype(jnp.int32)

    def one(region: tuple[Array, Array]) -> Array:
        """Return the flat pixel index of the first maximum of each bin of a region, (channels, *pooled_size); -1: empty bin."""
        row, (x1, y1, x2, y2) = region
        image = lax.dynamic_index_in_dim(data, jnp.clip(row, 0, rows - 1), 0, keepdims=False)
        top, bottom = _bins(y1, y2, bins_y, height)
        left, right = _bins(x1, x2, bins_x, width)
        best, column = _first_largest(lax.stop_gradient(image), left, right, 2)  # (channels, height, bins of x)
        _, line = _first_largest(best, top, bottom, 1)  # (channels, bins of x, bins of y)
        column = jnp.take_along_axis(column, jnp.swapaxes(line, 1, 2), axis=1)  # (channels, bins of y, bins of x)
        empty = (bottom <= top).reshape(1, -1, 1) | (right <= left).reshape(1, 1, -1) | (row < 0) | (row >= rows)
        return jnp.where(empty, -1, jnp.swapaxes(line, 1, 2) * width + column)

    pixel = lax.map(one, (images, corners))  # (regions, channels, *pooled_size)
    channel = jnp.arange(channels).reshape(1, channels, 1, 1)
    flat = (jnp.clip(images, 0, rows - 1).reshape(-1, 1, 1, 1) * channels + channel) * (height * width) + jnp.maximum(pixel, 0)
    out = jnp.where(pixel < 0, jnp.zeros((), data.dtype), jnp.take(data.reshape(-1), flat, mode="clip"))
    return out, lax.stop_gradient(pixel.astype(data.dtype))
