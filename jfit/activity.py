"""What this process is doing, for messages about a job of several processes that does not go on.

Code that may take long, or that waits for something, says so with `Doing`.  Outside of jobs that costs a comparison: nothing is
recorded until `watch` is called.  Another thread (`jfit.distributed.monitor`) reads what is recorded, without a lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

# Kinds of activities: those in which a process waits for the others come first.
DEVICES = "devices"  # runs programs, which wait for the devices of the other processes
PEERS = "peers"  # waits for messages of the other processes
COMPILING = "compiling"
DATA = "data"  # waits for the next batch of a loop, which passes a stopping point (`jfit.distributed.stops`) after it
FIRST = "first"  # waits for the first batch, for its shapes
CALLBACK = "callback"
SAVING = "saving"  # writes files
SCRIPT = "script"  # code of the user, outside of jfit
FAILED = "failed"  # an exception has left `fit`
END = "end"  # the script has ended
WAITING = (DEVICES, PEERS)


class Activity(NamedTuple):
    """What the thread that trains does.

    Attributes:
        kind: one of the constants of this module.
        what: its description, or a function that returns it, called by another thread.
        seconds: time that it may take, if the kind does not determine it.
    """

    kind: str
    what: str | Callable[[], str]
    seconds: float | None = None

    def __str__(self) -> str:
        return self.what if isinstance(self.what, str) else self.what()


_NOTHING = Activity(SCRIPT, "running the script, outside of jfit")


class Record:
    """What is recorded of this process.

    Attributes:
        now: the `Activity`.
        count: number of programs and exchanges begun in which all processes take part, in the same order everywhere.
        thread: id of the thread that is recorded; None: nothing is.
    """

    def __init__(self) -> None:
        self.now, self.count = _NOTHING, 0
        self.thread: int | None = None


record = Record()


class Doing:
    """Context manager that records what this thread does in a block, once `watch(True)` was called, for the watchdog of a job.

    Args:
        kind: such as `DATA`, see `Activity`.
        what: description, such as "waiting for batch 3 of epoch 0", or a function that returns it.
        seconds: after this time, the watchdog ends the job if other processes wait for this one; None: that of the kind.

    Example:
        >>> with Doing(DATA, "waiting for batch 3"):
        ...     str(record.now)
        'running the script, outside of jfit'
        >>> watch(True)
        >>> with Doing(DATA, "waiting for batch 3"):
        ...     str(record.now)
        'waiting for batch 3'
        >>> watch(False)
    """

    __slots__ = ("_activity", "_before")

    def __init__(self, kind: str, what: str | Callable[[], str], seconds: float | None = None) -> None:
        self._activity, self._before = (kind, what, seconds), None

    def __enter__(self) -> None:
        if record.thread is not None and threading.get_ident() == record.thread:
            self._before, record.now = record.now, Activity(*self._activity)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._before is not None and threading.get_ident() == record.thread:
            if kind is None or record.now.kind != FAILED:  # see `failed`
                record.now = self._before
            self._before = None


def watch(on: bool) -> None:
    """Begin to record what this thread does, or stop recording."""
    record.thread = threading.get_ident() if on else None
    record.now = _NOTHING


def begin_together(what: str) -> None:
    """Add 1 to the number of compiled programs and exchanges that this process has started with all others of its job."""
    if threading.get_ident() == record.thread:
        record.count += 1
        if record.now.kind in (SCRIPT, FAILED):  # a program of the user's own loop
            record.now = Activity(SCRIPT, f"running the script, outside of jfit, after {what}")


def compiled() -> None:
    """A compilation of this thread has ended; what follows in its block runs the program."""
    if record.now.kind == COMPILING and threading.get_ident() == record.thread:
        record.now = Activity(DEVICES, "running a program for the first time")


def failed(error: BaseException) -> None:
    """An exception has left `fit` on this thread."""
    if threading.get_ident() == record.thread:
        text = str(error).partition("\n")[0]
        record.now = Activity(FAILED, f"after the exception {type(error).__name__}: {text}")
