"""What a model requires of the values in its batches: class indices, labels in a range, row indices of tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jfit.data.batch import Batch, on_host
from jfit.data.valid import Valid, check_values, valid_indices, valid_weights
from jfit.lowering.loss_kinds import are_classes, kind_of, not_classes, other_values
from jfit.lowering.model import Model, Output, Plan, plan_of
from jfit.lowering.structure import LABEL_WEIGHT


def declared(model: Model, plan: Plan, inputs: Mapping[str, Any]) -> list[Valid]:
    """Return the valid values of labels whose output says what they are, and of row indices of tables.

    Args:
        model: the `Model`.
        plan: its output shapes, for any number of rows.
        inputs: arrays or specs by name.
    """
    valid, axes = [], model.batch_axes
    for out, shape in zip(model.outputs, plan.shapes, strict=True):
        if out.label is None or out.label not in inputs:
            continue
        label, ignored = inputs[out.label].shape, () if out.ignore_label is None else (out.ignore_label,)
        soft = len(label) == len(shape.shape) and label[1:] == shape.shape[1:]  # a probability distribution per row
        if out.label_range is not None:
            valid.append(Valid(out.label, *out.label_range, False, ignored, axes.get(out.label, 0), "range"))
        elif out.class_axis is not None and not soft:
            valid.append(Valid(out.label, 0, shape.shape[out.class_axis] - 1, True, ignored, axes.get(out.label, 0)))
    return valid + [valid_indices(lookup, axes.get(lookup.name, 0)) for lookup in plan.lookups if lookup.name in inputs]


def recognized(model: Model, out: Output, shape: Any, inputs: Mapping[str, Any], others: Sequence[int]) -> Valid | None:
    """Return the valid labels of a user's loss, if its gradient says that they are class indices.

    Args:
        model: the `Model`.
        out: its output.
        shape: shape of the output, for any number of rows.
        inputs: arrays or specs by name.
        others: values that are no class indices, to find out whether the loss ignores them.
    """
    name, loss, label = out.label, out.loss, inputs.get(str(out.label))
    if name is None or loss is None or label is None or not is_recognizable(model, out):
        return None
    output = jax.ShapeDtypeStruct((*label.shape[:1], *shape.shape[1:]), shape.dtype)
    if not are_classes(output.shape, label.shape):
        return None
    kind = kind_of(lambda o, y: loss(o, {name: y})[0], output, jax.ShapeDtypeStruct(label.shape, label.dtype), others)
    axis = model.batch_axes.get(name, 0)
    return Valid(name, 0, output.shape[-1] - 1, True, kind.ignored, axis) if kind.task == "classes" else None


def is_recognizable(model: Model, out: Output) -> bool:
    """Whether the output is one of a function, with a loss whose labels are unknown."""
    return model.symbol is None and out.loss is not None and (out.task, out.class_axis, out.label_range) == (None,) * 3


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
    """Check the labels, row indices of tables and weights of every batch of a stream; messages name the batch and the epoch.

    Labels and indices of rows without weight are not checked.  Arrays on the devices are read, once, by the thread that
    prepares the batches: the training thread does not wait.

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
        """Raise a ValueError if a label, index or weight of the batch is invalid; `where` names the batch."""
        if self._plan is None:
            self._plan = plan_of(self.model, batch.inputs)
        indices = {lookup.name for lookup in self._plan.lookups}
        names = self._names | indices | {LABEL_WEIGHT}
        arrays, *weights = on_host(Batch({k: v for k, v in batch.inputs.items() if k in names}, *batch[1:]))
        for name, weight in (("weight", arrays.pop(LABEL_WEIGHT, None)), ("weight", weights[0]), ("metric_weight", weights[1])):
            if weight is not None:
                check_values(weight, valid_weights(name), f"{where}: ")
        if not arrays:
            return
        axes = self.model.batch_axes
        arrays = {k: np.moveaxis(v, axes.get(k, 0) or 0, 0) if k in indices else v for k, v in arrays.items()}
        weights = [np.asarray(w) > 0 for w in weights if w is not None]
        if weights and not np.any(weights, axis=0).all():
            used = np.any(weights, axis=0)  # (rows,)
            if not used.any():
                return
            first = int(np.argmax(used))  # rows without weight get its values, so that row numbers stay
            having = {k: v for k, v in arrays.items() if axes.get(k, 0) is not None}
            arrays |= {k: np.where(used.reshape(-1, *(1,) * (v.ndim - 1)), v, v[first]) for k, v in having.items()}
        try:
            check_model_labels(self.model, arrays, self._plan, self._not_indices)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
