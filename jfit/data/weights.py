"""Class weights: row weights that depend on the label of the row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from jfit.data.batch import Batch, on_host

_OTHERWISE = "pass row weights instead: sample_weight, or (x, y, weight)."


def _is_class_weight(key: Any, value: Any) -> bool:
    """Whether a class is an integer of at least 0, and its weight a finite number of at least 0."""
    is_class = isinstance(key, (int, np.integer)) and not isinstance(key, bool) and int(key) >= 0
    return is_class and isinstance(value, (int, float, np.integer, np.floating)) and 0 <= float(value) < np.inf


class ClassWeights:
    """Row weights by class: wᵢ is multiplied by the weight of the class of row i.

    Args:
        weights: class -> weight, finite and at least 0.
        label: name of the label input: class indices of shape (rows,) or (rows, 1), or one-hot rows (rows, classes).
        ignore: value of labels that are excluded from the loss; their weight is not changed.

    Raises:
        ValueError: a weight is negative or not finite, or a class is not an integer of at least 0.

    Example:
        >>> import numpy as np
        >>> weights = ClassWeights({0: 1.0, 1: 10.0}, "y")
        >>> weights.of_rows(np.array([0, 1, 1]), None).tolist()
        [1.0, 10.0, 10.0]
    """

    def __init__(self, weights: Mapping[int, float], label: str, ignore: float | None = None) -> None:
        if not isinstance(weights, Mapping) or not weights or not all(_is_class_weight(*item) for item in weights.items()):
            raise ValueError(
                f"class_weight is {weights!r}, expected a dict of class indices, integers of at least 0, with finite weights "
                "of at least 0, such as {0: 1.0, 1: 10.0}."
            )
        self.label, self.ignore = label, ignore
        self.table = np.full(max(weights) + 1, np.nan, np.float32)
        self.table[list(weights)] = list(weights.values())

    def apply(self, batch: Batch, where: str = "") -> Batch:
        """Return a batch whose row weights are multiplied by the weights of the classes of its rows."""
        labels = batch.inputs[self.label]
        metric = batch.weight if batch.metric_weight is None else batch.metric_weight
        return Batch(batch.inputs, self.of_rows(labels, batch.weight, where), self.of_rows(labels, metric, where))

    def of_rows(self, labels: Any, weight: Any | None, where: str = "") -> Any:
        """Return the row weights, (rows,) float32.

        Args:
            labels: labels of the rows.
            weight: row weights without the class weights; None: all 1.
            where: prefix of error messages, such as "batch 3: ".

        Raises:
            ValueError: a label is not a class, or its class has no weight.
        """
        if labels.ndim > 2:
            raise ValueError(
                f"{where}class_weight needs one class per row, but label {self.label!r} has shape {labels.shape}; {_OTHERWISE}"
            )
        labels, one_hot = on_host(labels), labels.ndim == 2 and labels.shape[1] > 1
        flat = np.argmax(labels, axis=1) if one_hot else labels.reshape(-1)
        classes = flat.astype(np.int32)
        if one_hot:
            whole = ((labels == 0) | (labels == 1)).all(axis=1) & ((labels == 1).sum(axis=1) == 1)
        else:
            whole = classes.astype(flat.dtype) == flat
        inside = np.clip(classes, 0, len(self.table) - 1)
        factor = np.where(whole & (inside == classes), self.table[inside], np.float32(np.nan))
        if self.ignore is not None:
            factor = np.where(whole & (classes == int(self.ignore)), np.float32(1), factor)
        if np.isnan(factor).any():
            row = int(np.argmax(np.isnan(factor)))
            known = ", ".join(map(str, np.flatnonzero(~np.isnan(self.table))))
            raise ValueError(
                f"{where}label {self.label!r}: row {row} is {labels[row]}, expected one of the classes of class_weight, "
                f"{known} (or one-hot rows); add the weight of this class, or {_OTHERWISE}"
            )
        return factor if weight is None else factor * np.asarray(on_host(weight), np.float32)
