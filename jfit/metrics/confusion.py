"""Metrics of counts; for many classes: precision, recall, PCC (multi-class MCC) and the confusion matrix.

All but the confusion matrix need only three counts per class: correct predictions, predictions, labels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from jfit.checks import one_of
from jfit.metrics.core import Arrays, Metric, Weights, added, each_row, exact, like, needs_size, pairs, total, xp, zero_sums
from jfit.metrics.targets import for_classes
from jfit.programs import made


@made
def precision(
    average: str | None = "binary",
    num_classes: int | None = None,
    name: str = "precision",
    weighted: bool = False,
    from_logits: bool | None = None,
) -> Metric:
    """Correct predictions of a class / all predictions of it, over all batches; 0 for a class that was never predicted.

    Outputs are scores of shape (rows, classes, ...), or probabilities of class 1 of shape (rows,) or (rows, 1).

    Args:
        average: "binary": the value of class 1; "macro": mean over the classes that occur; "micro": value of the total counts;
            None: array with the value of each class.
        num_classes: number of classes; None takes it from the output shape.
        name: name of the value in logs and results.
        weighted: weight rows by their row weights; otherwise all rows with a weight above 0 count equally.
        from_logits: whether binary outputs are logits (threshold 0) or probabilities (threshold 0.5); None: probabilities, and
            for a model of a function what its loss says.

    Returns:
        A `Metric`.

    Raises:
        ValueError: unknown average, or "binary" with more than two classes.

    Example:
        >>> precision("macro", num_classes=3).name
        'precision'

    Source: scikit-learn, `precision_score` with zero_division=0.
    """
    return _score("precision", lambda predicted, true: predicted, average, num_classes, name, weighted, from_logits)


@made
def recall(
    average: str | None = "binary",
    num_classes: int | None = None,
    name: str = "recall",
    weighted: bool = False,
    from_logits: bool | None = None,
) -> Metric:
    """Correct predictions of a class / all rows of it, over all batches; 0 for a class without rows.

    Outputs are scores of shape (rows, classes, ...), or probabilities of class 1 of shape (rows,) or (rows, 1).

    Args:
        average: "binary": the value of class 1; "macro": mean over the classes that occur; "micro": value of the total counts;
            None: array with the value of each class.
        num_classes: number of classes; None takes it from the output shape.
        name: name of the value in logs and results.
        weighted: weight rows by their row weights; otherwise all rows with a weight above 0 count equally.
        from_logits: whether binary outputs are logits (threshold 0) or probabilities (threshold 0.5); None: probabilities, and
            for a model of a function what its loss says.

    Returns:
        A `Metric`.

    Raises:
        ValueError: unknown average, or "binary" with more than two classes.

    Example:
        >>> recall("micro", num_classes=3).name
        'recall'

    Source: scikit-learn, `recall_score` with zero_division=0.
    """
    return _score("recall", lambda predicted, true: true, average, num_classes, name, weighted, from_logits)


@made
def pcc(num_classes: int | None = None, name: str = "pcc", weighted: bool = False, from_logits: bool | None = None) -> Metric:
    """(n h - Σ sₖ tₖ) / √((n² - Σ sₖ²)(n² - Σ tₖ²)): multi-class Matthews correlation, over all batches.

    n rows, h correct predictions, sₖ predictions of class k, tₖ rows of class k; NaN if all labels or all predictions are
    the same.  Labels outside the classes of the outputs count as one additional class.

    Args:
        num_classes: number of classes; None takes it from the output shape.
        name: name of the value in logs and results.
        weighted: weight rows by their row weights; otherwise all rows with a weight above 0 count equally.
        from_logits: whether binary outputs are logits (threshold 0) or probabilities (threshold 0.5); None: probabilities, and
            for a model of a function what its loss says.

    Returns:
        A `Metric`.

    Example:
        >>> pcc(num_classes=3).name
        'pcc'

    Source: Apache MXNet 1.9.1, `PCC`; J. Gorodkin, Comparing two K-category assignments by a K-category correlation
    coefficient, 2004.
    """

    def value(hit: Any, predicted: Any, true: Any) -> Any:
        lib, n = xp(predicted), predicted.sum()
        spread = (predicted * (n - predicted)).sum(), (true * (n - true)).sum()
        root = lib.sqrt(spread[0] * 1.0) * lib.sqrt(spread[1] * 1.0)
        correlation = (hit.sum() * n - (predicted * true).sum()) / lib.where(root > 0, root, 1.0)
        return lib.where(root > 0, correlation, np.nan)

    make = lambda classes, from_logits: _counted(name, classes, value, weighted, from_logits)  # noqa: E731
    return _sized(name, num_classes, from_logits, make)


@made
def confusion_matrix(
    num_classes: int | None = None,
    normalize: str | None = None,
    name: str = "confusion_matrix",
    weighted: bool = False,
    from_logits: bool | None = None,
) -> Metric:
    """C[i, j] = number of rows of class i predicted as class j, over all batches: array of shape (classes, classes).

    Rows with labels outside the classes are ignored.

    Args:
        num_classes: number of classes; None takes it from the output shape.
        normalize: "true": each row of C sums to 1; "pred": each column sums to 1; "all": C sums to 1; None: counts.
        name: name of the value in logs and results.
        weighted: weight rows by their row weights; otherwise all rows with a weight above 0 count equally.
        from_logits: whether binary outputs are logits (threshold 0) or probabilities (threshold 0.5); None: probabilities, and
            for a model of a function what its loss says.

    Returns:
        A `Metric` whose sums have the shape of C.

    Raises:
        ValueError: unknown normalize.

    Example:
        >>> confusion_matrix(3).init().shape
        (3, 3)

    Source: scikit-learn, `confusion_matrix`.
    """
    one_of(("true", "pred", "all", None), **{"metric confusion_matrix: normalize": normalize})

    def make(classes: int, from_logits: bool | None) -> Metric:
        def pair(label: Array, output: Array, rows: Array | None) -> Array:
            predicted, true, each = _classes(name, classes, label, output, rows, from_logits)
            inside = (true < classes) & (predicted < classes)
            cell = jnp.where(inside, true * classes + predicted, classes * classes)
            return jnp.zeros(classes * classes + 1, each.dtype).at[cell].add(each)[:-1].reshape(classes, classes)

        return counts(name, (classes, classes), pair, lambda matrix: {name: _normalized(matrix, normalize)}, weighted)

    return _sized(name, num_classes, from_logits, make)


def _normalized(matrix: Any, normalize: str | None) -> Any:
    if normalize is None:
        return matrix
    sums = matrix.sum(axis={"true": 1, "pred": 0, "all": None}[normalize], keepdims=True)
    return matrix / xp(sums).where(sums > 0, sums, 1)  # 0 for a class without rows, as in scikit-learn


def counts(
    name: str,
    shape: tuple[int, ...],
    pair: Callable[[Array, Array, Array | None], Array],
    compute: Callable[[Any], dict[str, Any]],
    weighted: bool,
) -> Metric:
    """Make a metric of counts of rows, int32 sums over all batches; if `weighted`, of sums of their weights.

    Args:
        name: name of the value in logs and results.
        shape: shape of the counts.
        pair: `(label, output, rows) -> counts of one batch`, with the counts of `count_each`.
        compute: `counts -> {name: value}`.
        weighted: whether rows are weighted by their row weights.
    """

    def stats(labels: Arrays, outputs: Arrays, weights: Weights) -> Array:
        return total(pair(*each) for each in pairs(name, labels, outputs, weights, weighted))

    if weighted:
        return Metric(name, lambda: zero_sums(*shape), stats, added, lambda running: compute(exact(running)))
    return Metric(name, lambda: jnp.zeros(shape, jnp.int32), stats, lambda running, seen: running + seen, compute)


def count_each(values: Array, output: Array, rows: Array | None) -> Array:
    """Return the count (int32) or weight (float32) of each value; arguments as for `each_row`."""
    each = each_row(values, output, rows)
    return each.astype(jnp.int32) if each.dtype == bool else each


def _sized(name: str, num_classes: int | None, from_logits: bool | None, make: Callable[[int, bool | None], Metric]) -> Metric:
    """Return `make(number of classes, from_logits)`, for as many classes as the outputs have if `num_classes` is None."""
    if num_classes is None:
        metric = needs_size(name, lambda classes: _sized(name, classes, from_logits, make))
    else:
        metric = make(num_classes, from_logits)
    return metric._replace(fitted=lambda targets: for_classes(_sized(name, num_classes, None, make), targets, from_logits))


def _counted(name: str, classes: int, value: Callable[..., Any], weighted: bool, from_logits: bool | None) -> Metric:
    """Metric `value(correct, predicted, true)` of three counts per class (classes + 1,); the last entry is other classes."""

    def pair(label: Array, output: Array, rows: Array | None) -> Array:
        predicted, true, each = _classes(name, classes, label, output, rows, from_logits)
        zero = jnp.zeros(classes + 1, each.dtype)
        hit = jnp.where((predicted == true) & (true < classes), each, jnp.zeros((), each.dtype))
        return jnp.stack([zero.at[true].add(hit), zero.at[predicted].add(each), zero.at[true].add(each)])

    return counts(name, (3, classes + 1), pair, lambda sums: {name: value(*(sums * 1.0))}, weighted)


def _score(
    kind: str,
    count: Callable[[Any, Any], Any],
    average: str | None,
    num_classes: int | None,
    name: str,
    weighted: bool,
    from_logits: bool | None,
) -> Metric:
    """Correct predictions of each class / `count(predicted, true)`, averaged over the classes."""
    one_of(("binary", "macro", "micro", None), **{f"metric {kind}: average": average})

    def value(hit: Any, predicted: Any, true: Any) -> Any:
        lib, of = xp(predicted), count(predicted, true)[:-1]
        hit, occurs = hit[:-1], (predicted + true)[:-1] > 0
        each = hit / lib.where(of > 0, of, 1)
        averages = {
            None: each,
            "binary": each[1],
            "macro": (each * occurs).sum() / lib.maximum(occurs.sum(), 1),
            "micro": hit.sum() / lib.where(of.sum() > 0, of.sum(), 1),
        }
        return lib.where(predicted.sum() > 0, averages[average], np.nan)

    def make(classes: int, from_logits: bool | None) -> Metric:
        if average == "binary" and classes != 2:
            raise ValueError(f"metric {kind}: average='binary' needs two classes, but there are {classes}; pass 'macro'")
        return _counted(name, classes, value, weighted, from_logits)

    return _sized(name, num_classes, from_logits, make)


def _classes(
    name: str, classes: int, label: Array, output: Array, rows: Array | None, from_logits: bool | None
) -> tuple[Array, Array, Array]:
    """(predicted class, label, count or weight) of each prediction, as flat arrays; all other classes become `classes`."""
    if output.ndim > 1 and output.shape[1] > 1 and output.shape != label.shape:
        if output.shape[1] > classes:
            raise ValueError(f"metric {name}: the output has {output.shape[1]} classes, but num_classes is {classes}.")
        predicted = jnp.argmax(output, 1)
    else:  # probabilities of class 1, or the classes themselves
        predicted = (output > (0.0 if from_logits else 0.5)) if classes == 2 else output
    true = like(name, label, predicted.shape).astype(jnp.int32).reshape(-1)
    each = count_each(predicted, output, rows).reshape(-1)
    predicted = predicted.astype(jnp.int32).reshape(-1)
    predicted, true = (jnp.where((z >= 0) & (z < classes), z, classes) for z in (predicted, true))
    return predicted, true, each
