"""Errors of this process end the whole job: hooks for exceptions that nobody catches."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import Any

from jfit import activity
from jfit.distributed.errors import is_of_another, last_line
from jfit.distributed.monitor import EXIT_CODE, SUSPECTED, Monitor, say


def install(monitor: Monitor) -> None:
    """Replace `sys.excepthook` and `threading.excepthook`, which do what they did after the process has left the job.

    Args:
        monitor: it ends the job.
    """
    main, threads = sys.excepthook, threading.excepthook

    def on_thread(arguments: Any) -> None:
        error, show = arguments.exc_value, lambda: threads(arguments)
        if error is None or arguments.exc_type is SystemExit or threading.get_ident() != activity.record.thread:
            show()
        else:
            _end(monitor, error, show)

    sys.excepthook = lambda kind, error, trace: _end(monitor, error, lambda: main(kind, error, trace))
    threading.excepthook = on_thread


def _end(monitor: Monitor, error: BaseException, show: Callable[[], object]) -> None:
    if monitor.left or os.getpid() != monitor.process:  # a forked process, such as a worker of a loader
        show()
        return
    if is_of_another(error):
        monitor.suspects = True
        threading.Event().wait(2 * SUSPECTED)  # the monitor says which process was lost, and ends this one
    monitor.last_words = threading.Event()
    say(f"jfit: {monitor.peers[monitor.rank]} failed:")
    try:
        show()
    finally:
        monitor.last_words.set()
    monitor.failed(last_line(error), 130 if isinstance(error, KeyboardInterrupt) else EXIT_CODE)
