"""The area under the ROC curve, from histograms of the scores."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from jfit.checks import one_of
from jfit.metrics.confusion import count_each, counts
from jfit.metrics.core import Metric, like, needs_size, xp
from jfit.metrics.targets import for_scores
from jfit.programs import made

EDGE = 16.0  # bins cover logits from -16 to 16; the logit of the largest float32 below 1 is 16.6


@made
def roc_auc(
    num_classes: int | None = None,
    bins: int = 4096,
    average: str | None = "macro",
    logits: bool | None = None,
    name: str = "roc_auc",
    weighted: bool = False,
) -> Metric:
    """Area under the ROC curve: P(a row of the class scores higher than another row) + P(equal scores) / 2.

    Two classes have one curve, that of class 1; more classes have one curve each, against all others (one-vs-rest).  Scores are
    counted in bins of equal width in log(p / (1 - p)), and scores in the same bin are treated as equal.  The error is at most
    Σ_b positives_b negatives_b / (2 positives negatives), with the numbers of rows of the class (positives) and of other rows
    (negatives) in bin b and in all bins; it is usually far smaller, because errors cancel.

    Args:
        num_classes: number of classes; None takes it from the output shape.
        bins: number of bins.  For the exact value, pass `run.predict(x)` to scikit-learn's `roc_auc_score`.
        average: "macro": mean over the classes (those with a value); None: array with the value of each class.
        logits: whether the outputs are logits instead of probabilities (for two columns, their difference is used); None:
            probabilities, and for a model of a function what its loss says.
        name: name of the value in logs and results.
        weighted: weight rows by their row weights; otherwise all rows with a weight above 0 count equally.

    Returns:
        A `Metric`.  The value is NaN if all rows are of one kind or a score is NaN.

    Raises:
        ValueError: unknown average, or fewer than 2 bins.

    Example:
        >>> import jax.numpy as jnp
        >>> metric = roc_auc(num_classes=2)
        >>> seen = metric.stats((jnp.array([0, 0, 1, 1]),), (jnp.array([0.1, 0.4, 0.35, 0.8]),), (None,))
        >>> float(metric.compute(metric.update(metric.init(), seen))["roc_auc"])
        0.75

    Source: T. Fawcett, An introduction to ROC analysis, 2006; scikit-learn, `roc_auc_score` (multi_class="ovr").
    """
    one_of(("macro", None), **{"metric roc_auc: average": average})

    def fitted(targets: Any) -> Any:
        make = lambda logits: roc_auc(num_classes, bins, average, logits, name, weighted)  # noqa: E731
        return for_scores(make, name, targets, logits)

    if bins is None or bins < 2:
        raise ValueError(f"metric roc_auc: bins is {bins!r}; it must be a whole number from 2.")
    if num_classes is None:
        make = lambda classes: roc_auc(classes, bins, average, logits, name, weighted)  # noqa: E731
        return needs_size(name, make)._replace(fitted=fitted)
    curves = 1 if num_classes <= 2 else num_classes
    shape = (2, curves, bins + 1)  # positives, negatives; the last bin counts NaN scores

    def pair(label: Array, output: Array, rows: Array | None) -> Array:
        score, true = _curves(name, curves, label, output, bool(logits))
        each = count_each(true, output, rows)
        place = jnp.clip((score + EDGE) * (bins / (2 * EDGE)), 0, bins - 1)
        place = jnp.where(jnp.isnan(score), bins, place.astype(jnp.int32))  # (rows, curves)
        kind = jnp.where(true, 0, 1)
        column = jnp.broadcast_to(jnp.arange(curves)[None], place.shape)
        return jnp.zeros(shape, each.dtype).at[kind, column, place].add(each)

    def compute(sums: Any) -> dict[str, Any]:
        return {name: _averaged(area_under(*(sums * 1.0)), average)}

    return counts(name, shape, pair, compute, weighted)._replace(fitted=fitted)


def area_under(positives: Any, negatives: Any) -> Any:
    """Return the area under each ROC curve, an array of shape (curves,).

    Args:
        positives: number of rows of the class in each bin, shape (curves, bins + 1); bins are in order of increasing scores,
            and the last one counts NaN scores.
        negatives: number of all other rows in each bin, likewise.

    Example:
        >>> area_under(np.array([[0.0, 1.0, 0.0]]), np.array([[1.0, 0.0, 0.0]])).tolist()
        [1.0]
    """
    lib = xp(positives)
    unknown = (positives[:, -1] > 0) | (negatives[:, -1] > 0)
    positives, negatives = positives[:, :-1], negatives[:, :-1]
    below = lib.cumsum(negatives, axis=1) - negatives
    whole = positives.sum(axis=1) * negatives.sum(axis=1)
    known = (whole > 0) & ~unknown
    whole = lib.where(known, whole, 1.0)
    area = (positives * (below + 0.5 * negatives)).sum(axis=1) / whole
    return lib.where(known, area, np.nan)


def _averaged(values: Any, average: str | None) -> Any:
    """Return the mean of the values (curves,) that are not NaN, or all values if `average` is None."""
    if values.shape[0] == 1:
        return values[0]
    if average is None:
        return values
    lib = xp(values)
    there = ~lib.isnan(values)
    return lib.where(there.any(), lib.where(there, values, 0.0).sum() / lib.maximum(there.sum(), 1), np.nan)


def _curves(name: str, curves: int, label: Any, output: Any, logits: bool) -> tuple[Any, Any]:
    """Return (scores, whether the row belongs to the class), both of shape (rows, curves).

    Args:
        name: name of the metric, for error messages.
        curves: number of curves: 1 for two classes, else the number of classes.
        label: class indices.
        output: outputs of the model.
        logits: whether the outputs are logits; probabilities are converted to logits.
    """
    wide = output.ndim == 2 and output.shape[1] > 1
    if output.ndim > 2 or (wide and output.shape[1] != max(curves, 2)):
        expected = f"(rows, {curves})" if curves > 1 else "(rows, 2) or (rows,)"
        raise ValueError(f"metric {name}: the output has shape {output.shape}, expected {expected}.")
    output = output.astype(jnp.float32)
    if curves > 1:
        score = output
    elif wide:
        score = output[:, 1:] - output[:, :1] if logits else output[:, 1:]
    else:
        score = output.reshape(-1, 1)
    true = like(name, label, score.shape[:1]).astype(jnp.int32)[:, None]
    true = true == (jnp.arange(curves)[None] if curves > 1 else 1)
    if not logits:
        score = jnp.clip(score, 0.0, 1.0)
        score = jnp.log(score) - jnp.log1p(-score)
    return score, true
