"""What was taken for what, over many classes: precision, recall, PCC, and the confusion matrix itself.

All but the matrix need three counts a class only: hits, how often it was said, how often it was true.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from jfit.metrics.core import Arrays, Metric, Shapes, Weights, added, each_row, exact, like, nothing, pairs, total, unsized, xp


def precision(
    average: str | None = "binary", num_classes: int | None = None, name: str = "precision", weighted: bool = False
) -> Metric:
    """hits / how often a class was said, over everything that was seen; 0 for a class that was never said.

    Outputs are (rows, classes, ...) scores, or (rows,) or (rows, 1) probabilities of class 1.

    Args:
        average: "binary": of class 1; "macro": the mean over the classes that occur; "micro": from the totals; None: an array
            with the value of each class.
        num_classes: None: as many as the outputs have.
        name: for logs.
        weighted: rows count by their weights.

    Returns:
        A `Metric`.

    Raises:
        ValueError: another average, or "binary" with more than two classes.

    Example:
        >>> precision("macro", num_classes=3).name
        'precision'

    Source: scikit-learn, `precision_score` with zero_division=0.
    """
    return _score("precision", 1, average, num_classes, name, weighted)


def recall(
    average: str | None = "binary", num_classes: int | None = None, name: str = "recall", weighted: bool = False
) -> Metric:
    """hits / how often a class was true, over everything that was seen; 0 for a class that was never true.

    Arguments and outputs as for `precision`.

    Example:
        >>> recall("micro", num_classes=3).name
        'recall'

    Source: scikit-learn, `recall_score` with zero_division=0.
    """
    return _score("recall", 2, average, num_classes, name, weighted)


def pcc(num_classes: int | None = None, name: str = "pcc", weighted: bool = False) -> Metric:
    """(n h - Σ sₖ tₖ) / √((n² - Σ sₖ²)(n² - Σ tₖ²)): Matthews' correlation of many classes, over everything that was seen.

    n rows, h hits, class k said sₖ times and true tₖ times; nan where all rows have one class.  Labels beyond the classes of
    the outputs count as one class more.

    Args:
        num_classes: None: as many as the outputs have.
        name: for logs.
        weighted: rows count by their weights.

    Returns:
        A `Metric`.

    Example:
        >>> pcc(num_classes=3).name
        'pcc'

    Source: Apache MXNet 1.9.1, `PCC`; J. Gorodkin, Comparing two K-category assignments by a K-category correlation
    coefficient, 2004.
    """

    def value(hit: Any, said: Any, true: Any) -> Any:
        lib, n = xp(said), said.sum()
        spread = (said * (n - said)).sum(), (true * (n - true)).sum()
        root = lib.sqrt(spread[0] * 1.0) * lib.sqrt(spread[1] * 1.0)
        found = (hit.sum() * n - (said * true).sum()) / lib.where(root > 0, root, 1.0)
        return lib.where(root > 0, found, np.nan)

    if num_classes is None:
        return unsized(name, lambda classes: pcc(classes, name, weighted), classes_of)
    return _counted(name, num_classes, value, weighted)


def confusion_matrix(
    num_classes: int | None = None, normalize: str | None = None, name: str = "confusion_matrix", weighted: bool = False
) -> Metric:
    """C[i, j] = how many rows of class i were taken for j, over everything that was seen: a (classes, classes) array.

    Rows with labels beyond the classes do not count.

    Args:
        num_classes: None: as many as the outputs have.
        normalize: "true": rows of C sum to 1, "pred": columns, "all": all of C; None: counts.
        name: for logs.
        weighted: rows count by their weights.

    Returns:
        A `Metric`; its sums are as large as C.

    Example:
        >>> confusion_matrix(3).init().shape
        (3, 3)

    Source: scikit-learn, `confusion_matrix`.
    """
    if normalize not in (None, "true", "pred", "all"):
        raise ValueError(f"metric confusion_matrix: normalize is {normalize!r}, it needs to be 'true', 'pred', 'all' or None.")
    if num_classes is None:
        return unsized(name, lambda classes: confusion_matrix(classes, normalize, name, weighted), classes_of)
    classes = _checked(name, num_classes)

    def pair(label: Array, output: Array, rows: Array | None) -> Array:
        found, true, each = _classes(name, classes, label, output, rows)
        inside = (true < classes) & (found < classes)
        cell = jnp.where(inside, true * classes + found, classes * classes)
        return jnp.zeros(classes * classes + 1, each.dtype).at[cell].add(each)[:-1].reshape(classes, classes)

    def stats(labels: Arrays, outputs: Arrays, weights: Weights) -> Array:
        return total(pair(*each) for each in pairs(name, labels, outputs, weights, weighted))

    def compute(running: Any) -> dict[str, Any]:
        found = exact(running) if weighted else running
        if normalize is not None:
            axis = {"true": 1, "pred": 0, "all": None}[normalize]
            whole = found.sum(axis=axis, keepdims=True)
            found = found / xp(whole).where(whole > 0, whole, 1)  # a class without rows: 0, as scikit-learn
        return {name: found}

    if weighted:
        return Metric(name, lambda: nothing(classes, classes), stats, added, compute)
    return Metric(name, lambda: jnp.zeros((classes, classes), jnp.int32), stats, lambda sums, seen: sums + seen, compute)


def classes_of(name: str, labels: Shapes, outputs: Shapes) -> int:
    """How many classes the outputs have: the size of axis 1, 2 for probabilities of class 1.

    Example:
        >>> classes_of("pcc", [(8,)], [(8, 5)]), classes_of("pcc", [(8,)], [(8, 1)])
        (5, 2)
    """
    return max([2, *(shape[1] for shape in outputs if len(shape) > 1)])


def _checked(name: str, classes: int) -> int:
    if isinstance(classes, bool) or int(classes) != classes or classes < 2:
        raise ValueError(f"metric {name}: num_classes is {classes!r}, a whole number of at least 2 is needed.")
    return int(classes)


def _score(kind: str, which: int, average: str | None, num_classes: int | None, name: str, weighted: bool) -> Metric:
    """hits / counts, the counts being those of what was said (1) or true (2)."""
    if average not in ("binary", "macro", "micro", None):
        raise ValueError(f"metric {kind}: average is {average!r}, it needs to be 'binary', 'macro', 'micro' or None.")
    if num_classes is None:
        return unsized(name, lambda classes: _score(kind, which, average, classes, name, weighted), classes_of)
    if average == "binary" and num_classes != 2:
        raise ValueError(
            f"metric {kind}: average='binary' needs two classes, there are {num_classes}; pass 'macro', 'micro' or None."
        )

    def value(hit: Any, said: Any, true: Any) -> Any:
        lib, counts = xp(said), (hit, said, true)[which]
        hit, counts, occurs = hit[:-1], counts[:-1], (said + true)[:-1] > 0
        each = hit / lib.where(counts > 0, counts, 1)
        if average == "binary":
            found = each[1]
        elif average == "macro":
            found = (each * occurs).sum() / lib.maximum(occurs.sum(), 1)
        elif average == "micro":
            found = hit.sum() / lib.where(counts.sum() > 0, counts.sum(), 1)
        else:
            found = each
        return lib.where(said.sum() > 0, found, np.nan)

    return _counted(name, num_classes, value, weighted)


def _counted(name: str, num_classes: int, value: Any, weighted: bool) -> Metric:
    """A value of three counts a class, (3, classes + 1): hits, said, true; the last place is for what is beyond them."""
    classes = _checked(name, num_classes)

    def pair(label: Array, output: Array, rows: Array | None) -> Array:
        found, true, each = _classes(name, classes, label, output, rows)
        zero = jnp.zeros(classes + 1, each.dtype)
        hit = jnp.where((found == true) & (true < classes), each, jnp.zeros((), each.dtype))
        return jnp.stack([zero.at[true].add(hit), zero.at[found].add(each), zero.at[true].add(each)])

    def stats(labels: Arrays, outputs: Arrays, weights: Weights) -> Array:
        return total(pair(*each) for each in pairs(name, labels, outputs, weights, weighted))

    def compute(running: Any) -> dict[str, Any]:
        return {name: value(*((exact(running) if weighted else running) * 1.0))}

    if weighted:
        return Metric(name, lambda: nothing(3, classes + 1), stats, added, compute)
    zero = (3, classes + 1)
    return Metric(name, lambda: jnp.zeros(zero, jnp.int32), stats, lambda running, seen: running + seen, compute)


def _classes(name: str, classes: int, label: Array, output: Array, rows: Array | None) -> tuple[Array, Array, Array]:
    """(class that was said, class that is true, count or weight) of each prediction, flat; `classes` stands for others."""
    if output.ndim > 1 and output.shape[1] > 1 and output.shape != label.shape:
        if output.shape[1] > classes:
            raise ValueError(f"metric {name}: the output has {output.shape[1]} classes, the metric was made for {classes}.")
        found = jnp.argmax(output, 1)
    else:  # probabilities of class 1, or the classes themselves
        found = (output > 0.5) if classes == 2 else output
    true = like(name, label, found.shape).astype(jnp.int32).reshape(-1)
    each = each_row(found, output, rows).reshape(-1)
    found = found.astype(jnp.int32).reshape(-1)
    found, true = (jnp.where((z >= 0) & (z < classes), z, classes) for z in (found, true))
    return found, true, each.astype(jnp.int32) if each.dtype == bool else each
