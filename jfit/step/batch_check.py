"""What a model requires of the values in its batches: class indices, labels in a range, row indices of tables, row weights.

`BatchCheck` looks for invalid ones on the devices, `check_model_labels` and `BatchLabels` on the host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import Array

from jfit import counters
from jfit.data.batch import Batch, parts_of
from jfit.data.valid import Valid, check_values, message, valid_indices, valid_weights
from jfit.lowering.loss_kinds import UNUSUAL, are_classes, kind_of, not_classes, other_values
from jfit.lowering.model import Model, Output, Plan, plan_of
from jfit.step.faults import NO_FAULT, Fault, decoded, first_fault


class BatchCheck:
    """Search for invalid values in the batches of a training loop of yours: `fault = check(batch, number, fault)`.

    `number` is the number of the batch, for the message, and `fault` the result of the call before, at first `check.none`.  On
    the host, `check.raise_if(fault)` raises a ValueError if there was one.

    Invalid are class indices outside the outputs of the model, labels outside the range of their loss, row indices outside the
    embedding table, and row weights that are negative, infinite or nan.  Rows of weight 0 are not looked at.  A check is a pure
    function, for use beside the training step inside jit, pmap, vmap and scan.  It returns the first fault as a small array,
    which stays on the devices until the host reads it, for example together with the loss.

    Args:
        model: the `Model` that is trained.
        batch: a batch, `jfit.Batch` or dict of arrays (or of `jax.ShapeDtypeStruct`) by input name; only shapes and dtypes are
            used.

    Attributes:
        model: the `Model`.
        valid: the valid values of each array that is looked at, list of `jfit.data.valid.Valid`.
        none: the array that means "no fault", int32 (6,), for the first call.

    Example:
        >>> import jax, jfit, numpy as np
        >>> net = jfit.sym.SoftmaxOutput(jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=3), name="softmax")
        >>> model, batch = jfit.lower(net), {"data": np.ones((8, 4), "float32"), "softmax_label": np.zeros(8, "float32")}
        >>> step, check = jfit.train_step(model, "sgd"), BatchCheck(model, batch)
        >>> @jax.jit
        ... def checked_step(state, batch, fault):
        ...     return *step(state, batch), check(batch, state.step, fault)
        >>> state, fault = jfit.init_state(model, "sgd", batch), check.none
        >>> for label in (2.0, 7.0):
        ...     state, out, fault = checked_step(state, {**batch, "softmax_label": np.full(8, label, "float32")}, fault)
        >>> check.raise_if(fault)
        Traceback (most recent call last):
        ...
        ValueError: batch 1: label 'softmax_label': row 0 is 7.0, expected classes 0..2; renumber the labels from 0, or ...
    """

    none = NO_FAULT

    def __init__(self, model: Model, batch: Any) -> None:
        inputs = parts_of(batch)[0]
        self.model = model.bound(inputs)
        self.valid = valid_values(self.model, inputs)

    def __call__(self, batch: Any, number: Any = 0, fault: Any = NO_FAULT, *, axis_name: str | None = None) -> Array:
        """Look for invalid values in a batch, in a traced function or outside of one.

        Args:
            batch: `jfit.Batch`, or dict of arrays by input name; inside pmap or shard_map the rows of this device.
            number: number of the batch, for the error message, such as `state.step`.
            fault: result for the batches before; default: there are none.
            axis_name: name of the device axis inside pmap or shard_map, else None.

        Returns:
            int32 (6,), equal on all devices: `fault` if that has one, else the first fault of this batch, else `none`.
        """
        return first_fault(self.valid, batch, number, fault, axis_name)

    def raise_if(self, fault: Any) -> None:
        """Raise an error that names the batch, the input and the row if there is a fault.  The host waits for the devices.

        Args:
            fault: result of a call; with several devices also with a leading axis of devices.

        Raises:
            ValueError: a batch had an invalid value.
        """
        # sync: the caller decides how often
        found = decoded(np.asarray(counters.read(fault)).reshape(-1, len(NO_FAULT))[0])
        if found is not None:
            raise ValueError(f"batch {found.number}: {fault_message(self.valid, found)}")


def valid_values(model: Model, inputs: Mapping[str, Any]) -> tuple[Valid, ...]:
    """Return what is known about the valid values of a batch.

    Args:
        model: the `Model`.
        inputs: the inputs of the first batch, arrays or specs by name.
    """
    plan = plan_of(model, dict(inputs))
    found = [recognized(model, out, shape, inputs, (UNUSUAL,)) for out, shape in zip(model.outputs, plan.shapes, strict=True)]
    weights = (valid_weights("weight"), valid_weights("metric_weight"))
    return (*declared(model, plan, inputs), *filter(None, found), *weights)


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


def fault_message(valid: Sequence[Valid], fault: Fault) -> str:
    """Error message for an invalid value that was found on the devices, without the number of its batch."""
    return message(valid[fault.valid], fault.row, (fault.column,) if fault.column else (), fault.value)


def is_recognizable(model: Model, out: Output) -> bool:
    """Whether the output is one of a function, with a loss whose labels are unknown."""
    return model.symbol is None and out.loss is not None and (out.task, out.class_axis, out.label_range) == (None,) * 3


# ------------------------------------------------------------------------------------------------ on the host
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
        arrays = {k: np.moveaxis(v, axes.get(k, 0) or 0, 0) if k in indices else v for k, v in arrays.items()}
        weights = [np.asarray(w) > 0 for w in batch[1:] if w is not None]
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
