"""Max, average, sum and Lp pooling in one, two and three dimensions."""

from __future__ import annotations

import functools
import itertools
import math
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jfit.ops.attributes import Attrs, choice, flag, maybe_choice, maybe_flag, maybe_integer, shape
from jfit.ops.context import Ctx
from jfit.ops.conv_forms import at_taps
from jfit.ops.registry import operator
from jfit.ops.rules import CHANNELS_FIRST, accumulating, along, batch_rows, per_axis

MOST_TAPS = 16  # max pooling over larger windows is faster with lax.reduce_window
Pads = tuple[tuple[int, int], ...]


def _layout(ctx: Ctx, attrs: Attrs, ndim: int) -> str:
    if ctx.channels_last:
        return "NHWC"
    layout = attrs.layout or CHANNELS_FIRST.get(ndim - 2, "")
    if len(layout) != ndim:
        raise ValueError(f"Pooling: data has {ndim} axes, expected {layout or '3 to 5'}; reshape the data")
    return layout


def windows_of(attrs: Attrs, sizes: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...], Pads]:
    """Return (kernel, stride, pads), with one entry per spatial axis.

    pads (before, after) include the padding that pooling_convention=full adds after.  sizes: of the spatial axes.
    """
    kernel, stride, pad = _options(attrs, len(sizes))
    if attrs.pooling_convention == "same":  # global pooling ignores it
        raise ValueError("pooling_convention is 'same', which MXNet 1.9.1 itself cannot run; use 'valid' or 'full' with pad")
    pads = []
    for n, k, s, p in zip(sizes, kernel, stride, pad, strict=True):
        span = n + 2 * p - k  # how far a window can move
        if span < 0 or (p >= k and attrs.pool_type in ("max", "avg")):
            raise ValueError(f"kernel {k} with pad {p} does not fit {n} entries; expected pad < kernel <= entries + 2 pad")
        steps = -(-span // s) if attrs.pooling_convention == "full" else span // s
        pads.append((p, max(steps * s + k - n - p, 0) if attrs.pooling_convention == "full" else p))
    return kernel, stride, tuple(pads)


def _options(attrs: Attrs, dims: int) -> tuple[tuple[int, ...], ...]:
    """Return (kernel, stride, pad), each with one entry per spatial axis."""
    return per_axis(attrs, "kernel", dims), per_axis(attrs, "stride", dims, 1), per_axis(attrs, "pad", dims, 0)


def window_counts(attrs: Attrs, sizes: tuple[int, ...], kernel, stride, pads: Pads) -> list[np.ndarray]:
    """Return the divisors of average pooling: for each axis, the number of entries in each window.

    The padding `pad` is included unless count_include_pad is False; the additional padding of pooling_convention=full never is.
    """
    padded = attrs.get("count_include_pad") is not False
    divisors = []
    for n, k, s, (low, high) in zip(sizes, kernel, stride, pads, strict=True):
        start = np.arange((n + low + high - k) // s + 1) * s - low
        end = np.minimum(start + k, n + low if padded else n)
        divisors.append(np.maximum(end - (start if padded else np.maximum(start, 0)), 1))
    return divisors


# ------------------------------------------------------------------------------------------ windows without overlap or gaps
def _tiles(x: Array, first: int, kernel: tuple[int, ...]) -> Array:
    """Split every spatial axis into two, (windows, entries within a window); `first` is the first spatial axis."""
    sizes = x.shape[first : first + len(kernel)]
    split = itertools.chain.from_iterable((n // k, k) for n, k in zip(sizes, kernel, strict=True))
    return x.reshape(*x.shape[:first], *split, *x.shape[first + len(kernel) :])


def _taps(first: int, kernel: tuple[int, ...]):
    """Yield indices into the result of `_tiles`, one per entry of a window, in C order; `first` is the first spatial axis."""
    for tap in itertools.product(*map(range, kernel)):
        yield (slice(None),) * first + tuple(itertools.chain.from_iterable((slice(None), t) for t in tap))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _max_tiles(first: int, kernel: tuple[int, ...], x: Array) -> Array:
    """Return the maximum of each window, for stride == kernel and no padding.

    The gradient goes to the first maximum of each window, as in MXNet.  first: the first spatial axis.
    """
    tiles = _tiles(x, first, kernel)
    return jnp.max(tiles, axis=tuple(first + 1 + 2 * i for i in range(len(kernel))))


def _max_tiles_backward(first, kernel, x, grad):
    # Compare the entries with each other, never with the output: XLA may recompute x for the backward pass with other
    # rounding, and then no entry equals the maximum. One `where` over all entries, because XLA on CPU returns wrong values
    # when it fuses stacked parts.
    tiles = _tiles(x, first, kernel)
    taps = list(_taps(first, kernel))
    best, argmax = tiles[taps[0]], jnp.zeros(grad.shape, jnp.int32)
    for i, tap in enumerate(taps[1:], 1):
        larger = tiles[tap] > best
        best, argmax = jnp.where(larger, tiles[tap], best), jnp.where(larger, i, argmax)
    within = tuple(first + 1 + 2 * i for i in range(len(kernel)))
    number = jnp.arange(len(taps)).reshape([kernel[within.index(k)] if k in within else 1 for k in range(tiles.ndim)])
    spread = jnp.where(jnp.expand_dims(argmax, within) == number, jnp.expand_dims(grad, within), jnp.zeros((), grad.dtype))
    return (spread.reshape(x.shape),)


_max_tiles.defvjp(lambda first, kernel, x: (_max_tiles(first, kernel, x), x), _max_tiles_backward)


# ------------------------------------------------------------------------------------------ all windows
def _reduce(x: Array, first: int, kernel, stride, pads: Pads, maximum: bool) -> Array:
    """Return the maximum or sum of each window; `first` is the first spatial axis."""
    dims, sizes = len(kernel), x.shape[first : first + len(kernel)]
    tiled = kernel == stride and not any(map(any, pads)) and not any(n % k for n, k in zip(sizes, kernel, strict=True))
    if tiled and not maximum:
        return jnp.sum(_tiles(x, first, kernel), axis=tuple(first + 1 + 2 * i for i in range(dims)))
    if tiled and math.prod(kernel) <= MOST_TAPS:
        return _max_tiles(first, kernel, x)

    def full(values, other):
        return (other,) * first + tuple(values) + (other,) * (x.ndim - first - dims)

    window = (full(kernel, 1), full(stride, 1), full(pads, (0, 0)))
    if not maximum:
        return lax.reduce_window(x, np.zeros((), x.dtype), lax.add, *window)
    floating = jnp.issubdtype(x.dtype, jnp.floating)
    lowest = np.array(-np.inf if floating else np.iinfo(x.dtype).min, x.dtype)
    return lax.reduce_window(x, lowest, lax.max, *window)


def _root(total: Array, p: int) -> Array:
    """Return total^(1/p), with gradient 0 where total is 0."""
    if p == 1:
        return total
    zero = total == 0
    safe = jnp.where(zero, jnp.ones((), total.dtype), total)
    return jnp.where(zero, jnp.zeros((), total.dtype), jnp.sqrt(safe) if p == 2 else jnp.cbrt(safe))


@operator(
    "Pooling",
    attrs={
        "kernel": shape(()),
        "pool_type": choice("avg", "lp", "max", "sum", default="max"),
        "global_pool": flag(False),
        "cudnn_off": flag(False),
        "pooling_convention": choice("full", "same", "valid", default="valid"),
        "stride": shape(()),
        "pad": shape(()),
        "p_value": maybe_integer(),
        "count_include_pad": maybe_flag(),
        "layout": maybe_choice("NCDHW", "NCHW", "NCW", "NDHWC", "NHWC", "NWC"),
    },
    aliases=("_npx_pooling",),
    rows=batch_rows,
    layout="channels",
)
def pooling(ctx: Ctx, attrs: Attrs, data: Array) -> Array:
    """y = max, mean, sum or (Σ xᵖ)^(1/p) of each window; the gradient of max goes to the first maximum of the window."""
    layout = _layout(ctx, attrs, data.ndim)
    first = layout.index("C") + 1 if layout[1] == "C" else 1
    sizes = data.shape[first : first + data.ndim - 2]
    if attrs.global_pool:
        kernel, stride, pads = sizes, sizes, ((0, 0),) * len(sizes)
    else:
        kernel, stride, pads = windows_of(attrs, sizes)
    if attrs.pool_type == "max":
        if attrs.global_pool:
            return _max_of_all(data, first, len(sizes))
        return _reduce(data, first, kernel, stride, pads, maximum=True)
    wide = data.astype(accumulating(data.dtype))
    if attrs.pool_type == "lp":
        if attrs.p_value not in (1, 2, 3):
            raise ValueError(f"Pooling: p_value is {attrs.p_value}, expected 1, 2 or 3 because pool_type is 'lp'")
        total = _reduce(wide**attrs.p_value, first, kernel, stride, pads, maximum=False)
        return _root(total, attrs.p_value).astype(data.dtype)
    out = _reduce(wide, first, kernel, stride, pads, maximum=False)
    if attrs.pool_type == "avg":
        for i, count in enumerate(window_counts(attrs, sizes, kernel, stride, pads)):
            out = out / along(jnp.asarray(count, out.dtype), first + i, out.ndim)
    return out.astype(data.dtype)


def _max_of_all(data: Array, first: int, dims: int) -> Array:
    """Return the maximum over all spatial axes, kept as axes of size 1; `first` is the first of these `dims` axes."""
    flat = data.reshape(*data.shape[:first], -1, *data.shape[first + dims :])
    where = jnp.argmax(flat, axis=first, keepdims=True)  # the first maximum
    out = jnp.take_along_axis(flat, where, axis=first)
    return out.reshape(*data.shape[:first], *(1,) * dims, *data.shape[first + dims :])


# ----------------------------------------------------------------------------------------------------
# Pooling_v1, the pooling of MXNet 0.7: 2-D images only, with other results at the edges and other gradients for ties.


@jax.custom_jvp
def _largest(windows: Array) -> Array:
    """Return the maximum along the last axis; every entry equal to it gets the whole gradient."""
    return jnp.max(windows, axis=-1)


@_largest.defjvp
def _largest_derivative(primals, tangents):
    (windows,), (moved,) = primals, tangents
    out = _largest(windows)
    hit = windows == jnp.expand_dims(out, -1)
    return out, jnp.sum(jnp.where(hit, moved, jnp.zeros((), moved.dtype)), axis=-1)


def _windows_v1(attrs: Attrs, data: Array) -> Array:
    """Return all windows, (rows, channels, height, width, kernel entries).

    `pad` adds zeros.  The additional padding of pooling_convention=full adds zeros too, or -inf if pool_type is max.
    """
    kernel, stride, pad = _options(attrs, 2)
    counts, ends = [], []
    for n, k, s, p in zip(data.shape[2:], kernel, stride, pad, strict=True):
        if n + 2 * p < k:
            raise ValueError(f"kernel {k} with pad {p} does not fit {n} entries; use a smaller kernel")
        full = attrs.pooling_convention == "full"
        counts.append((min(n + 2 * p - k + s - 1, n + 2 * p - 1) if full else n + 2 * p - k) // s + 1)
        ends.append(max((counts[-1] - 1) * s + k - n - 2 * p, 0))
    padded = jnp.pad(data, ((0, 0), (0, 0), *((p, p) for p in pad)))
    beyond = -jnp.inf if attrs.pool_type == "max" else 0
    padded = jnp.pad(padded, ((0, 0), (0, 0), *((0, e) for e in ends)), constant_values=beyond)
    return jnp.stack(at_taps(padded, 2, kernel, stride, (1, 1), counts), axis=-1)


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
    """y = max, mean or sum of each window; padding is zeros and included, and the mean divides by the kernel size.

    The gradient of max goes to every entry equal to the maximum, not only to the first one as in Pooling.
    """
    wide = data.astype(accumulating(data.dtype))
    windows = wide.reshape(*data.shape[:2], 1, 1, -1) if attrs.global_pool else _windows_v1(attrs, wide)
    if attrs.pool_type == "max":
        return cast(Array, _largest(windows)).astype(data.dtype)
    total = jnp.sum(windows, axis=-1)
    return (total / windows.shape[-1] if attrs.pool_type == "avg" else total).astype(data.dtype)
