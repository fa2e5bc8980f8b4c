"""Bilinear sampling of images at computed coordinates: GridGenerator, BilinearSampler, SpatialTransformer."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array

from jfit.ops.attributes import Attrs, choice, maybe_flag, shape
from jfit.ops.context import Ctx
from jfit.ops.registry import operator
from jfit.ops.rules import accumulating, batch_rows, need_axes, shared_batch_rows


def _even(count: int) -> np.ndarray:
    """Return `count` evenly spaced coordinates from -1 to 1, computed in float64 and rounded once to float32."""
    return (-1.0 + np.arange(count) * 2.0 / max(count - 1, 1)).astype(np.float32)


def _even_by_steps(count: int) -> np.ndarray:
    """Return `count` evenly spaced coordinates from -1 to 1, as multiples of a step rounded to float32."""
    return np.float32(-1) + np.arange(count, dtype=np.float32) * np.float32(2.0 / max(count - 1, 1))


# ------------------------------------------------------------------------------------------ GridGenerator
def _target(op: str, attrs: Attrs) -> tuple[int, int]:
    if len(attrs.target_shape) != 2 or min(attrs.target_shape) < 1:
        raise ValueError(f"{op}: target_shape is {attrs.target_shape}, expected the height and width of the output; set it")
    return attrs.target_shape


def _affine_grid(op: str, theta: Array, y_target: np.ndarray, x_target: np.ndarray) -> Array:
    """Return the sampling grid (rows, 2, height, width): theta (rows, 6) as 2 x 3 matrices times (x, y, 1) of each target.

    Each operator passes coordinates rounded as MXNet rounds them for it (`_even`, `_even_by_steps`): whether a coordinate is
    exactly on a pixel or next to it decides which neighbours enter the gradient.
    """
    if theta.ndim != 2 or theta.shape[1] != 6:
        raise ValueError(f"{op}: the affine matrices have shape {theta.shape}, expected (rows, 6); reshape them")
    x, y = jnp.asarray(x_target, theta.dtype).reshape(1, 1, -1), jnp.asarray(y_target, theta.dtype).reshape(1, -1, 1)
    parts = theta.reshape(-1, 2, 3, 1, 1)
    return jnp.stack([parts[:, i, 0] * x + parts[:, i, 1] * y + parts[:, i, 2] for i in (0, 1)], axis=1)


@operator(
    "GridGenerator",
    attrs={"transform_type": choice("affine", "warp"), "target_shape": shape((0, 0))},
    rows=batch_rows,
)
def grid_generator(ctx: Ctx, attrs: Attrs, data: Array) -> Array:
    """y = θ (x, y, 1)ᵀ on an even grid in [-1, 1] (affine); or pixel coordinates plus the flow x, scaled to [-1, 1] (warp)."""
    wide = data.astype(accumulating(data.dtype))
    if attrs.transform_type == "affine":
        coordinates = map(_even_by_steps, _target("GridGenerator", attrs))
        return _affine_grid("GridGenerator", wide, *coordinates).astype(data.dtype)
    if data.ndim != 4 or data.shape[1] != 2:
        raise ValueError(f"GridGenerator: the flow has shape {data.shape}, expected (rows, 2, height, width); reshape data")
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


def _check_sampled(op: str, data: Array, grid_shape: tuple[int, ...]) -> None:
    need_axes(op, data.shape)
    if len(grid_shape) != 4 or grid_shape[1] != 2 or grid_shape[0] != data.shape[0]:
        raise ValueError(f"{op}: grid has shape {grid_shape}, expected ({data.shape[0]}, 2, height, width); reshape the grid")


@operator("BilinearSampler", attrs={"cudnn_off": maybe_flag()}, rows=shared_batch_rows)
def bilinear_sampler(ctx: Ctx, attrs: Attrs, data: Array, grid: Array) -> Array:
    """y[n, c, i, j] = data[n, c] interpolated bilinearly at (x, y) = grid[n, :, i, j] in [-1, 1]; 0 outside the image."""
    _check_sampled("BilinearSampler", data, grid.shape)
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
    coordinates = map(_even, _target("SpatialTransformer", attrs))
    grid = _affine_grid("SpatialTransformer", loc.astype(wide), *coordinates)
    _check_sampled("SpatialTransformer", data, grid.shape)
    return _sampled(data.astype(wide), grid).astype(data.dtype)
