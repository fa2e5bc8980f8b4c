"""The dispatches of an epoch for batches that a background thread prepares on the host: iterables, and arrays of any size."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from jfit.data import ArrayData, Batch, StreamData
from jfit.feed.data_checks import DataChecks
from jfit.feed.host_batches import HostBatches
from jfit.feed.job_batches import num_batches_of
from jfit.loop.dispatch import Dispatch, DispatchSpec, ordered_steps, single_step, stacked_steps
from jfit.parallel.contexts import own_slices_of
from jfit.parallel.devices import STATE_AXES
from jfit.parallel.ordered import process_slices, slices_of
from jfit.parallel.spmd import compile_spmd
from jfit.step.state import TrainState


class StreamDispatcher:
    """Makes the dispatches (calls of compiled programs) of an epoch, for batches that a background thread prepares on the host.

    Args:
        data: arrays, or an iterable of batches.
        spec: model, step, devices and batch sizes.
        paddable: whether incomplete batches may be padded with rows of weight 0, see `Model.plan`.
        reason: why they may not, see `Plan.coupled`.
    """

    def __init__(self, data: ArrayData | StreamData, spec: DispatchSpec, *, paddable: bool = True, reason: str = "") -> None:
        self.data, self.spec = data, spec
        slices = slices_of(spec.step)
        self._ordered = None if slices is None else ordered_steps(spec)
        # an ordered step cuts batches into slices itself; in a job, each process reads the rows of its own slices only
        parts, multiple, own = len(spec.devices), 1, own_slices_of(spec.devices)
        if slices is not None:
            own = process_slices(spec.devices, slices, equal=isinstance(data, StreamData))
            parts, multiple = (1, slices) if own is None else (slices, 1)
        self.batches = HostBatches(
            spec.model,
            data,
            parts,
            spec.batch_size,
            micro_batches=spec.micro_batches * multiple,
            paddable=paddable,
            reason=reason,
            own=own,
        )
        self.num_batches = num_batches_of(data, spec.batch_size)
        self.checks = DataChecks(spec.model, spec.devices, data, self.batches)
        self._first_shapes: Any = None  # shapes and dtypes of the first batch; None before it
        self._programs: dict[Any, Any] = {}

    def dispatches(self, epoch: int, start: int, step: int, max_steps: Callable[[int], int], *_: Any) -> Iterator[Dispatch]:
        """Yield the dispatches of an epoch; arguments as in `ResidentDispatcher.dispatches`.  No program is compiled ahead."""
        with self.batches.read(epoch, start, ahead=2 * self.spec.steps_per_call) as stream:
            for first in stream:
                group, most = [first], min(self.spec.steps_per_call, max_steps(step))
                for item in itertools.islice(stream, most - 1):
                    if _shapes(item[0]) != _shapes(group[0][0]):
                        yield from self.group_dispatches(group, step)
                        step += len(group)
                        group = []
                    group.append(item)
                yield from self.group_dispatches(group, step)
                step += len(group)

    def group_dispatches(self, group: list[tuple[Batch, int]], step: int = 0) -> Iterator[Dispatch]:
        """Yield one dispatch for all batches of a group, or one per batch if their shapes are not those of the first batch.

        Other shapes than those of the first batch (a smaller last batch) are rare: a program of several steps for them is not
        worth its compilation.

        Args:
            group: list of (batch, number of its rows without padding); all batches have the same shapes.
            step: number of steps before the group.
        """
        if self._ordered is not None:
            for number, (batch, count) in enumerate(group, step):
                self.checks.look(batch, number)
                yield Dispatch(functools.partial(self._ordered, batch), 1, count)
            return
        most, shapes = self.spec.steps_per_call, _shapes(group[0][0])
        self._first_shapes = self._first_shapes or shapes
        if most == 1 or shapes != self._first_shapes:
            for batch, count in group:
                yield Dispatch(self._run_of("train" if most == 1 else "train_tail", single_step, [batch], batch), 1, count)
            return
        batches = [batch for batch, _ in group]
        # The repeated batches are not trained: they fix the length of the stack, so that one program is enough.
        batches += batches[-1:] * (most - len(batches))
        axis = 1 if len(self.spec.devices) > 1 else 0
        stack = jax.tree.map(lambda *xs: np.stack(xs, axis=axis), *batches)  # ([devices,] steps, rows, ...)
        run = self._run_of("train", stacked_steps, batches, stack, np.int32(len(group)))
        yield Dispatch(run, len(group), sum(count for _, count in group))

    def _run_of(
        self, name: str, steps: Callable[..., Any], batches: Sequence[Batch], *arguments: Any
    ) -> Callable[[TrainState], Any]:
        """Make `run(state)` of a program, which also looks for invalid values if a batch is on the devices."""
        checked = any(self.checks.apply_to(batch) for batch in batches)
        if (name, checked) not in self._programs:
            fn = functools.partial(steps, self.spec, self.checks.valid if checked else None)
            axes, out = (STATE_AXES, 0, *(None,) * (len(arguments) - 1 + checked)), self.spec.out_axes
            out = (out, None) if checked else out
            self._programs[name, checked] = compile_spmd(fn, self.spec.devices, axes, out, donate=(0,), name=name)
        program = self._programs[name, checked]
        return self.checks.run_of(program, *arguments) if checked else lambda state: program(state, *arguments)


def _shapes(batch: Batch) -> Any:
    return jax.tree.map(lambda x: (x.shape, x.dtype), batch)
