"""From batches to calls: how many steps one dispatch does.

Each call of a `ResidentFeed` only says where in the epoch's order it starts; a `StreamFeed` sends its batches.  Both hand the
loop a sequence of `Call`s, and both run the same pure step.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jfit.data import ArrayData, Batch, StreamData
from jfit.lowering.model import Model, count_parameters
from jfit.parallel.placing import STATE_AXES, place
from jfit.parallel.spmd import compile_spmd
from jfit.step import Step, StepOut, unrolls
from jfit.step.state import TrainState
from jfit.train.batches import PACK_AXES, Resident, Stream, fits_on_device
from jfit.train.host_metrics import seen_of

MAX_STEPS_PER_CALL = 32
AUTO_FLOPS = {"cpu": 1e9}  # work of one call that hides its dispatch; accelerators: AUTO_FLOPS_DEFAULT
AUTO_FLOPS_DEFAULT = 2e11


class Call(NamedTuple):
    """One dispatch: `run(state) -> (state, report)` does `steps` updates with `rows` rows."""

    run: Callable[[TrainState], tuple[TrainState, Array]]
    steps: int
    rows: int


class FeedSpec(NamedTuple):
    """What a feed needs to know beside its data."""

    model: Model
    step: Step
    devices: list[Any]
    batch_size: int
    micro_batches: int = 1
    steps_per_call: int = 1
    watch: bool = False  # calls report (report, what metrics see); needs a step with outputs=True and one step a call

    @property
    def out_axes(self) -> Any:
        """Where the devices' results lie: the state and the report are shared, what metrics see is each device's own."""
        return STATE_AXES, (None, 0) if self.watch else None


def auto_steps_per_call(model: Model, params: Mapping[str, Any], batch_size: int) -> int:
    """How many steps one dispatch should do: so many that the work hides the dispatch, 1 where loops are slow.

    Small dense nets gain most (1.4 x on a 784-128-64-10 net at batch 64 on CPU); XLA on CPU compiles convolutions inside
    loops badly, so those run one step a call there.
    """
    if unrolls(model):
        return 1
    work = 6.0 * count_parameters(params) * batch_size  # multiply-adds of forward and backward, dense layers
    budget = AUTO_FLOPS.get(jax.default_backend(), AUTO_FLOPS_DEFAULT)
    return int(np.clip(budget / max(work, 1.0), 1, MAX_STEPS_PER_CALL))


def report(out: StepOut) -> Array:
    """(loss, learning rate or nan) as ONE small array, (2,) float32: every output of a program costs about a microsecond."""
    rate = jnp.float32(jnp.nan) if out.lr is None else out.lr.astype(jnp.float32)
    return jnp.stack([out.loss, rate])


def _step(spec: FeedSpec, state: TrainState, batch: Batch, axis_name: str | None) -> tuple[TrainState, Any]:
    # Behind the barrier a step is compiled the same wherever its batch comes from: gathered, cut from a stack or an argument.
    state, batch = lax.optimization_barrier((state, batch))
    state, out = spec.step(state, batch, axis_name=axis_name)
    if spec.watch:
        assert out.outputs is not None
        return state, (report(out), seen_of(spec.model, out.outputs, batch, axis_name))
    return state, report(out)


def repeat_steps(one: Callable[..., tuple[TrainState, Array]]) -> Callable[..., tuple[TrainState, Array]]:
    """`count` steps in one program; `one(state, j)` does the j-th.  `count` is traced, so any number is the same program."""

    def run(state: TrainState, count: Any) -> tuple[TrainState, Array]:
        return lax.fori_loop(0, count, lambda j, carry: one(carry[0], j), (state, jnp.zeros(2, jnp.float32)))

    return run


class ResidentFeed:
    """Calls over arrays that live on the devices."""

    def __init__(self, data: ArrayData, spec: FeedSpec, *, paddable: bool = True) -> None:
        self.data, self.spec = data, spec
        self.batches = Resident(
            spec.model, data, spec.devices, spec.batch_size, micro_batches=spec.micro_batches, paddable=paddable
        )
        self.num_batches = self.batches.layout.num_batches
        self._programs: dict[Any, Any] = {}
        self._counts: dict[int, Array] = {}

    def calls(self, epoch: int, start: int, step: int, limit: Callable[[int], int]) -> Iterator[Call]:
        """The calls of an epoch.

        Args:
            epoch: number of the epoch.
            start: number of the first batch.
            step: updates done so far.
            limit: `limit(step)`: maximum number of steps before the next callback boundary.
        """
        pack, layout = self.batches.pack(self.data.order(epoch), first=step - start), self.batches.layout
        size, at = self.spec.batch_size, start
        while at < layout.full:
            steps = min(self.spec.steps_per_call, layout.full - at, limit(step + at - start))
            yield Call(self._full_program(pack, steps), steps, steps * size)
            at += steps
        if at < layout.num_batches:
            yield Call(self._tail_program(pack), 1, layout.tail)

    def _compiled(self, name: str, fn: Callable[..., Any], *, counted: bool) -> Any:
        if name not in self._programs:
            in_axes = (STATE_AXES, PACK_AXES, None) if counted else (STATE_AXES, PACK_AXES)
            self._programs[name] = compile_spmd(fn, self.spec.devices, in_axes, self.spec.out_axes, donate=(0,), name=name)
        return self._programs[name]

    def _full_program(self, pack: Mapping[str, Any], steps: int) -> Callable[[TrainState], Any]:
        spec, layout = self.spec, self.batches.layout

        def one(state: TrainState, pack: Mapping[str, Any], axis_name: str | None) -> tuple[TrainState, Array]:
            return _step(spec, state, layout.batch(pack, state.step - pack["numbers"][0], axis_name), axis_name)

        if spec.steps_per_call == 1:
            program = self._compiled("train", one, counted=False)
            return lambda state: program(state, pack)

        def many(state: TrainState, pack: Mapping[str, Any], count: Any, axis_name: str | None):
            return repeat_steps(lambda s, _: one(s, pack, axis_name))(state, count)

        program, count = self._compiled("train", many, counted=True), self._count(steps)
        return lambda state: program(state, pack, count)

    def _count(self, steps: int) -> Array:
        """A number of steps on the devices, where a call need not send it again."""
        if steps not in self._counts:
            self._counts[steps] = place(np.int32(steps), self.spec.devices)
        return self._counts[steps]

    def _tail_program(self, pack: Mapping[str, Any]) -> Callable[[TrainState], Any]:
        spec, layout = self.spec, self.batches.layout

        def tail(state: TrainState, pack: Mapping[str, Any], axis_name: str | None):
            return _step(spec, state, layout.batch(pack, layout.num_batches - 1, axis_name, tail=True), axis_name)

        program = self._compiled("train_tail", tail, counted=False)
        return lambda state: program(state, pack)


class StreamFeed:
    """Calls over batches that come from the host, prepared on a background thread."""

    def __init__(self, data: ArrayData | StreamData, spec: FeedSpec, *, paddable: bool = True) -> None:
        self.data, self.spec = data, spec
        self.batches = Stream(
            spec.model, data, len(spec.devices), spec.batch_size, micro_batches=spec.micro_batches, paddable=paddable
        )
        self.num_batches = data.num_batches(spec.batch_size)
        self._usual: Any = None  # shapes of the batches that share a call
        self._programs: dict[Any, Any] = {}

    def calls(self, epoch: int, start: int, step: int, limit: Callable[[int], int]) -> Iterator[Call]:
        """The calls of an epoch from batch `start`; `step`: updates so far; `limit`: steps until the next callback boundary."""
        with self.batches.read(epoch, start, ahead=2 * self.spec.steps_per_call) as stream:
            for first in stream:
                group, room = [first], min(self.spec.steps_per_call, limit(step))
                for item in itertools.islice(stream, room - 1):
                    if _shapes(item[0]) != _shapes(group[0][0]):
                        yield from self._calls(group)
                        step += len(group)
                        group = []
                    group.append(item)
                yield from self._calls(group)
                step += len(group)

    def _calls(self, group: list[tuple[Batch, int]]) -> Iterator[Call]:
        """Batches of equal shapes as one call, or one by one where a call of so many would be a program of its own."""
        most, usual = self.spec.steps_per_call, self._is_usual(group[0][0])
        if most == 1 or not usual:
            program = self._program("train" if most == 1 else "train_tail", functools.partial(_step, self.spec))
            for batch, count in group:
                yield Call(functools.partial(_run_batch, program, batch), 1, count)
            return
        batches = [batch for batch, _ in group]
        batches += batches[-1:] * (most - len(batches))  # not computed: the program gets the number of real ones
        axis = 1 if len(self.spec.devices) > 1 else 0
        stack = jax.tree.map(lambda *xs: np.stack(xs, axis=axis), *batches)  # ([devices,] steps, rows, ...)
        program = self._many()
        steps = np.int32(len(group))
        yield Call(lambda state: program(state, stack, steps), len(group), sum(count for _, count in group))

    def _is_usual(self, batch: Batch) -> bool:
        shapes = _shapes(batch)
        self._usual = self._usual or shapes
        return shapes == self._usual

    def _many(self) -> Any:
        spec = self.spec

        def many(state: TrainState, stack: Batch, count: Any, axis_name: str | None):
            def one(state: TrainState, j: Any):
                return _step(spec, state, jax.tree.map(lambda x: x[j], stack), axis_name)

            return repeat_steps(one)(state, count)

        return self._program("train", many, (None,))

    def _program(self, name: str, fn: Callable[..., Any], more: tuple[Any, ...] = ()) -> Any:
        if name not in self._programs:
            axes = (STATE_AXES, 0, *more)
            self._programs[name] = compile_spmd(fn, self.spec.devices, axes, self.spec.out_axes, donate=(0,), name=name)
        return self._programs[name]


def _run_batch(program: Any, batch: Batch, state: TrainState) -> tuple[TrainState, Array]:
    return program(state, batch)


def _shapes(batch: Batch) -> Any:
    return jax.tree.map(lambda x: (x.shape, x.dtype), batch)


def epoch_start(feed: Any, epoch: int) -> Any | None:
    """The position of a feed's data when an epoch began, as JSON; None where the number of the batch is enough."""
    return feed.data.epoch_start(epoch) if isinstance(feed.data, StreamData) else None


def start_epoch(feed: Any, epoch: int, position: Any | None) -> None:
    """Let the data of a feed go to what `epoch_start` gave."""
    if position is not None and isinstance(feed.data, StreamData):
        feed.data.start_epoch(epoch, position)


def make_feed(data: ArrayData | StreamData, spec: FeedSpec, *, paddable: bool = True, on_device: bool | str = "auto") -> Any:
    """The feed for some data: resident where it fits, else streaming.

    Nets whose loops must be unrolled run one step a dispatch whatever was asked for: a loop would be slow, and an unrolled
    loop does not round as separate steps do.
    """
    if unrolls(spec.model):
        spec = spec._replace(steps_per_call=1)
    resident = fits_on_device(data, spec.devices) if on_device == "auto" else bool(on_device)
    if resident and isinstance(data, ArrayData):
        return ResidentFeed(data, spec, paddable=paddable)
    return StreamFeed(data, spec, paddable=paddable)
