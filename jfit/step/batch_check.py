"""What a model requires of the values in its batches, and the search for invalid ones in a training loop of the user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import Array

from jfit import counters
from jfit.data.batch import parts_of
from jfit.data.valid import Valid, message, valid_indices, valid_weights
from jfit.lowering.loss_kinds import UNUSUAL, are_classes, kind_of
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
