"""`mx.util`: NumPy-shape semantics.  Arrays of jfit always know () and sizes of 0, so the switch only remembers itself."""

from __future__ import annotations

import threading
from typing import Any

_local = threading.local()


def is_np_shape() -> bool:
    """Whether the switch is on."""
    return _local.__dict__.get("on", False)


def set_np_shape(active: bool) -> bool:
    """Turn the switch; returns what it was."""
    before, _local.on = is_np_shape(), bool(active)
    return before


class np_shape:
    """The switch for the length of a block.

    Example:
        >>> with np_shape(True):
        ...     is_np_shape()
        True
    """

    def __init__(self, active: bool = True) -> None:
        self._active = active

    def __enter__(self) -> np_shape:
        self._before = set_np_shape(self._active)
        return self

    def __exit__(self, *exc: object) -> None:
        set_np_shape(self._before)

    def __call__(self, fn: Any) -> Any:
        """As a decorator."""

        def call(*args: Any, **kwargs: Any) -> Any:
            with np_shape(self._active):
                return fn(*args, **kwargs)

        return call
