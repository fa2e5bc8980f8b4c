"""Delay Ctrl-C until a training step has returned.

A training step donates its input state: a KeyboardInterrupt after the dispatch, but before the new state is assigned, would
leave no state at all.  Inside these context managers the first Ctrl-C therefore takes effect later, and the second one raises
immediately.  Outside the main thread they do nothing, because Python neither allows signal handlers nor raises
KeyboardInterrupt there.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any


class StopFlag:
    """A flag that Ctrl-C sets, for a loop that checks it between steps; a second Ctrl-C raises KeyboardInterrupt immediately.

    Attributes:
        set: True after the first Ctrl-C.

    Example:
        >>> import signal
        >>> with StopFlag().watching() as flag:
        ...     signal.raise_signal(signal.SIGINT)
        >>> flag.set
        True
    """

    def __init__(self) -> None:
        self.set = False

    @contextlib.contextmanager
    def watching(self) -> Iterator[StopFlag]:
        """Return a context manager in which SIGINT (Ctrl-C) sets the flag; its value is this object."""
        with _sigint_handler(self._on_interrupt):
            yield self

    def _on_interrupt(self, number: int, frame: Any) -> bool:
        was_set, self.set = self.set, True
        return not was_set


@contextlib.contextmanager
def defer_interrupts() -> Iterator[None]:
    """Delay Ctrl-C until the end of the block; a second Ctrl-C raises KeyboardInterrupt immediately.

    For a call that donates its argument: an interrupt before its result is assigned would lose the state.

    Example:
        >>> import signal
        >>> try:
        ...     with defer_interrupts():
        ...         signal.raise_signal(signal.SIGINT)
        ...         print("end of the block")
        ... except KeyboardInterrupt:
        ...     print("interrupted")
        end of the block
        interrupted
    """
    signals: list[Any] = []

    def on_interrupt(number: int, frame: Any) -> bool:
        signals.append((number, frame))
        return len(signals) == 1

    previous = None
    try:
        with _sigint_handler(on_interrupt) as previous:
            yield
    finally:
        if signals and callable(previous):
            previous(*signals[0])


@contextlib.contextmanager
def _sigint_handler(on_interrupt: Callable[[int, Any], bool]) -> Iterator[Any]:
    """Handle SIGINT in the block by `on_interrupt(number, frame)`; if it returns False, raise and restore the previous handler.

    The value of the context manager is the previous handler.  It is None, and nothing is handled, outside the main thread and
    if C code set the previous handler.
    """
    previous = signal.getsignal(signal.SIGINT) if threading.current_thread() is threading.main_thread() else None
    if previous is None:
        yield None
        return

    def handler(number: int, frame: Any) -> None:
        if not on_interrupt(number, frame):
            signal.signal(signal.SIGINT, previous)
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, handler)
    try:
        yield previous
    finally:
        signal.signal(signal.SIGINT, previous)
