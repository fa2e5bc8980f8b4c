"""What a model requires of the values in its batches, and the search for invalid ones in a training loop of the user."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jfit import counters
from jfit.data.batch import parts_of
from jfit.lowering.lookups import Lookup
from jfit.lowering.loss_kinds import UNUSUAL, are_classes, kind_of
from jfit.lowering.model import Model, Output, Plan, plan_of
from jfit.step.faults import FLOAT_INTEGERS, NO_FAULT, Fault, Valid, decoded, first_fault

_WEIGHTS = tuple(Valid(name, 0, float(jnp.finfo(jnp.float32).max), kind="weight") for name in ("weight", "metric_weight"))


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
        valid: the valid values of each array that is looked at, list of `jfit.step.faults.Valid`.
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
            raise ValueError(f"batch {found.number}: {message(self.valid[found.valid], found)}")


def valid_values(model: Model, inputs: Mapping[str, Any]) -> tuple[Valid, ...]:
    """Return what is known about the valid values of a batch.

    Args:
        model: the `Model`.
        inputs: the inputs of the first batch, arrays or specs by name.
    """
    plan = plan_of(model, dict(inputs))
    labels = [_label(model, out, shape, inputs) for out, shape in zip(model.outputs, plan.shapes, strict=True)]
    return (*filter(None, labels), *_indices(model, plan, inputs), *_WEIGHTS)


def _label(model: Model, out: Output, shape: Any, inputs: Mapping[str, Any]) -> Valid | None:
    if out.label is None or out.label not in inputs:
        return None
    label, axis = inputs[out.label], model.batch_axes.get(out.label, 0)
    ignored = () if out.ignore_label is None else (out.ignore_label,)
    if out.label_range is not None:
        return Valid(out.label, *out.label_range, ignored=ignored, axis=axis, kind="range")
    if out.class_axis is not None:
        soft = len(label.shape) == len(shape.shape) and label.shape[1:] == shape.shape[1:]
        return None if soft else Valid(out.label, 0, shape.shape[out.class_axis] - 1, True, ignored, axis)
    if not is_recognizable(model, out) or not are_classes(shape.shape, label.shape):
        return None
    loss, name = out.loss, out.label
    assert loss is not None
    output, labels = jax.ShapeDtypeStruct(shape.shape, shape.dtype), jax.ShapeDtypeStruct(label.shape, label.dtype)
    kind = kind_of(lambda o, y: loss(o, {name: y})[0], output, labels, (UNUSUAL,))
    return Valid(name, 0, shape.shape[-1] - 1, True, kind.ignored, axis) if kind.task == "classes" else None


def _indices(model: Model, plan: Plan, inputs: Mapping[str, Any]) -> list[Valid]:
    found = [x for x in plan.lookups if x.name in inputs]
    return [Valid(x.name, x.low, x.rows - 1, True, (), model.batch_axes.get(x.name, 0), "index") for x in found]


def message(valid: Valid, fault: Fault) -> str:
    """Error message for an invalid value, without the number of its batch."""
    position = f", position {fault.column}" if fault.column else ""
    if valid.kind == "weight":
        return (
            f"{valid.name} of row {fault.row} is {fault.value}; row weights must be finite and at least 0; use 0 to exclude a "
            "row."
        )
    if valid.kind == "index":
        rows = int(valid.high) + 1
        columns = (fault.column,) if fault.column else ()
        return invalid_index(Lookup(valid.name, rows, valid.low < 0), fault.row, columns, fault.value)
    extra = "".join(f" and {value:g} (ignored)" for value in valid.ignored)
    place = f"label {valid.name!r}: row {fault.row}{position} is {fault.value}"
    if valid.kind == "range":
        limit = "" if math.isinf(valid.high) else f" to {valid.high:g}"
        return f"{place}, expected values from {valid.low:g}{limit}{extra}; rescale the labels, or choose the loss of the task."
    return f"{place}, expected classes 0..{valid.high}{extra}; renumber the labels from 0, or give the last layer more outputs."


def invalid_index(lookup: Lookup, row: int, position: tuple[int, ...], value: Any) -> str:
    """Error message for a value that is not the index of a row of an embedding table."""
    place = f"row {row}" + (f", position {position}" if position else "")
    inexact = lookup.low <= value < lookup.rows and float(value).is_integer()
    limit = f" below {FLOAT_INTEGERS}, as float32 does not have all above (pass integers)" if inexact else ""
    return (
        f"input {lookup.name!r}: {place} is {value}, expected the index of a row of the table that it is looked up in, a whole "
        f"number {lookup.low}..{lookup.rows - 1}{limit}; renumber the values, or make the table larger (programs clip such an "
        "index, or return nan)."
    )


def is_recognizable(model: Model, out: Output) -> bool:
    """Whether the output is one of a function, with a loss whose labels are unknown."""
    return model.symbol is None and out.loss is not None and (out.task, out.class_axis, out.label_range) == (None,) * 3
