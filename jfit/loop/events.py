"""The events of a training: which callbacks get them, and the states of the callbacks."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Sequence
from typing import Any

from jfit import activity
from jfit.callbacks.base import Callback, Event, of_this_process
from jfit.interrupts import Stopped

NEVER = 1 << 30  # steps to an event that does not come


class Events:
    """Send events to callbacks in their order, and keep their states.

    Args:
        callbacks: the callbacks of a run.
        loop: the `Loop`; each event has its position and its run.

    Attributes:
        callbacks: those that run in this process.
        states: the state of each callback, JSON-serializable, saved in checkpoints.
        has_steps: whether a callback gets "step" events.
    """

    def __init__(self, callbacks: Sequence[Callback], loop: Any) -> None:
        # A weak reference, because the loop refers to this object: a cycle would live until garbage collection.
        self.callbacks, self._loop = list(map(of_this_process, callbacks)), weakref.proxy(loop)
        self.states: list[Any] = [callback.init() for callback in callbacks]
        self._every = [(i, c.every) for i, c in enumerate(self.callbacks) if c.every and "step" in c.events]
        self.has_steps = bool(self._every)

    def send(self, kind: str, logs: dict[str, Any] | None = None, **position: int) -> None:
        """Call the callbacks that get the event `kind`, all with the same `logs`; `position` replaces fields of the event."""
        for i in range(len(self.callbacks)):
            self.send_to(i, kind, logs, **position)

    def send_to(self, i: int, kind: str, logs: dict[str, Any] | None = None, **position: int) -> None:
        """Call callback number `i`, if it gets the event `kind`."""
        callback, loop = self.callbacks[i], self._loop
        if kind not in callback.events:
            return
        where = loop.position | position
        event = Event(kind, num_batches=loop.dispatcher.num_batches, logs={} if logs is None else logs, run=loop.run, **where)
        what = activity.SAVING if callback.saves else activity.CALLBACK
        doing = activity.Doing(what, f"in the callback {callback.name!r} ({kind})")
        with contextlib.suppress(Stopped), doing:  # the other callbacks get the event, and training stops after it
            self.states[i] = callback.on(event, self.states[i])

    def end_after_error(self) -> None:
        """Call every callback with "fit_end", so that bars and files are closed; ignore exceptions."""
        for i in range(len(self.callbacks)):
            with contextlib.suppress(Exception):
                self.send_to(i, "fit_end")

    def after_dispatch(self, _: Any) -> None:
        """Send a "step" event to the callbacks whose interval ends with the last step."""
        for i, every in self._every:
            if self._loop.step % every == 0:
                self.send_to(i, "step")

    def gap(self, step: int) -> int:
        """Number of steps from `step` (updates done so far) to the next "step" event."""
        return min((every - step % every for _, every in self._every), default=NEVER)
