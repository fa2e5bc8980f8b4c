"""The training loop: epochs, dispatches, and what watches them.

A dispatch is one call of a compiled program; it does one or more steps (parameter updates).  A dispatcher divides the batches
of an epoch into dispatches, `Loop` runs them, and calls after each what watches the training:

    `Evaluations`   evaluations within epochs (before a dispatch)
    `Pace`          waits for an earlier dispatch at every 8th; log points (below)
    `Readings`      values of single steps, host metrics
    `Events`        callbacks
    `NanPolicy`     losses that are not finite
    `StopFlag`      Ctrl-C, SIGTERM

Dispatch is asynchronous, and the host never waits for the dispatch it has just made.  Names in these files:

    report      result of a dispatch: array (loss, learning rate) of its last step, see `jfit.loop.dispatch.report`
    fence       the report of an earlier dispatch; when it is ready, that dispatch and all before it are done
    log point   a time within an epoch, at most every `LOG_SECONDS`, at which the running sums of loss and metrics are copied

Each dispatch donates the previous state, so the loop holds the only reference to the state and replaces it as soon as a
dispatch returns.  After Ctrl-C, or an exception in a callback or a data iterator, `Loop.state` is therefore the state after
the last completed step.
"""

from __future__ import annotations

import contextlib
import math
import signal
import weakref
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any

import jax

from jfit import activity, counters
from jfit.checkpoints.agreement import equal_times
from jfit.interrupts import StopFlag, Stopped, in_graceful_stop, stop_flag
from jfit.loop.dispatch import Dispatch, reported_lr
from jfit.loop.evaluations import Evaluations
from jfit.loop.events import Events
from jfit.loop.nonfinite import NanPolicy
from jfit.loop.pace import Pace, log_waits
from jfit.loop.readings import Readings
from jfit.loop.saving import ending_saves, save_after_error, save_now
from jfit.loop.threads import TrainingThread, compiling_ahead
from jfit.metrics.core import on_devices
from jfit.parallel.devices import place
from jfit.parallel.spmd import WAIT_EVERY
from jfit.prepare import Problem
from jfit.step.state import TrainState
from jfit.step.totals import cleared


class Loop:
    """Train a state for a number of epochs or steps and call the callbacks.

    Order of the events of an epoch: "epoch_start"; after each dispatch "step_log" (for steps whose results have arrived),
    "log" (at most one every `LOG_SECONDS`), "step" (every `callback.every` steps) and "evaluation" (if it is due within the
    epoch); after the last dispatch "evaluation", then "epoch_end".  "fit_start" and "fit_end" enclose the epochs.

    Args:
        problem: what is trained, and how: metrics, callbacks, evaluation, and the options of `fit` about recorded steps,
            evaluated epochs and losses that are not finite.
        dispatcher: `ResidentDispatcher` or `StreamDispatcher`, which divides the batches of an epoch into dispatches.
        state: initial state, on the devices; donated by the first dispatch.
        run: `jfit.Run` that callbacks get as `event.run`; its history gets the rows.  Only a weak reference is kept.

    Attributes:
        epoch: number of the current epoch.
        batch: number of batches done in the current epoch.
        step: number of updates done since training began.
        stop_reason: why training stops; setting it ends training after the current dispatch.  None: train on.
        interrupted: True if Ctrl-C or SIGTERM ended training.
        ended: True if training came to its end, by `num_epoch`, `num_steps` or a callback that stopped it.
        exit_code: 143 if SIGTERM ended training, with which the caller ends the process; else None.
        report: (loss, learning rate) of the last dispatch, array of shape (2,) on the devices, or None.
        events: `Events`, the callbacks and their states.
        saves: whether a callback saves checkpoints.
        readings: `Readings`, the values of single batches that wait for a copy to the host.
        thread: `TrainingThread`, in whose context the dispatches run.
    """

    def __init__(self, problem: Problem, dispatcher: Any, state: TrainState, run: Any) -> None:
        options, settings = problem.options, problem.settings
        self.nan, self.thread = NanPolicy(options.nan, options.nan in ("stop", "rollback")), TrainingThread()
        self.state, self.dispatcher = state, dispatcher
        self.devices, self.metrics = settings.devices, on_devices(settings.metrics)
        self.readings = Readings(problem, dispatcher.spec)
        self.events = Events(options.callbacks, self)
        self.saves = any(callback.saves for callback in self.events.callbacks)
        self.evaluations = None if problem.evaluate is None else Evaluations(problem.evaluate, options.eval_every)
        self._end: tuple[float, float] = 0, 0  # (epochs, steps) at which training ends; inf for that which does not end it
        self.history = run.history
        # A weak reference: the run refers to this loop, and a cycle would keep the data on devices until garbage collection.
        self._run: Callable[[], Any] = weakref.ref(run)
        self.epoch = self.batch = self.step = 0
        self.stop_reason: str | None = None
        self.interrupted = self.ended = False
        self.exit_code: int | None = None
        self.report: Any = None
        loop = weakref.proxy(self)
        dispatcher.batches.busy = lambda: isinstance(loop.report, jax.Array) and not getattr(loop.report, "is_ready")()  # noqa: B009
        # (position, logs, seconds of compilations before) of an epoch whose evaluation was stopped, or has not ended
        self._trained: tuple[dict[str, int], dict[str, Any], float] | None = None
        self._waits_logged = False  # whether a warning said that training waits for data
        self._compile_ahead: Any = None  # function of `compiling_ahead`

    @property
    def run(self) -> Any:
        """The `jfit.Run` of this loop."""
        return self._run()

    @property
    def position(self) -> dict[str, int]:
        """{"epoch": current epoch, "batch": batches done in it, "step": updates done since training began}."""
        return {"epoch": self.epoch, "batch": self.batch, "step": self.step}

    # -------------------------------------------------------------------------------- epochs
    def train(self, num_epoch: int | None, num_steps: int | None = None) -> None:
        """Train from batch `self.batch` of epoch `self.epoch` up to a number of epochs or steps of the run; None: no limit."""
        self._end = math.inf if num_epoch is None else num_epoch, math.inf if num_steps is None else num_steps
        self.nan = replace(self.nan, stopped=False, handled=0, rollbacks=0)
        first, flag = self.step, stop_flag()
        with (
            activity.Doing(activity.DEVICES, lambda: f"training, in epoch {self.epoch} after batch {self.batch}"),
            ending_saves(self) if self.saves else contextlib.nullcontext(),
            flag.watching(terminate=self.saves or in_graceful_stop()),
            counters.explained(),
            compiling_ahead(self.evaluations and self.evaluations.evaluate) as self._compile_ahead,
        ):
            try:
                self.events.send("fit_start")
                with contextlib.suppress(Stopped):
                    while not self._stopped(flag) and not self._is_over:
                        self._epoch(flag)
                flag.critical = False
                self._save_at_sigterm(flag, first)
            except BaseException as error:
                activity.failed(error)
                save_after_error(self, error, first)
                with contextlib.suppress(Exception):
                    self.read_steps()
                self.events.end_after_error()
                raise
            self.ended = not self.interrupted
            self.events.send("fit_end")
            self._save_at_sigterm(flag, first)  # a signal during "fit_end"

    @property
    def _is_over(self) -> bool:
        """Whether training has come to its end; if it ends within an epoch, when this epoch has its row in the history."""
        epochs, steps = self._end
        has_row = self.batch == 0 or self.history.last_step("epochs") == self.step
        return self.epoch >= epochs or self.step > steps or (self.step == steps and has_row)

    def _stopped(self, flag: StopFlag) -> bool:
        self.stop_reason = flag.agree(self.stop_reason)
        if flag.set:
            self.interrupted = True
            reason = "ended by SIGTERM" if flag.signal is signal.SIGTERM else "interrupted by Ctrl-C"
            self.stop_reason = self.stop_reason or reason
        return self.stop_reason is not None

    def _save_at_sigterm(self, flag: StopFlag, first: int) -> None:
        """After SIGTERM, save a checkpoint, unless training made no step since `first`, and set the exit code."""
        if self._stopped(flag) and flag.signal is signal.SIGTERM:
            save_now(self, first)
            self.exit_code = None if flag.owned else flag.exit_code

    def _epoch(self, flag: StopFlag) -> None:
        """Train the rest of the current epoch; return early, without "epoch_end", if training is stopped."""
        if self._trained is not None and self._trained[0] == self.position:
            self.events.send("epoch_start")
            return self._evaluate_epoch(flag, *self._trained[1:])
        self._begin_epoch()
        pace, stopped = Pace(self), False
        within = self.evaluations if self.evaluations is not None and self.evaluations.are_within else None
        with contextlib.closing(self._dispatches()) as dispatches:
            for dispatch in dispatches:
                if within is not None:
                    within.before(self, pace)
                if stopped := self._stopped(flag):  # after an evaluation; in a job, a wait for a batch ends so, too
                    break
                self._run_dispatch(dispatch, flag)
                pace.after_dispatch(dispatch)
                if self.events.has_steps:
                    self.events.after_dispatch(dispatch)
                if stopped := self._stopped(flag):
                    break
        if stopped or (flag.in_job and self._stopped(flag)):
            return self.read_steps()  # sync: training has stopped
        logs = self._read_epoch(pace)
        if not self.nan.stopped:
            self._trained = (self.position, logs, pace.compiled) if self._ends_epoch else None
            self._evaluate_epoch(flag, logs, pace.compiled)

    def _begin_epoch(self) -> None:
        if self.batch == 0:
            with self.thread:  # another thread may set the learning rate
                zeros = cleared(self.metrics, self.state.metrics)
                self.state = self.state._replace(metrics=place(zeros, self.devices))
            if self.readings.host is not None:
                self.readings.host.reset()
        else:
            self.history.drop_epoch(self.epoch)  # its row is that of an end of training within this epoch
        if self.nan.keeps:
            self.nan.keep(self.run.snapshot(), self.position)  # sync: once per epoch, for the policies that go back
        self.events.send("epoch_start")

    def _dispatches(self) -> Generator[Dispatch]:
        """Yield the dispatches of the rest of the epoch, or of training if it ends before."""
        gaps = [watch.gap for watch in (self.events, self.evaluations) if watch is not None]
        most = lambda step: min(self._end[1] - step, *(gap(step) for gap in gaps))  # noqa: E731
        prepare = lambda programs: self._compile_ahead(self.state, programs)  # noqa: E731
        left = None if math.isinf(self._end[1]) else int(self._end[1]) - self.step
        dispatches = self.dispatcher.dispatches(self.epoch, self.batch, self.step, most, left, prepare)
        with contextlib.closing(dispatches):
            while self.step < self._end[1] and (dispatch := next(dispatches, None)) is not None:
                yield dispatch

    def _run_dispatch(self, dispatch: Dispatch, flag: StopFlag) -> None:
        flag.critical = True  # a second Ctrl-C must not come between the dispatch and the assignment of its result
        with self.thread:
            self.state, result = dispatch.run(self.state)
        self.report = self.readings.take(result, dispatch, self) if self.readings.queues else result
        self.step, self.batch = self.step + dispatch.steps, self.batch + dispatch.steps
        flag.critical = False
        if flag.urgent:
            raise KeyboardInterrupt

    def _read_epoch(self, pace: Pace) -> dict[str, Any]:
        """Wait for the last step of the epoch, and return the logs of the epoch without those of the evaluation."""
        checks = self.dispatcher.checks
        totals, report = self.read((self.state.metrics, self.report), behind=0)  # sync: once per epoch
        speed = pace.speed()
        if totals.first_bad_step >= 0:
            self.nan.report(self, int(totals.first_bad_step))
        if checks is not None:
            checks.check_epoch(totals, self.epoch)
        self._waits_logged = self._waits_logged or log_waits(self.epoch, speed)
        return self.readings.values(totals) | speed | reported_lr(report)

    def _evaluate_epoch(self, flag: StopFlag, logs: dict[str, Any], compiled: float) -> None:
        """Evaluate, add the epoch to the history, and send "epoch_end"; `logs` and `compiled` as in `_trained`."""
        epochs, values = self.epoch + self._ends_epoch, {}
        if self.evaluations is not None:
            values = self.evaluations.at_end(self, epochs, epochs >= self._end[0] or self.step >= self._end[1])
        logs = logs | values
        if counters.compile_seconds() > compiled:
            logs["compile_time"] = counters.compile_seconds() - compiled
        if flag.in_job:
            logs = equal_times(logs)
        end, flag.critical = self.position, True
        is_new = self.history.last_step("evaluations") != self.step  # not that of an end of training at the end of a stream
        if values and is_new:
            self.history.add("evaluations", epoch=self.epoch, step=self.step, **values)
        self.history.add("epochs", epoch=self.epoch, step=self.step, **logs)
        # The position is set before the callbacks, so that a run resumed from their checkpoint begins the next epoch.
        self.epoch, self.batch = epochs, 0 if epochs > self.epoch else self.batch
        flag.critical = False
        if flag.urgent:
            raise KeyboardInterrupt
        if values and is_new:
            self.events.send("evaluation", values, ends_epoch=True, **end)
        self.events.send("epoch_end", logs, **end)

    @property
    def _ends_epoch(self) -> bool:
        """Whether the epoch is complete after its last dispatch, and not ended by the end of training."""
        return self.step < self._end[1] or self.batch == self.dispatcher.num_batches

    def read(self, value: Any, *, behind: int = WAIT_EVERY) -> Any:
        """Copy arrays to the host, and record queued values of batches, as `Readings.read` does."""
        return self.readings.read(value, self.history, self.events, behind=behind)

    def read_steps(self) -> None:
        """Read the values of all steps so far and the host metrics of their batches, for a checkpoint."""
        if self.readings.queues:
            self.read((), behind=0)  # sync: once per checkpoint
