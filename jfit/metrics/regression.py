"""Regression metrics: MAE, MSE, RMSE and the Pearson correlation."""

from __future__ import annotations

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from jfit.checks import one_of
from jfit.metrics.core import (
    Arrays,
    Metric,
    Weights,
    added,
    batch_mean,
    computed,
    each_row,
    exact,
    kahan,
    like,
    pairs,
    two_sum,
    wide,
    xp,
    zero_mean,
    zero_sums,
)
from jfit.programs import made


@made
def mae(name: str = "mae", weighted: bool = False, average: str = "macro") -> Metric:
    """Mean over batches of mean |label - output|; weighted: Σ w |label - output| / Σ w over all rows.

    Args:
        name: name of the value in logs and results.
        weighted: weight rows by their row weights; otherwise all rows with a weight above 0 count equally.
        average: "macro": mean over the values of the batches (MXNet's default); "micro": value of all rows.

    Returns:
        A `Metric`.

    Raises:
        ValueError: unknown average.

    Example:
        >>> mae().name
        'mae'

    Source: Apache MXNet 1.9.1, `MAE`, computed over the whole batch on any number of devices.
    """
    return batch_mean(name, lambda label, output: jnp.abs(label - output), average, weighted=weighted)


@made
def mse(name: str = "mse", weighted: bool = False, average: str = "macro") -> Metric:
    """Mean over batches of mean (label - output)^2; weighted: Σ w (label - output)^2 / Σ w over all rows.

    Args:
        name: name of the value in logs and results.
        weighted: weight rows by their row weights; otherwise all rows with a weight above 0 count equally.
        average: "macro": mean over the values of the batches (MXNet's default); "micro": value of all rows.

    Returns:
        A `Metric`.

    Raises:
        ValueError: unknown average.

    Example:
        >>> mse().name
        'mse'

    Source: Apache MXNet 1.9.1, `MSE`, computed over the whole batch on any number of devices.
    """
    return batch_mean(name, lambda label, output: jnp.square(label - output), average, weighted=weighted)


@made
def rmse(name: str = "rmse", weighted: bool = False, average: str = "macro") -> Metric:
    """Mean over batches of sqrt(mean (label - output)^2); weighted: the root of the weighted mean over all rows.

    Args:
        name: name of the value in logs and results.
        weighted: weight rows by their row weights; otherwise all rows with a weight above 0 count equally.
        average: "macro": mean over the values of the batches (MXNet's default); "micro": value of all rows.

    Returns:
        A `Metric`.

    Raises:
        ValueError: unknown average.

    Example:
        >>> rmse().name
        'rmse'

    Source: Apache MXNet 1.9.1, `RMSE`, computed over the whole batch on any number of devices.
    """
    return batch_mean(name, lambda label, output: jnp.square(label - output), average, "sqrt", weighted)


@made
def pearsonr(average: str = "macro", name: str = "pearsonr", weighted: bool = False) -> Metric:
    """Pearson correlation: cov(output, label) / √(var(output) var(label)).

    Sums are of differences from the mean (Chan's parallel algorithm), so a large offset costs no precision.  The correlation of
    a batch with constant labels or outputs is NaN, and so is a "macro" mean that contains it.

    Args:
        average: "macro": mean over the correlations of the batches (MXNet's default); "micro": correlation over all batches.
        name: name of the value in logs and results.
        weighted: weight rows by their row weights; otherwise all rows with a weight above 0 count equally.

    Returns:
        A `Metric` with `merge`: stats of parts of a batch are merged, not added.

    Raises:
        ValueError: unknown average.

    Example:
        >>> pearsonr("micro").name
        'pearsonr'

    Source: Apache MXNet 1.9.1, `PearsonCorrelation`; T. Chan, G. Golub and R. LeVeque, Updating formulae and a pairwise
    algorithm for computing sample variances, 1979.
    """
    one_of(("macro", "micro"), **{"metric pearsonr: average": average})

    def stats(labels: Arrays, outputs: Arrays, weights: Weights) -> tuple[Array, ...]:
        return tuple(_moments(name, *each) for each in pairs(name, labels, outputs, weights, weighted))

    def merge(one: tuple[Array, ...], other: tuple[Array, ...]) -> tuple[Array, ...]:
        return tuple(_merged(a, b) for a, b in zip(one, other, strict=True))

    if average == "macro":

        def average_of(running: Any, seen: tuple[Array, ...]) -> Any:
            for part in seen:
                running = kahan(running, _correlation(part), (part[0, 0] > 0).astype(jnp.int32))
            return running

        return Metric(name, zero_mean, stats, average_of, computed(name), merge=merge)

    def update(running: Array, seen: tuple[Array, ...]) -> Array:
        return functools.reduce(_merged, seen, running)

    return Metric(name, lambda: zero_sums(6), stats, update, lambda running: {name: _correlation(running)}, merge=merge)


# ------------------------------------------------------------------------------------------------ moments, (2, 6) float32
# [0]: Σw, mean x, mean y, Σw(x - mean)², Σw(y - mean)², Σw(x - mean)(y - mean); [1]: rounding errors of [0]
def _moments(name: str, label: Array, output: Array, rows: Array | None) -> Array:
    """Return the moments of the outputs (x) and labels (y) of one batch, an array (2, 6) as described above."""
    x = wide(output.reshape(-1))
    each = each_row(output, output, rows).reshape(-1).astype(x.dtype)
    y = like(name, label, x.shape).astype(x.dtype)
    first = jnp.argmax(each > 0)  # any row with a weight: relative to one of them, constant values are exactly 0
    count = jnp.sum(each)
    parts = [_centred(z, z[first], each, count) for z in (x, y)]
    (high_x, low_x, dx, rest_x), (high_y, low_y, dy, rest_y) = parts
    squares = [
        jnp.sum(each * a * b) - count * p * q
        for a, b, p, q in ((dx, dx, rest_x, rest_x), (dy, dy, rest_y, rest_y), (dx, dy, rest_x, rest_y))
    ]
    zero = jnp.zeros((), jnp.float32)
    moments = jnp.stack([jnp.stack([count, high_x, high_y, *squares]), jnp.stack([zero, low_x, low_y, zero, zero, zero])])
    return jnp.where(count > 0, moments, 0.0)


def _centred(values: Array, start: Array, each: Array, count: Array) -> tuple[Array, Array, Array, Array]:
    """Subtract the weighted mean.  Returns (mean, its rounding error, centered values, weighted mean of the centered values).

    The last one is 0 up to rounding.  The caller subtracts it from the sums of squares (corrected two-pass algorithm), and it
    is added to the mean here.  `start` is one of the values: subtracting it first makes constant values exactly 0.
    """
    moved = jnp.where(each > 0, values - start, 0.0)
    size = jnp.where(count > 0, count, 1.0)
    middle = jnp.sum(each * moved) / size
    around = jnp.where(each > 0, moved - middle, 0.0)
    rest = jnp.sum(each * around) / size
    high, low = two_sum(start, middle)
    return high, low + rest, around, rest


def _merged(one: Array, other: Array) -> Array:
    """Merge the moments of two disjoint sets of rows (Chan, Golub and LeVeque)."""
    a, b = one[0, 0] + one[1, 0], other[0, 0] + other[1, 0]
    both = jnp.where(a + b > 0, a + b, 1.0)
    difference = (other[0, 1:3] - one[0, 1:3]) + (other[1, 1:3] - one[1, 1:3])
    shift = difference * (b / both)
    dx, dy = difference
    between = jnp.stack([dx * dx, dy * dy, dx * dy]) * (a * (b / both))
    grown = added(one, jnp.concatenate([other[0, :1], shift, other[0, 3:]]))
    grown = grown.at[1].add(jnp.concatenate([other[1, :1], jnp.zeros(2), other[1, 3:]]))
    grown = added(grown, jnp.concatenate([jnp.zeros(3), between]))
    return jnp.where(b == 0, one, jnp.where(a == 0, other, grown))


def _correlation(moments: Any) -> Any:
    """Return the Pearson correlation computed from moments; NaN if one of the variances is 0."""
    values, lib = exact(moments), xp(moments)
    with np.errstate(all="ignore"):
        value = values[5] / (lib.sqrt(values[3]) * lib.sqrt(values[4]))
    return lib.clip(value, -1.0, 1.0)
