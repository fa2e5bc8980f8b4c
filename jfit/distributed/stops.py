"""Stops on which all processes of a job agree, so that each stops after the same step.

The training loop passes *stopping points*, at the same places of the program on all processes, and counts them.  Passing one
sends no message.  When a process is to stop (a signal, `Run.stop`), it writes that to the store.  Then every process sends its
count, and its main thread waits at its next stopping point.  When all counts are there, all stop at the first stopping
point that no process has passed.  Processes that wait for devices do so for programs that others have called
before that point, or will call on their way to it, so that they come there, too.
"""

from __future__ import annotations

import contextlib
import itertools
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from jfit import activity, interrupts
from jfit.activity import Doing
from jfit.distributed.channel import Channel
from jfit.distributed.client import Store
from jfit.interrupts import StopFlag, Stopped

_NEVER = 1 << 62


class Agreed(NamedTuple):
    """Why processes stop.

    Attributes:
        signal: number of a signal, or 0.
        reason: text for `Run.stop_reason`, or None.
        since: number of stopping points passed when the `StopFlag` that got the signal began to watch.
    """

    signal: int = 0
    reason: str | None = None
    since: int = 0


class Stops:
    """The stopping points of this process, and agreeing on one with the others.

    Args:
        store: the store of the job.
        channel: the exchanges of this process.
        later: `later(function)` calls a function on another thread; it may be called by a signal handler.
    """

    def __init__(self, store: Store, channel: Channel, later: Callable[[Callable[[], Any]], None]) -> None:
        self._store, self._channel, self._later = store, channel, later
        self._changed = threading.Condition()
        self.passed, self.round = 0, 0  # stopping points passed; stops agreed on and made
        self._held, self._target = False, _NEVER
        self._wish = self._agreed = Agreed()  # why this process wants to stop; why all do

    def want(self, number: int, reason: str | None, since: int = 0) -> None:
        """Tell all that this process is to stop; signal handlers may call this method."""
        # A signal takes precedence over a reason, and SIGTERM over Ctrl-C.
        self._wish = Agreed(max(number, self._wish.signal), reason or self._wish.reason, since)
        key = f"stop/{self.round}"  # stored on another thread: calls of the store wait while rank 0 is stopped
        self._later(lambda: self._store.set(key, b"wanted"))

    def listen(self) -> None:
        """Agree on one stop after the other, until the job ends; runs on a thread of its own.

        Raises:
            JobError: the job has ended.
        """
        for number in itertools.count():
            self._channel.wait(f"stop/{number}")
            with self._changed:
                self._held = True
                wish, self._wish = self._wish, Agreed()
            passed, signals, reasons, since = zip(*self._channel.exchange("where to stop", [self.passed, *wish]), strict=True)
            self._store.delete(f"stop/{number - 1}")  # where a late signal may have come again
            with self._changed:
                self._target, self._held = max(passed) + 1, False
                self._agreed = Agreed(max(signals), next(filter(None, reasons), None), max(since))
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._target == _NEVER)

    def pass_one(self, reason: str | None = None) -> Agreed | None:
        """Pass a stopping point; return why to stop at it, or None.

        Args:
            reason: why this process wants to stop here; None: it does not.
        """
        with self._changed:
            if reason is not None and not self._held and self._target == _NEVER:
                self._held = True
                self.want(0, reason)
            if self._held:
                with Doing(activity.PEERS, "waiting for the other processes to agree where to stop"):
                    while self._held and self._channel.error is None:
                        self._changed.wait(0.5)
            if self.passed + 1 < self._target:
                self.passed += 1
                return None
            self._target = _NEVER
            self.round += 1
            self._changed.notify_all()
            return self._agreed

    @property
    def is_next(self) -> bool:
        """Whether this process stops at the next stopping point."""
        return self.passed + 1 >= self._target


class AgreedFlag(StopFlag):
    """A flag that Ctrl-C or SIGTERM at any process of the job sets, at the same stopping point of all.

    A second Ctrl-C raises KeyboardInterrupt, and a second SIGTERM ends the process, at once: both end the job.

    Args:
        stops: the stopping points of this process.
    """

    def __init__(self, stops: Stops) -> None:
        super().__init__()
        self._stops, self._since = stops, stops.passed
        self._received: int | None = None  # a signal of this process
        self._reason: str | None = None  # agreed on

    def __bool__(self) -> bool:
        self.agree(None)
        return self.set

    @property
    def in_job(self) -> bool:
        """True: every call of `agree` is a stopping point."""
        return True

    def agree(self, reason: str | None) -> str | None:
        """Pass a stopping point; see `StopFlag.agree`."""
        if self.set:
            return reason
        agreed = self._stops.pass_one(reason if self._reason is None else None)
        if agreed is None:
            return self._reason
        self._reason = self._reason or agreed.reason
        flags = [self, *interrupts.outside_of(self, signal.Signals(agreed.signal))] if agreed.signal else []
        if any(agreed.since >= getattr(flag, "_since", 0) for flag in flags):
            self._set(signal.Signals(agreed.signal))
        elif self._received is not None:  # the signal came too late for this stop, which may be that of an earlier flag
            self._want(self._received)
        return self._reason

    def check_step(self) -> None:
        """Pass a stopping point, and raise `Stopped` if all processes stop there."""
        before = self._reason
        reason = self.agree(None)
        if (self.set or reason != before) and self.may_raise:
            self._raised = True
            raise Stopped(interrupts.text_of(self.signal))

    def check(self) -> None:
        """Raise `Stopped`, to end a wait for a batch, if all processes of the job have agreed to stop before the next step."""
        if activity.record.now.kind == activity.DATA and self._stops.is_next and not self.set:
            self.check_step()

    def _set(self, number: signal.Signals) -> None:
        self.set, self.signal = True, number
        for flag in interrupts.outside_of(self, number):
            flag.set, flag.signal = True, number
            self.owned = self.owned or number == signal.SIGTERM

    @property
    def _is_requested(self) -> bool:
        return self._received is not None

    def _request(self, number: signal.Signals, previous: Any) -> None:
        if self._received is None or number == signal.SIGTERM:
            self._received = number
            if not self.set:
                self._want(number)

    def _want(self, number: int) -> None:
        self._stops.want(number, None, self._since)

    @contextlib.contextmanager
    def watching(self, *, interrupt: bool = True, terminate: bool = False, raises: bool = True) -> Iterator[StopFlag]:
        """Context manager as `StopFlag.watching`; a signal after its last stopping point is sent again at its end."""
        with super().watching(interrupt=interrupt, terminate=terminate, raises=raises):
            yield self
        if self._received is not None and not self.set:
            signal.raise_signal(self._received)
