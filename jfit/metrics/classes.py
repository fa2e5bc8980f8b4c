"""Classification metrics: accuracy, top-k accuracy, and the binary scores F1 and MCC."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jfit.checks import one_of
from jfit.metrics.confusion import count_each, counts
from jfit.metrics.core import Metric, add_counted, add_up, computed, kahan, like, ratio, xp, zero_mean
from jfit.metrics.targets import for_classes, with_ignored
from jfit.programs import made


@made
def accuracy(
    axis: int | None = None,
    name: str = "accuracy",
    weighted: bool = False,
    ignore_index: int | None = None,
    from_logits: bool | None = None,
) -> Metric:
    """correct / count.  The prediction is the argmax over `axis`, or the output itself if it has the shape of the label.

    For a model of a function, labels may also be one-hot (the prediction is the argmax), or 0 or 1 for every output (binary and
    multi-label: the prediction is 1 if the output exceeds the threshold, and every element counts).

    Args:
        axis: class axis of the outputs; None: 1, and the last axis for a model of a function.
        name: name of the value in logs and results.
        weighted: weight rows by their row weights; otherwise all rows with a weight above 0 count equally.
        ignore_index: label to ignore; None ignores none, and for a model of a function those that its loss ignores.
        from_logits: whether outputs of the shape of the labels are logits (threshold 0) or probabilities (threshold 0.5) of
            label 1; None: they are the predicted classes, and for a model of a function what its loss says.

    Returns:
        A `Metric`.

    Example:
        >>> accuracy().name
        'accuracy'

    Source: Apache MXNet 1.9.1, `Accuracy`.
    """

    def pair(label: Array, output: Array, rows: Array | None) -> tuple[Array, Array]:
        if from_logits is not None and output.size == label.size:
            predicted = output > (0.0 if from_logits else 0.5)
        else:
            predicted = output if output.shape == label.shape else jnp.argmax(output, class_axis if output.ndim > 1 else 0)
        labels = like(name, label, predicted.shape).astype(jnp.int32)
        return add_counted(predicted.astype(jnp.int32) == labels, labels, output, rows, ignore_index)

    def fitted(targets: Any) -> Metric:
        return for_classes(accuracy(1, name, weighted), with_ignored(targets, ignore_index), from_logits)

    class_axis = 1 if axis is None else axis
    return ratio(name, pair, weighted)._replace(fitted=fitted if axis is None else None)


@made
def top_k_accuracy(top_k: int = 1, name: str = "top_k_accuracy", weighted: bool = False) -> Metric:
    """Fraction of rows whose label is among the `top_k` largest outputs of shape (rows, classes).

    Args:
        top_k: k.
        name: name of the value in logs and results; `_<top_k>` is appended.
        weighted: weight rows by their row weights; otherwise all rows with a weight above 0 count equally.

    Returns:
        A `Metric`.

    Example:
        >>> top_k_accuracy(5).name
        'top_k_accuracy_5'

    Source: Apache MXNet 1.9.1, `TopKAccuracy`.
    """
    name = f"{name}_{top_k}"

    def pair(label: Array, output: Array, rows: Array | None) -> tuple[Array, Array]:
        if output.ndim != 2:
            raise ValueError(f"metric {name}: the output has shape {output.shape}, expected (rows, classes).")
        best = lax.top_k(output, min(top_k, output.shape[1]))[1]  # (rows, k)
        label = like(name, label, output.shape[:1]).astype(best.dtype)
        return add_up(jnp.any(best == label[:, None], axis=1), output, rows)

    metric = ratio(name, pair, weighted)
    return metric._replace(fitted=lambda targets: for_classes(metric, targets))


@made
def f1(average: str = "macro", name: str = "f1", weighted: bool = False, from_logits: bool | None = None) -> Metric:
    """2 tp / (2 tp + fp + fn) of binary labels.

    tp, fp, fn: numbers of true positives, false positives and false negatives.  Outputs are scores of shape (rows, 2), or
    probabilities of class 1 of shape (rows,) or (rows, 1).

    Args:
        average: "macro": mean over the scores of the batches (MXNet's default); "micro": score of the total counts.
        name: name of the value in logs and results.
        weighted: weight rows by their row weights; otherwise all rows with a weight above 0 count equally.
        from_logits: whether binary outputs are logits (threshold 0) or probabilities (threshold 0.5); None: probabilities, and
            for a model of a function what its loss says.

    Returns:
        A `Metric`.

    Raises:
        ValueError: unknown average.

    Example:
        >>> f1().name
        'f1'

    Source: Apache MXNet 1.9.1, `F1`; 0 where the denominator is 0.
    """

    def score(cells: Any) -> Any:
        cells = cells * 1.0  # float: doubling an int32 count may overflow
        denominator = 2 * cells[0] + cells[1] + cells[2]
        return 2 * cells[0] / (denominator + (denominator == 0))

    metric = _binary("f1", name, average, score, weighted, from_logits)
    return metric._replace(fitted=lambda targets: for_classes(f1(average, name, weighted), targets, from_logits))


@made
def mcc(average: str = "macro", name: str = "mcc", weighted: bool = False, from_logits: bool | None = None) -> Metric:
    """(tp tn - fp fn) / √((tp + fp)(tp + fn)(tn + fp)(tn + fn)) of binary labels (Matthews correlation).

    tp, fp: numbers of true and false positives; tn, fn: numbers of true and false negatives.  Factors that are 0 are left out
    of the root.  Outputs are scores of shape (rows, 2), or probabilities of class 1 of shape (rows,) or (rows, 1).  `pcc` is
    its generalization to more classes.

    Args:
        average: "macro": mean over the scores of the batches (MXNet's default); "micro": score of the total counts.
        name: name of the value in logs and results.
        weighted: weight rows by their row weights; otherwise all rows with a weight above 0 count equally.
        from_logits: whether binary outputs are logits (threshold 0) or probabilities (threshold 0.5); None: probabilities, and
            for a model of a function what its loss says.

    Returns:
        A `Metric`.

    Raises:
        ValueError: unknown average.

    Example:
        >>> mcc("micro").name
        'mcc'

    Source: Apache MXNet 1.9.1, `MCC`.
    """

    def score(cells: Any) -> Any:
        tp, fp, fn, tn = cells * 1.0
        lib = xp(cells)
        value = tp * tn - fp * fn
        for factor in (tp + fp, tp + fn, tn + fp, tn + fn):
            value = value / lib.sqrt(lib.where(factor == 0, 1.0, factor))  # the product of the factors may overflow float32
        return value

    metric = _binary("mcc", name, average, score, weighted, from_logits)
    return metric._replace(fitted=lambda targets: for_classes(mcc(average, name, weighted), targets, from_logits))


def _binary(
    kind: str, name: str, average: str, score: Callable[[Any], Any], weighted: bool, from_logits: bool | None
) -> Metric:
    """Metric that is a function of the binary confusion matrix (tp, fp, fn, tn)."""
    one_of(("macro", "micro"), **{f"metric {kind}: average": average})

    threshold = 0.0 if from_logits else 0.5

    def pair(label: Array, output: Array, rows: Array | None) -> Array:
        return _cells(name, threshold, label, output, rows)

    def fold(running: Any, cells: Array) -> Any:
        return kahan(running, score(cells), (jnp.sum(cells) > 0).astype(jnp.int32))

    def compute(cells: Any) -> dict[str, Any]:
        return {name: xp(cells).where(cells.sum() > 0, score(cells), np.float32(np.nan))}

    metric = counts(name, (4,), pair, compute, weighted)
    return metric if average == "micro" else metric._replace(init=zero_mean, update=fold, compute=computed(name))


def _cells(name: str, threshold: float, label: Array, output: Array, rows: Array | None) -> Array:
    """(tp, fp, fn, tn) of one batch, shape (4,): int32 counts, or float32 sums of weights."""
    if output.ndim > 2 or (output.ndim == 2 and output.shape[1] > 2):
        raise ValueError(f"metric {name} is binary: the output has shape {output.shape}, expected (rows, 2) or (rows,).")
    two = output.ndim == 2 and output.shape[1] == 2
    predicted = jnp.argmax(output, 1) == 1 if two else output.reshape(-1) > threshold
    true = like(name, label, predicted.shape).astype(jnp.int32) == 1
    each = count_each(true, output, rows)
    cells = [predicted & true, predicted & ~true, ~predicted & true, ~predicted & ~true]
    return jnp.stack([jnp.sum(jnp.where(cell, each, 0), dtype=each.dtype) for cell in cells])
