"""Ctrl-C while arrays are donated: it takes effect between dispatches, a second one at once.

A KeyboardInterrupt inside a call that donates would leave no state at all.  Off the main thread no handler can be set and no
interrupt arrives: there nothing is done.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any


class StopFlag:
    """Ctrl-C sets a flag that a loop reads between calls; a second Ctrl-C raises at once.

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
        """Handle SIGINT inside the block."""
        with _handled(self._note):
            yield self

    def _note(self, number: int, frame: Any) -> bool:
        before, self.set = self.set, True
        return not before


@contextlib.contextmanager
def defer_interrupts() -> Iterator[None]:
    """Ctrl-C inside the block takes effect at its end; a second one at once.

    For a call that donates: between its dispatch and the moment its result is kept there is no state.

    Example:
        >>> import signal
        >>> try:
        ...     with defer_interrupts():
        ...         signal.raise_signal(signal.SIGINT)
        ...         print("the block goes on")
        ... except KeyboardInterrupt:
        ...     print("then it is told")
        the block goes on
        then it is told
    """
    caught: list[Any] = []

    def note(number: int, frame: Any) -> bool:
        caught.append((number, frame))
        return len(caught) == 1

    before = None
    try:
        with _handled(note) as before:
            yield
    finally:
        if caught and callable(before):
            before(*caught[0])


@contextlib.contextmanager
def _handled(note: Callable[[int, Any], bool]) -> Iterator[Any]:
    """Ctrl-C inside the block calls `note(number, frame)`; where that is False it raises, and the old handler is back."""
    before = signal.getsignal(signal.SIGINT) if threading.current_thread() is threading.main_thread() else None
    if before is None:
        yield None
        return

    def handler(number: int, frame: Any) -> None:
        if not note(number, frame):
            signal.signal(signal.SIGINT, before)
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, handler)
    try:
        yield before
    finally:
        signal.signal(signal.SIGINT, before)
