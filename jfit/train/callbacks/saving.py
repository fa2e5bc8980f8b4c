"""Callback that saves checkpoints during training."""

import os
from typing import Any

from jfit.train import checkpoint
from jfit.train.callbacks.base import Callback, Event


def checkpointing(directory: str | os.PathLike[str], every: str | int = "epoch", keep: int | None = 3) -> Callback:
    """Save a checkpoint after each epoch, or every N steps.

    It saves the state of the run and `run.meta()` (position, history, callback states and graph), which
    `fit(resume=directory)` needs.

    Args:
        directory: checkpoint directory of the run.
        every: "epoch", or a number of steps.
        keep: number of checkpoints to keep, those with the highest steps; None keeps all.

    Returns:
        A `Callback`; its state is the path of the last checkpoint, a string.

    Raises:
        ValueError: `every` is neither "epoch" nor an integer of at least 1, or `keep` is below 1.

    Example:
        >>> checkpointing("runs/a/checkpoints", every=100).every
        100
    """
    steps = _steps(every)
    if keep is not None and keep < 1:
        raise ValueError(f"checkpointing: keep is {keep}, expected at least 1, or None to keep all.")

    def on(event: Event, state: str | None) -> str | None:
        # sync: the host waits until the devices have computed the state of this step
        return str(checkpoint.save(directory, event.run.snapshot(), meta=_meta(event), keep=keep, step=event.step))

    events = ("epoch_end",) if steps is None else ("step",)
    return Callback(on=on, events=events, every=steps, name="checkpointing")


def _steps(every: str | int) -> int | None:
    if every == "epoch":
        return None
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        raise ValueError(f"checkpointing: every is {every!r}, expected 'epoch' or a number of steps of at least 1.")
    return every


def _meta(event: Event) -> dict[str, Any]:
    run_meta: Any = getattr(event.run, "meta", None)
    if run_meta is not None:
        return dict(run_meta())
    return {"position": dict(event.run.position), "history": event.run.history.to_json()}
