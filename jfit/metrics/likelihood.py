"""What probability the right class was given: cross entropy, negative log likelihood, perplexity; and losses as metrics."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array

from jfit.metrics.core import Arrays, Metric, Weights, add_each, add_up, each_row, like, mean, picked


def cross_entropy(eps: float = 1e-12, name: str = "cross-entropy", weighted: bool = False) -> Metric:
    """-sum log(p[label] + eps) / count; classes lie on axis 1 of the output.

    Example:
        >>> cross_entropy().name
        'cross-entropy'

    Source: Apache MXNet 1.9.1, `CrossEntropy`.
    """

    def pair(label: Array, output: Array, rows: Array | None) -> tuple[Array, Array]:
        return add_up(-jnp.log(picked(name, label, output, 1) + eps), output, rows)

    return mean(name, pair, weighted=weighted)


def nll_loss(eps: float = 1e-12, name: str = "nll-loss", weighted: bool = False) -> Metric:
    """-sum log(p[label] + eps) / count, under another name.

    Example:
        >>> nll_loss().name
        'nll-loss'

    Source: Apache MXNet 1.9.1, `NegativeLogLikelihood`.
    """
    return cross_entropy(eps, name, weighted)


def perplexity(ignore_label: int | None = None, axis: int = -1, name: str = "perplexity", weighted: bool = False) -> Metric:
    """exp(-sum log max(p[label], 1e-10) / count) over the labels that are not `ignore_label`.

    Args:
        ignore_label: label that does not count, None counts all.
        axis: where the classes of the output lie.
        name: for logs.
        weighted: rows count by their weights.

    Returns:
        A `Metric`.

    Example:
        >>> perplexity(ignore_label=0).name
        'perplexity'

    Source: Apache MXNet 1.9.1, `Perplexity`.
    """

    def pair(label: Array, output: Array, rows: Array | None) -> tuple[Array, Array]:
        loss = -jnp.log(jnp.maximum(picked(name, label, output, axis), 1e-10))
        if ignore_label is None:
            return add_up(loss, output, rows)
        counts = like(name, label, loss.shape).astype(jnp.int32) != ignore_label
        each = each_row(loss, output, rows)
        return add_each(loss, jnp.where(counts, each, jnp.zeros((), each.dtype)))

    return mean(name, pair, "exp", weighted)


def loss(name: str = "loss", weighted: bool = False) -> Metric:
    """sum(outputs) / size; labels are ignored.

    Example:
        >>> loss().name
        'loss'

    Source: Apache MXNet 1.9.1, `Loss`.
    """

    def pair(label: Array | None, output: Array, rows: Array | None) -> tuple[Array, Array]:
        return add_up(output.astype(jnp.float32), output, rows)

    found = mean(name, pair, weighted=weighted)

    def stats(labels: Any, outputs: Arrays, weights: Weights) -> Any:
        return found.stats((None,) * len(outputs), outputs, weights)  # pyright: ignore[reportArgumentType]

    return found._replace(stats=stats)
