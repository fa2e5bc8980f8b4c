"""The pooling of version 0.7, which graphs of that time name Pooling_v1: images only, and other rules at edges and ties."""

from __future__ import annotations

import itertools
from typing import cast

import jax
import jax.numpy as jnp
from jax import Array

from jfit.ops.attributes import Attrs, choice, flag, shape
from jfit.ops.context import Ctx
from jfit.ops.registry import operator
from jfit.ops.rules import accumulating, batch_rows


@jax.custom_jvp
def _largest(windows: Array) -> Array:
    """Maximum along the last axis; EVERY largest entry gets the whole gradient."""
    return jnp.max(windows, axis=-1)


@_largest.defjvp
def _largest_derivative(primals, tangents):
    (windows,), (moved,) = primals, tangents
    out = _largest(windows)
    hit = windows == jnp.expand_dims(out, -1)
    return out, jnp.sum(jnp.where(hit, moved, jnp.zeros((), moved.dtype)), axis=-1)


def _pair(key: str, given: tuple[int, ...], default: int) -> tuple[int, int]:
    given = given or (default, default)
    if len(given) != 2 or min(given) < (key != "pad"):
        raise ValueError(f"Pooling_v1: {key} is {given}, needed two entries for height and width; Pooling takes other data")
    return given[0], given[1]


def _windows(attrs: Attrs, data: Array) -> Array:
    """(rows, channels, height, width, entries): padding counts as zeros; what `full` adds at the end is never largest."""
    kernel, stride, pad = _pair("kernel", attrs.kernel, 0), _pair("stride", attrs.stride, 1), _pair("pad", attrs.pad, 0)
    counts, ends = [], []
    for n, k, s, p in zip(data.shape[2:], kernel, stride, pad, strict=True):
        if n + 2 * p < k:
            raise ValueError(f"Pooling_v1: kernel {k} does not fit {n} entries with pad {p}; make it smaller")
        full = attrs.pooling_convention == "full"
        counts.append((min(n + 2 * p - k + s - 1, n + 2 * p - 1) if full else n + 2 * p - k) // s + 1)
        ends.append(max((counts[-1] - 1) * s + k - n - 2 * p, 0))
    padded = jnp.pad(data, ((0, 0), (0, 0), *((p, p) for p in pad)))
    beyond = -jnp.inf if attrs.pool_type == "max" else 0
    padded = jnp.pad(padded, ((0, 0), (0, 0), *((0, e) for e in ends)), constant_values=beyond)
    taps = []
    for y, x in itertools.product(range(kernel[0]), range(kernel[1])):
        down = slice(y, y + (counts[0] - 1) * stride[0] + 1, stride[0])
        right = slice(x, x + (counts[1] - 1) * stride[1] + 1, stride[1])
        taps.append(padded[:, :, down, right])
    return jnp.stack(taps, axis=-1)


@operator(
    "Pooling_v1",
    attrs={
        "kernel": shape(()),
        "pool_type": choice("avg", "max", "sum", default="max"),
        "global_pool": flag(False),
        "pooling_convention": choice("full", "valid", default="valid"),
        "stride": shape(()),
        "pad": shape(()),
    },
    rows=batch_rows,
)
def pooling_v1(ctx: Ctx, attrs: Attrs, data: Array) -> Array:
    """y = max, mean or sum of each window; padding counts as zeros, the mean divides by the whole kernel.

    The gradient of max goes to every maximum of a window, not to the first as in Pooling.
    """
    if data.ndim != 4:
        raise ValueError(f"Pooling_v1: data has shape {data.shape}, needed 4 axes (rows, channels, height, width)")
    wide = data.astype(accumulating(data.dtype))
    windows = wide.reshape(*data.shape[:2], 1, 1, -1) if attrs.global_pool else _windows(attrs, wide)
    if attrs.pool_type == "max":
        return cast(Array, _largest(windows)).astype(data.dtype)
    total = jnp.sum(windows, axis=-1)
    return (total / windows.shape[-1] if attrs.pool_type == "avg" else total).astype(data.dtype)
