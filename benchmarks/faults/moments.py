"""Sends signals to this process at an exact moment: at the n-th line of jfit's code that runs, or after some time."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import jfit

_ROOT = str(Path(jfit.__file__).parent)


class Moment:
    """Context manager that sends signals to this process while its block runs, and none after it.

    Args:
        numbers: the signals, in their order.
        first: when to send the first one: number of lines of jfit's files that the main thread has run in the block, or
            seconds, if `unit` is "s".
        gap: how much later the second one is sent, in the same unit.
        unit: "line" or "s".
        record: called with a text before a signal is sent.

    Attributes:
        lines: number of lines that have run, if `unit` is "line".
        sent: number of signals that were sent.
        handled: of each signal that was sent, whether a handler other than Python's own was installed.
    """

    def __init__(self, numbers: list[int], first: float, gap: float, unit: str, record: Callable[[str], None]) -> None:
        self.due = [(number, first + gap * i) for i, number in enumerate(numbers)]
        self.unit, self.record = unit, record
        self.lines = self.sent = 0
        self.handled: list[bool] = []
        self._lock, self._over = threading.Lock(), False

    def __enter__(self) -> Self:
        if self.unit == "line":
            sys.settrace(self._call)
        else:
            threading.Thread(target=self._wait, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        with self._lock:
            self._over = True

    def _call(self, frame: Any, event: str, arg: Any) -> Any:
        return self._line if frame.f_code.co_filename.startswith(_ROOT) else None

    def _line(self, frame: Any, event: str, arg: Any) -> Any:
        if event in ("line", "return"):  # at a return, the caller does not get the result
            self.lines += 1
            while self.due and self.lines >= self.due[0][1]:
                self._send(self.due.pop(0)[0], f"{Path(frame.f_code.co_filename).relative_to(_ROOT)}:{frame.f_lineno}")
        return self._line

    def _wait(self) -> None:
        started = time.monotonic()
        while self.due:
            number, at = self.due.pop(0)
            time.sleep(max(at - (time.monotonic() - started), 0))
            with self._lock:
                if self._over:
                    return
                self._send(number, "timer")

    def _send(self, number: int, where: str) -> None:
        self.sent += 1
        own = (signal.SIG_DFL, signal.default_int_handler)
        while True:  # the main thread may install a handler while a text is written
            handled = signal.getsignal(number) not in own
            self.record(f"{signal.Signals(number).name} {where} {'handled' if handled else 'default'}")
            if (signal.getsignal(number) not in own) == handled:
                break
        self.handled.append(handled)
        os.kill(os.getpid(), number)
