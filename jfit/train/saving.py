"""Checkpoints that are saved because training ends early: after SIGTERM, or if the data source takes too long."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

from jfit.interrupts import StopFlag
from jfit.train.callbacks.base import Event
from jfit.train.checkpoint import path_of


def savers(loop: Any) -> list[int]:
    """Numbers of the callbacks of a `Loop` that save checkpoints."""
    return [i for i, callback in enumerate(loop.callbacks) if callback.name.startswith("checkpointing")]


def save_now(loop: Any, first: int) -> None:
    """Save a checkpoint of the state of a `Loop`, unless the last one is of the same step.

    Args:
        loop: the `Loop`; between two steps.
        first: number of updates done when its training began.
    """
    for i in savers(loop):
        state = loop.callback_states[i]
        last = state["last"] if isinstance(state, dict) else state
        if loop.step == first or last is None or Path(last).name != path_of("", loop.step).name:
            event = Event("step", num_batches=loop.dispatcher.num_batches, logs={}, run=loop.run, **loop.position)
            loop.callback_states[i] = loop.callbacks[i].on(event, state)


def save_at_sigterm(loop: Any, flag: StopFlag, first: int) -> None:
    """After SIGTERM, save a checkpoint and set `Loop.exit_code`, with which the process ends.

    Args:
        loop: the `Loop`; between two steps.
        flag: the flag that the signal has set.
        first: as for `save_now`.
    """
    if loop._stopped(flag) and flag.signal is signal.SIGTERM:
        save_now(loop, first)
        loop.exit_code = None if flag.owned else flag.exit_code
