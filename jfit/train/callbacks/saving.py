"""Checkpoints while training."""

import os
from typing import Any

from jfit.train import checkpoint
from jfit.train.callbacks.base import Callback, Event


def checkpointing(directory: str | os.PathLike[str], every: str | int = "epoch", keep: int | None = 3) -> Callback:
    """Writes a checkpoint after each epoch, or every N steps.

    Args:
      directory: folder of the run's checkpoints.
      every: "epoch", or a number of steps.
      keep: how many checkpoints stay, None for all.

    Returns:
      A callback whose state is the path of the last checkpoint. What it saves beside the arrays is `run.meta()` where
      the run has one, else position and history.

    Raises:
      ValueError: `every` is neither "epoch" nor a positive number of steps.

    Example:
      >>> checkpointing("runs/a/checkpoints", every=100).every
      100
    """
    steps = _steps(every)
    if keep is not None and keep < 1:
        raise ValueError(f"checkpointing: keep is {keep}, needed at least 1, or None to keep all.")

    def on(event: Event, state: str | None) -> str | None:
        # sync: the host waits for the state of this step
        return str(checkpoint.save(directory, event.run.snapshot(), meta=_meta(event), keep=keep, step=event.step))

    events = ("epoch_end",) if steps is None else ("step",)
    return Callback(on=on, events=events, every=steps, name="checkpointing")


def _steps(every: str | int) -> int | None:
    if every == "epoch":
        return None
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        raise ValueError(f"checkpointing: every is {every!r}, needed 'epoch' or a number of steps of at least 1.")
    return every


def _meta(event: Event) -> dict[str, Any]:
    make: Any = getattr(event.run, "meta", None)
    if make is not None:
        return dict(make())
    return {"position": dict(event.run.position), "history": event.run.history.to_json()}
