"""`mx.util`: MXNet's switch for NumPy shape semantics; no effect, because jfit always supports shape () and axes of size 0."""

from __future__ import annotations

import contextlib
import threading

_local = threading.local()


def is_np_shape() -> bool:
    """Return whether NumPy shape semantics are switched on in this thread.

    Returns:
        bool; False unless switched on.

    Example:
        >>> is_np_shape()
        False
    """
    return _local.__dict__.get("on", False)


def set_np_shape(active: bool) -> bool:
    """Switch NumPy shape semantics on or off for this thread.

    Args:
        active: the new state.

    Returns:
        The previous state, bool.

    Example:
        >>> set_np_shape(False)
        False
    """
    before, _local.on = is_np_shape(), bool(active)
    return before


class np_shape(contextlib.ContextDecorator):
    """Context manager and decorator that switches NumPy shape semantics on or off; one object may be used several times.

    Args:
        active: the state inside the block.

    Example:
        >>> with np_shape(True):
        ...     is_np_shape()
        True
    """

    def __init__(self, active: bool = True) -> None:
        self._active = active

    def __enter__(self) -> np_shape:
        _local.__dict__.setdefault("before", []).append(set_np_shape(self._active))
        return self

    def __exit__(self, *_: object) -> None:
        set_np_shape(_local.before.pop())
