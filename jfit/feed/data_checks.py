"""Checks of data during a training or an evaluation.

Batches of NumPy arrays are checked on the host before they are used (`BatchLabels`).  Labels, row indices of tables and
row weights that are jax arrays are checked by the program of the step, and the host reads the first fault together with the
running sums, at log points and at the end of an epoch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from jfit.data import Batch
from jfit.data.valid import Valid
from jfit.feed.host_batches import HostBatches
from jfit.feed.train_data import ArrayWatch
from jfit.lowering.model import Model
from jfit.parallel import place
from jfit.step.batch_check import fault_message, valid_values
from jfit.step.faults import NO_FAULT, decoded, first_fault
from jfit.step.totals import Totals


class DataChecks:
    """Checks of the data during a training or an evaluation.

    Args:
        model: the `Model`.
        devices: list of `jax.Device`; with several, arrays have a leading device axis.
        data: the training data, which stays on the host; None: data that is not watched for changes.
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
        self._look: Any = None  # the program of `look`

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

    def look(self, batch: Batch, number: int) -> None:
        """Look for invalid values in a whole batch, in a program of its own: for steps that consist of several programs."""
        if not any(isinstance(x, jax.Array) for x in (*batch.inputs.values(), *batch[1:])):
            return  # the host has checked it
        if self.valid is None:
            model = self.model.bound(batch.inputs)
            self.valid, self.fault = valid_values(model, batch.inputs), NO_FAULT
            self._look = jax.jit(functools.partial(first_fault, self.valid))
        self.fault = self._look(batch, np.int32(number), self.fault)

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
        self.fault = place(NO_FAULT, self._devices) if self._look is None else NO_FAULT
        number, where = found.number, "the evaluation data"
        if position is not None:
            number, where = number - position["step"] + position["batch"], f"epoch {position['epoch']}"
        raise ValueError(f"batch {number} of {where}: {fault_message(self.valid, found)}")

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
        if batches is None or not batches.weighted or int(totals.first_bad_step) >= 0 or (totals.loss[0, 1] > 0).any():
            return
        if self.model.joint_loss is not None or any(o.loss is not None for o in self.model.outputs):
            what = "evaluation" if epoch is None else f"epoch {epoch}"
            raise ValueError(f"{what}: no row of the data has a weight above 0 in the loss, so the mean loss is undefined.")
