"""Metrics of the probability of the label: cross entropy, negative log likelihood, perplexity; and losses as metrics."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array

from jfit.metrics.core import Arrays, Metric, Weights, add_each, add_up, each_row, label_probability, like, mean


def cross_entropy(eps: float = 1e-12, name: str = "cross-entropy", weighted: bool = False) -> Metric:
    """-sum log(p[label] + eps) / count, for outputs that are probabilities with classes on axis 1.

    Args:
        eps: added to probabilities, so that the logarithm is finite.
        name: name of the value in logs and results.
        weighted: weight rows by their row weights; otherwise all rows with a weight above 0 count equally.

    Returns:
        A `Metric`.

    Example:
        >>> cross_entropy().name
        'cross-entropy'

    Source: Apache MXNet 1.9.1, `CrossEntropy`.
    """

    def pair(label: Array, output: Array, rows: Array | None) -> tuple[Array, Array]:
        return add_up(-jnp.log(label_probability(name, label, output, 1) + eps), output, rows)

    return mean(name, pair, weighted=weighted)


def nll_loss(eps: float = 1e-12, name: str = "nll-loss", weighted: bool = False) -> Metric:
    """-sum log(p[label] + eps) / count: `cross_entropy` under another name.

    Args:
        eps: added to probabilities, so that the logarithm is finite.
        name: name of the value in logs and results.
        weighted: weight rows by their row weights; otherwise all rows with a weight above 0 count equally.

    Returns:
        A `Metric`.

    Example:
        >>> nll_loss().name
        'nll-loss'

    Source: Apache MXNet 1.9.1, `NegativeLogLikelihood`.
    """
    return cross_entropy(eps, name, weighted)


def perplexity(ignore_label: int | None = None, axis: int = -1, name: str = "perplexity", weighted: bool = False) -> Metric:
    """exp(-sum log max(p[label], 1e-10) / count) over the labels that are not `ignore_label`.

    Args:
        ignore_label: label to ignore; None ignores none.
        axis: class axis of the outputs, which are probabilities.
        name: name of the value in logs and results.
        weighted: weight rows by their row weights; otherwise all rows with a weight above 0 count equally.

    Returns:
        A `Metric`.

    Example:
        >>> perplexity(ignore_label=0).name
        'perplexity'

    Source: Apache MXNet 1.9.1, `Perplexity`.
    """

    def pair(label: Array, output: Array, rows: Array | None) -> tuple[Array, Array]:
        loss = -jnp.log(jnp.maximum(label_probability(name, label, output, axis), 1e-10))
        if ignore_label is None:
            return add_up(loss, output, rows)
        counts = like(name, label, loss.shape).astype(jnp.int32) != ignore_label
        each = each_row(loss, output, rows)
        return add_each(loss, jnp.where(counts, each, jnp.zeros((), each.dtype)))

    return mean(name, pair, "exp", weighted)


def loss(name: str = "loss", weighted: bool = False) -> Metric:
    """sum(outputs) / size; labels are ignored.

    Args:
        name: name of the value in logs and results.
        weighted: weight rows by their row weights; otherwise all rows with a weight above 0 count equally.

    Returns:
        A `Metric`.

    Example:
        >>> loss().name
        'loss'

    Source: Apache MXNet 1.9.1, `Loss`.
    """

    def pair(label: Array | None, output: Array, rows: Array | None) -> tuple[Array, Array]:
        return add_up(output.astype(jnp.float32), output, rows)

    metric = mean(name, pair, weighted=weighted)

    def stats(labels: Any, outputs: Arrays, weights: Weights) -> Any:
        return metric.stats((None,) * len(outputs), outputs, weights)  # pyright: ignore[reportArgumentType]

    return metric._replace(stats=stats)
