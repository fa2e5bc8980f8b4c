"""What callbacks that monitor a logged value share: reading it from an event, and whether larger values are better."""

from typing import Any

from jfit.callbacks.base import Event, scalars
from jfit.checks import name_hint, one_of
from jfit.history.plots import is_score


def maximizes(monitor: str, mode: str) -> bool:
    """Return whether larger values are better.

    Args:
        monitor: name of the monitored value.
        mode: "min", "max", or "auto" (maximize if the name contains "acc", "f1", "auc" or the like and does not end in "loss",
            "mse", "error" or the like, else minimize).

    Raises:
        ValueError: `mode` is another value.
    """
    one_of(("auto", "min", "max"), mode=mode)
    return mode == "max" or (mode == "auto" and is_score(monitor))


def monitored(owner: str, event: Event, monitor: str, required: bool) -> float | None:
    """Return the monitored value of an epoch.

    Args:
        owner: function and argument that name the value, with which error messages begin.
        event: "epoch_end" event.
        monitor: name of the value in its logs.
        required: whether a missing value is an error; otherwise it is None, because evaluation may be skipped in some epochs.

    Raises:
        ValueError: the value is an array, or it is required and missing.
    """
    value: Any = event.logs.get(monitor)
    if monitor in event.logs and monitor not in scalars(event.logs):
        raise ValueError(f"{owner}={monitor!r} is an array; expected a number, one of {', '.join(scalars(event.logs))}")
    if value is not None:
        return float(value)
    every = getattr(getattr(event.run, "settings", None), "eval_every", 1)
    if not required or (monitor.startswith("val_") and (event.epoch + 1) % every):
        return None  # there may be no evaluation in this epoch
    evaluated = any(name.startswith("val_") for name in event.logs)
    hint = " Pass eval_data= to fit: names with val_ are evaluation values." if monitor[:4] == "val_" and not evaluated else ""
    raise ValueError(f"{owner}={monitor!r} is not logged; {name_hint(monitor, event.logs)}{hint}")
