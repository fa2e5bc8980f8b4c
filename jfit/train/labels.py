"""Check of labels: class indices of cross-entropy heads and losses, and values of losses with a range of labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from jfit.data import Batch, check_labels
from jfit.lowering.loss_kinds import are_classes, kind_of, not_classes, other_values
from jfit.lowering.losses import check_range
from jfit.lowering.model import Model, Output, Plan, plan_of


def check_model_labels(model: Model, arrays: Mapping[str, Any], plan: Plan, not_indices: set[str] | None = None) -> None:
    """Raise a ValueError if a label is not a class index of its output, or outside the range of labels of its loss.

    Args:
        model: the `Model` whose outputs and labels are checked.
        arrays: NumPy arrays by input name, labels included.
        plan: output shapes of the model, for any number of rows.
        not_indices: names of labels that are no class indices according to the gradient of their loss; more are added.
    """
    not_indices = set() if not_indices is None else not_indices
    for out, shape in zip(model.outputs, plan.shapes, strict=True):
        if out.label is None or out.label not in arrays:
            continue
        labels = arrays[out.label]
        if out.label_range is not None:
            check_range(out.label_range, labels, out.label, out.ignore_label)
        if _recognizable(model, out) and out.label not in not_indices:
            _check_recognized(out, shape, labels, not_indices)
        if out.class_axis is None or (labels.ndim == len(shape.shape) and labels.shape[1:] == shape.shape[1:]):
            continue  # soft labels: a probability distribution per row
        check_labels(labels, shape.shape[out.class_axis], out.label, out.ignore_label)


def _recognizable(model: Model, out: Output) -> bool:
    """Whether the output is one of a function, with a loss whose labels are unknown."""
    return model.symbol is None and out.loss is not None and (out.task, out.class_axis, out.label_range) == (None,) * 3


def _check_recognized(out: Output, shape: jax.ShapeDtypeStruct, labels: np.ndarray, not_indices: set[str]) -> None:
    """Raise a ValueError if a label of a user's loss is no class index, but the gradient of the loss says that it has to be.

    Values that the loss ignores are valid.  The gradient is computed only if some labels are no class indices.
    """
    name, loss, output = str(out.label), out.loss, (*labels.shape[:1], *shape.shape[1:])
    if loss is None or not are_classes(output, labels.shape) or not not_classes(labels, output[-1]).any():
        return
    classes = output[-1]
    specs = jax.ShapeDtypeStruct(output, shape.dtype), jax.ShapeDtypeStruct(labels.shape, labels.dtype)
    kind = kind_of(lambda o, y: loss(o, {name: y})[0], *specs, other_values(labels, classes))
    if kind.task != "classes":
        not_indices.add(name)
        return
    check_labels(np.where(np.isin(labels, kind.ignored), 0, labels), classes, name)


class BatchLabels:
    """Check the labels of every batch of a stream; the message names the batch and the epoch.

    Rows without weight are not checked.  Labels that are jax arrays are not checked either: reading them would make the host
    wait for the devices.

    Args:
        model: the `Model` whose outputs and labels are checked.
        plan: output shapes of the model; None: those for the first batch.
    """

    def __init__(self, model: Model, plan: Plan | None = None) -> None:
        self.model, self._plan = model, plan
        self._names = {
            o.label for o in model.outputs if o.class_axis is not None or o.label_range is not None or _recognizable(model, o)
        }
        self._not_indices: set[str] = set()

    def check(self, batch: Batch, where: str) -> None:
        """Raise a ValueError if a label of the batch is invalid; `where` names the batch."""
        labels = {k: v for k, v in batch.inputs.items() if k in self._names and not isinstance(v, jax.Array)}
        if not labels:
            return
        if self._plan is None:
            self._plan = plan_of(self.model, batch.inputs)
        labels = {k: np.asarray(v) for k, v in labels.items()}
        weights = [np.asarray(w) > 0 for w in batch[1:] if w is not None]
        if weights and not np.any(weights, axis=0).all():
            used = np.any(weights, axis=0)  # (rows,)
            if not used.any():
                return
            first = int(np.argmax(used))  # rows without weight get its labels, so that row numbers stay
            labels = {k: np.where(used.reshape(-1, *(1,) * (v.ndim - 1)), v, v[first]) for k, v in labels.items()}
        try:
            check_model_labels(self.model, labels, self._plan, self._not_indices)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
