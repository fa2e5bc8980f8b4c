"""The area under the ROC curve: from histograms of the scores on the devices, or exactly on the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from jfit.metrics.confusion import classes_of
from jfit.metrics.core import Arrays, Metric, Weights, added, each_row, exact, like, nothing, pairs, total, unsized, xp

EDGE = 16.0  # bins lie evenly between -16 and 16 of log(p / (1 - p)): the largest float32 below 1 has 16.6


def roc_auc(
    num_classes: int | None = None,
    bins: int | None = 4096,
    average: str | None = "macro",
    logits: bool = False,
    bound: bool = False,
    name: str = "roc_auc",
    weighted: bool = False,
) -> Any:
    """P(a row of the class scores higher than another one) + P(they score the same) / 2: the area under the ROC curve.

    Two classes have one curve, that of class 1.  More have one each, against all others (one-vs-rest).  Scores are counted
    in bins, evenly in log(p / (1 - p)), and scores in one bin count as the same: the value is off by at most
    Σ_b positives_b negatives_b / (2 positives negatives), and by far less as a rule, as errors go both ways.

    Args:
        num_classes: None: as many as the outputs have.
        bins: how many; None: exact, by sorting all scores at the end, which a `HostMetric` keeps (8 bytes a score).
        average: "macro": the mean over the classes that have a curve; None: an array with the value of each class.
        logits: outputs are raw scores in place of probabilities (two columns: their difference counts).
        bound: also gives `<name>_bound`, the largest error that these bins can have made.
        name: for logs.
        weighted: rows count by their weights.

    Returns:
        A `Metric`; with bins=None an `ExactRocAuc`.  nan without rows of both kinds, and where a score is nan.

    Raises:
        ValueError: another average, fewer than 2 bins.

    Example:
        >>> import jax.numpy as jnp
        >>> metric = roc_auc(num_classes=2)
        >>> seen = metric.stats((jnp.array([0, 0, 1, 1]),), (jnp.array([0.1, 0.4, 0.35, 0.8]),), (None,))
        >>> float(metric.compute(metric.update(metric.init(), seen))["roc_auc"])
        0.75

    Source: T. Fawcett, An introduction to ROC analysis, 2006; scikit-learn, `roc_auc_score` (multi_class="ovr").
    """
    if average not in ("macro", None):
        raise ValueError(f"metric roc_auc: average is {average!r}, it needs to be 'macro' or None.")
    if bins is None:
        return ExactRocAuc(name, average, logits, weighted)
    if isinstance(bins, bool) or int(bins) != bins or bins < 2:
        raise ValueError(f"metric roc_auc: bins is {bins!r}, a whole number of at least 2 is needed, or None for exact.")
    if num_classes is None:
        return unsized(name, lambda k: roc_auc(k, bins, average, logits, bound, name, weighted), classes_of)
    curves = 1 if num_classes <= 2 else num_classes
    shape = (2, curves, bins + 1)  # positives, negatives; the last bin is for nan

    def pair(label: Array, output: Array, rows: Array | None) -> Array:
        score, true = _curves(jnp, name, curves, label, output, logits)
        each = each_row(true, output, rows)
        each = each.astype(jnp.int32) if each.dtype == bool else each
        place = jnp.clip((score + EDGE) * (bins / (2 * EDGE)), 0, bins - 1)
        place = jnp.where(jnp.isnan(score), bins, place.astype(jnp.int32))  # (rows, curves)
        kind = jnp.where(true, 0, 1)
        column = jnp.broadcast_to(jnp.arange(curves)[None], place.shape)
        return jnp.zeros(shape, each.dtype).at[kind, column, place].add(each)

    def stats(labels: Arrays, outputs: Arrays, weights: Weights) -> Array:
        return total(pair(*each) for each in pairs(name, labels, outputs, weights, weighted))

    def compute(running: Any) -> dict[str, Any]:
        positives, negatives = (exact(running) if weighted else running) * 1.0
        area, error = area_under(positives, negatives)
        found = {name: _averaged(area, average)}
        return {**found, f"{name}_bound": _averaged(error, average)} if bound else found

    if weighted:
        return Metric(name, lambda: nothing(*shape), stats, added, compute)
    return Metric(name, lambda: jnp.zeros(shape, jnp.int32), stats, lambda running, seen: running + seen, compute)


def area_under(positives: Any, negatives: Any) -> tuple[Any, Any]:
    """(area, the most it can be off) of each row of counts (curves, bins + 1), scores rising, the last bin for nan.

    Example:
        >>> area_under(np.array([[0.0, 1.0, 0.0]]), np.array([[1.0, 0.0, 0.0]]))[0].tolist()
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
    error = 0.5 * (positives * negatives).sum(axis=1) / whole
    return lib.where(known, area, np.nan), lib.where(known, error, np.nan)


def _averaged(values: Any, average: str | None) -> Any:
    """The mean over the curves that there are, or all of them."""
    if values.shape[0] == 1:
        return values[0]
    if average is None:
        return values
    lib = xp(values)
    there = ~lib.isnan(values)
    return lib.where(there.any(), lib.where(there, values, 0.0).sum() / lib.maximum(there.sum(), 1), np.nan)


def _curves(lib: Any, name: str, curves: int, label: Any, output: Any, logits: bool) -> tuple[Any, Any]:
    """(scores, whether the row is of the class), both (rows, curves)."""
    wide = output.ndim == 2 and output.shape[1] > 1
    if output.ndim > 2 or (wide and output.shape[1] != max(curves, 2)):
        needed = f"(rows, {curves})" if curves > 1 else "(rows, 2) or (rows,)"
        raise ValueError(f"metric {name}: the output has shape {output.shape}, {needed} is needed.")
    output = output.astype(lib.float32)
    if curves > 1:
        score = output
    elif wide:
        score = output[:, 1:] - output[:, :1] if logits else output[:, 1:]
    else:
        score = output.reshape(-1, 1)
    true = like(name, label, score.shape[:1]).astype(lib.int32)[:, None]
    true = true == (lib.arange(curves)[None] if curves > 1 else 1)
    if not logits and lib is jnp:
        score = jnp.clip(score, 0.0, 1.0)
        score = jnp.log(score) - jnp.log1p(-score)
    return score, true


class ExactRocAuc(NamedTuple):
    """The exact area under the ROC curve: every score is kept on the host, and sorted when the value is asked for.

    Attributes:
        name: what it is called in logs.
        average, logits, weighted: as for `roc_auc`.
        host: True.

    Example:
        >>> metric = ExactRocAuc()
        >>> sums = metric.update(metric.init(), [np.array([0, 0, 1, 1])], [np.array([0.1, 0.4, 0.35, 0.8])])
        >>> float(metric.compute(sums)["roc_auc"])
        0.75

    Source: as for `roc_auc`.
    """

    name: str = "roc_auc"
    average: str | None = "macro"
    logits: bool = False
    weighted: bool = False
    host: bool = True

    def init(self) -> Any:
        """Nothing kept."""
        return None

    def update(self, sums: Any, labels: Sequence[Any], outputs: Sequence[Any], weights: Any = None) -> Any:
        """(what was kept before, scores, classes, weights) of one batch of rows that count."""
        for at, (label, output, _) in enumerate(pairs(self.name, labels, outputs, None)):
            label, output = np.asarray(label), np.asarray(output)
            curves = output.shape[1] if output.ndim == 2 and output.shape[1] > 2 else 1
            score, true = _curves(np, self.name, curves, label, output, self.logits)
            given = weights[at] if self.weighted and weights is not None else None
            sums = (sums, score, true, np.ones(len(score)) if given is None else np.asarray(given, np.float64))
        return sums

    def compute(self, sums: Any) -> dict[str, Any]:
        """{name: area}."""
        kept = []
        while sums is not None:
            kept.append(sums[1:])
            sums = sums[0]
        if not kept:
            return {self.name: np.float64(np.nan)}
        score, true, weight = (np.concatenate(x) for x in zip(*kept, strict=True))
        areas = [_exact_area(score[:, k], true[:, k], weight) for k in range(score.shape[1])]
        return {self.name: _averaged(np.array(areas), self.average)}


def _exact_area(score: np.ndarray, true: np.ndarray, weight: np.ndarray) -> float:
    if np.isnan(score).any():
        return float("nan")
    values, place = np.unique(score, return_inverse=True)
    counts = [np.bincount(place, weight * kind, len(values) + 1)[None] for kind in (true, ~true)]
    return float(area_under(*counts)[0][0])
