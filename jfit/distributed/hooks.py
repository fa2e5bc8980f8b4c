"""Errors of this process end the whole job: hooks for exceptions that nobody catches."""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

from jfit import activity
from jfit.distributed.errors import is_of_another, last_line
from jfit.distributed.monitor import EXIT_CODE, SUSPECTED, Monitor, say


def install(monitor: Monitor) -> None:
    """Replace `sys.excepthook` and `threading.excepthook`, which do what they did after the process has left the job.

    Of other threads, only errors of the thread that called `init` end the job.

    Args:
        monitor: it ends the job.
    """
    show, on_thread = sys.excepthook, threading.excepthook

    def end(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        if monitor.left or os.getpid() != monitor.process:  # a forked process, such as a worker of a loader
            return show(kind, error, trace)
        if is_of_another(error):
            monitor.suspects = True
            threading.Event().wait(2 * SUSPECTED)  # the monitor says which process was lost, and ends this one
        monitor.last_words = threading.Event()
        say(f"jfit: {monitor.peers[monitor.rank]} failed:")
        try:
            show(kind, error, trace)
        finally:
            monitor.last_words.set()
        monitor.failed(last_line(error), 130 if isinstance(error, KeyboardInterrupt) else EXIT_CODE)

    def end_of_thread(error: Any) -> None:
        if error.exc_value is None or error.exc_type is SystemExit or threading.get_ident() != activity.record.thread:
            return on_thread(error)
        end(error.exc_type, error.exc_value, error.exc_traceback)

    sys.excepthook, threading.excepthook = end, end_of_thread
