"""What an error message says about the newest state of a run whose training failed."""

from __future__ import annotations

from typing import Any

import jax

from jfit.checkpoints.checkpoint import latest
from jfit.distributed import num_processes


def recovery_note(run: Any) -> str:
    """Return the part of an error message that says where the newest state of a `Run` is.

    If the state on the devices cannot be read, the newest checkpoint is restored first.
    """
    if _is_readable(run.state):
        return "jfit.last_run() has the state of the last finished step"
    folder = run.settings.checkpoint
    if num_processes() > 1:  # the other processes may have ended, so that this one cannot resume with them
        return "the state on the devices was lost; start the job again, with checkpoint= and resume=True"
    if folder is None or latest(folder) is None:
        return "the state on the devices was lost, and there is no checkpoint; pass checkpoint= to fit to save checkpoints"
    try:
        run.resume_from(folder)
    except (OSError, ValueError) as error:
        return f"the state on the devices was lost, and the checkpoints in {folder} cannot be read ({error})"
    checkpoint = f"checkpoint of step {run.position['step']} from {folder}"
    return f"the state on the devices was lost; jfit.last_run() has the {checkpoint}"


def _is_readable(state: Any) -> bool:
    """Return whether a state can be read: after a failed dispatch its arrays may be invalid, or donated and deleted."""
    try:
        jax.block_until_ready(state)  # sync: training has stopped; deleted arrays raise too
    except (RuntimeError, ValueError):
        return False
    return True
