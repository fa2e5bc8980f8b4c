"""Check of values: class indices of cross-entropy heads and losses, labels of losses with a range, row indices of tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from jfit.data import Batch, check_labels
from jfit.lowering.lookups import Lookup
from jfit.lowering.loss_kinds import are_classes, kind_of, not_classes, other_values
from jfit.lowering.losses import check_range
from jfit.lowering.model import Model, Output, Plan, plan_of
from jfit.step.batch_check import invalid_index, is_recognizable
from jfit.step.faults import FLOAT_INTEGERS


def check_model_labels(model: Model, arrays: Mapping[str, Any], plan: Plan, not_indices: set[str] | None = None) -> None:
    """Raise a ValueError if a label is not a class index of its output, or outside the range of labels of its loss.

    Row indices that are outside of the tables in which the model looks them up raise, too.

    Args:
        model: the `Model` whose outputs and labels are checked.
        arrays: NumPy arrays by input name, labels included, with the rows along axis 0.
        plan: output shapes of the model, for any number of rows.
        not_indices: names of labels that are no class indices according to the gradient of their loss; more are added.
    """
    not_indices = set() if not_indices is None else not_indices
    for lookup in plan.lookups:
        if lookup.name in arrays:
            check_indices(arrays[lookup.name], lookup)
    for out, shape in zip(model.outputs, plan.shapes, strict=True):
        if out.label is None or out.label not in arrays:
            continue
        labels = arrays[out.label]
        if out.label_range is not None:
            check_range(out.label_range, labels, out.label, out.ignore_label)
        if is_recognizable(model, out) and out.label not in not_indices:
            _check_recognized(out, shape, labels, not_indices)
        if out.class_axis is None or (labels.ndim == len(shape.shape) and labels.shape[1:] == shape.shape[1:]):
            continue  # soft labels: a probability distribution per row
        check_labels(labels, shape.shape[out.class_axis], out.label, out.ignore_label)


def check_indices(indices: np.ndarray, lookup: Lookup, where: str = "") -> None:
    """Raise a ValueError if a value is not the index of a row of a table.

    Args:
        indices: numbers of any shape, with the rows of the batch along axis 0.
        lookup: name of the input and size of the table.
        where: start of the error message.

    Example:
        >>> check_indices(np.array([[1, 2], [3, 10]]), Lookup("ids", 10))
        Traceback (most recent call last):
        ...
        ValueError: input 'ids': row 1, position (1,) is 10, expected the index of a row of the table that it is looked up in, \
a whole number 0..9; renumber the values, or make the table larger (programs clip such an index, or return nan).
    """
    if not indices.size:
        return
    integers = np.issubdtype(indices.dtype, np.integer)
    end = lookup.rows if integers else min(lookup.rows, FLOAT_INTEGERS)
    inside = indices.min() >= lookup.low and indices.max() < end  # nan compares false
    if inside and (integers or (np.trunc(indices) == indices).all()):
        return
    valid = (indices >= lookup.low) & (indices < end) & (np.trunc(indices) == indices)
    at = tuple(int(k) for k in np.argwhere(~valid)[0])
    raise ValueError(where + invalid_index(lookup, at[0], at[1:], indices[at]))


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
    """Check the labels, and the row indices of tables, of every batch of a stream; the message names the batch and the epoch.

    Rows without weight are not checked.  jax arrays are not checked either: reading them would make the host wait for the
    devices.

    Args:
        model: the `Model` whose outputs and labels are checked.
        plan: output shapes of the model; None: those for the first batch.
    """

    def __init__(self, model: Model, plan: Plan | None = None) -> None:
        self.model, self._plan = model, plan
        self._names = {
            o.label for o in model.outputs if o.class_axis is not None or o.label_range is not None or is_recognizable(model, o)
        }
        self._not_indices: set[str] = set()

    def check(self, batch: Batch, where: str) -> None:
        """Raise a ValueError if a label or index of the batch is invalid; `where` names the batch."""
        if self._plan is None:
            self._plan = plan_of(self.model, batch.inputs)
        indices = {lookup.name for lookup in self._plan.lookups}
        names = self._names | indices
        arrays = {k: np.asarray(v) for k, v in batch.inputs.items() if k in names and not isinstance(v, jax.Array)}
        if not arrays:
            return
        axes = self.model.batch_axes
        arrays = {k: np.moveaxis(v, axes.get(k, 0), 0) if k in indices else v for k, v in arrays.items()}
        weights = [np.asarray(w) > 0 for w in batch[1:] if w is not None]
        if weights and not np.any(weights, axis=0).all():
            used = np.any(weights, axis=0)  # (rows,)
            if not used.any():
                return
            first = int(np.argmax(used))  # rows without weight get its values, so that row numbers stay
            arrays = {k: np.where(used.reshape(-1, *(1,) * (v.ndim - 1)), v, v[first]) for k, v in arrays.items()}
        try:
            check_model_labels(self.model, arrays, self._plan, self._not_indices)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
