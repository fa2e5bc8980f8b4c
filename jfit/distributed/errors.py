"""Errors of this process end the whole job: hooks for uncaught exceptions, and for the end of the script."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

from jfit import activity
from jfit.distributed.channel import JobError, RanksDiffer
from jfit.distributed.monitor import EXIT_CODE, Monitor, say

_OTHERS = 5.0  # seconds in which the monitor learns which process was lost
# parts of the messages of collectives that end because another process is gone
_GONE = (
    "gloo",
    "connection closed",
    "connection reset",
    "socket closed",
    "broken pipe",
    "unavailable:",
    "nccl",
    "coordination",
)


class Hooks:
    """Replaces `sys.excepthook` and `threading.excepthook` while the job lasts.

    Args:
        monitor: it ends the job.
    """

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor
        self._main, self._threads = sys.excepthook, threading.excepthook
        sys.excepthook = self._on_error
        threading.excepthook = self._on_thread

    def remove(self) -> None:
        """Restore the hooks, unless others have replaced them."""
        if sys.excepthook == self._on_error:
            sys.excepthook = self._main
        if threading.excepthook == self._on_thread:
            threading.excepthook = self._threads

    def _on_error(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        self._end(error, lambda: self._main(kind, error, trace))

    def _on_thread(self, arguments: Any) -> None:
        error = arguments.exc_value
        if error is None or arguments.exc_type is SystemExit or threading.get_ident() != activity.record.thread:
            self._threads(arguments)
        else:
            self._end(error, lambda: self._threads(arguments))

    def _end(self, error: BaseException, show: Callable[[], object]) -> None:
        monitor = self._monitor
        if os.getpid() != monitor.process:  # a forked process, such as a worker of a loader
            show()
            return
        if is_of_another(error):
            threading.Event().wait(_OTHERS)  # the monitor says which process was lost, and ends this one
        monitor.last_words = threading.Event()
        say(f"jfit: {monitor.peers[monitor.rank]} failed:")
        try:
            show()
        finally:
            monitor.last_words.set()
        monitor.failed(last_line(error), 130 if isinstance(error, KeyboardInterrupt) else EXIT_CODE)


def is_of_another(error: BaseException) -> bool:
    """Whether an error is that of a collective or exchange, because another process is gone.

    Example:
        >>> is_of_another(ValueError("Gloo all-reduce failed: Connection closed by peer"))
        True
    """
    if isinstance(error, JobError):
        return not isinstance(error, RanksDiffer)
    text = str(error).lower()
    return isinstance(error, (RuntimeError, ValueError)) and any(part in text for part in _GONE)


def last_line(error: BaseException) -> str:
    """An exception as one line, without notes.

    Example:
        >>> last_line(ValueError("no rows"))
        'ValueError: no rows'
    """
    text = " ".join(str(error).split())
    return (f"{type(error).__name__}: {text}" if text else type(error).__name__)[:500]
