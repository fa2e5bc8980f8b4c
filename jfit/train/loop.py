"""The training loop: epochs, events, and the calls that a batch source is cut into.  No wait for a step just dispatched.

The loop owns the state while it runs: it is always the result of a finished dispatch, so that whatever happens (Ctrl-C,
a callback or an iterator that raises) the last good state is there.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jfit import counters
from jfit.data import ArrayData, Batch, StreamData
from jfit.lowering.model import Model, count_parameters
from jfit.metrics.core import on_devices, on_host
from jfit.parallel.devices import STATE_AXES, place
from jfit.parallel.spmd import WAIT_EVERY, Window, compile_spmd
from jfit.step import Step, StepOut, unrolls
from jfit.step.state import TrainState
from jfit.step.totals import joined, values, zero_totals
from jfit.train.batches import EPOCH_DATA_AXES, DeviceBatches, HostBatches, fits_on_device
from jfit.train.callbacks.base import Callback, Event
from jfit.train.history import History
from jfit.train.host_metrics import HostMetrics, metric_inputs
from jfit.train.interrupts import StopFlag

LOG_SECONDS = 0.5  # shortest time between two log events


class NonFiniteLoss(UserWarning):
    """The loss became nan or infinite; the message names the step."""


class Loop:
    """Epochs over a dispatcher.  `run.py` wires it; its parts are usable one by one."""

    def __init__(
        self,
        state: TrainState,
        dispatcher: Any,
        *,
        devices: Sequence[Any],
        metrics: Sequence[Any] = (),
        callbacks: Sequence[Callback] = (),
        evaluate: Callable[[TrainState, int], Mapping[str, float]] | None = None,
        history: History | None = None,
        run: Any = None,
    ) -> None:
        self.state, self.dispatcher, self.devices, self.metrics = state, dispatcher, list(devices), on_devices(metrics)
        host = on_host(metrics)
        self.host = HostMetrics(host, len(self.devices)) if host else None
        self.callbacks, self.evaluate = list(callbacks), evaluate
        self.callback_states: list[Any] = [c.init() for c in callbacks]
        self.history = History() if history is None else history
        # Weak: the run refers to this loop, and a reference cycle would keep the data on the devices until garbage collection.
        self._run: Callable[[], Any] = (lambda: None) if run is None else weakref.ref(run)
        self.epoch = self.batch = self.step = 0
        self.stop_reason: str | None = None
        self.interrupted = False
        self.report: Any = None  # report of the last call, on the devices
        self._warned = False
        self._pending: _Point | None = None

    @property
    def position(self) -> dict[str, int]:
        """Where training stands: epoch, batch within it, step."""
        return {"epoch": self.epoch, "batch": self.batch, "step": self.step}

    # -------------------------------------------------------------------------------- epochs
    def train(self, num_epoch: int) -> None:
        """Run epochs `self.epoch` .. `num_epoch` - 1, from batch `self.batch` of the first."""
        _copy(self.state.metrics)  # compiled now: a compile in a later epoch would be one too many
        with StopFlag().watching() as flag, counters.explained():
            try:
                self._fire("fit_start", {})
                while not self._stopped(flag) and self.epoch < num_epoch:
                    self._epoch(flag)
            except BaseException:
                self._close()
                raise
            self._fire("fit_end", {})

    def _close(self) -> None:
        """Tell every callback that the run is over, so that bars and files are closed, behind the error that is on its way."""
        for i, callback in enumerate(self.callbacks):
            with contextlib.suppress(Exception):
                self._tell(i, callback, "fit_end", {})

    def _stopped(self, flag: StopFlag) -> bool:
        if flag.set:
            self.interrupted = True
            self.stop_reason = self.stop_reason or "interrupted by Ctrl-C"
        return self.stop_reason is not None

    def _epoch(self, flag: StopFlag) -> None:
        """One epoch, or what is left of it; a stop leaves it where it is."""
        if self.batch == 0:
            self.state = self.state._replace(metrics=place(zero_totals(self.metrics), self.devices))
            if self.host is not None:
                self.host.reset()
        self._fire("epoch_start", {})
        window, started, samples = Window(), time.perf_counter(), 0
        logged, self._pending = started, None
        with contextlib.closing(self.dispatcher.dispatches(self.epoch, self.batch, self.step, self._limit)) as calls:
            for call in calls:
                self.state, report = call.run(self.state)
                self.report = report = report if self.host is None else self.host.push(report)
                self.step, self.batch = self.step + call.steps, self.batch + call.steps
                samples += call.rows
                fence = window.push(report)
                now = time.perf_counter()
                if fence is not None and now - logged > LOG_SECONDS:
                    logged = now
                    self._log(samples / (now - started), report, fence)
                elif fence is not None and self.host is not None:
                    self._read(fence)  # sync: host waits for the call 8 back
                elif fence is not None:
                    counters.wait(fence)  # sync: the same; reading would cost more
                for i, callback in enumerate(self.callbacks):
                    if callback.every and self.step % callback.every == 0:
                        self._tell(i, callback, "step", {})
                if self._stopped(flag):
                    if self.host is not None:
                        self._read(report, behind=0)  # sync: training has stopped
                    return
        self._end_epoch(samples, started)

    def _end_epoch(self, samples: int, started: float) -> None:
        totals, report = self._read((self.state.metrics, self.report), behind=0)  # sync: once an epoch
        seconds = time.perf_counter() - started
        self._check_finite(int(totals.first_bad_step))
        logs = self._values(totals)
        logs |= {"samples_per_second": samples / max(seconds, 1e-9), "time": seconds} | reported_lr(report)
        if self.evaluate is not None:
            logs |= {f"val_{k}": v for k, v in self.evaluate(self.state, self.epoch).items()}
        self.history.add_epoch(epoch=self.epoch, step=self.step, **logs)
        where = self.position
        self.epoch, self.batch = self.epoch + 1, 0
        self._fire("epoch_end", logs, **where)

    def _read(self, value: Any, *, behind: int = WAIT_EVERY) -> Any:
        """A value on the host; its metrics get the batches that are done by then, all but the last `behind`."""
        if self.host is None:
            return counters.read(value)  # sync: the caller says what for
        read, arrived = counters.read((value, self.host.pop(behind)))  # sync: one wait for both
        self.host.update(arrived)
        return read

    def _values(self, totals: Any, mark: int | None = None) -> dict[str, Any]:
        """Loss and metrics from totals that were read, those of the host included (up to `mark`)."""
        found = values(self.metrics, totals)
        return found if self.host is None else joined(found, self.host.values(mark))

    # -------------------------------------------------------------------------------- events
    def _limit(self, step: int) -> int:
        """Maximum number of steps before the next callback boundary."""
        gaps = [c.every - step % c.every for c in self.callbacks if c.every and "step" in c.events]
        return min(gaps, default=1 << 30)

    def _fire(self, kind: str, logs: dict[str, float], **where: int) -> None:
        for i, callback in enumerate(self.callbacks):
            self._tell(i, callback, kind, logs, **where)

    def _tell(self, i: int, callback: Callback, kind: str, logs: dict[str, float], **where: int) -> None:
        """Tell a callback what happened, here or where it says, if it wants to know."""
        if kind in callback.events:
            event = Event(kind, num_batches=self.dispatcher.num_batches, logs=logs, run=self._run(), **(self.position | where))
            self.callback_states[i] = callback.on(event, self.callback_states[i])

    def _log(self, speed: float, report: Any, fence: Any) -> None:
        """Fire a log event with the values that were copied at the last one; copy those of now.

        The copy is dispatched behind the steps already in flight and read one log point later, together with the fence that
        has to be waited for anyway.
        """
        before, copied = self._pending, (_copy(self.state.metrics), report)
        mark = None if self.host is None else self.host.snapshot()
        self._pending = _Point(copied, {"samples_per_second": speed}, self.position, mark)
        if before is None:
            self._read(fence)  # sync: host waits for the call 8 back
            return
        (totals, last), _ = self._read((before.copied, fence))  # sync: the copy was computed long ago
        logs = before.logs | self._values(totals, before.mark) | reported_lr(last)
        self._check_finite(int(totals.first_bad_step))
        self.history.add_point(**before.where, **logs)
        self._fire("log", logs, **before.where)

    def _check_finite(self, first_bad_step: int) -> None:
        if first_bad_step >= 0 and not self._warned:
            self._warned = True
            warnings.warn(
                f"the loss is not finite since step {first_bad_step} (epoch {self.epoch}); training goes on with whatever it "
                "computes. Lower the learning rate, clip gradients (clip_norm=1.0), or check the data of that step for nan",
                NonFiniteLoss,
                stacklevel=2,
            )


class _Point(NamedTuple):
    """A log point whose values are still on the devices."""

    copied: Any
    logs: dict[str, float]
    where: dict[str, int]
    mark: int | None  # up to where host metrics count


def reported_lr(report: Any) -> dict[str, float]:
    """The learning rate that the update of a report used, where the optimizer reports it."""
    return {} if report is None or math.isnan(report[1]) else {"lr": float(report[1])}


_copy = jax.jit(lambda tree: jax.tree.map(lambda x: x + 0, tree))  # own buffers: the next step donates the originals


# ------------------------------------------------------------------------------------------------ calls
MAX_STEPS_PER_CALL = 32
AUTO_FLOPS = {"cpu": 1e9}  # work of one call that hides its dispatch; accelerators: AUTO_FLOPS_DEFAULT
AUTO_FLOPS_DEFAULT = 2e11


class Dispatch(NamedTuple):
    """One dispatch: `run(state) -> (state, report)` does `steps` updates with `rows` rows."""

    run: Callable[[TrainState], tuple[TrainState, Array]]
    steps: int
    rows: int


class DispatchSpec(NamedTuple):
    """What a dispatcher needs to know beside its data."""

    model: Model
    step: Step
    devices: list[Any]
    batch_size: int
    micro_batches: int = 1
    steps_per_call: int = 1
    return_outputs: bool = False  # calls report (report, what metrics see); needs a step with outputs=True and one step a call

    @property
    def out_axes(self) -> Any:
        """Where the devices' results lie: the state and the report are shared, what metrics see is each device's own."""
        return STATE_AXES, (None, 0) if self.return_outputs else None


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


def _step(spec: DispatchSpec, state: TrainState, batch: Batch, axis_name: str | None) -> tuple[TrainState, Any]:
    # Behind the barrier a step is compiled the same wherever its batch comes from: gathered, cut from a stack or an argument.
    state, batch = lax.optimization_barrier((state, batch))
    state, out = spec.step(state, batch, axis_name=axis_name)
    if spec.return_outputs:
        assert out.outputs is not None
        return state, (report(out), metric_inputs(spec.model, out.outputs, batch, axis_name))
    return state, report(out)


def repeat_steps(one: Callable[..., tuple[TrainState, Array]]) -> Callable[..., tuple[TrainState, Array]]:
    """`count` steps in one program; `one(state, j)` does the j-th.  `count` is traced, so any number is the same program."""

    def run(state: TrainState, count: Any) -> tuple[TrainState, Array]:
        return lax.fori_loop(0, count, lambda j, carry: one(carry[0], j), (state, jnp.zeros(2, jnp.float32)))

    return run


class ResidentDispatcher:
    """Calls over arrays that live on the devices."""

    def __init__(self, data: ArrayData, spec: DispatchSpec, *, paddable: bool = True) -> None:
        self.data, self.spec = data, spec
        self.batches = DeviceBatches(
            spec.model, data, spec.devices, spec.batch_size, micro_batches=spec.micro_batches, paddable=paddable
        )
        self.num_batches = self.batches.layout.num_batches
        self._programs: dict[Any, Any] = {}
        self._counts: dict[int, Array] = {}

    def dispatches(self, epoch: int, start: int, step: int, limit: Callable[[int], int]) -> Iterator[Dispatch]:
        """The calls of an epoch.

        Args:
            epoch: number of the epoch.
            start: number of the first batch.
            step: updates done so far.
            limit: `limit(step)`: maximum number of steps before the next callback boundary.
        """
        epoch_data, layout = self.batches.epoch_data(self.data.order(epoch), first=step - start), self.batches.layout
        size, at = self.spec.batch_size, start
        while at < layout.num_full:
            steps = min(self.spec.steps_per_call, layout.num_full - at, limit(step + at - start))
            yield Dispatch(self._full_program(epoch_data, steps), steps, steps * size)
            at += steps
        if at < layout.num_batches:
            yield Dispatch(self._tail_program(epoch_data), 1, layout.last_size)

    def _compiled(self, name: str, fn: Callable[..., Any], *, counted: bool) -> Any:
        if name not in self._programs:
            in_axes = (STATE_AXES, EPOCH_DATA_AXES, None) if counted else (STATE_AXES, EPOCH_DATA_AXES)
            self._programs[name] = compile_spmd(fn, self.spec.devices, in_axes, self.spec.out_axes, donate=(0,), name=name)
        return self._programs[name]

    def _full_program(self, epoch_data: Mapping[str, Any], steps: int) -> Callable[[TrainState], Any]:
        spec, layout = self.spec, self.batches.layout

        def one(state: TrainState, epoch_data: Mapping[str, Any], axis_name: str | None) -> tuple[TrainState, Array]:
            return _step(spec, state, layout.batch(epoch_data, state.step - epoch_data["numbers"][0], axis_name), axis_name)

        if spec.steps_per_call == 1:
            program = self._compiled("train", one, counted=False)
            return lambda state: program(state, epoch_data)

        def many(state: TrainState, epoch_data: Mapping[str, Any], count: Any, axis_name: str | None):
            return repeat_steps(lambda s, _: one(s, epoch_data, axis_name))(state, count)

        program, count = self._compiled("train", many, counted=True), self._count(steps)
        return lambda state: program(state, epoch_data, count)

    def _count(self, steps: int) -> Array:
        """A number of steps on the devices, where a call need not send it again."""
        if steps not in self._counts:
            self._counts[steps] = place(np.int32(steps), self.spec.devices)
        return self._counts[steps]

    def _tail_program(self, epoch_data: Mapping[str, Any]) -> Callable[[TrainState], Any]:
        spec, layout = self.spec, self.batches.layout

        def tail(state: TrainState, epoch_data: Mapping[str, Any], axis_name: str | None):
            return _step(spec, state, layout.batch(epoch_data, layout.num_batches - 1, axis_name, tail=True), axis_name)

        program = self._compiled("train_tail", tail, counted=False)
        return lambda state: program(state, epoch_data)


class StreamDispatcher:
    """Calls over batches that come from the host, prepared on a background thread."""

    def __init__(self, data: ArrayData | StreamData, spec: DispatchSpec, *, paddable: bool = True) -> None:
        self.data, self.spec = data, spec
        self.batches = HostBatches(
            spec.model, data, len(spec.devices), spec.batch_size, micro_batches=spec.micro_batches, paddable=paddable
        )
        self.num_batches = data.num_batches(spec.batch_size)
        self._usual: Any = None  # shapes of the batches that share a call
        self._programs: dict[Any, Any] = {}

    def dispatches(self, epoch: int, start: int, step: int, limit: Callable[[int], int]) -> Iterator[Dispatch]:
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

    def _calls(self, group: list[tuple[Batch, int]]) -> Iterator[Dispatch]:
        """Batches of equal shapes as one call, or one by one where a call of so many would be a program of its own."""
        most, usual = self.spec.steps_per_call, self._is_usual(group[0][0])
        if most == 1 or not usual:
            program = self._program("train" if most == 1 else "train_tail", functools.partial(_step, self.spec))
            for batch, count in group:
                yield Dispatch(functools.partial(_run_batch, program, batch), 1, count)
            return
        batches = [batch for batch, _ in group]
        batches += batches[-1:] * (most - len(batches))  # not computed: the program gets the number of real ones
        axis = 1 if len(self.spec.devices) > 1 else 0
        stack = jax.tree.map(lambda *xs: np.stack(xs, axis=axis), *batches)  # ([devices,] steps, rows, ...)
        program = self._many()
        steps = np.int32(len(group))
        yield Dispatch(lambda state: program(state, stack, steps), len(group), sum(count for _, count in group))

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


def data_position(dispatcher: Any, epoch: int) -> Any | None:
    """The position of a dispatcher's data when an epoch began, as JSON; None where the number of the batch is enough."""
    return dispatcher.data.epoch_start(epoch) if isinstance(dispatcher.data, StreamData) else None


def set_data_position(dispatcher: Any, epoch: int, position: Any | None) -> None:
    """Let the data of a dispatcher go to what `epoch_start` gave."""
    if position is not None and isinstance(dispatcher.data, StreamData):
        dispatcher.data.start_epoch(epoch, position)


def make_dispatcher(
    data: ArrayData | StreamData, spec: DispatchSpec, *, paddable: bool = True, on_device: bool | str = "auto"
) -> Any:
    """The dispatcher for some data: resident where it fits, else streaming.

    Nets whose loops must be unrolled run one step a dispatch whatever was asked for: a loop would be slow, and an unrolled
    loop does not round as separate steps do.
    """
    if unrolls(spec.model):
        spec = spec._replace(steps_per_call=1)
    resident = fits_on_device(data, spec.devices) if on_device == "auto" else bool(on_device)
    if resident and isinstance(data, ArrayData):
        return ResidentDispatcher(data, spec, paddable=paddable)
    return StreamDispatcher(data, spec, paddable=paddable)
