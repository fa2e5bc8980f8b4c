"""Checks of data during a training or an evaluation.

Batches of NumPy arrays are checked on the host before they are used (`jfit.train.labels`).  Labels, row indices of tables and
row weights that are jax arrays are checked by the program of the step, and the host reads the first fault together with the
running sums, at log points and at the end of an epoch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jfit.data import Batch
from jfit.lowering.lookups import Lookup
from jfit.lowering.loss_kinds import UNUSUAL, are_classes, kind_of
from jfit.lowering.model import Model, Output, Plan, plan_of
from jfit.parallel import place
from jfit.step.faults import NO_FAULT, Fault, Valid, decoded
from jfit.step.totals import Totals
from jfit.train.host_batches import HostBatches
from jfit.train.labels import invalid_index, is_recognizable
from jfit.train.train_data import ArrayWatch

_WEIGHTS = tuple(Valid(name, 0, float(jnp.finfo(jnp.float32).max), kind="weight") for name in ("weight", "metric_weight"))


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


class DataChecks:
    """Checks of the data during a training or an evaluation.

    Args:
        model: the `Model`.
        devices: list of `jax.Device`; with several, arrays have a leading device axis.
        data: the data, if it stays on the host; None: the devices have a copy.
        batches: the `HostBatches` that are read, or None.

    Attributes:
        valid: valid values of batches on the devices; None before the first such batch.
        fault: array of `jfit.step.faults.first_fault` on the devices, which programs return; None before the first such batch.
    """

    def __init__(self, model: Model, devices: Any, data: Any = None, batches: HostBatches | None = None) -> None:
        self.model, self._devices, self._batches = model, devices, batches
        self._watch = ArrayWatch(data)
        self.valid: tuple[Valid, ...] | None = None
        self.fault: Any = None

    def apply_to(self, batch: Batch) -> bool:
        """Whether a batch has to be checked on the devices, because one of its arrays, or of an earlier batch, is there."""
        if self.valid is not None:
            return True  # also batches that were copied to the host to be padded, so that there is one program
        arrays = (*batch.inputs.values(), batch.weight, batch.metric_weight)
        if not any(isinstance(x, jax.Array) for x in arrays):
            return False
        first = 1 if len(self._devices) > 1 else 0
        specs = {k: jax.ShapeDtypeStruct(v.shape[first:], v.dtype) for k, v in batch.inputs.items()}
        self.valid, self.fault = valid_values(self.model.bound(specs), specs), place(NO_FAULT, self._devices)
        return True

    def run_of(self, program: Any, *arguments: Any) -> Callable[[Any], Any]:
        """Make `run(state)` of a program whose last argument and last result are the fault."""

        def run(state: Any) -> Any:
            result, self.fault = program(state, *arguments, self.fault)
            return result

        return run

    def check(self, fault: Any, position: Mapping[str, int] | None = None) -> None:
        """Raise a ValueError if there is a fault.

        Args:
            fault: copy of an earlier value of `fault` on the host, or None.
            position: epoch, batch and step of the training; None for an evaluation.
        """
        found = None if fault is None else decoded(fault)
        if found is None or self.valid is None:
            return
        self.fault = place(NO_FAULT, self._devices)
        number, where = found.number, "the evaluation data"
        if position is not None:
            number, where = number - position["step"] + position["batch"], f"epoch {position['epoch']}"
        raise ValueError(f"batch {number} of {where}: {message(self.valid[found.valid], found)}")

    def check_epoch(self, totals: Totals, epoch: int | None = None) -> None:
        """Check what is known at the end of a pass over the data.

        Args:
            totals: running sums of the pass, on the host.
            epoch: number of the epoch; None for an evaluation.

        Raises:
            ValueError: the batches had row weights, and no row counted in the loss.
        """
        self._watch.check(epoch)
        batches = self._batches
        if batches is None or not batches.weighted or int(totals.first_bad_step) >= 0 or totals.loss[2] > 0:
            return
        if self.model.joint_loss is not None or any(o.loss is not None for o in self.model.outputs):
            what = "evaluation" if epoch is None else f"epoch {epoch}"
            raise ValueError(
                f"{what}: no row of the data has a weight above 0 in the loss, so the mean loss is undefined; expected at "
                "least one positive row weight (without weights every row has weight 1), and a label that is not ignored."
            )
