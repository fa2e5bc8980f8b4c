"""How far the host may run ahead of the devices."""

from __future__ import annotations

from typing import Any

WAIT_EVERY = 8  # calls between two waits; twice as many may be in flight: emulated CPU devices abort the process at 32


class Window:
    """At most 16 calls in flight: at every 8th call the host must wait for the call 8 before it.

    Example:
        >>> window = Window()
        >>> [call for call in range(1, 33) if window.push(call) is not None]
        [16, 24, 32]
    """

    def __init__(self) -> None:
        self._count = 0
        self._fence: Any = None  # of the last call that a later one waits for

    def push(self, fence: Any) -> Any | None:
        """Note a call; returns the fence to wait for now, or None."""
        self._count += 1
        if self._count % WAIT_EVERY:
            return None
        due, self._fence = self._fence, fence
        return due
