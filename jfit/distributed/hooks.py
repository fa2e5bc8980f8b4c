"""Errors of this process end the whole job: the hook for exceptions that nobody catches."""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

from jfit.distributed.errors import is_of_another, last_line
from jfit.distributed.monitor import EXIT_CODE, SUSPECTED, Monitor, say


def install(monitor: Monitor) -> None:
    """Replace `sys.excepthook`, which does what it did after the process has left the job.

    On another thread than the main one, the job ends when the others have waited for what the thread does not do.

    Args:
        monitor: it ends the job.
    """
    show = sys.excepthook

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

    sys.excepthook = end
