"""From data to calls: who holds the data, how a batch reaches the step, how many steps one dispatch does.

`ResidentFeed` keeps the arrays on the devices; each call only says where in the epoch's order it starts, and gathers its
batches inside the program.  `StreamFeed` prepares batches on a background thread.  Both hand the loop a sequence of
`Call`s, and both run the same pure step.
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

from jfit.data import ArrayData, Batch, StreamData, as_data, prefetch
from jfit.data.batch import pad_rows, rows
from jfit.lowering.model import Model, count_parameters
from jfit.parallel.placing import STATE_AXES, place, place_split, split_batch
from jfit.parallel.spmd import compile_spmd
from jfit.step import Step, StepOut, unrolls
from jfit.step.state import TrainState
from jfit.train.host_metrics import seen_of

MAX_STEPS_PER_CALL = 32
RESIDENT_SHARE = 0.3  # of an accelerator's memory; the rest is for parameters and activations
RESIDENT_BYTES_CPU = 2 << 30
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


def fits_on_device(data: Any, devices: list[Any], held: int = 0) -> bool:
    """True where the arrays are small enough to stay on every device beside `held` bytes that are there already."""
    if not isinstance(data, ArrayData):
        return False
    stats = devices[0].memory_stats() if devices[0].platform != "cpu" else None
    limit = RESIDENT_SHARE * stats["bytes_limit"] if stats else RESIDENT_BYTES_CPU / len(devices)
    return data.nbytes + held <= limit


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


class _Layout(NamedTuple):
    """How batches lie in resident data.  Programs know this and not the feed: JAX keeps programs, and with them the data."""

    spec: FeedSpec
    slots: int  # rows of a padded batch
    tail: int  # rows of the last batch
    num_batches: int
    paddable: bool

    def batch(self, pack: Mapping[str, Any], at: Any, tail: bool, axis_name: str | None) -> Batch:
        """Batch `at` of the epoch, gathered on the device."""
        slots = pack["order"][at]  # (slots per device,)
        if tail and not self.paddable:
            slots = slots[: self.tail // len(self.spec.devices)]
        take = lambda x: x.at[slots].get(mode="promise_in_bounds")  # noqa: E731
        axes = self.spec.model.batch_axes  # rows come first in the data, the model may want the batch elsewhere
        inputs = {k: jnp.moveaxis(take(v), 0, axes.get(k, 0)) for k, v in pack["arrays"].items()}
        padded = self.slots != self.spec.batch_size or (tail and self.paddable)
        weight = None
        if padded:
            device = 0 if axis_name is None else lax.axis_index(axis_name)
            number = device * len(slots) + jnp.arange(len(slots))
            weight = (number < pack["numbers"][2 if tail else 1]).astype(jnp.float32)
        if pack["weight"] is not None:
            own = take(pack["weight"])
            weight = own if weight is None else weight * own
        return Batch(inputs, weight, weight)


class ResidentFeed:
    """Calls over arrays that live on the devices."""

    def __init__(self, data: ArrayData, spec: FeedSpec, *, paddable: bool = True) -> None:
        self.data, self.spec = data, spec
        count, size, n = len(spec.devices), spec.batch_size, data.num_rows
        unit = count * spec.micro_batches
        self.slots = -(-size // unit) * unit  # rows of a padded batch
        self.num_batches = data.num_batches(size)
        self.tail = n - (self.num_batches - 1) * size  # rows of the last batch
        self.full = self.num_batches - (self.tail != size)
        self.paddable = paddable
        if not paddable and (self.slots != size or self.tail % unit):
            raise ValueError(unpaddable_sentence(size if self.slots != size else self.tail, unit))
        self._layout = _Layout(spec, self.slots, self.tail, self.num_batches, paddable)
        self._arrays = place(dict(data.arrays), spec.devices)
        self._weight = None if data.weight is None else place(data.weight, spec.devices)
        self._programs: dict[Any, Any] = {}
        self._counts: dict[int, Array] = {}

    def calls(self, epoch: int, start: int, step: int, limit: Callable[[int], int]) -> Iterator[Call]:
        """The calls of an epoch from batch `start`; `step`: updates done so far; `limit(step)`: most steps from there."""
        pack = self._pack(epoch, start, step)
        size, at = self.spec.batch_size, start
        while at < self.num_batches:
            if at >= self.full:
                run = self._tail_program(pack)
                yield Call(run, 1, self.tail)
                at += 1
                continue
            steps = min(self.spec.steps_per_call, self.full - at, limit(step + at - start))
            yield Call(self._full_program(pack, steps), steps, steps * size)
            at += steps

    def _pack(self, epoch: int, start: int, step: int) -> dict[str, Any]:
        """What a program reads: the arrays, the epoch's order, the step number of its first batch, how many rows are real.

        All of them are data: from a number it knew XLA would make constants of weights, and round otherwise than for a stream.
        """
        size, count, devices = self.spec.batch_size, len(self.spec.devices), self.spec.devices
        order = self.data.order(epoch)
        full = order[: self.full * size].reshape(self.full, size)
        parts = [full[:, np.arange(self.slots) % size]] if self.full else []
        if self.full < self.num_batches:
            last = order[self.full * size :]
            if self.paddable:
                parts.append(last[np.arange(self.slots) % len(last)][None])
            else:  # each device's rows stand first in its slice; the program reads only those
                each = last.reshape(count, -1)
                parts.append(each[:, np.arange(self.slots // count) % each.shape[1]].reshape(1, -1))
        table = np.concatenate(parts)  # (batches, slots): row numbers, real ones repeated where a slot is padding
        if count > 1:
            table = table.reshape(len(table), count, -1).swapaxes(0, 1)
        numbers = place(np.asarray([step - start, size, self.tail], np.int32), devices)
        return {"arrays": self._arrays, "weight": self._weight, "order": place_split(table, devices), "numbers": numbers}

    def _compiled(self, name: str, fn: Callable[..., Any], *, counted: bool) -> Any:
        if name not in self._programs:
            axes = {"arrays": None, "weight": None, "order": 0, "numbers": None}
            in_axes = (STATE_AXES, axes, None) if counted else (STATE_AXES, axes)
            self._programs[name] = compile_spmd(fn, self.spec.devices, in_axes, self.spec.out_axes, donate=(0,), name=name)
        return self._programs[name]

    def _full_program(self, pack: Mapping[str, Any], steps: int) -> Callable[[TrainState], Any]:
        layout = self._layout

        def one(state: TrainState, pack: Mapping[str, Any], axis_name: str | None) -> tuple[TrainState, Array]:
            return _step(layout.spec, state, layout.batch(pack, state.step - pack["numbers"][0], False, axis_name), axis_name)

        if self.spec.steps_per_call == 1:
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
        layout = self._layout

        def tail(state: TrainState, pack: Mapping[str, Any], axis_name: str | None):
            return _step(layout.spec, state, layout.batch(pack, layout.num_batches - 1, True, axis_name), axis_name)

        program = self._compiled("train_tail", tail, counted=False)
        return lambda state: program(state, pack)


class StreamFeed:
    """Calls over batches that come from the host, prepared on a background thread."""

    def __init__(self, data: ArrayData | StreamData, spec: FeedSpec, *, paddable: bool = True) -> None:
        self.data, self.spec, self.paddable = data, spec, paddable
        self.num_batches = data.num_batches(spec.batch_size)
        self._size = spec.batch_size if isinstance(data, ArrayData) else 0  # rows that a batch is padded to
        self._usual: Any = None  # shapes of the batches that share a call
        self._programs: dict[Any, Any] = {}

    def calls(self, epoch: int, start: int, step: int, limit: Callable[[int], int]) -> Iterator[Call]:
        """The calls of an epoch from batch `start`; `step`: updates done so far; `limit(step)`: most steps from there."""
        source = self.data.batches(epoch, self.spec.batch_size, start)
        with prefetch(source, size=2 * self.spec.steps_per_call, transform=self._prepare) as batches:
            stream = iter(batches)
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

    def _prepare(self, batch: Batch) -> tuple[Batch, int]:
        """On the background thread: pad to the usual size, cut into one slice per device."""
        axes, unit = self.spec.model.batch_axes, len(self.spec.devices) * self.spec.micro_batches
        if isinstance(self.data, ArrayData):
            # rows come first in the data; the model may want the batch elsewhere
            moved = {k: np.moveaxis(v, 0, axes.get(k, 0)) for k, v in batch.inputs.items()}
            batch = batch._replace(inputs=moved)
        else:  # a source may fill the same buffer again while this batch still waits for its turn
            own = {k: np.array(v) if isinstance(v, np.ndarray) else v for k, v in batch.inputs.items()}
            weights = (np.array(w) if isinstance(w, np.ndarray) else w for w in batch[1:])
            batch = Batch(own, *weights)
        count = rows(batch, axes)
        self._size = max(self._size, count)
        if not self.paddable:
            if count % unit:
                raise ValueError(unpaddable_sentence(count, unit))
            return split_batch(batch, len(self.spec.devices), axes), count
        if count < self._size:
            batch = pad_rows(batch, self._size, axes)
        return split_batch(batch, len(self.spec.devices), axes, self.spec.micro_batches), count

    def _calls(self, group: list[tuple[Batch, int]]) -> Iterator[Call]:
        """Batches of equal shapes as one call, or one by one where a call of so many would be a program of its own."""
        most, usual = self.spec.steps_per_call, self._is_usual(group[0][0])
        if most == 1 or not usual:
            program = self._program("train" if most == 1 else "train_tail", functools.partial(_step, self.spec))
            for batch, count in group:
                yield Call(functools.partial(_run_batch, program, batch), 1, count)
            return
        batches = [batch for batch, _ in group]
        batches += batches[-1:] * (most - len(batches))  # not computed: the program is told how many count
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


def unpaddable_sentence(count: int, unit: int) -> str:
    """Why a batch of so many rows cannot be cut into `unit` parts, and what to do."""
    return (
        f"a batch of {count} rows does not divide into {unit} equal parts, and this network mixes the rows of a batch before a "
        "loss head or a batch statistic, so rows cannot be padded; choose a batch size (and data) that divides, or one device"
    )


def data_of(
    model: Model, data: Any, batch_size: int, *, shuffle: bool = False, seed: int = 0, labels: bool = True
) -> ArrayData | StreamData:
    """Data by the model's input names; begin states may be left out, and with labels=False the labels too."""
    given = set(data) if isinstance(data, Mapping) else set()
    return as_data(
        data,
        batch_size=batch_size,
        input_names=[n for n in model.inputs if n not in model.optional or n in given],
        label_names=model.labels,
        shuffle=shuffle,
        seed=seed,
        require_labels=labels,
        axes=model.batch_axes,
    )


def first_batch(model: Model, data: ArrayData | StreamData, batch_size: int) -> dict[str, Any]:
    """The first rows as the model sees them: arrays have their rows first, the feed moves them to the model's batch axis."""
    if isinstance(data, ArrayData):
        return {k: np.moveaxis(v[:batch_size], 0, model.batch_axes.get(k, 0)) for k, v in data.arrays.items()}
    return dict(data.peek(0).inputs)


def epoch_start(feed: Any, epoch: int) -> Any | None:
    """Where the data of a feed stood when an epoch began, as JSON; None where the batch's number says it all."""
    return feed.data.epoch_start(epoch) if isinstance(getattr(feed, "data", None), StreamData) else None


def start_epoch(feed: Any, epoch: int, position: Any | None) -> None:
    """Let the data of a feed go to what `epoch_start` gave."""
    if position is not None and isinstance(getattr(feed, "data", None), StreamData):
        feed.data.start_epoch(epoch, position)


def make_feed(data: ArrayData | StreamData, spec: FeedSpec, *, paddable: bool = True, on_device: bool | str = "auto") -> Any:
    """The feed for some data: resident where it fits, else streaming.

    Nets whose loops must be unrolled run one step a dispatch whatever was asked for: a loop would be slow, and steps written
    out one after the other are not rounded as one by one.
    """
    if unrolls(spec.model):
        spec = spec._replace(steps_per_call=1)
    resident = fits_on_device(data, spec.devices) if on_device == "auto" else bool(on_device)
    if resident and isinstance(data, ArrayData):
        return ResidentFeed(data, spec, paddable=paddable)
    return StreamFeed(data, spec, paddable=paddable)
