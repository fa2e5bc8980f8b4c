"""Pictures in another size, as OpenCV resizes them: each axis is a small matrix of weights, made while tracing.

Bytes are interpolated in whole numbers with weights of 1/2048, so that every byte comes out as OpenCV's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jfit.ops.rules import along

NEAREST, LINEAR, CUBIC, AREA, LANCZOS = range(5)
ONE = 2048  # the weight 1 of bytes


def resized(op: str, data: Array, size: tuple[int, int], interp: int) -> Array:
    """Pictures (..., height, width, channels) in another size (height, width).

    Raises:
        ValueError: no such interpolation, or integers other than bytes that would have to be averaged.
    """
    if interp not in range(5):
        raise ValueError(f"{op}: interp is {interp}, needed 0 to 4 (nearest, linear, cubic, area, Lanczos)")
    floating = jnp.issubdtype(data.dtype, jnp.floating)
    if interp != NEAREST and not floating and data.dtype != jnp.uint8:
        raise ValueError(f"{op}: data is {data.dtype}, needed uint8 or floats because interp={interp} averages; cast the data")
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
    """Both matrices of weights, the width first."""
    precise = lax.Precision.HIGHEST
    across = jnp.einsum("...hwc,vw->...hvc", data, jnp.asarray(wide, data.dtype), precision=precise)
    return jnp.einsum("...hvc,uh->...uvc", across, jnp.asarray(high, data.dtype), precision=precise)


def _matrix(old: int, places: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """(new, old) weights from the places and weights (new, taps)."""
    found = np.zeros((len(places), old), weights.dtype)
    for tap in range(places.shape[1]):
        np.add.at(found, (np.arange(len(places)), places[:, tap]), weights[:, tap])
    return found


def _taps(old: int, new: int, interp: int, cut: bool) -> tuple[np.ndarray, np.ndarray]:
    """Which entries each new one is made of, and their weights, both (new, taps).

    Beyond the edge two linear taps meet in one entry: along the width (`cut`) one of them then weighs 1, along the height both
    keep their weights, which rounds bytes differently.
    """
    scale, at = old / new, np.arange(new)
    if interp == AREA:  # an enlargement: entries keep their area
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
    places = first[:, None] + np.arange(count) - (count // 2 - 1)
    return np.clip(places, 0, old - 1).astype(np.int32), weights.astype(np.float32)


def _cubic(part: np.ndarray) -> np.ndarray:
    """Keys' cubic kernel with a = -0.75 at distances 1 + part, part, 1 - part, 2 - part."""
    a, x = -0.75, part.astype(np.float64)
    outer, inner, next_ = 1 + x, x, 1 - x
    w0 = ((a * outer - 5 * a) * outer + 8 * a) * outer - 4 * a
    w1 = ((a + 2) * inner - (a + 3)) * inner * inner + 1
    w2 = ((a + 2) * next_ - (a + 3)) * next_ * next_ + 1
    return np.stack([w0, w1, w2, 1 - w0 - w1 - w2], 1)


def _lanczos(part: np.ndarray) -> np.ndarray:
    """sinc(t) sinc(t / 4) at the eight nearest entries, scaled to sum 1."""
    t = part.astype(np.float64)[:, None] + 3 - np.arange(8)
    weights = np.sinc(t) * np.sinc(t / 4)
    return weights / weights.sum(1, keepdims=True)


def _bytes(data: Array, taps: Sequence[tuple[np.ndarray, np.ndarray]]) -> Array:
    """Bytes by whole-number weights; the sums of the width stay unrounded until those of the height are made."""
    (rows, down), (columns, right) = ((p, np.round(w * ONE).astype(np.int32)) for p, w in taps)
    ndim = data.ndim
    across = sum(
        jnp.take(data, columns[:, k], axis=-2).astype(jnp.int32) * along(right[:, k], ndim - 2, ndim)
        for k in range(columns.shape[1])
    )
    parts = [(jnp.take(across, rows[:, k], axis=-3), along(down[:, k], ndim - 3, ndim)) for k in range(rows.shape[1])]
    if len(parts) == 2:  # as OpenCV does it in 16-bit registers
        total = sum(((part >> 4) * weight) >> 16 for part, weight in parts)
        out = (total + 2) >> 2
    else:
        out = (sum(part * weight for part, weight in parts) + ONE * ONE // 2) >> 22
    return jnp.clip(out, 0, 255).astype(jnp.uint8)


def _area(old: int, new: int) -> np.ndarray:
    """(new, old): how much of each old entry lies under each new one, as a share of the new one."""
    scale = old / new
    found = np.zeros((new, old))
    for k in range(new):
        start, end = k * scale, min((k + 1) * scale, old)
        for entry in range(math.floor(start + 1e-9), min(math.ceil(end - 1e-9), old)):
            share = min(end, entry + 1) - max(start, entry)
            found[k, entry] = share / (end - start) if share > 1e-3 else 0
    return found.astype(np.float32)


def _by_area(data: Array, weights: Sequence[np.ndarray]) -> Array:
    means = _apply(data.astype(jnp.float32), *weights)
    if data.dtype != jnp.uint8:
        return means.astype(data.dtype)
    halves = all(w.shape[1] == 2 * w.shape[0] for w in weights)  # OpenCV rounds means of four upwards
    return jnp.clip(jnp.floor(means + 0.5) if halves else jnp.round(means), 0, 255).astype(jnp.uint8)
