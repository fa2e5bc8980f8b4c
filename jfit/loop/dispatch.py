"""What one dispatch (call of a compiled program) runs: one training step, several, or the programs of an ordered step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jfit.data import ArrayData, Batch
from jfit.data.valid import Valid
from jfit.evaluate.host_metrics import metric_inputs
from jfit.loop.report import report
from jfit.loop.step_log import step_values
from jfit.lowering.model import Model, count_parameters
from jfit.ops.axis import VirtualSlice
from jfit.parallel.devices import STATE_AXES
from jfit.parallel.ordered import OrderedSteps
from jfit.parallel.spmd import GATHERED
from jfit.prepare import Problem
from jfit.programs import Made
from jfit.step import Step, StepOut, unrolls
from jfit.step.faults import first_fault
from jfit.step.state import TrainState

MAX_STEPS_PER_CALL = 32
# backend -> number of floating-point operations in a dispatch next to which its overhead is negligible
AUTO_FLOPS = {"cpu": 1e9}
AUTO_FLOPS_DEFAULT = 2e11  # for all other backends
MAPPED_CALL_BYTES = 32 << 20  # maximum size of the batches of a dispatch if the data is on the disk, with steps_per_call="auto"


class Dispatch(NamedTuple):
    """One call of a compiled program.

    Attributes:
        run: `run(state) -> (new state, report)`, which donates `state`.  The report is an array (loss, learning rate) of the
            last step; with `DispatchSpec.return_outputs`, a pair of it and the arguments of the host metrics.
        steps: number of updates.
        rows: number of rows in its batches, without padding rows.
    """

    run: Callable[[TrainState], tuple[TrainState, Array]]
    steps: int
    rows: int


class DispatchSpec(NamedTuple):
    """Settings of a `ResidentDispatcher` or `StreamDispatcher`.

    Attributes:
        model: the `Model` that is trained; it determines the batch axes of the inputs.
        step: the training step, `step(state, batch, axis_name=...) -> (state, StepOut)`.
        devices: devices that each batch is split over.
        batch_size: rows of a batch, over all devices.
        micro_batches: number of micro-batches of a batch.
        steps_per_call: maximum number of steps of a dispatch.
        step_names: names of the values of each step that programs return, from `jfit.loop.step_log.step_names`.  The result
            of a program is then a pair of that described here and a float32 array (steps_per_call, number of names), which
            requires a step made with `batch_metrics=True`.  Empty: none.
        return_outputs: programs return (report, `MetricInputs`: labels and outputs) instead of the report, an array
            (loss, learning rate), for metrics computed on the host.  Requires a step made with `outputs=True`, and
            steps_per_call=1.
    """

    model: Model
    step: Step
    devices: list[Any]
    batch_size: int
    micro_batches: int = 1
    steps_per_call: int = 1
    return_outputs: bool = False
    step_names: tuple[str, ...] = ()

    @property
    def out_axes(self) -> Any:
        """`out_axes` of the compiled programs for `compile_spmd`.

        State, report and values of steps are replicated; labels and outputs (`return_outputs`) have a leading device axis, in
        every process of a job that of all devices.
        """
        result = (None, GATHERED) if self.return_outputs else None
        return STATE_AXES, (result, None) if self.step_names else result


def auto_steps_per_call(model: Model, params: Mapping[str, Any], batch_size: int) -> int:
    """Choose the number of steps per dispatch, from 1 to 32, so that the overhead of a dispatch is small.

    Several steps per dispatch help small dense networks most (784-128-64-10 at batch size 64 on CPU: 1.4 times as fast).
    Networks with convolutions get 1 on CPU, because XLA compiles convolutions inside loops to slow code there.
    """
    if unrolls(model):
        return 1
    work = 6.0 * count_parameters(params) * batch_size  # FLOP of a step if all layers are dense
    budget = AUTO_FLOPS.get(jax.default_backend(), AUTO_FLOPS_DEFAULT)
    return int(np.clip(budget / max(work, 1.0), 1, MAX_STEPS_PER_CALL))


def steps_per_call(problem: Problem) -> int:
    """Return the maximum number of steps of a dispatch: `steps_per_call` of `fit`, or fewer between the events of callbacks."""
    data, options, steps = problem.data, problem.options, problem.options.steps_per_call
    if steps == "auto":
        resident = isinstance(data, ArrayData)
        maximum = auto_steps_per_call(problem.model, problem.shapes[0], options.batch_size) if resident else 1
        if isinstance(data, ArrayData) and data.mapped:  # the host then reads the batches of one dispatch only
            maximum = int(np.clip(MAPPED_CALL_BYTES * data.num_rows // (data.nbytes * options.batch_size), 1, maximum))
    else:
        maximum = int(steps)
    # A dispatch must not contain more steps than there are between two "step" events of a callback.
    return min([maximum, *(c.every for c in options.callbacks if c.every and "step" in c.events)])


def one_step(spec: DispatchSpec, state: TrainState, batch: Batch, axis_name: str | None) -> tuple[TrainState, Any]:
    """Run one training step inside a program.

    Args:
        spec: settings of the dispatches.
        state: state before the step.
        batch: the rows of this device.
        axis_name: name of the device axis; None for one device.

    Returns:
        (new `TrainState`, result), where `return_outputs` and `step_names` of `spec` describe the result.
    """
    # The barrier keeps XLA from fusing the step with the code that produces its batch (a gather, a slice of a stack of batches
    # or nothing): all programs must round alike, so that results do not depend on steps_per_call or on where the data is.
    state, batch = lax.optimization_barrier((state, batch))
    state, out = spec.step(state, batch, axis_name=axis_name)
    result: Any = report(out)
    if spec.return_outputs:
        assert out.outputs is not None
        result = result, metric_inputs(spec.model, out.outputs, batch, axis_name)
    return state, (result, step_values(out, spec.step_names)) if spec.step_names else result


def single_step(
    spec: DispatchSpec, valid: tuple[Valid, ...] | None, state: TrainState, batch: Batch, *rest: Any, axis_name: Any
) -> Any:
    """Run one training step inside a program; arguments and result as those of `stacked_steps`, for one batch."""
    found = None if valid is None else first_fault(valid, batch, state.step, rest[0], axis_name)
    result = one_step(spec, state, batch, axis_name)
    return result if valid is None else (result, found)


def repeat_steps(
    train_one: Callable[..., tuple[TrainState, Any]], spec: DispatchSpec | None = None
) -> Callable[..., tuple[TrainState, Any]]:
    """Make `run(state, count) -> (state, report of the last step)`, a `fori_loop` over `train_one`.

    `count` is traced, so one compiled program serves every number of steps.

    Args:
        train_one: `train_one(state, j) -> (state, report)` for step j = 0, ..., count - 1; the report is an array (2,).
        spec: with its `step_names`, reports are pairs of this array and a table of values, with a row per step.
    """
    start = jnp.zeros(2)

    def add_row(j: Any, carry: Any) -> Any:
        state, (_, table) = carry
        state, (last, row) = train_one(state, j)
        return state, (last, lax.dynamic_update_slice(table, row, (j, jnp.zeros_like(j))))

    def run(state: TrainState, count: Any) -> tuple[TrainState, Any]:
        if spec is None or not spec.step_names:
            return lax.fori_loop(0, count, lambda j, carry: train_one(carry[0], j), (state, start))
        table = jnp.zeros((spec.steps_per_call, len(spec.step_names)))
        return lax.fori_loop(0, count, add_row, (state, (start, table)))

    return run


def stacked_steps(
    spec: DispatchSpec, valid: tuple[Valid, ...] | None, state: TrainState, stack: Batch, count: Any, *rest: Any, axis_name: Any
) -> Any:
    """Run several training steps inside a program.

    Args:
        spec: settings of the dispatches.
        valid: None, or what to look for in the batches; the result is then a pair of the usual one and that of `first_fault`.
        state: state before the steps.
        stack: the batches, (steps, rows, ...).
        count: number of steps, at most the length of the stack.
        rest: the faults of earlier batches, if `valid` is not None.
        axis_name: name of the device axis, or None.
    """

    def train_one(state: TrainState, j: Any) -> tuple[TrainState, Any]:
        return one_step(spec, state, jax.tree.map(lambda x: x[j], stack), axis_name)

    def look(j: Any, fault: Any) -> Array:
        return first_fault(valid or (), jax.tree.map(lambda x: x[j], stack), state.step + j, fault, axis_name)

    result = repeat_steps(train_one, spec)(state, count)
    return result if valid is None else (result, lax.fori_loop(0, count, look, *rest))


def ordered_steps(spec: DispatchSpec) -> Callable[[Batch, TrainState], tuple[TrainState, Any]]:
    """Make `run(batch, state) -> (state, result)` for a step with `reduce="ordered"`.

    Args:
        spec: `DispatchSpec` of the training; `result` has the form that its `return_outputs` and `step_names` describe.
    """

    def result(out: StepOut) -> Any:
        return report(out), step_values(out, spec.step_names) if spec.step_names else None

    def of_slice(outputs: Any, batch: Batch, axis: VirtualSlice) -> Any:
        return metric_inputs(spec.model, outputs, batch, axis) if spec.return_outputs else None

    of_step, of_each = Made(result, "result", spec), Made(of_slice, "of_slice", spec)
    steps = OrderedSteps(spec.step, spec.devices, result=of_step, of_slice=of_each, split=True)

    def run(batch: Batch, state: TrainState) -> tuple[TrainState, Any]:
        state, (reported, row), inputs = steps(state, batch)
        reported = (reported, inputs) if spec.return_outputs else reported
        return state, (reported, row) if spec.step_names else reported

    return run
