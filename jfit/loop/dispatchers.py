"""Dividing the batches of an epoch into dispatches: `ResidentDispatcher` for arrays on the devices, and the choice of one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from jax import Array

from jfit.data import ArrayData
from jfit.feed.batches import EPOCH_DATA_AXES, DeviceBatches, fits_on_device
from jfit.feed.data_checks import DataChecks
from jfit.feed.train_data import unshared
from jfit.loop.dispatch import Dispatch, DispatchSpec, one_step, repeat_steps, steps_per_call
from jfit.loop.stream_dispatcher import StreamDispatcher
from jfit.parallel.devices import STATE_AXES, place
from jfit.parallel.ordered import slices_of
from jfit.parallel.spmd import compile_spmd
from jfit.prepare import Problem
from jfit.programs import Made, Program
from jfit.step import unrolls
from jfit.step.state import TrainState


class ResidentDispatcher:
    """Makes the dispatches (calls of compiled programs) of an epoch, for data that is kept on the devices.

    The programs gather the rows of each batch from the data.

    Args:
        data: the arrays of the whole data set.
        spec: model, step, devices and batch sizes.
        paddable: whether incomplete batches may be padded with rows of weight 0, see `Model.plan`.
        reason: why they may not, see `Plan.coupled`.
    """

    def __init__(self, data: ArrayData, spec: DispatchSpec, *, paddable: bool = True, reason: str = "") -> None:
        self.data, self.spec = data, spec
        self.batches = DeviceBatches(
            spec.model,
            data,
            spec.devices,
            spec.batch_size,
            micro_batches=spec.micro_batches,
            paddable=paddable,
            reason=reason,
        )
        self.num_batches = self.batches.layout.num_batches
        self.checks = DataChecks(spec.model, spec.devices)  # arrays are checked before training, and the devices have a copy
        self._programs: dict[Any, Any] = {}
        self._counts: dict[int, Array] = {}

    def dispatches(
        self, epoch: int, start: int, step: int, max_steps: Callable[[int], int], prepare: Callable[[Any], None] | None = None
    ) -> Iterator[Dispatch]:
        """Yield the dispatches of an epoch, as `Dispatch`.

        Args:
            epoch: number of the epoch, which determines the order of the rows.
            start: number of the first batch; above 0 when training resumes within an epoch.
            step: number of updates done before the first dispatch.
            max_steps: `max_steps(step)` is the maximum number of steps before the next "step" event of a callback.
            prepare: called with the programs that the epoch needs, as a list of (`Program`, arguments after the state).
        """
        epoch_data, layout = self.batches.epoch_data(self.data.order(epoch), first=step - start), self.batches.layout
        if prepare is not None:
            programs = [self._full_program(epoch_data, 1)] if start < layout.num_full else []
            prepare(programs + ([self._tail_program(epoch_data)] if layout.num_full < layout.num_batches else []))
        size, most, at = self.spec.batch_size, self.spec.steps_per_call, start
        # Cached: dispatches of equal length differ in the state only, and a short step is a few hundred microseconds.
        full = functools.cache(lambda steps: Dispatch(_call(*self._full_program(epoch_data, steps)), steps, steps * size))
        while at < layout.num_full:
            steps = 1 if most == 1 else min(most, layout.num_full - at, max_steps(step + at - start))
            yield full(steps)
            at += steps
        if at < layout.num_batches:
            yield Dispatch(_call(*self._tail_program(epoch_data)), 1, layout.last_size)

    def _program(self, name: str, fn: Callable[..., Any], *, takes_count: bool) -> Any:
        if name not in self._programs:
            in_axes = (STATE_AXES, EPOCH_DATA_AXES, None) if takes_count else (STATE_AXES, EPOCH_DATA_AXES)
            self._programs[name] = compile_spmd(fn, self.spec.devices, in_axes, self.spec.out_axes, donate=(0,), name=name)
        return self._programs[name]

    def _full_program(self, epoch_data: Mapping[str, Any], steps: int) -> tuple[Program, tuple[Any, ...]]:
        spec, layout = self.spec, self.batches.layout

        def train_one(state: TrainState, epoch_data: Mapping[str, Any], axis_name: str | None) -> tuple[TrainState, Array]:
            return one_step(spec, state, layout.batch(epoch_data, state.step - epoch_data["numbers"][0], axis_name), axis_name)

        if spec.steps_per_call == 1:
            return self._program("train", Made(train_one, "one", spec, layout), takes_count=False), (epoch_data,)

        def train_steps(state: TrainState, epoch_data: Mapping[str, Any], count: Any, axis_name: str | None):
            return repeat_steps(lambda s, _: train_one(s, epoch_data, axis_name), spec)(state, count)

        return self._program("train", Made(train_steps, "steps", spec, layout), takes_count=True), (
            epoch_data,
            self._count(steps),
        )

    def _count(self, steps: int) -> Array:
        """Return `steps` as an int32 array on the devices, from a cache, so that a dispatch copies nothing to the devices."""
        if steps not in self._counts:
            self._counts[steps] = place(np.int32(steps), self.spec.devices)
        return self._counts[steps]

    def _tail_program(self, epoch_data: Mapping[str, Any]) -> tuple[Program, tuple[Any, ...]]:
        spec, layout = self.spec, self.batches.layout

        def train_tail(state: TrainState, epoch_data: Mapping[str, Any], axis_name: str | None):
            return one_step(spec, state, layout.batch(epoch_data, layout.num_batches - 1, axis_name, tail=True), axis_name)

        return self._program("train_tail", Made(train_tail, "tail", spec, layout), takes_count=False), (epoch_data,)


def _call(program: Program, arguments: tuple[Any, ...]) -> Callable[[TrainState], Any]:
    return lambda state: program(state, *arguments)


def dispatcher_of(problem: Problem) -> Any:
    """Create the dispatcher of a problem, which divides the batches of an epoch into calls of compiled programs.

    It is a `ResidentDispatcher` for arrays that fit into device memory, else a `StreamDispatcher`.  Networks for which
    `unrolls(model)` is True (convolutions on CPU) do one step per dispatch and ignore `steps_per_call`: XLA's loops are
    slow for them, and an unrolled loop rounds differently from separate steps.  Steps with `reduce="ordered"` also run one by
    one, and always use a `StreamDispatcher`.
    """
    options, devices = problem.options, problem.settings.devices
    data, on_device, one = problem.data, options.data_on_device, unrolls(problem.model)
    if slices_of(problem.step) is not None:  # slices go to the devices that compute them
        one, on_device = True, False
    steps = 1 if one or problem.on_host else steps_per_call(problem)
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
    resident = fits_on_device(data, devices) if on_device == "auto" else bool(on_device)
    if resident and isinstance(data, ArrayData):
        return ResidentDispatcher(data, spec, **padding)
    return StreamDispatcher(unshared(data), spec, **padding)
