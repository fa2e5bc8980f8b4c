"""Errors of this process end the whole job: hooks for uncaught exceptions, and for the end of the script."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

from jfit import activity
from jfit.distributed.errors import is_of_another, last_line
from jfit.distributed.monitor import EXIT_CODE, SUSPECTED, Monitor, say


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
            monitor.later(monitor.suspect)
            threading.Event().wait(2 * SUSPECTED)  # the monitor says which process was lost, and ends this one
        monitor.last_words = threading.Event()
        say(f"jfit: {monitor.peers[monitor.rank]} failed:")
        try:
            show()
        finally:
            monitor.last_words.set()
        monitor.failed(last_line(error), 130 if isinstance(error, KeyboardInterrupt) else EXIT_CODE)
