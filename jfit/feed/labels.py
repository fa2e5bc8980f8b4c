"""Check of values: class indices of cross-entropy heads and losses, labels of losses with a range, row indices of tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from jfit.data import Batch
from jfit.data.valid import check_values
from jfit.lowering.loss_kinds import not_classes, other_values
from jfit.lowering.model import Model, Plan, plan_of
from jfit.step.batch_check import declared, is_recognizable, recognized


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
    for valid in declared(model, plan, arrays):
        check_values(arrays[valid.name], valid)
    for out, shape in zip(model.outputs, plan.shapes, strict=True):
        name, classes = str(out.label), shape.shape[-1] if shape.shape else 0
        # The gradient is computed only if some labels are no class indices.
        if (
            name in arrays
            and name not in not_indices
            and is_recognizable(model, out)
            and not_classes(arrays[name], classes).any()
        ):
            valid = recognized(model, out, shape, arrays, other_values(arrays[name], classes))
            if valid is None:
                not_indices.add(name)
            else:
                check_values(arrays[name], valid)


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
