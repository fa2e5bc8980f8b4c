"""Stage 5: epochs, events, the window of calls in flight.  The host never waits for a step it has just sent.

The loop owns the state while it runs: it is always the result of a finished dispatch, so that whatever happens (Ctrl-C,
a callback or an iterator that raises) the last good state is there.
"""

from __future__ import annotations

import contextlib
import math
import time
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from jfit import counters
from jfit.parallel.placing import place
from jfit.parallel.spmd import WAIT_EVERY, Window
from jfit.step.state import TrainState
from jfit.step.totals import joined, values, zero_totals
from jfit.train.callbacks.base import Callback, Event
from jfit.train.history import History
from jfit.train.host_metrics import HostPass, on_devices, on_host
from jfit.train.interrupts import StopFlag

LOG_SECONDS = 0.5  # shortest time between two log events


class NonFiniteLoss(UserWarning):
    """The loss became nan or infinite; the message names the step."""


class Loop:
    """Epochs over a feed.  `run.py` wires it; its parts are usable one by one."""

    def __init__(
        self,
        state: TrainState,
        feed: Any,
        *,
        devices: Sequence[Any],
        metrics: Sequence[Any] = (),
        callbacks: Sequence[Callback] = (),
        evaluate: Callable[[TrainState, int], Mapping[str, float]] | None = None,
        history: History | None = None,
        view: Any = None,
    ) -> None:
        self.state, self.feed, self.devices, self.metrics = state, feed, list(devices), on_devices(metrics)
        self.host = HostPass(on_host(metrics), len(self.devices))
        self.callbacks, self.evaluate = list(callbacks), evaluate
        self.callback_states: list[Any] = [c.init() for c in callbacks]
        self.history = History() if history is None else history
        self._view = None if view is None else weakref.ref(view)  # it holds this loop: a cycle would keep its data alive
        self.epoch = self.batch = self.step = 0
        self.stop_reason: str | None = None
        self.interrupted = False
        self.report: Any = None  # report of the last call, on the devices
        self._warned = False
        self._pending: _Point | None = None

    def view(self) -> Any:
        """What events show callbacks as their run, or None."""
        return None if self._view is None else self._view()

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
            self.host.reset()
        self._fire("epoch_start", {})
        window, started, samples = Window(), time.perf_counter(), 0
        logged, self._pending = started, None
        with contextlib.closing(self.feed.calls(self.epoch, self.batch, self.step, self._limit)) as calls:
            for call in calls:
                self.state, report = call.run(self.state)
                self.report = report = self.host.take(report) if self.host.metrics else report
                self.step, self.batch = self.step + call.steps, self.batch + call.steps
                samples += call.rows
                fence = window.push(report)
                now = time.perf_counter()
                if fence is not None and now - logged > LOG_SECONDS:
                    logged = now
                    self._log(samples / (now - started), report, fence)
                elif fence is not None and self.host.metrics:
                    self._read(fence)  # sync: host waits for the call 8 back
                elif fence is not None:
                    counters.wait(fence)  # sync: the same; reading would cost more
                for i, callback in enumerate(self.callbacks):
                    if callback.every and self.step % callback.every == 0:
                        self._tell(i, callback, "step", {})
                if self._stopped(flag):
                    if self.host.metrics:
                        self._read(report, behind=0)  # sync: training has stopped
                    return
        self._end_epoch(samples, started)

    def _end_epoch(self, samples: int, started: float) -> None:
        totals, report = self._read((self.state.metrics, self.report), behind=0)  # sync: once an epoch
        seconds = time.perf_counter() - started
        self._check_finite(int(totals.first_bad_step))
        logs = joined(values(self.metrics, totals), self.host.values())
        logs |= {"samples_per_second": samples / max(seconds, 1e-9), "time": seconds} | lr_in(report)
        if self.evaluate is not None:
            logs |= {f"val_{k}": v for k, v in self.evaluate(self.state, self.epoch).items()}
        self.history.add_epoch(epoch=self.epoch, step=self.step, **logs)
        where = self.position
        self.epoch, self.batch = self.epoch + 1, 0
        self._fire("epoch_end", logs, **where)

    def _read(self, value: Any, *, behind: int = WAIT_EVERY) -> Any:
        """A value on the host; its metrics get the batches that are done by then, all but the last `behind`."""
        on_host, arrived = counters.read((value, self.host.due(behind)))  # sync: one wait for both; the caller says what for
        self.host.add(arrived)
        return on_host

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
            event = Event(kind, num_batches=self.feed.num_batches, logs=logs, run=self.view(), **(self.position | where))
            self.callback_states[i] = callback.on(event, self.callback_states[i])

    def _log(self, speed: float, report: Any, fence: Any) -> None:
        """Fire a log event with the values that were copied at the last one; copy those of now.

        The copy is dispatched behind the steps already in flight and read one log point later, together with the fence that
        has to be waited for anyway.
        """
        before, copied = self._pending, (_copy(self.state.metrics), report)
        self._pending = _Point(copied, {"samples_per_second": speed}, self.position, self.host.mark())
        if before is None:
            self._read(fence)  # sync: host waits for the call 8 back
            return
        (totals, last), _ = self._read((before.copied, fence))  # sync: the copy was computed long ago
        logs = before.logs | joined(values(self.metrics, totals), self.host.values(before.mark)) | lr_in(last)
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
    mark: int  # up to where host metrics count


def lr_in(report: Any) -> dict[str, float]:
    """The learning rate that the update of a report used, where the optimizer reports it."""
    return {} if report is None or math.isnan(report[1]) else {"lr": float(report[1])}


_copy = jax.jit(lambda tree: jax.tree.map(lambda x: x + 0, tree))  # own buffers: the next step donates the originals
