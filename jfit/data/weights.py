"""Class weights: row weights that depend on the label of the row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jfit.data.batch import Batch


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
        if not isinstance(weights, Mapping) or not weights:
            raise ValueError(f"class_weight is {weights!r}, expected a dict class -> weight, such as {{0: 1.0, 1: 10.0}}.")
        for key, value in weights.items():
            if isinstance(key, bool) or not isinstance(key, (int, np.integer)) or key < 0:
                raise ValueError(f"class_weight has the key {key!r}, expected class indices: integers of at least 0.")
            number = isinstance(value, (int, float, np.number)) and not isinstance(value, np.complexfloating)
            if not number or not np.isfinite(value) or value < 0:
                raise ValueError(f"class_weight[{key}] is {value!r}, expected a finite weight of at least 0.")
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
            labels: labels of the rows.  Those that are jax arrays are not checked, because reading them would block the host:
                a row whose class has no weight gets the weight inf, so that the loss is not finite.
            weight: row weights without the class weights; None: all 1.
            where: prefix of error messages, such as "batch 3: ".

        Raises:
            ValueError: a label is not a class, or its class has no weight.
        """
        device = isinstance(labels, jax.Array)
        one_hot = labels.ndim == 2 and labels.shape[1] > 1
        if labels.ndim > 2:
            raise ValueError(
                f"{where}class_weight needs one class per row, but label {self.label!r} has shape {labels.shape}; pass row "
                "weights instead: sample_weight, or (x, y, weight)."
            )
        if device:
            flat = jnp.argmax(labels, axis=1) if one_hot else labels.reshape(-1)
            classes = flat.astype(jnp.int32)
            inside = jnp.clip(classes, 0, len(self.table) - 1)
            valid = (inside == classes) & (classes.astype(flat.dtype) == flat)
            factor = jnp.where(valid, jnp.asarray(self.table)[inside], jnp.nan)
            if one_hot:
                factor = jnp.where((labels.max(axis=1) == 1) & ((labels != 0).sum(axis=1) == 1), factor, jnp.nan)
            factor = jnp.where(jnp.isnan(factor), jnp.inf, factor)  # not nan, which the loss would treat as the weight 0
            if self.ignore is not None:
                factor = jnp.where(classes == int(self.ignore), 1.0, factor)
            return factor if weight is None else factor * jnp.asarray(weight)
        classes = self._classes(labels, one_hot, where)
        inside = np.clip(classes, 0, len(self.table) - 1)
        factor = np.where(inside == classes, self.table[inside], np.nan)
        if self.ignore is not None:
            factor = np.where(classes == int(self.ignore), np.float32(1), factor)
        if np.isnan(factor).any():
            row = int(np.argmax(np.isnan(factor)))
            raise ValueError(
                f"{where}label {self.label!r}: row {row} has class {classes[row]}, which class_weight does not have (it has "
                f"{', '.join(map(str, np.flatnonzero(~np.isnan(self.table))))}); add {classes[row]}: 1.0 to leave the weight "
                "of its rows unchanged."
            )
        return factor.astype(np.float32) if weight is None else (factor * weight).astype(np.float32)

    def _classes(self, labels: np.ndarray, one_hot: bool, where: str) -> np.ndarray:
        """Class index of each row, (rows,) int."""
        if one_hot:
            if not (((labels == 0) | (labels == 1)).all() and (labels.sum(axis=1) == 1).all()):
                raise ValueError(
                    f"{where}class_weight needs one class per row, but label {self.label!r} of shape {labels.shape} is not "
                    "one-hot (one 1 per row, else 0); pass row weights instead: sample_weight, or (x, y, weight)."
                )
            return labels.argmax(axis=1)
        flat = labels.reshape(-1)
        classes = flat.astype(np.int64)
        if flat.dtype.kind == "f" and not (classes == flat).all():
            row = int(np.argmax(classes != flat))
            raise ValueError(
                f"{where}label {self.label!r}: row {row} is {flat[row]}, which is not a class index, so class_weight does not "
                "apply; pass row weights instead: sample_weight, or (x, y, weight)."
            )
        return classes
