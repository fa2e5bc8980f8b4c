"""Bilinear sampling of images at computed coordinates: GridGenerator, BilinearSampler, SpatialTransformer."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jax import Array

from jfit.ops.attributes import Attrs, choice, maybe_flag, shape
from jfit.ops.context import Ctx
from jfit.ops.registry import operator
from jfit.ops.rules import accumulating, batch_rows, need_shape, per_axis, shared_batch_rows


def _even(count: int) -> np.ndarray:
    """Return `count` evenly spaced coordinates from -1 to 1, computed in float64 and rounded once to float32."""
    return (-1.0 + np.arange(count) * 2.0 / max(count - 1, 1)).astype(np.float32)


def _even_by_steps(count: int) -> np.ndarray:
    """Return `count` evenly spaced coordinates from -1 to 1, as multiples of a step rounded to float32."""
    return np.float32(-1) + np.arange(count, dtype=np.float32) * np.float32(2.0 / max(count - 1, 1))


# ------------------------------------------------------------------------------------------ GridGenerator
def _affine_grid(attrs: Attrs, theta: Array, coordinates: Callable[[int], np.ndarray]) -> Array:
    """Return the sampling grid (rows, 2, height, width): theta (rows, 6) as 2 x 3 matrices times (x, y, 1) of each target.

    Each operator passes coordinates rounded as MXNet rounds them for it (`_even`, `_even_by_steps`): whether a coordinate is
    exactly on a pixel or next to it decides which neighbours enter the gradient.
    """
    need_shape("the affine matrices", theta.shape, (theta.shape[0], 6))
    y, x = (jnp.asarray(coordinates(n), theta.dtype) for n in per_axis(attrs, "target_shape", 2, positive=True))
    x, y = x.reshape(1, 1, -1), y.reshape(1, -1, 1)
    parts = theta.reshape(-1, 2, 3, 1, 1)
    return jnp.stack([parts[:, i, 0] * x + parts[:, i, 1] * y + parts[:, i, 2] for i in (0, 1)], axis=1)


@operator("GridGenerator", attrs={"transform_type": choice("affine", "warp"), "target_shape": shape((0, 0))}, rows=batch_rows)
def grid_generator(ctx: Ctx, attrs: Attrs, data: Array) -> Array:
    """y = θ (x, y, 1)ᵀ on an even grid in [-1, 1] (affine); or pixel coordinates plus the flow x, scaled to [-1, 1] (warp)."""
    wide = data.astype(accumulating(data.dtype))
    if attrs.transform_type == "affine":
        return _affine_grid(attrs, wide, _even_by_steps).astype(data.dtype)
    need_shape("the flow", data.shape, (data.shape[0], 2, *data.shape[-2:]))
    height, width = data.shape[2:]
    x = jnp.arange(width, dtype=wide.dtype).reshape(1, 1, 1, width)
    y = jnp.arange(height, dtype=wide.dtype).reshape(1, 1, height, 1)
    # a single column or row divides by zero: the result is inf or nan, as in MXNet
    out = [(wide[:, :1] + x) / ((width - 1) / 2.0) - 1, (wide[:, 1:] + y) / ((height - 1) / 2.0) - 1]
    return jnp.concatenate(out, axis=1).astype(data.dtype)


# ------------------------------------------------------------------------------------------ BilinearSampler
def _sampled(data: Array, grid: Array) -> Array:
    """Sample data (rows, channels, h, w) bilinearly at grid (rows, 2, H, W) in [-1, 1]; pixels outside the image are 0."""
    rows, channels, height, width = data.shape
    need_shape("grid", grid.shape, (rows, 2, *grid.shape[-2:]))
    x, y = (grid[:, 0] + 1) * ((width - 1) / 2), (grid[:, 1] + 1) * ((height - 1) / 2)
    left, top = jnp.floor(x), jnp.floor(y)
    flat = data.reshape(rows, channels, height * width)
    total = jnp.zeros((rows, channels, *x.shape[1:]), data.dtype)
    for down, right in ((0, 0), (0, 1), (1, 0), (1, 1)):
        at_x, at_y = left + right, top + down
        inside = (at_x >= 0) & (at_x <= width - 1) & (at_y >= 0) & (at_y <= height - 1)
        pixel = jnp.clip(at_y, 0, height - 1).astype(jnp.int32) * width + jnp.clip(at_x, 0, width - 1).astype(jnp.int32)
        picked = jnp.take_along_axis(flat, pixel.reshape(rows, 1, -1), axis=2).reshape(total.shape)
        part = (x - left if right else left + 1 - x) * (y - top if down else top + 1 - y)
        part = jnp.where(inside, part, jnp.zeros((), part.dtype))
        total = total + picked * jnp.expand_dims(part, 1)
    return total


@operator("BilinearSampler", attrs={"cudnn_off": maybe_flag()}, rows=shared_batch_rows)
def bilinear_sampler(ctx: Ctx, attrs: Attrs, data: Array, grid: Array) -> Array:
    """y[n, c, i, j] = data[n, c] interpolated bilinearly at (x, y) = grid[n, :, i, j] in [-1, 1]; 0 outside the image."""
    wide = accumulating(data.dtype)
    return _sampled(data.astype(wide), grid.astype(wide)).astype(data.dtype)


# ------------------------------------------------------------------------------------------ SpatialTransformer
@operator(
    "SpatialTransformer",
    attrs={
        "target_shape": shape((0, 0)),
        "transform_type": choice("affine"),
        "sampler_type": choice("bilinear"),
        "cudnn_off": maybe_flag(),
    },
    fill=lambda attrs, ins, outs: ins if ins[0] is None else [ins[0], (ins[0][0], 6)],
    rows=shared_batch_rows,
)
def spatial_transformer(ctx: Ctx, attrs: Attrs, data: Array, loc: Array) -> Array:
    """y = BilinearSampler(x, affine grid of `loc` (rows, 6)), of height and width `target_shape`."""
    wide = accumulating(data.dtype)
    return _sampled(data.astype(wide), _affine_grid(attrs, loc.astype(wide), _even)).astype(data.dtype)
