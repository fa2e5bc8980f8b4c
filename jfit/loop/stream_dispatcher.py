"""The dispatches of an epoch for batches that a background thread prepares on the host: iterables, and arrays of any size."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from jfit.data import ArrayData, Batch, StreamData
from jfit.feed.data_checks import DataChecks
from jfit.feed.host_batches import HostBatches
from jfit.feed.job_batches import num_batches_of
from jfit.loop.dispatch import Dispatch, DispatchSpec, checked_step, one_step, ordered_steps, stacked_steps
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
        self._one_step = functools.partial(one_step, spec)
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
        most, like_first = self.spec.steps_per_call, self._is_like_first(group[0][0])
        if most == 1 or not like_first:
            name = "train" if most == 1 else "train_tail"
            for batch, count in group:
                checked = self.checks.apply_to(batch)
                fn = functools.partial(checked_step, self.spec, self.checks.valid or ()) if checked else self._one_step
                yield Dispatch(self._run_of(self._program(name, fn, checked=checked), checked, batch), 1, count)
            return
        batches = [batch for batch, _ in group]
        # The repeated batches are not trained: they fix the length of the stack, so that one program is enough.
        batches += batches[-1:] * (most - len(batches))
        checked = any(self.checks.apply_to(batch) for batch in batches)
        axis = 1 if len(self.spec.devices) > 1 else 0
        stack = jax.tree.map(lambda *xs: np.stack(xs, axis=axis), *batches)  # ([devices,] steps, rows, ...)
        fn = functools.partial(stacked_steps, self.spec, self.checks.valid if checked else None)
        program = self._program("train", fn, (None,), checked=checked)
        run = self._run_of(program, checked, stack, np.int32(len(group)))
        yield Dispatch(run, len(group), sum(count for _, count in group))

    def _run_of(self, program: Any, checked: bool, *arguments: Any) -> Callable[[TrainState], Any]:
        return self.checks.run_of(program, *arguments) if checked else lambda state: program(state, *arguments)

    def _is_like_first(self, batch: Batch) -> bool:
        shapes = _shapes(batch)
        self._first_shapes = self._first_shapes or shapes
        return shapes == self._first_shapes

    def _program(self, name: str, fn: Callable[..., Any], extra_axes: tuple[Any, ...] = (), *, checked: bool = False) -> Any:
        if (name, checked) not in self._programs:
            axes, out = (STATE_AXES, 0, *extra_axes, *(None,) * checked), self.spec.out_axes
            out = (out, None) if checked else out
            self._programs[name, checked] = compile_spmd(fn, self.spec.devices, axes, out, donate=(0,), name=name)
        return self._programs[name, checked]


def _shapes(batch: Batch) -> Any:
    return jax.tree.map(lambda x: (x.shape, x.dtype), batch)
