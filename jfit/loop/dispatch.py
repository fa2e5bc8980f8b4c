"""Dispatches, calls of compiled programs: what one runs, and how the batches of an epoch are divided into them.

A dispatch runs one training step, several, or the programs of an ordered step.  Its report is the loss and the learning rate of
its last step.  `ResidentDispatcher` is for arrays that are on the devices, `StreamDispatcher` for batches that a background
thread prepares on the host: iterables, and arrays of any size.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jfit.data import ArrayData, Batch, StreamData
from jfit.data.prefetch import Prefetch
from jfit.evaluate.host_metrics import metric_inputs
from jfit.feed.batches import EPOCH_DATA_AXES, DeviceBatches, fits_on_device
from jfit.feed.data_checks import DataChecks
from jfit.feed.host_batches import HostBatches
from jfit.feed.job_batches import num_batches_of
from jfit.feed.train_data import unshared
from jfit.loop.step_log import step_values
from jfit.lowering.model import Model, count_parameters
from jfit.ops.axis import VirtualSlice
from jfit.parallel.devices import STATE_AXES, own_slices_of, place, spans_processes, split_batch
from jfit.parallel.ordered import OrderedSteps, process_slices, slices_of
from jfit.parallel.spmd import GATHERED, compile_spmd
from jfit.prepare import Problem
from jfit.programs import Made, Program
from jfit.step import Step, StepOut, unrolls
from jfit.step.state import TrainState

MAX_STEPS_PER_CALL = 32
# platform -> number of floating-point operations in a dispatch next to which its overhead is negligible
AUTO_FLOPS = {"cpu": 1e9}
AUTO_FLOPS_DEFAULT = 2e11  # for all other platforms
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

    def compiled(self, fn: Callable[..., Any], in_axes: tuple[Any, ...], out_axes: Any, name: str) -> Program:
        """Compile a function of a state that runs steps."""
        recomputes = getattr(self.step, "recomputes", False)
        return compile_spmd(fn, self.devices, in_axes, out_axes, donate=(0,), name=name, recomputes=recomputes)


def report(out: StepOut) -> Array:
    """Return (loss, learning rate) of a step as one array of shape (2,); an unknown learning rate is nan.

    One array and not two scalars, because each output of a program adds about a microsecond to a dispatch.
    """
    return jnp.stack([out.loss, jnp.nan if out.lr is None else out.lr]).astype(float)


def reported_lr(report: Any) -> dict[str, float]:
    """Return {"lr": learning rate}, or {} if it is unknown.

    Args:
        report: array (loss, learning rate) of a dispatch, on the host; None before the first dispatch.  A learning rate of nan
            is unknown.
    """
    return {} if report is None or math.isnan(report[1]) else {"lr": float(report[1])}


def auto_steps_per_call(model: Model, params: Mapping[str, Any], batch_size: int, devices: Sequence[Any]) -> int:
    """Choose the number of steps per dispatch, from 1 to 32, so that the overhead of a dispatch is small.

    Several steps per dispatch help small dense networks most (784-128-64-10 at batch size 64 on CPU: 1.4 times as fast).
    Graphs with convolutions get 1 on CPU, because XLA compiles convolutions inside loops to slow code there; callers look for
    those of functions, in their plans.
    """
    if unrolls(model, devices):
        return 1
    work = 6.0 * count_parameters(params) * batch_size  # FLOP of a step if all layers are dense
    budget = AUTO_FLOPS.get(devices[0].platform, AUTO_FLOPS_DEFAULT)
    return int(np.clip(budget / max(work, 1.0), 1, MAX_STEPS_PER_CALL))


def steps_per_call(problem: Problem, resident: bool) -> int:
    """Return the maximum number of steps of a dispatch: `steps_per_call` of `fit`, or fewer between the events of callbacks.

    Programs of resident data run any number of steps up to the maximum: callbacks have an effect on `Dispatch.steps` only.
    """
    data, options, steps = problem.data, problem.options, problem.options.steps_per_call
    if steps == "auto":
        in_arrays = isinstance(data, ArrayData)
        one = problem.model, problem.shapes[0], options.batch_size, problem.settings.devices
        maximum = auto_steps_per_call(*one) if in_arrays else 1
        if isinstance(data, ArrayData) and data.mapped:  # the host then reads the batches of one dispatch only
            maximum = int(np.clip(MAPPED_CALL_BYTES * data.num_rows // (data.nbytes * options.batch_size), 1, maximum))
    else:
        maximum = int(steps)
    if resident:
        return maximum
    # A stack must not contain more batches than there are steps between two "step" events of a callback, or two evaluations.
    evaluated = options.eval_every.steps if problem.evaluate is not None else None
    every = [c.every for c in options.callbacks if c.every and "step" in c.events]
    return min([maximum, *every, *([evaluated] if evaluated else [])])


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


def repeat_steps(
    train_one: Callable[..., tuple[TrainState, Any]], state: TrainState, count: Any, spec: DispatchSpec | None = None
) -> tuple[TrainState, Any]:
    """Return (state, report of the last step) after `count` steps, a `fori_loop` over `train_one`.

    Args:
        train_one: `train_one(state, j) -> (state, report)` for step j = 0, ..., count - 1; the report is an array (2,).
        state: state before the steps.
        count: number of steps, traced, so that one compiled program serves every number.
        spec: with its `step_names`, reports are pairs of this array and a table of values, with a row per step.
    """
    start = jnp.zeros(2)
    if spec is None or not spec.step_names:
        return lax.fori_loop(0, count, lambda j, carry: train_one(carry[0], j), (state, start))

    def add_row(j: Any, carry: Any) -> Any:
        state, (_, table) = carry
        state, (last, row) = train_one(state, j)
        return state, (last, lax.dynamic_update_slice(table, row, (j, jnp.zeros_like(j))))

    table = jnp.zeros((spec.steps_per_call, len(spec.step_names)))
    return lax.fori_loop(0, count, add_row, (state, (start, table)))


def stacked_steps(spec: DispatchSpec, state: TrainState, stack: Batch, count: Any, axis_name: str | None) -> Any:
    """Run several training steps inside a program.

    Args:
        spec: settings of the dispatches.
        state: state before the steps.
        stack: the batches, (steps, rows, ...).
        count: number of steps, at most the length of the stack.
        axis_name: name of the device axis, or None.
    """

    def train_one(state: TrainState, j: Any) -> tuple[TrainState, Any]:
        return one_step(spec, state, jax.tree.map(lambda x: x[j], stack), axis_name)

    return repeat_steps(train_one, state, count, spec)


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
    steps = OrderedSteps(spec.step, spec.devices, result=of_step, of_slice=of_each)
    slices, in_job = slices_of(spec.step) or 1, spans_processes(spec.devices)

    def run(batch: Batch, state: TrainState) -> tuple[TrainState, Any]:
        # in a job, each process reads the rows of its own slices only, already cut
        batch = batch if in_job else split_batch(batch, slices, spec.model.batch_axes, own=slice(None))
        state, (reported, row), inputs = steps(state, batch)
        reported = (reported, inputs) if spec.return_outputs else reported
        return state, (reported, row) if spec.step_names else reported

    return run


# ------------------------------------------------------------------------------------------------ dividing an epoch
class ResidentDispatcher:
    """Makes the dispatches (calls of compiled programs) of an epoch, for data that is kept on the devices.

    The programs gather the rows of each batch from the data.

    Args:
        data: the arrays of the whole data set.
        spec: model, step, devices and batch sizes.
        **padding: `paddable` and `reason` of `DeviceBatches`.
    """

    def __init__(self, data: ArrayData, spec: DispatchSpec, **padding: Any) -> None:
        self.data, self.spec, options = data, spec, {"micro_batches": spec.micro_batches, **padding}
        self.batches = DeviceBatches(spec.model, data, spec.devices, spec.batch_size, **options)
        self.num_batches = self.batches.layout.num_batches
        self.checks = None  # arrays are checked before training, and the devices have a copy
        self.stream: Prefetch | None = None  # nothing is read while training
        self._programs: dict[Any, Any] = {}
        # arrays on the devices, which are kept so that a dispatch copies nothing to the devices
        self._count = functools.cache(lambda steps: place(np.int32(steps), spec.devices))

    def dispatches(
        self,
        epoch: int,
        start: int,
        step: int,
        max_steps: Callable[[int], int],
        left: int | None = None,
        prepare: Callable[[Any], None] | None = None,
    ) -> Iterator[Dispatch]:
        """Yield the dispatches of an epoch, as `Dispatch`.

        Args:
            epoch: number of the epoch, which determines the order of the rows.
            start: number of the first batch; above 0 when training resumes within an epoch.
            step: number of updates done before the first dispatch.
            max_steps: `max_steps(step)` is the maximum number of steps before the next "step" event of a callback, the next
                evaluation and the end of training.
            left: number of steps to the end of training, after which no batch of a stream is read; None: not known.
            prepare: called with the programs that the epoch needs, as a list of (`Program`, arguments after the state).
        """
        epoch_data, layout = self.batches.epoch_data(self.data.order(epoch), first=step - start), self.batches.layout
        num_full = layout.num_full
        if prepare is not None:
            programs = [self._full_program(epoch_data, 1)] if start < num_full else []
            prepare(programs + ([self._tail_program(epoch_data)] if num_full < layout.num_batches else []))
        size, most, at = self.spec.batch_size, self.spec.steps_per_call, start
        # Cached: dispatches of equal length differ in the state only, and a short step is a few hundred microseconds.
        full = functools.cache(lambda steps: Dispatch(_call(*self._full_program(epoch_data, steps)), steps, steps * size))
        while at < num_full:
            steps = 1 if most == 1 else min(most, num_full - at, max_steps(step + at - start))
            yield full(steps)
            at += steps
        if at < layout.num_batches:
            yield Dispatch(_call(*self._tail_program(epoch_data)), 1, layout.last_size)

    def _program(self, name: str, fn: Callable[..., Any], *, takes_count: bool) -> Any:
        if name not in self._programs:
            in_axes = (STATE_AXES, EPOCH_DATA_AXES, None) if takes_count else (STATE_AXES, EPOCH_DATA_AXES)
            self._programs[name] = self.spec.compiled(fn, in_axes, self.spec.out_axes, name)
        return self._programs[name]

    def _full_program(self, epoch_data: Mapping[str, Any], steps: int) -> tuple[Program, tuple[Any, ...]]:
        spec, layout = self.spec, self.batches.layout

        def train_one(state: TrainState, epoch_data: Mapping[str, Any], axis_name: str | None) -> tuple[TrainState, Array]:
            return one_step(spec, state, layout.batch(epoch_data, state.step - epoch_data["numbers"][0], axis_name), axis_name)

        if spec.steps_per_call == 1:
            return self._program("train", Made(train_one, "one", spec, layout), takes_count=False), (epoch_data,)

        def train_steps(state: TrainState, epoch_data: Mapping[str, Any], count: Any, axis_name: str | None):
            return repeat_steps(lambda s, _: train_one(s, epoch_data, axis_name), state, count, spec)

        program = self._program("train", Made(train_steps, "steps", spec, layout), takes_count=True)
        return program, (epoch_data, self._count(steps))

    def _tail_program(self, epoch_data: Mapping[str, Any]) -> tuple[Program, tuple[Any, ...]]:
        spec, layout = self.spec, self.batches.layout

        def train_tail(state: TrainState, epoch_data: Mapping[str, Any], axis_name: str | None):
            return one_step(spec, state, layout.batch(epoch_data, layout.num_batches - 1, axis_name, tail=True), axis_name)

        return self._program("train_tail", Made(train_tail, "tail", spec, layout), takes_count=False), (epoch_data,)


def _call(program: Program, arguments: tuple[Any, ...]) -> Callable[[TrainState], Any]:
    return lambda state: program(state, *arguments)


class StreamDispatcher:
    """Makes the dispatches (calls of compiled programs) of an epoch, for batches that a background thread prepares on the host.

    Args:
        data: arrays, or an iterable of batches.
        spec: model, step, devices and batch sizes.
        **padding: `paddable` and `reason` of `HostBatches`.
    """

    def __init__(self, data: ArrayData | StreamData, spec: DispatchSpec, **padding: Any) -> None:
        self.data, self.spec = data, spec
        slices = slices_of(spec.step)
        self._ordered = None if slices is None else ordered_steps(spec)
        # an ordered step cuts batches into slices itself; in a job, each process reads the rows of its own slices only
        parts, multiple, own = len(spec.devices), 1, own_slices_of(spec.devices)
        if slices is not None:
            own = process_slices(spec.devices, slices, equal=isinstance(data, StreamData))
            parts, multiple = (1, slices) if own is None else (slices, 1)
        options = {"micro_batches": spec.micro_batches * multiple, "own": own, **padding}
        self.batches = HostBatches(spec.model, data, parts, spec.batch_size, **options)
        self.num_batches = num_batches_of(data, spec.batch_size)
        self.checks = DataChecks(spec.model, self.batches, data)
        self.stream: Prefetch | None = None  # the batches of the present epoch
        self._first_shapes: Any = None  # shapes and dtypes of the first batch; None before it
        self._programs: dict[Any, Any] = {}

    def dispatches(
        self, epoch: int, start: int, step: int, max_steps: Callable[[int], int], left: int | None = None, *_: Any
    ) -> Iterator[Dispatch]:
        """Yield the dispatches of an epoch; arguments as in `ResidentDispatcher.dispatches`.  No program is compiled ahead."""
        with self.batches.read(epoch, start, ahead=2 * self.spec.steps_per_call, most=left) as self.stream:
            stream = self.stream
            for first in stream:
                group, most = [first], min(self.spec.steps_per_call, max_steps(step))
                for item in itertools.islice(stream, most - 1):
                    if _shapes(item[0]) != _shapes(group[0][0]):
                        yield from self.group_dispatches(group)
                        step += len(group)
                        group = []
                    group.append(item)
                yield from self.group_dispatches(group)
                step += len(group)

    def group_dispatches(self, group: list[tuple[Batch, int]]) -> Iterator[Dispatch]:
        """Yield one dispatch for all batches of a group, or one per batch if their shapes are not those of the first batch.

        Other shapes than those of the first batch (a smaller last batch) are rare: a program of several steps for them is not
        worth its compilation.

        Args:
            group: list of (batch, number of its rows without padding); all batches have the same shapes.
        """
        if self._ordered is not None:
            for batch, count in group:
                yield Dispatch(functools.partial(self._ordered, batch), 1, count)
            return
        most, shapes = self.spec.steps_per_call, _shapes(group[0][0])
        self._first_shapes = self._first_shapes or shapes
        if most == 1 or shapes != self._first_shapes:
            for batch, count in group:
                yield Dispatch(self._run_of("train" if most == 1 else "train_tail", one_step, batch), 1, count)
            return
        batches = [batch for batch, _ in group]
        # The repeated batches are not trained: they fix the length of the stack, so that one program is enough.
        batches += batches[-1:] * (most - len(batches))
        axis = 1 if len(self.spec.devices) > 1 else 0
        stack = jax.tree.map(lambda *xs: np.stack(xs, axis=axis), *batches)  # ([devices,] steps, rows, ...)
        run = self._run_of("train", stacked_steps, stack, np.int32(len(group)))
        yield Dispatch(run, len(group), sum(count for _, count in group))

    def _run_of(self, name: str, steps: Callable[..., Any], *arguments: Any) -> Callable[[TrainState], Any]:
        """Make `run(state)` of a program of the batches in `arguments`."""
        if name not in self._programs:
            axes = (STATE_AXES, 0, *(None,) * (len(arguments) - 1))
            self._programs[name] = self.spec.compiled(functools.partial(steps, self.spec), axes, self.spec.out_axes, name)
        return _call(self._programs[name], arguments)


def _shapes(batch: Batch) -> Any:
    return jax.tree.map(lambda x: (x.shape, x.dtype), batch)


def dispatcher_of(problem: Problem) -> Any:
    """Create the dispatcher of a problem, which divides the batches of an epoch into calls of compiled programs.

    It is a `ResidentDispatcher` for arrays that fit into device memory, else a `StreamDispatcher`.  On a CPU, models with
    convolutions, graphs as well as functions, do one step per dispatch and ignore `steps_per_call`: XLA compiles convolutions
    in a loop to slow code, and a loop, unrolled or not, may round differently from separate steps.  Steps with
    `reduce="ordered"` also run one by one, and always use a `StreamDispatcher`.
    """
    options, devices = problem.options, problem.settings.devices
    data, on_device, one = problem.data, options.data_on_device, unrolls(problem.model, devices, problem.plan)
    if problem.step.reduce.slices is not None:  # slices go to the devices that compute them
        one, on_device = True, False
    resident = isinstance(data, ArrayData) and (fits_on_device(data, devices) if on_device == "auto" else bool(on_device))
    steps = 1 if one or problem.on_host else steps_per_call(problem, resident)
    spec = DispatchSpec(
        problem.model,
        problem.step,
        devices,
        options.batch_size,
        options.micro_batches,
        steps,
        return_outputs=problem.on_host,
        step_names=problem.step_names,
    )
    padding: dict[str, Any] = {"paddable": problem.plan.paddable, "reason": problem.plan.coupled}
    if resident and isinstance(data, ArrayData):
        return ResidentDispatcher(data, spec, **padding)
    return StreamDispatcher(unshared(data), spec, **padding)
