"""How often the right class is found: accuracy, top-k accuracy, and the binary scores F1 and MCC."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jfit.metrics.core import (
    Arrays,
    Metric,
    Weights,
    add_up,
    added,
    computed,
    each_row,
    exact,
    kahan,
    like,
    nothing,
    pairs,
    ratio,
    total,
    xp,
    zero_mean,
)


def accuracy(axis: int = 1, name: str = "accuracy", weighted: bool = False) -> Metric:
    """correct / count, the prediction being the argmax over `axis`, or the output itself if shaped as its label.

    Example:
        >>> accuracy().name
        'accuracy'

    Source: Apache MXNet 1.9.1, `Accuracy`.
    """

    def pair(label: Array, output: Array, rows: Array | None) -> tuple[Array, Array]:
        found = output if output.shape == label.shape else jnp.argmax(output, axis if output.ndim > 1 else 0)
        return add_up(found.astype(jnp.int32) == like(name, label, found.shape).astype(jnp.int32), output, rows)

    return ratio(name, pair, weighted)


def top_k_accuracy(top_k: int = 1, name: str = "top_k_accuracy", weighted: bool = False) -> Metric:
    """How often the label is among the `top_k` largest of (rows, classes) outputs; the name ends in `_<top_k>`.

    Example:
        >>> top_k_accuracy(5).name
        'top_k_accuracy_5'

    Source: Apache MXNet 1.9.1, `TopKAccuracy`.
    """
    if top_k <= 1:
        raise ValueError(f"metric top_k_accuracy: top_k is {top_k}, more than 1 is needed; use 'acc' for the top one.")
    name = f"{name}_{top_k}"

    def pair(label: Array, output: Array, rows: Array | None) -> tuple[Array, Array]:
        if output.ndim != 2:
            raise ValueError(f"metric {name}: the output has shape {output.shape}, (rows, classes) is needed.")
        best = lax.top_k(output, min(top_k, output.shape[1]))[1]  # (rows, k)
        wanted = like(name, label, output.shape[:1]).astype(best.dtype)
        return add_up(jnp.any(best == wanted[:, None], axis=1), output, rows)

    return ratio(name, pair, weighted)


def f1(average: str = "macro", name: str = "f1", weighted: bool = False) -> Metric:
    """2 tp / (2 tp + fp + fn) of binary labels; "macro": the mean over batches, "micro": from the totals.

    Outputs are (rows, 2) scores, or (rows,) or (rows, 1) probabilities of class 1.

    Example:
        >>> f1().name
        'f1'

    Source: Apache MXNet 1.9.1, `F1`; 0 where the denominator is 0.
    """

    def score(cells: Any) -> Any:
        cells = cells * 1.0  # doubling an int32 count may overflow
        wrong = 2 * cells[0] + cells[1] + cells[2]
        return 2 * cells[0] / (wrong + (wrong == 0))

    return _binary("f1", name, average, score, weighted)


def mcc(average: str = "macro", name: str = "mcc", weighted: bool = False) -> Metric:
    """(tp tn - fp fn) / √((tp + fp)(tp + fn)(tn + fp)(tn + fn)) of binary labels, factors of 0 left out of the root.

    "macro": the mean over batches, "micro": from the totals.  Outputs are (rows, 2) scores, or (rows,) or (rows, 1)
    probabilities of class 1; `pcc` is the same for many classes.

    Example:
        >>> mcc("micro").name
        'mcc'

    Source: Apache MXNet 1.9.1, `MCC`.
    """

    def score(cells: Any) -> Any:
        tp, fp, fn, tn = cells * 1.0
        lib = xp(cells)
        found = tp * tn - fp * fn
        for factor in (tp + fp, tp + fn, tn + fp, tn + fn):
            found = found / lib.sqrt(lib.where(factor == 0, 1.0, factor))  # their product may be too small or large for float32
        return found

    return _binary("mcc", name, average, score, weighted)


def _binary(kind: str, name: str, average: str, score: Callable[[Any], Any], weighted: bool) -> Metric:
    """A score of the four cells (tp, fp, fn, tn) of a binary confusion matrix."""
    if average not in ("macro", "micro"):
        raise ValueError(f"metric {kind}: average is {average!r}, it needs to be 'macro' or 'micro'.")

    def stats(labels: Arrays, outputs: Arrays, weights: Weights) -> Array:
        return total(_cells(name, *each) for each in pairs(name, labels, outputs, weights, weighted))

    def fold(running: Any, cells: Array) -> Any:
        return kahan(running, score(cells), (jnp.sum(cells) > 0).astype(jnp.int32))

    if average == "macro":
        return Metric(name, zero_mean, stats, fold, computed(name))

    def compute(cells: Any) -> dict[str, Any]:
        found = exact(cells) if weighted else cells
        return {name: xp(cells).where(found.sum() > 0, score(found), np.float32(np.nan))}

    if weighted:
        return Metric(name, lambda: nothing(4), stats, added, compute)
    return Metric(name, lambda: jnp.zeros(4, jnp.int32), stats, lambda running, cells: running + cells, compute)


def _cells(name: str, label: Array, output: Array, rows: Array | None) -> Array:
    """(tp, fp, fn, tn), (4,): int32 counts, float32 weights."""
    if output.ndim > 2 or (output.ndim == 2 and output.shape[1] > 2):
        raise ValueError(f"metric {name} is binary: the output has shape {output.shape}, (rows, 2) or (rows,) is needed.")
    two = output.ndim == 2 and output.shape[1] == 2
    said = jnp.argmax(output, 1) == 1 if two else output.reshape(-1) > 0.5
    true = like(name, label, said.shape).astype(jnp.int32) == 1
    each = each_row(true, output, rows)
    each = each.astype(jnp.int32) if each.dtype == bool else each
    cells = [said & true, said & ~true, ~said & true, ~said & ~true]
    return jnp.stack([jnp.sum(jnp.where(cell, each, 0), dtype=each.dtype) for cell in cells])
