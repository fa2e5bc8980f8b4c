"""What callbacks that monitor a logged value share: reading it from an event, whether larger is better, and patience."""

from collections.abc import Mapping
from typing import Any

from jfit.callbacks.base import Event, scalars
from jfit.callbacks.intervals import EPOCH, Every
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
    """Return the monitored value of an event, or None.

    The values of an evaluation at the end of an epoch are those of "epoch_end", so that each counts once.

    Args:
        owner: function and argument that name the value, with which error messages begin.
        event: "epoch_end" or "evaluation" event.
        monitor: name of the value in its logs.
        required: whether a missing value is an error, unless a later event may have it.

    Raises:
        ValueError: the value is an array, or it is required and missing.
    """
    if event.ends_epoch:
        return None
    value: Any = event.logs.get(monitor)
    if monitor in event.logs and monitor not in scalars(event.logs):
        raise ValueError(f"{owner}={monitor!r} is an array; expected a number, one of {', '.join(scalars(event.logs))}")
    if value is not None:
        return float(value)
    every = getattr(getattr(event.run, "settings", None), "eval_every", EPOCH)
    if monitor.startswith("val_"):
        comes_later = event.kind == "epoch_end" and (every.epochs is None or (event.epoch + 1) % every.epochs > 0)
    else:
        comes_later = event.kind == "evaluation"
    if not required or comes_later:
        return None
    evaluated = any(name.startswith("val_") for name in event.logs)
    hint = " Pass eval_data= to fit: names with val_ are evaluation values." if monitor[:4] == "val_" and not evaluated else ""
    raise ValueError(f"{owner}={monitor!r} is not logged; {name_hint(monitor, event.logs)}{hint}")


def check_patience(owner: str, patience: Any) -> None:
    """Raise a ValueError unless a patience is an `Every`, or a number of at least 1; inf never ends."""
    if not isinstance(patience, Every) and not patience >= 1:
        raise ValueError(f"{owner}: patience is {patience}; expected at least 1")


def waited(patience: Any, event: Event, state: Mapping[str, Any]) -> int:
    """Return for how long there has been no improvement: a number of values, or for an `Every` of steps or epochs."""
    if isinstance(patience, Every):
        return patience.position(event.epoch, event.step) - state.get("since", 0)
    return state["waited"] + 1


def is_over(patience: Any, count: int) -> bool:
    """Whether `count`, a result of `waited`, has reached the patience."""
    return count >= (patience.count if isinstance(patience, Every) else patience)


def begin(patience: Any, event: Event) -> dict[str, int]:
    """Return the part of a callback's state from which `waited` counts after this event."""
    return {"since": patience.position(event.epoch, event.step)} if isinstance(patience, Every) else {}
