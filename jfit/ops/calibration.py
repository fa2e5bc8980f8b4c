"""Calibration of quantization: the threshold that changes the distribution of an array least, from its histogram."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax import Array, lax

from jfit.ops.attributes import DTYPES, Attrs, integer
from jfit.ops.context import Ctx
from jfit.ops.registry import operator
from jfit.ops.rows import lost_rows

_EPS = np.float32(1e-4)  # the least probability of a bin


def entropy_threshold(hist: Any, edges: Any, levels: int = 255) -> tuple[np.ndarray, np.ndarray]:
    """Find the threshold T with the least Kullback-Leibler divergence KL(p || q) = ∑ p log(p / q).

    p is the histogram of the values clipped to [-T, T]; q is p merged into `levels` intervals of equal size, each spread evenly
    over its bins that are not empty.  Computed on the host, with the float32 sums of MXNet.

    Args:
        hist: counts, an odd number of bins around 0, at least `levels`.
        edges: the edges of the bins, one more than bins.
        levels: number of intervals.

    Returns:
        (threshold, divergence), each of shape (1,), float32.

    Raises:
        ValueError: the number of bins is even or less than `levels`, or that of edges does not match it.

    Example:
        >>> hist, edges = np.histogram(np.linspace(-1, 1, 2000), 501, (-1, 1))
        >>> round(float(entropy_threshold(hist, edges)[0][0]), 3)
        1.0

    Source: Migacz, 8-bit inference with TensorRT, 2017.
    """
    hist, edges = np.asarray(hist, np.int64), np.asarray(edges, np.float32)
    if hist.size % 2 == 0 or hist.size < levels or edges.size != hist.size + 1:
        problem = f"hist has {hist.size} bins, expected an odd number >= {levels}"
        raise ValueError(f"{problem}; hist_edges has {edges.size} entries, expected one more than bins")
    center, sums = hist.size // 2, np.concatenate([[0], np.cumsum(hist)])
    reaches = np.arange(levels // 2, center + 1)  # bins on each side of 0 within the threshold
    divergences = np.array([_divergence(hist, sums, center - r, center + r + 1, levels) for r in reaches], np.float32)
    best = np.argmin(divergences)
    return edges[center + reaches[best] + 1 :][:1], divergences[best : best + 1]


def _divergence(hist: np.ndarray, sums: np.ndarray, start: int, stop: int, levels: int) -> Any:
    """Return KL(p || q) for the bins from `start` to `stop`; `sums`: the sums of the first bins of `hist`."""
    inside = hist[start:stop].copy()
    inside[0] = 0  # as in MXNet
    p = inside.astype(np.float32)
    p[0], p[-1] = sums[start + 1], sums[-1] - sums[stop - 1]
    first = np.arange(levels) * (p.size // levels)  # bins of each interval; the last one has the rest
    used = np.maximum(np.add.reduceat(inside != 0, first, dtype=np.int64), 1)
    means = np.add.reduceat(inside, first).astype(np.float32) / used.astype(np.float32)
    q = np.where(p != 0, np.repeat(means, np.diff(first, append=p.size)), np.float32(0))
    smooth = [_smoothed(x) for x in (p, q)]
    if smooth[1] is None:
        return np.inf
    p, q = (x / np.cumsum(x)[-1] for x in smooth)
    return np.cumsum(p * np.log((p / q).astype(np.float64)).astype(np.float32))[-1]


def _smoothed(x: np.ndarray) -> Any:
    """Move a little of the bins with values to each bin without, which the logarithm needs; None if that is impossible."""
    zero = x == 0
    zeros = np.count_nonzero(zero)
    share = _EPS * np.float32(zeros) / np.float32(max(x.size - zeros, 1))
    return None if zeros == x.size or share >= 1 else x + np.where(zero, _EPS, -share)


@operator(
    "_contrib_calibrate_entropy",
    outputs=("threshold", "divergence"),
    attrs={"num_quantized_bins": integer(255)},
    types=lambda attrs, ins: ([DTYPES["float32"]] * 2, [DTYPES["float32"]] * 2),
    rows=lost_rows,
)
def calibrate_entropy(ctx: Ctx, attrs: Attrs, hist: Array, hist_edges: Array) -> tuple[Array, Array]:
    """T that minimizes KL(p || q), p the histogram clipped to [-T, T], q the same in num_quantized_bins levels; on the host."""
    result = (jax.ShapeDtypeStruct((1,), np.float32),) * 2
    find = lambda hist, edges: entropy_threshold(hist, edges, attrs.num_quantized_bins)  # noqa: E731
    return jax.pure_callback(find, result, *map(lax.stop_gradient, (hist, hist_edges)), vmap_method="sequential")
