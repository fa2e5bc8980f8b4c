"""Stops on which all processes of a job agree, so that each stops after the same step.

The training loop passes *stopping points*, at the same places of the program on all processes, and counts them.  Nothing is
sent for them.  When a process is to stop (a signal, `Run.stop`), it adds that to the log, which holds all processes: each adds
its count, and its main thread waits at its next stopping point.  When all counts are there, all stop at the first stopping
point that no process has passed.  Processes that wait for devices do so for programs that others have called
before that point, or will call on their way to it, so that they come there, too.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from jfit import activity, interrupts
from jfit.activity import Doing
from jfit.distributed.channel import Channel, Log
from jfit.interrupts import StopFlag, Stopped

_NEVER = 1 << 62


class Agreed(NamedTuple):
    """Why all processes stop.

    Attributes:
        signal: number of a signal, or None.
        reason: text for `Run.stop_reason`, or None.
        rank: the process that wanted to stop.
    """

    signal: int | None
    reason: str | None
    rank: int


class Stops:
    """The stopping points of this process, and agreeing on one with the others, by the log that all read.

    Args:
        channel: the exchanges of this process, which know when the job has ended.
        log: the log of the job.
        rank: number of this process.
        count: number of processes.
        later: `later(function)` calls a function on another thread; it may be called by a signal handler.
    """

    def __init__(self, channel: Channel, log: Log, rank: int, count: int, later: Callable[[Callable[[], None]], None]) -> None:
        self._channel, self._log, self._rank, self._count, self._later = channel, log, rank, count, later
        self._changed = threading.Condition()
        self.passed, self.round = 0, 0  # stopping points passed; stops agreed on and made
        self._held, self._target = False, _NEVER
        self._hold_later = False  # all processes are held for another stop, before this one has made the last
        self._agreed: Agreed | None = None
        # What all processes have read in the log, alike.
        self._answered = 0  # stops agreed on
        self._wanted: Agreed | None = None
        self._passed: dict[int, int] = {}
        log.handlers |= {"want": self._on_want, "held": self._on_held}

    def want(self, number: int | None, reason: str | None) -> None:
        """Tell all that this process is to stop; signal handlers may call this method."""
        self._tell("want", round=self.round, signal=number, reason=reason)

    def pass_one(self, reason: str | None = None) -> Agreed | None:
        """Pass a stopping point; return why to stop at it, or None.

        Args:
            reason: why this process wants to stop here; None: it does not.
        """
        with self._changed:
            if reason is not None and not self._held and self._target == _NEVER:
                self._held = True
                self.want(None, reason)
            if self._held:
                with Doing(activity.PEERS, "waiting for the other processes to agree where to stop"):
                    while self._held and self._channel.error is None:
                        self._changed.wait(0.5)
            if self.passed + 1 < self._target:
                self.passed += 1
                return None
            agreed, self._agreed, self._target = self._agreed, None, _NEVER
            self.round += 1
            if self._hold_later:
                self._hold_later, self._held = False, True
                self._tell("held", passed=self.passed)
            return agreed

    @property
    def is_next(self) -> bool:
        """Whether this process stops at the next stopping point."""
        return self.passed + 1 >= self._target

    def _tell(self, kind: str, **message: Any) -> None:
        # On another thread: calls of the store wait while rank 0 is stopped, and the thread that notices needs the lock.
        self._later(lambda: self._log.append(kind, rank=self._rank, **message))

    def _on_want(self, message: dict[str, Any]) -> None:
        if message["round"] != self._answered:
            return  # on that stop they have agreed
        if self._wanted is not None:  # a signal is more than a reason, and SIGTERM more than Ctrl-C
            if (message["signal"] or 0) > (self._wanted.signal or 0):
                self._wanted = self._wanted._replace(signal=message["signal"])
            return
        self._wanted, self._passed = Agreed(message["signal"], message["reason"], message["rank"]), {}
        with self._changed:
            if self._target != _NEVER:  # otherwise the stop on which all have agreed, and others have made, would be lost
                self._hold_later = True
                return
            self._held = True
            self._tell("held", passed=self.passed)

    def _on_held(self, message: dict[str, Any]) -> None:
        self._passed[message["rank"]] = message["passed"]
        if self._wanted is None or len(self._passed) < self._count:
            return
        with self._changed:
            self._target, self._held = max(self._passed.values()) + 1, False
            self._agreed, self._wanted = self._wanted, None
            self._answered += 1
            self._changed.notify_all()


class AgreedFlag(StopFlag):
    """A flag that Ctrl-C or SIGTERM at any process of the job sets, at the same stopping point of all.

    A second Ctrl-C raises KeyboardInterrupt, and a second SIGTERM ends the process, at once: both end the job.

    Args:
        stops: the stopping points of this process.
    """

    def __init__(self, stops: Stops) -> None:
        super().__init__()
        self._stops = stops
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
        if agreed.signal is not None:
            self._set(signal.Signals(agreed.signal))
        elif self._received is not None:  # the signal came too late for this stop
            self._stops.want(self._received, None)
        self._reason = self._reason or agreed.reason
        return self._reason

    def check_step(self) -> None:
        """Pass a stopping point, and raise `Stopped` if all processes stop there."""
        before = self._reason
        reason = self.agree(None)
        if self.set or reason != before:
            self._raise()

    def check(self) -> None:
        """Raise `Stopped`, to end a wait for a batch, if all processes of the job have agreed to stop before the next step."""
        if activity.record.now.kind == activity.DATA and self._stops.is_next and not self.set:
            self.check_step()

    def _raise(self) -> None:
        if self.may_raise:
            self._raised = True
            raise Stopped(interrupts.text_of(self.signal))

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
                self._stops.want(number, None)

    @contextlib.contextmanager
    def watching(self, *, interrupt: bool = True, terminate: bool = False, raises: bool = True) -> Iterator[StopFlag]:
        """Context manager as `StopFlag.watching`; a signal after its last stopping point is sent again at its end."""
        with super().watching(interrupt=interrupt, terminate=terminate, raises=raises):
            yield self
        if self._received is not None and not self.set:
            signal.raise_signal(self._received)
