"""Max pooling of regions of interest."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax

from jfit.ops.attributes import Attrs, number, shape
from jfit.ops.context import Ctx
from jfit.ops.registry import operator
from jfit.ops.roi import region_rows
from jfit.ops.rules import first_types


def _roi_fill(attrs: Attrs, ins: list, outs: list) -> list:
    data, rois = ins
    return [data, (0, 5) if rois is None else rois]


def _bins(first: Array, last: Array, count: int, size: int) -> tuple[Array, Array]:
    """(begin, end) of each bin along one axis, both (count,), cut off at the image."""
    # a true division: times 1/7 is another number than divided by 7, and bins end elsewhere
    parts = lax.optimization_barrier(jnp.float32(count))
    length = jnp.maximum(last - first + 1, 1).astype(jnp.float32) / parts
    k = jnp.arange(count, dtype=jnp.float32)
    begin = jnp.floor(k * length).astype(jnp.int32) + first
    end = jnp.ceil((k + 1) * length).astype(jnp.int32) + first
    return jnp.clip(begin, 0, size), jnp.clip(end, 0, size)


def _first_largest(values: Array, begin: Array, end: Array, axis: int) -> tuple[Array, Array]:
    """(value, index) of the first largest entry of each bin along `axis`; bins stand on a new last axis."""
    place = jnp.arange(values.shape[axis]).reshape([-1 if k == axis else 1 for k in range(values.ndim)])
    found = []
    for k in range(begin.shape[0]):
        inside = jnp.where((place >= begin[k]) & (place < end[k]), values, jnp.asarray(-jnp.inf, values.dtype))
        found.append((jnp.max(inside, axis=axis), jnp.argmax(inside, axis=axis)))
    return jnp.stack([f[0] for f in found], axis=-1), jnp.stack([f[1] for f in found], axis=-1)


@operator(
    "ROIPooling",
    inputs=("data", "rois"),
    outputs=("output", "maxidx"),
    visible=1,
    attrs={"pooled_size": shape(), "spatial_scale": number()},
    aliases=("_npx_roi_pooling",),
    fill=_roi_fill,
    types=lambda a, ins: (first_types(a, ins)[0], [ins[0]] * 2),
    rows=region_rows,
)
def roi_pooling(ctx: Ctx, attrs: Attrs, data: Array, rois: Array) -> tuple[Array, Array]:
    """y[r, c, i, j] = max of x over bin (i, j) of region r = (row of the batch, x1, y1, x2, y2) * spatial_scale.

    Corners are rounded away from zero at halves; an empty bin gives 0.  The gradient goes to the first maximum.
    """
    if data.ndim != 4 or rois.ndim != 2 or rois.shape[1] != 5 or len(attrs.pooled_size) != 2:
        raise ValueError(
            f"ROIPooling: data {data.shape}, rois {rois.shape}, pooled_size {attrs.pooled_size}; needed 4 axes, (regions, 5) "
            "and two numbers; reshape the inputs"
        )
    rows, channels, height, width = data.shape
    scaled = rois[:, 1:].astype(jnp.float32) * attrs.spatial_scale
    corners = (jnp.sign(scaled) * jnp.floor(jnp.abs(scaled) + 0.5)).astype(jnp.int32)  # (regions, 4)
    owner = rois[:, 0].astype(jnp.int32)

    def one(region: tuple[Array, Array]) -> Array:
        """(channels, *pooled_size): index of the first largest pixel of each bin, -1 where there is none."""
        row, (x1, y1, x2, y2) = region
        image = lax.dynamic_index_in_dim(data, jnp.clip(row, 0, rows - 1), 0, keepdims=False)
        top, bottom = _bins(y1, y2, attrs.pooled_size[0], height)
        left, right = _bins(x1, x2, attrs.pooled_size[1], width)
        best, column = _first_largest(lax.stop_gradient(image), left, right, 2)  # (channels, height, bins of x)
        _, line = _first_largest(best, top, bottom, 1)  # (channels, bins of x, bins of y)
        column = jnp.take_along_axis(column, jnp.swapaxes(line, 1, 2), axis=1)  # (channels, bins of y, bins of x)
        empty = (bottom <= top).reshape(1, -1, 1) | (right <= left).reshape(1, 1, -1) | (row < 0) | (row >= rows)
        return jnp.where(empty, -1, jnp.swapaxes(line, 1, 2) * width + column)

    place = lax.map(one, (owner, corners))  # (regions, channels, *pooled_size)
    channel = jnp.arange(channels).reshape(1, channels, 1, 1)
    flat = (jnp.clip(owner, 0, rows - 1).reshape(-1, 1, 1, 1) * channels + channel) * (height * width) + jnp.maximum(place, 0)
    out = jnp.where(place < 0, jnp.zeros((), data.dtype), jnp.take(data.reshape(-1), flat, mode="clip"))
    return out, lax.stop_gradient(place.astype(data.dtype))
