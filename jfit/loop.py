"""Stage 5: epochs, events, the window of calls in flight, signals.  The host never waits for a step it has just sent.

The loop owns the state while it runs: it is always the result of a finished dispatch, so that whatever happens (Ctrl-C,
a callback or an iterator that raises) the last good state is there.
"""

from __future__ import annotations

import contextlib
import math
import signal
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax

from jfit import counters
from jfit.callbacks.base import Callback, Event
from jfit.history import History
from jfit.metrics import Metric
from jfit.parallel import place
from jfit.state import TrainState
from jfit.totals import values, zero_totals

IN_FLIGHT = 16  # calls the host may run ahead: emulated CPU devices abort the process at 32
WAIT_EVERY = 8  # so many calls pass between two waits, each on the fence so many calls back
LOG_SECONDS = 0.5  # shortest time between two log events


class NonFiniteLoss(UserWarning):
    """The loss became nan or infinite; the message names the step."""


class Window:
    """At most 16 calls in flight: every 8 calls the host waits for the one 8 calls back."""

    def __init__(self) -> None:
        self._fences: deque[Any] = deque(maxlen=IN_FLIGHT)
        self._count = 0

    def push(self, fence: Any) -> bool:
        """Note a call; True where the host has just waited."""
        self._fences.append(fence)
        self._count += 1
        if self._count % WAIT_EVERY or len(self._fences) <= WAIT_EVERY:
            return False
        counters.wait(self._fences[-1 - WAIT_EVERY])  # sync: host waits for the call 8 back
        return True


class StopFlag:
    """Ctrl-C sets a flag that the loop reads between calls; a second Ctrl-C raises at once.

    Donation makes this necessary: a KeyboardInterrupt inside the call leaves the state deleted.  Off the main thread no
    handler can be set, and none is.
    """

    def __init__(self) -> None:
        self.set = False

    @contextlib.contextmanager
    def watching(self) -> Iterator[StopFlag]:
        """Handle SIGINT inside the block."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        before = signal.getsignal(signal.SIGINT)

        def handler(number: int, frame: Any) -> None:
            if self.set:
                signal.signal(signal.SIGINT, before)
                raise KeyboardInterrupt
            self.set = True

        signal.signal(signal.SIGINT, handler)
        try:
            yield self
        finally:
            signal.signal(signal.SIGINT, before)


class Loop:
    """Epochs over a feed.  `run.py` wires it; its parts are usable one by one."""

    def __init__(
        self,
        state: TrainState,
        feed: Any,
        *,
        devices: Sequence[jax.Device],
        metrics: Sequence[Metric] = (),
        callbacks: Sequence[Callback] = (),
        evaluate: Callable[[TrainState, int], Mapping[str, float]] | None = None,
        history: History | None = None,
        view: Any = None,
    ) -> None:
        self.state, self.feed, self.devices, self.metrics = state, feed, list(devices), tuple(metrics)
        self.callbacks, self.evaluate = list(callbacks), evaluate
        self.callback_states: list[Any] = [c.init() for c in callbacks]
        self.history = History() if history is None else history
        self.view = view
        self.epoch = self.batch = self.step = 0
        self.stop_reason: str | None = None
        self.interrupted = False
        self._warned = False
        self._pending: tuple[Any, dict[str, float]] | None = None

    # -------------------------------------------------------------------------------- epochs
    def train(self, num_epoch: int) -> None:
        """Run epochs `self.epoch` .. `num_epoch` - 1, from batch `self.batch` of the first."""
        with StopFlag().watching() as flag:
            self._fire("fit_start", {})
            try:
                while self.epoch < num_epoch and self.stop_reason is None and self._epoch(flag):
                    pass
            finally:
                self._fire("fit_end", {})  # also after an error: bars and files are closed

    def _epoch(self, flag: StopFlag) -> bool:
        """One epoch; False where it was left before its end."""
        if self.batch == 0:
            self.state = self.state._replace(metrics=place(zero_totals(self.metrics), self.devices))
        self._fire("epoch_start", {})
        window, started, samples = Window(), time.perf_counter(), 0
        logged, self._pending = started, None
        told = None
        with contextlib.closing(self.feed.calls(self.epoch, self.batch, self.step, self._limit)) as calls:
            for call in calls:
                self.state, told = call.run(self.state)
                self.step, self.batch = self.step + call.steps, self.batch + call.steps
                samples += call.rows
                if window.push(told) and time.perf_counter() - logged > LOG_SECONDS:
                    logged = time.perf_counter()
                    self._log(samples / (logged - started), told)
                self._fire_steps()
                if flag.set or self.stop_reason is not None:
                    self.interrupted = flag.set
                    self.stop_reason = self.stop_reason or "interrupted by Ctrl-C"
                    break
            else:
                self._end_epoch(told, samples, started)
                return True
        return False

    def _end_epoch(self, told: Any, samples: int, started: float) -> None:
        totals, told = counters.read((self.state.metrics, told))  # sync: once an epoch
        seconds = time.perf_counter() - started
        self._check_finite(int(totals.first_bad_step))
        logs = values(self.metrics, totals)
        logs |= {"samples_per_second": samples / max(seconds, 1e-9), "time": seconds}
        logs |= _rate(told)
        if self.evaluate is not None:
            logs |= {f"val_{k}": v for k, v in self.evaluate(self.state, self.epoch).items()}
        self.history.add_epoch(epoch=self.epoch, step=self.step, **logs)
        epoch, batch = self.epoch, self.batch
        self.epoch, self.batch = self.epoch + 1, 0
        self._fire("epoch_end", logs, epoch=epoch, batch=batch)

    # -------------------------------------------------------------------------------- events
    def _limit(self, step: int) -> int:
        """Most steps a call may do from `step`, so that it ends where a callback wants to be called."""
        gaps = [c.every - step % c.every for c in self.callbacks if c.every and "step" in c.events]
        return min(gaps, default=1 << 30)

    def _fire_steps(self) -> None:
        for i, callback in enumerate(self.callbacks):
            if "step" in callback.events and callback.every and self.step % callback.every == 0:
                self.callback_states[i] = callback.on(self._event("step", {}), self.callback_states[i])

    def _fire(self, kind: str, logs: dict[str, float], **where: int) -> None:
        event = self._event(kind, logs, **where)
        for i, callback in enumerate(self.callbacks):
            if kind in callback.events:
                self.callback_states[i] = callback.on(event, self.callback_states[i])

    def _event(self, kind: str, logs: dict[str, float], *, epoch: int | None = None, batch: int | None = None) -> Event:
        return Event(
            kind,
            self.epoch if epoch is None else epoch,
            self.step,
            self.batch if batch is None else batch,
            self.feed.num_batches,
            logs,
            self.view,
        )

    def _log(self, speed: float, told: Any) -> None:
        """Fire a log event with the values that were copied at the last one; copy those of now.

        The copy is dispatched behind the steps already in flight and read one log point later, so the host waits for
        nothing that it would not have waited for anyway.
        """
        if not any("log" in c.events for c in self.callbacks):
            return
        if self._pending is not None:
            copied, logs = self._pending
            totals, last = counters.read(copied)  # sync: computed long ago
            logs |= values(self.metrics, totals) | _rate(last)
            self._check_finite(int(totals.first_bad_step))
            self.history.add_point(epoch=self.epoch, batch=self.batch, step=self.step, **logs)
            self._fire("log", logs)
        self._pending = ((_copy(self.state.metrics), told), {"samples_per_second": speed})

    def _check_finite(self, first_bad_step: int) -> None:
        if first_bad_step >= 0 and not self._warned:
            self._warned = True
            warnings.warn(
                f"the loss is not finite since step {first_bad_step} (epoch {self.epoch}); training goes on with whatever it "
                "computes. Lower the learning rate, clip gradients (clip_norm=1.0), or check the data of that step for nan",
                NonFiniteLoss,
                stacklevel=2,
            )


def _rate(told: Any) -> dict[str, float]:
    """The learning rate of a report, where the optimizer tells it."""
    return {} if told is None or math.isnan(told[1]) else {"lr": float(told[1])}


_copy = jax.jit(lambda tree: jax.tree.map(lambda x: x + 0, tree))  # own buffers: the next step donates the originals
