"""The training loop: epochs, dispatches and callback events.

A dispatch is one call of a compiled program; it does one or more steps (parameter updates).  `ResidentDispatcher` (arrays on
the devices) and `StreamDispatcher` (batches from the host) divide the batches of an epoch into dispatches.  `Loop` runs the
dispatches and calls the callbacks between them.

Dispatch is asynchronous, and the host never waits for the dispatch it has just made: it waits for an older one at every 8th
dispatch (`Window`), and for all of them at the end of an epoch.

Names in this file:

    report      result of a dispatch: array (loss, learning rate) of its last step, see the function `report`
    fence       the report of an earlier dispatch; when it is ready, that dispatch and all before it are done
    log point   a time within an epoch, at most every `LOG_SECONDS`, at which the running sums of loss and metrics are copied

Each dispatch donates the previous state, so the loop holds the only reference to the state and replaces it as soon as a
dispatch returns.  After Ctrl-C, or an exception in a callback or a data iterator, `Loop.state` is therefore the state after
the last completed step.
"""

from __future__ import annotations

import contextlib
import functools
import math
import signal
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array

from jfit import activity, counters
from jfit.callbacks.base import Callback, Event, of_this_process
from jfit.checkpoints.agreement import equal_times
from jfit.data import ArrayData, StreamData
from jfit.distributed import num_processes
from jfit.evaluate.host_metrics import HostMetrics
from jfit.feed.batches import EPOCH_DATA_AXES, DeviceBatches, fits_on_device
from jfit.feed.data_checks import DataChecks
from jfit.feed.train_data import unshared
from jfit.history.table import History
from jfit.interrupts import StopFlag, Stopped, in_graceful_stop, stop_flag
from jfit.loop.ahead import compiling_ahead
from jfit.loop.dispatch import Dispatch, DispatchSpec, one_step, repeat_steps
from jfit.loop.nonfinite import NanPolicy, NonFiniteLoss  # noqa: F401 (the warning was defined here)
from jfit.loop.profiling import StepProfiler
from jfit.loop.saving import ending_saves, save_after_error, save_at_sigterm, savers
from jfit.loop.step_log import StepLog, StepRow
from jfit.loop.stream_dispatcher import StreamDispatcher
from jfit.loop.threads import TrainingThread
from jfit.metrics.core import on_devices, on_host
from jfit.parallel.devices import STATE_AXES, place
from jfit.parallel.ordered import slices_of
from jfit.parallel.spmd import WAIT_EVERY, Window, compile_spmd
from jfit.programs import Program
from jfit.step import unrolls
from jfit.step.state import TrainState
from jfit.step.totals import cleared, joined, values

LOG_SECONDS = 0.5  # minimum time between two "log" events


class Loop:
    """Train a state for a number of epochs and call the callbacks.

    Order of the events of an epoch: "epoch_start"; after each dispatch "step_log" (for steps whose results have arrived),
    "log" (at most one every `LOG_SECONDS`) and "step" (every `callback.every` steps); after the last dispatch the evaluation,
    then "epoch_end".  "fit_start" and "fit_end" enclose the epochs.

    Args:
        state: initial state, on the devices; donated by the first dispatch.
        dispatcher: `ResidentDispatcher` or `StreamDispatcher`, which divides the batches of an epoch into dispatches.
        devices: list of `jax.Device` on which the state is.
        metrics: training metrics; those with `host` True are computed by NumPy on the host, the others inside the step.
        callbacks: called in this order for every event in their `events`.
        evaluate: `evaluate(state, epoch) -> {name: value}`, called after the epochs to evaluate (see `eval_every`); the logs
            have its values as "val_" + name.  None: no evaluation.
        history: `History` to which a row is added per epoch, and with each "log" event.  None: a new one.
        run: `jfit.Run` that callbacks get as `event.run`, or None; only a weak reference is kept.
        log_every: number of steps between two rows of `history.steps`; None: no rows.
        eval_every: number of epochs between two evaluations; the last epoch is always evaluated.
        profiler: `StepProfiler` that traces a range of steps; None: no trace.
        nan: what to do if a loss is not finite, one of `jfit.loop.nonfinite.POLICIES`.

    Attributes:
        epoch: number of the current epoch.
        batch: number of batches done in the current epoch.
        step: number of updates done since training began.
        stop_reason: why training stops; setting it ends training after the current dispatch.  None: train on.
        interrupted: True if Ctrl-C or SIGTERM ended training.
        ended: True if training came to its end, by `num_epoch` or a callback that stopped it.
        exit_code: 143 if SIGTERM ended training, with which the caller ends the process; else None.
        report: (loss, learning rate) of the last dispatch, array of shape (2,) on the devices, or None.
        thread: `TrainingThread`, in whose context the dispatches run.
    """

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
        log_every: int | None = None,
        eval_every: int = 1,
        profiler: StepProfiler | None = None,
        nan: str = "warn",
    ) -> None:
        self.nan, self.thread = NanPolicy(nan), TrainingThread()
        self.state, self.dispatcher, self.devices, self.metrics = state, dispatcher, devices, on_devices(metrics)
        host = on_host(metrics)
        self.host_metrics = HostMetrics(host, slices_of(dispatcher.spec.step) or len(self.devices)) if host else None
        names = dispatcher.spec.step_names
        self.log_every, intervals = log_every, [c.every for c in callbacks if "step_log" in c.events and c.every]
        intervals += [log_every] if log_every else []
        self.step_log = StepLog(names, intervals, self.devices[0]) if names else None
        self.callbacks, self.evaluate, self.eval_every = list(map(of_this_process, callbacks)), evaluate, eval_every
        self.profiler, self._num_epoch = profiler, 0
        self.callback_states: list[Any] = [c.init() for c in callbacks]
        self.history = History() if history is None else history
        # A weak reference: the run refers to this loop, and a cycle would keep the data on devices until garbage collection.
        self._run: Callable[[], Any] = (lambda: None) if run is None else weakref.ref(run)
        self.epoch = self.batch = self.step = 0
        self.stop_reason: str | None = None
        self.interrupted = self.ended = False
        self.exit_code: int | None = None
        self.report: Any = None
        # (position, logs, seconds of compilations before) of an epoch whose evaluation was stopped, or has not ended
        self._trained: tuple[dict[str, int], dict[str, Any], float] | None = None
        self._pending: _LogPoint | None = None  # the last log point, if its values are not read from the devices yet
        self._unsent: deque[StepRow] = deque()  # values of steps that are read, for "step_log" events
        self._sending = False  # whether "step_log" events are being sent
        self._compile_ahead: Any = None  # function of `compiling_ahead`

    @property
    def run(self) -> Any:
        """The `jfit.Run` of this loop, or None."""
        return self._run()

    @property
    def position(self) -> dict[str, int]:
        """{"epoch": current epoch, "batch": batches done in it, "step": updates done since training began}."""
        return {"epoch": self.epoch, "batch": self.batch, "step": self.step}

    # -------------------------------------------------------------------------------- epochs
    def train(self, num_epoch: int) -> None:
        """Train epochs `self.epoch` to `num_epoch` - 1, beginning at batch `self.batch` of the first."""
        self._num_epoch = num_epoch
        self.nan.begin()
        _copy(self.state.metrics)  # compile `_copy` before training, so that no later epoch compiles
        first, flag, terminate = self.step, stop_flag(), bool(savers(self)) or in_graceful_stop()
        with (
            activity.Doing(activity.DEVICES, lambda: f"training, in epoch {self.epoch} after batch {self.batch}"),
            ending_saves(self),
            flag.watching(terminate=terminate),
            counters.explained(),
            compiling_ahead(self.evaluate) as self._compile_ahead,
        ):
            try:
                self._notify_all("fit_start", {})
                with contextlib.suppress(Stopped):
                    while not self._stopped(flag) and self.epoch < num_epoch:
                        self._epoch(flag)
                flag.critical = False
                save_at_sigterm(self, flag, first)
            except BaseException as error:
                activity.failed(error)
                save_after_error(self, error, first)
                self._notify_after_error()
                raise
            finally:
                if self.profiler is not None:
                    self.profiler.close(self.step)  # also after errors and Ctrl-C
            self.ended = not self.interrupted
            self._notify_all("fit_end", {})
            save_at_sigterm(self, flag, first)  # a signal during "fit_end"

    def _notify_after_error(self) -> None:
        """Call every callback with "fit_end" after an error, so that bars and files are closed; ignore exceptions."""
        with contextlib.suppress(Exception):
            self.read_steps()
        for i, callback in enumerate(self.callbacks):
            with contextlib.suppress(Exception):
                self._notify(i, callback, "fit_end", {})

    def _stopped(self, flag: StopFlag) -> bool:
        self.stop_reason = flag.agree(self.stop_reason)
        if flag.set:
            self.interrupted = True
            reason = "ended by SIGTERM" if flag.signal is signal.SIGTERM else "interrupted by Ctrl-C"
            self.stop_reason = self.stop_reason or reason
        return self.stop_reason is not None

    def _epoch(self, flag: StopFlag) -> None:
        """Train the rest of the current epoch; return early, without "epoch_end", if training is stopped."""
        if self._trained is not None and self._trained[0] == self.position:
            self._notify_all("epoch_start", {})
            self._evaluate_epoch(flag, *self._trained[1:])
            return
        if self.batch == 0:
            with self.thread:  # another thread may set the learning rate
                zeros = cleared(self.metrics, self.state.metrics)
                self.state = self.state._replace(metrics=place(zeros, self.devices))
            if self.host_metrics is not None:
                self.host_metrics.reset()
        if self.nan.keeps:
            self.nan.keep(self.run.snapshot(), self.position)  # sync: once per epoch, for the policies that go back
        self._notify_all("epoch_start", {})
        window, started, samples, compiled = Window(), time.perf_counter(), 0, counters.compile_seconds()
        logged, self._pending = started, None
        where, prepare = (self.epoch, self.batch, self.step), lambda programs: self._compile_ahead(self.state, programs)
        with contextlib.closing(self.dispatcher.dispatches(*where, self._max_steps, prepare)) as dispatches:
            stopped = False
            for dispatch in dispatches:
                if stopped := flag.in_job and self._stopped(flag):  # in a job, a wait for a batch ends with a stopping point
                    break
                if self.profiler is not None:
                    self.profiler.before(self.step, self.report)
                flag.critical = True  # a second Ctrl-C must not come between the dispatch and the assignment of its result
                with self.thread:
                    self.state, report = dispatch.run(self.state)
                if self.step_log is not None:
                    report = self.step_log.push(report, dispatch.steps, self.position)
                self.report = report = report if self.host_metrics is None else self.host_metrics.push(report)
                self.step, self.batch = self.step + dispatch.steps, self.batch + dispatch.steps
                flag.critical = False
                if flag.urgent:
                    raise KeyboardInterrupt
                samples += dispatch.rows
                if self.profiler is not None:
                    self.profiler.after(self.step, report)
                fence = window.push(report)
                now = time.perf_counter()
                if fence is not None and now - logged > LOG_SECONDS:
                    logged = now
                    self._log(samples / max(now - started - counters.compile_seconds() + compiled, 1e-9), report, fence)
                elif fence is not None and self._queues:
                    self._read(fence)  # sync: the host waits for the dispatch 8 before this one
                elif fence is not None:
                    counters.wait(fence)  # sync: as above, without the copy to the host that `_read` makes
                for i, callback in enumerate(self.callbacks):
                    if callback.every and self.step % callback.every == 0:
                        self._notify(i, callback, "step", {})
                if stopped := self._stopped(flag):
                    break
        if stopped or (flag.in_job and self._stopped(flag)):
            if self._queues:
                self._read(self.report, behind=0)  # sync: training has stopped; read the values of all batches so far
            return
        logs = self._read_epoch(samples, started, compiled)
        if self.nan.stopped:
            return
        self._trained = self.position, logs, compiled
        self._evaluate_epoch(flag, logs, compiled)

    def _read_epoch(self, samples: int, started: float, compiled: float) -> dict[str, Any]:
        """Wait for the last step of the epoch, and return the logs of the epoch without those of the evaluation."""
        arrays = self.state.metrics, self.report, self.dispatcher.checks.fault
        totals, report, fault = self._read(arrays, behind=0)  # sync: once per epoch
        seconds = max(time.perf_counter() - started - (counters.compile_seconds() - compiled), 1e-9)
        self.dispatcher.checks.check(fault, self.position)
        self.nan.report(self, int(totals.first_bad_step))
        self.dispatcher.checks.check_epoch(totals, self.epoch)
        return self._metric_values(totals) | {"samples_per_second": samples / seconds, "time": seconds} | reported_lr(report)

    def _evaluate_epoch(self, flag: StopFlag, logs: dict[str, Any], compiled: float) -> None:
        """Evaluate, add the epoch to the history, and send "epoch_end"; `logs` and `compiled` as in `_trained`."""
        logs = dict(logs)
        if self.evaluate is not None and ((self.epoch + 1) % self.eval_every == 0 or self.epoch + 1 == self._num_epoch):
            logs |= {f"val_{k}": v for k, v in self.evaluate(self.state, self.epoch).items()}
        if counters.compile_seconds() > compiled:
            logs["compile_time"] = counters.compile_seconds() - compiled
        logs = equal_times(logs)
        end, flag.critical = self.position, True
        self.history.add_epoch(epoch=self.epoch, step=self.step, **logs)
        # The position is set before the callbacks, so that a run resumed from their checkpoint begins the next epoch.
        self.epoch, self.batch = self.epoch + 1, 0
        flag.critical = False
        if flag.urgent:
            raise KeyboardInterrupt
        self._notify_all("epoch_end", logs, **end)

    def _read(self, value: Any, *, behind: int = WAIT_EVERY) -> Any:
        """Copy arrays to the host, with the values of steps and the host metrics of batches that the devices have finished.

        Args:
            value: pytree of arrays.
            behind: number of the last dispatches whose batches are left for later, because they may not be finished.
        """
        batches = [] if self.host_metrics is None else self.host_metrics.pop(behind)
        entries = [] if self.step_log is None else self.step_log.pop(behind)
        # sync: one wait for all; the callers say how often
        on_host, batches, arrays = counters.read((value, batches, [entry.array for entry in entries]))
        if self.host_metrics is not None:
            self.host_metrics.update(batches)
        self._record(entries, arrays)
        return on_host

    @property
    def _queues(self) -> bool:
        """Whether values of single batches wait for a copy to the host, beside the running sums."""
        return self.host_metrics is not None or self.step_log is not None

    def read_steps(self) -> None:
        """Read the values of all steps so far and the host metrics of their batches, for a checkpoint."""
        if self._queues:
            self._read((), behind=0)  # sync: once per checkpoint

    def _record(self, entries: Sequence[Any], arrays: Sequence[Any]) -> None:
        """Add the values of steps to the history, and send the "step_log" events."""
        if self.step_log is None or not entries:
            return
        rows = self.step_log.rows(entries, arrays)
        for row in rows:
            if self.log_every is not None and row.position["step"] % self.log_every == 0:
                self.history.add_step(**row.position, **row.logs)
        callbacks = [(i, c, c.every) for i, c in enumerate(self.callbacks) if "step_log" in c.events and c.every]
        if not callbacks:
            return
        self._unsent.extend(rows)
        if self._sending:  # a callback saves a checkpoint: its own event is sent first, then those of later steps
            return
        self._sending = True
        try:
            while self._unsent:
                row = self._unsent.popleft()
                for i, callback, every in callbacks:
                    if row.position["step"] % every == 0:
                        self._notify(i, callback, "step_log", row.logs, **row.position)
        finally:
            self._sending = False

    def _metric_values(self, totals: Any, snapshot: int | None = None) -> dict[str, Any]:
        """Return loss, metrics and host metrics by name.

        Args:
            totals: running sums, copied to the host.
            snapshot: result of `HostMetrics.snapshot` at the time of `totals`; None: host metrics over all batches so far.
        """
        result = values(self.metrics, totals)
        return result if self.host_metrics is None else joined(result, self.host_metrics.values(snapshot))

    # -------------------------------------------------------------------------------- events
    def _max_steps(self, step: int) -> int:
        """Number of steps from `step` (updates done so far) to the next "step" event, or start or stop of the profiler."""
        gaps = [c.every - step % c.every for c in self.callbacks if c.every and "step" in c.events]
        return min([*gaps, 1 << 30 if self.profiler is None else self.profiler.gap(step)])

    def _notify_all(self, kind: str, logs: dict[str, float], **position: int) -> None:
        for i, callback in enumerate(self.callbacks):
            self._notify(i, callback, kind, logs, **position)

    def _notify(self, i: int, callback: Callback, kind: str, logs: dict[str, float], **position: int) -> None:
        """Call callback number `i` if the event `kind` is in its `events`; `position` overrides epoch, batch or step."""
        if kind in callback.events:
            event = Event(kind, num_batches=self.dispatcher.num_batches, logs=logs, run=self._run(), **self.position | position)
            what = activity.SAVING if callback.name.startswith("checkpointing") else activity.CALLBACK
            doing = activity.Doing(what, f"in the callback {callback.name!r} ({kind})")
            with contextlib.suppress(Stopped), doing:  # the other callbacks get the event, and training stops after it
                self.callback_states[i] = callback.on(event, self.callback_states[i])

    def _log(self, speed: float, report: Any, fence: Any) -> None:
        """Send the "log" event of the previous log point, and copy the running sums of this one.

        The values of a log point are read one log point late: the copy of the running sums is queued on the devices after
        the steps in flight, so reading it now would wait for them.  At the next log point it is computed already.

        Args:
            speed: rows per second since the start of the epoch.
            report: (loss, learning rate) of the last dispatch, on the devices.
            fence: report of the dispatch 8 before it, for which the host waits.
        """
        previous, copied = self._pending, (_copy(self.state.metrics), report, self.dispatcher.checks.fault)
        snapshot = None if self.host_metrics is None else self.host_metrics.snapshot()
        self._pending = _LogPoint(copied, {"samples_per_second": speed}, self.position, snapshot)
        if previous is None:
            self._read(fence)  # sync: the host waits for the dispatch 8 before this one
            return
        (totals, last_report, fault), _ = self._read(
            (previous.copied, fence)
        )  # sync: hardly waits, since the copy to the host began 8 dispatches ago
        self.dispatcher.checks.check(fault, self.position)
        logs = previous.logs | self._metric_values(totals, previous.snapshot) | reported_lr(last_report)
        # In a job, log points come at other steps in each process.  A policy that goes back, or looks for the cause with
        # programs that need all processes, reacts at the end of the epoch.
        if num_processes() == 1 or self.nan.name == "warn":
            self.nan.report(self, int(totals.first_bad_step))
        self.history.add_point(**previous.position, **logs)
        self._notify_all("log", logs, **previous.position)


class _LogPoint(NamedTuple):
    """Values at a log point (a time at which running sums are copied) that are not read from the devices yet."""

    copied: Any  # (copy of the running sums, report of the last dispatch, fault or None), arrays on the devices
    logs: dict[str, float]  # values that were known on the host already: samples_per_second
    position: dict[str, int]
    snapshot: int | None  # key of the sums of the host metrics (result of `HostMetrics.snapshot`); None without host metrics


def reported_lr(report: Any) -> dict[str, float]:
    """Return {"lr": learning rate}, or {} if it is unknown.

    Args:
        report: array (loss, learning rate) of a dispatch, on the host; None before the first dispatch.  A learning rate of nan
            is unknown.
    """
    return {} if report is None or math.isnan(report[1]) else {"lr": float(report[1])}


_copy = jax.jit(lambda tree: jax.tree.map(lambda x: x + 0, tree))  # the next step donates the original


# ------------------------------------------------------------------------------------------------ dispatches
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
            return self._program("train", train_one, takes_count=False), (epoch_data,)

        def train_steps(state: TrainState, epoch_data: Mapping[str, Any], count: Any, axis_name: str | None):
            return repeat_steps(lambda s, _: train_one(s, epoch_data, axis_name), spec)(state, count)

        return self._program("train", train_steps, takes_count=True), (epoch_data, self._count(steps))

    def _count(self, steps: int) -> Array:
        """Return `steps` as an int32 array on the devices, from a cache, so that a dispatch copies nothing to the devices."""
        if steps not in self._counts:
            self._counts[steps] = place(np.int32(steps), self.spec.devices)
        return self._counts[steps]

    def _tail_program(self, epoch_data: Mapping[str, Any]) -> tuple[Program, tuple[Any, ...]]:
        spec, layout = self.spec, self.batches.layout

        def train_tail(state: TrainState, epoch_data: Mapping[str, Any], axis_name: str | None):
            return one_step(spec, state, layout.batch(epoch_data, layout.num_batches - 1, axis_name, tail=True), axis_name)

        return self._program("train_tail", train_tail, takes_count=False), (epoch_data,)


def _call(program: Program, arguments: tuple[Any, ...]) -> Callable[[TrainState], Any]:
    return lambda state: program(state, *arguments)


def make_dispatcher(
    data: ArrayData | StreamData, spec: DispatchSpec, *, paddable: bool = True, reason: str = "", on_device: bool | str = "auto"
) -> Any:
    """Create the dispatcher of a data set, which divides the batches of an epoch into calls of compiled programs.

    It is a `ResidentDispatcher` for arrays that fit into device memory, else a `StreamDispatcher`.  Networks for which
    `unrolls(model)` is True (convolutions on CPU) do one step per dispatch and ignore `spec.steps_per_call`: XLA's loops are
    slow for them, and an unrolled loop rounds differently from separate steps.  So do steps with `reduce="ordered"`, and their
    batches come from the host.

    Args:
        data: arrays, or an iterable of batches.
        spec: model, step, devices and batch sizes.
        paddable: whether incomplete batches may be padded with rows of weight 0, see `Model.plan`.
        reason: why they may not, see `Plan.coupled`.
        on_device: True or False overrides the choice for arrays; "auto" compares their size with the device memory.
    """
    if unrolls(spec.model):
        spec = spec._replace(steps_per_call=1)
    if slices_of(spec.step) is not None:  # slices go to the devices that compute them
        spec, on_device = spec._replace(steps_per_call=1), False
    resident = fits_on_device(data, spec.devices) if on_device == "auto" else bool(on_device)
    if resident and isinstance(data, ArrayData):
        return ResidentDispatcher(data, spec, paddable=paddable, reason=reason)
    return StreamDispatcher(unshared(data), spec, paddable=paddable, reason=reason)
