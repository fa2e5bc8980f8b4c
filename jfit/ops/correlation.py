"""Correlation of two feature maps over displacements (FlowNet, Dosovitskiy et al., 2015)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jfit.ops.attributes import Attrs, flag, integer, several
from jfit.ops.context import Ctx
from jfit.ops.registry import operator
from jfit.ops.rules import accumulating, shared_batch_rows


def _size(attrs: Attrs, n: int) -> int:
    """Return the output size of an axis of `n` pixels."""
    border = attrs.max_displacement + (attrs.kernel_size - 1) // 2
    return -(-(n + 2 * attrs.pad_size - 2 * border) // attrs.stride1)


@jax.custom_jvp
def _distance(a: Array, b: Array) -> Array:
    """Return |a - b|; where both are equal, the derivative by a is 1 and by b -1, as in MXNet."""
    return jnp.abs(a - b)


@_distance.defjvp
def _distance_slope(primals, tangents):
    (a, b), (da, db) = primals, tangents
    return _distance(a, b), jnp.where(a >= b, da - db, db - da)


@operator(
    "Correlation",
    attrs=several(integer, kernel_size=1, max_displacement=1, stride1=1, stride2=1, pad_size=0) | {"is_multiply": flag(True)},
    rows=shared_batch_rows,
)
def correlation(ctx: Ctx, attrs: Attrs, data1: Array, data2: Array) -> Array:
    """y[n, d, i, j] = mean over channels and kernel window of a[i, j] · b[(i, j) + d], or of |a - b|; d in C order."""
    rows, channels, *sizes = data1.shape
    high, wide = (_size(attrs, n) for n in sizes)
    if data1.shape != data2.shape or attrs.kernel_size % 2 != 1 or min(high, wide) < 1:
        raise ValueError("expected equal shapes, an odd kernel_size, and images (or a pad_size) larger than max_displacement")
    kernel, reach, step = attrs.kernel_size, attrs.max_displacement // attrs.stride2, attrs.stride1
    dtype = accumulating(data1.dtype)
    pads = ((0, 0), (0, 0), *((attrs.pad_size, attrs.pad_size),) * 2)
    first, second = (jnp.pad(d.astype(dtype), pads) for d in (data1, data2))
    # one displacement reads `span` pixels, starting at max_displacement plus the displacement
    span = ((high - 1) * step + kernel, (wide - 1) * step + kernel)
    start = attrs.max_displacement
    fixed = first[:, :, start : start + span[0], start : start + span[1]]

    @jax.checkpoint  # do not store the displaced copies for the gradient
    def at(shift: Array) -> Array:
        zero = jnp.zeros((), shift.dtype)  # dynamic_slice needs indices of equal dtypes, also in 64-bit mode
        moved = lax.dynamic_slice(second, (zero, zero, start + shift[0], start + shift[1]), (rows, channels, *span))
        values = fixed * moved if attrs.is_multiply else _distance(fixed, moved)
        summed = jnp.sum(values, axis=1)
        window, strides = (1, kernel, kernel), (1, step, step)
        return lax.reduce_window(summed, np.zeros((), dtype), lax.add, window, strides, "VALID")

    offsets = np.arange(-reach, reach + 1) * attrs.stride2
    shifts = np.stack(np.meshgrid(offsets, offsets, indexing="ij"), axis=-1).reshape(-1, 2)
    maps = lax.map(at, jnp.asarray(shifts, jnp.int32))  # (displacements, rows, high, wide)
    return (jnp.moveaxis(maps, 0, 1) / (kernel * kernel * channels)).astype(data1.dtype)
