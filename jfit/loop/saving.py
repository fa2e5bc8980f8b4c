"""Checkpoints of a training that ends early or with an error, and those that are written in the background at that time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jfit.callbacks.base import Event
from jfit.callbacks.saving import Saver
from jfit.checkpoints.checkpoint import path_of
from jfit.data import DataTimeout


def save_now(loop: Any, first: int, *, alone: bool = False) -> None:
    """Save a checkpoint of the state of a `Loop`, unless the last one is of the same step.

    A large one is written in the background until the event "fit_end".

    Args:
        loop: the `Loop`; between two steps, in a job the same step in all processes.
        first: number of updates done when its training began.
        alone: in a job, the other processes may not come here; then only rank 0 saves, if it has all arrays.
    """
    finish_saves(loop, "it is tried again")
    for i, saver in _writers(loop):
        if not alone:
            loop.events.states[i] = saver.agree(loop.events.states[i])
        elif not saver.can_save_alone(loop.run):
            return
        saver.alone = alone
    for i, callback in enumerate(loop.events.callbacks):
        if not callback.saves:
            continue
        state = loop.events.states[i]
        last = state["last"] if isinstance(state, dict) else state
        if loop.step == first or last is None or Path(last).name != path_of("", loop.step).name:
            event = Event("step", num_batches=loop.dispatcher.num_batches, logs={}, run=loop.run, **loop.position)
            loop.events.states[i] = callback.on(event, state)


def save_after_error(loop: Any, error: BaseException, first: int) -> None:
    """Save a checkpoint if training ends because data takes too long.

    Ctrl-C, if it is raised as an exception, abandons the checkpoint that is written in the background; after other errors the
    event "fit_end" waits for it.

    Args:
        loop: the `Loop`; between two steps.
        error: the exception that ends training.
        first: number of updates done when training began.
    """
    if isinstance(error, DataTimeout):
        save_now(loop, first, alone=True)
    elif isinstance(error, KeyboardInterrupt):
        abandon_saves(loop)


def finish_saves(loop: Any, then: str) -> None:
    """Wait for the checkpoints of a `Loop` that are written in the background; `then` is the end of a warning if one failed."""
    for i, saver in _writers(loop):
        loop.events.states[i] = saver.finish(loop.events.states[i], then)


def abandon_saves(loop: Any) -> None:
    """Stop the saves of a `Loop` in the background; the checkpoints before them stay."""
    for i, saver in _writers(loop):
        loop.events.states[i] = saver.abandon(loop.events.states[i])


@contextlib.contextmanager
def ending_saves(loop: Any) -> Iterator[None]:
    """Context manager around the training of a `Loop`, at whose end no checkpoint is written in the background.

    Usually the event "fit_end" has waited for it.  If Ctrl-C is raised as an exception, in the block or during the wait, the
    save is abandoned.
    """
    try:
        yield
    except KeyboardInterrupt:
        abandon_saves(loop)
        raise
    finally:
        try:
            finish_saves(loop, "training has ended")
        finally:
            abandon_saves(loop)


def _writers(loop: Any) -> Iterator[tuple[int, Saver]]:
    for i, callback in enumerate(loop.events.callbacks):
        if isinstance(saver := getattr(callback.on, "__self__", None), Saver):
            yield i, saver
