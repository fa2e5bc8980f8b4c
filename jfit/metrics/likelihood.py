"""Metrics of the probability of the label: cross entropy, negative log likelihood, perplexity; and losses as metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jfit.metrics.core import Arrays, Metric, Weights, add_counted, add_up, label_probability, like, mean, wide
from jfit.metrics.targets import for_likelihood
from jfit.programs import made


@made
def cross_entropy(
    eps: float = 1e-12,
    name: str = "cross-entropy",
    weighted: bool = False,
    from_logits: bool | None = None,
    ignore_index: int | None = None,
) -> Metric:
    """-sum log(p[label] + eps) / count, for outputs with classes on axis 1 (for a model of a function, on the last axis).

    With logits, p is their softmax and nothing is added to it.  For a model of a function, labels may also be one-hot, or 0
    or 1 for every output (the mean binary cross entropy).

    Args:
        eps: added to probabilities, so that the logarithm is finite.
        name: name of the value in logs and results.
        weighted: weight rows by their row weights; otherwise all rows with a weight above 0 count equally.
        from_logits: whether the outputs are logits or probabilities; None: probabilities, and for a model of a function what
            its loss says.
        ignore_index: label to ignore; None ignores none, and for a model of a function those that its loss ignores.

    Returns:
        A `Metric`.

    Example:
        >>> cross_entropy().name
        'cross-entropy'

    Source: Apache MXNet 1.9.1, `CrossEntropy`.
    """
    return _likelihood(name, lambda p: -jnp.log(p + eps), 1, None, weighted, from_logits, ignore_index)


@made
def nll_loss(
    eps: float = 1e-12,
    name: str = "nll-loss",
    weighted: bool = False,
    from_logits: bool | None = None,
    ignore_index: int | None = None,
) -> Metric:
    """-sum log(p[label] + eps) / count: `cross_entropy` under another name.

    Args:
        eps: added to probabilities, so that the logarithm is finite.
        name: name of the value in logs and results.
        weighted: weight rows by their row weights; otherwise all rows with a weight above 0 count equally.
        from_logits: whether the outputs are logits or probabilities; None: probabilities, and for a model of a function what
            its loss says.
        ignore_index: label to ignore; None ignores none, and for a model of a function those that its loss ignores.

    Returns:
        A `Metric`.

    Example:
        >>> nll_loss().name
        'nll-loss'

    Source: Apache MXNet 1.9.1, `NegativeLogLikelihood`.
    """
    return cross_entropy(eps, name, weighted, from_logits, ignore_index)


@made
def perplexity(
    ignore_label: int | None = None,
    axis: int = -1,
    name: str = "perplexity",
    weighted: bool = False,
    from_logits: bool | None = None,
    ignore_index: int | None = None,
) -> Metric:
    """exp(-sum log max(p[label], 1e-10) / count) over the labels that are not `ignore_label`.

    Args:
        ignore_label: label to ignore; None ignores none.
        axis: class axis of the outputs.
        name: name of the value in logs and results.
        weighted: weight rows by their row weights; otherwise all rows with a weight above 0 count equally.
        from_logits: whether the outputs are logits or probabilities; None: probabilities, and for a model of a function what
            its loss says.
        ignore_index: `ignore_label` under the name that other metrics use, which takes precedence.

    Returns:
        A `Metric`.

    Example:
        >>> perplexity(ignore_label=0).name
        'perplexity'

    Source: Apache MXNet 1.9.1, `Perplexity`.
    """
    ignored = ignore_label if ignore_index is None else ignore_index
    return _likelihood(name, lambda p: -jnp.log(jnp.maximum(p, 1e-10)), axis, "exp", weighted, from_logits, ignored)


def _likelihood(
    name: str,
    penalty: Callable[[Array], Array],
    axis: int,
    finish: str | None,
    weighted: bool,
    from_logits: bool | None,
    ignored: int | None,
) -> Metric:
    """Mean over the labels of `penalty`(probability of the label), or of -log softmax(output)[label] with logits."""

    def pair(label: Array, output: Array, rows: Array | None) -> tuple[Array, Array]:
        if from_logits:
            losses = -label_probability(name, label, jax.nn.log_softmax(wide(output), axis), axis)
        else:
            losses = penalty(label_probability(name, label, output, axis))
        labels = label if ignored is None else like(name, label, losses.shape).astype(jnp.int32)
        return add_counted(losses, labels, output, rows, ignored)

    metric = mean(name, pair, finish, weighted)
    of_losses = mean(name, lambda _, losses, rows: add_up(losses, losses, rows), finish, weighted)
    return metric._replace(fitted=lambda targets: for_likelihood(of_losses, targets, penalty, from_logits, ignored))


@made
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
        return add_up(wide(output), output, rows)

    metric = mean(name, pair, weighted=weighted)

    def stats(labels: Any, outputs: Arrays, weights: Weights) -> Any:
        return metric.stats((None,) * len(outputs), outputs, weights)  # pyright: ignore[reportArgumentType]

    return metric._replace(stats=stats)
