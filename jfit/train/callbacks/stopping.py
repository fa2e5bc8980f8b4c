"""Early stopping."""

import math
from typing import Any

from jfit.train.callbacks.base import Callback, Event, known_names, numbers

# Parts of metric names where more is better; everything else is an error of some kind and goes down.
_RISING = ("acc", "f1", "mcc", "pcc", "auc", "precision", "recall", "top_k", "pearson", "r2")


def early_stopping(
    monitor: str = "val_loss",
    *,
    patience: int = 3,
    min_delta: float = 0.0,
    mode: str = "auto",
    restore_best: bool = True,
) -> Callback:
    """Stops when `monitor` has not improved by more than min_delta for `patience` epochs.

    Args:
      monitor: a name in the epoch's logs: "val_loss", "val_accuracy", "loss" ...
      patience: epochs without improvement before the stop, at least 1.
      min_delta: the least change that counts as an improvement, at least 0.
      mode: "min", "max", or "auto": max for names of accuracy, F1 and the like, min for all others.
      restore_best: the run ends with the state of the best epoch (handed to it by `run.set_best(run.snapshot())`).

    Returns:
      A callback for "epoch_end". NaN is never an improvement.

    Raises:
      ValueError: an argument is out of range, or (in the first epoch) nothing of that name is logged.

    Example:
      >>> early_stopping("val_accuracy", patience=2).name
      'early_stopping(val_accuracy)'
    """
    if mode not in ("auto", "min", "max"):
        raise ValueError(f"early_stopping: mode is {mode!r}; {known_names(mode, ('auto', 'min', 'max'))}")
    if patience < 1 or min_delta < 0:
        raise ValueError(
            f"early_stopping: found patience={patience}, min_delta={min_delta}, needed patience >= 1 and min_delta >= 0."
        )
    rising = mode == "max" or (mode == "auto" and any(part in monitor for part in _RISING))

    def init() -> dict[str, Any]:
        return {"best": None, "best_epoch": None, "waited": 0}

    def on(event: Event, state: dict[str, Any]) -> dict[str, Any]:
        value = _value(event, monitor, state)
        if value is None:
            return state
        best = state["best"]
        gain = math.inf if best is None else (value - best if rising else best - value)
        if not math.isnan(value) and gain > min_delta:
            if restore_best:
                event.run.set_best(event.run.snapshot())
            return {"best": value, "best_epoch": event.epoch, "waited": 0}
        waited = state["waited"] + 1
        if waited >= patience:
            known = "never a number" if best is None else f"best {best:.6g} in epoch {state['best_epoch']}"
            event.run.stop(f"early_stopping: {monitor} has not improved for {waited} epochs ({known}).")
        return state | {"waited": waited}

    return Callback(on=on, init=init, events=("epoch_end",), name=f"early_stopping({monitor})")


def _value(event: Event, monitor: str, state: dict[str, Any]) -> float | None:
    value = event.logs.get(monitor)
    if getattr(value, "ndim", 0):
        raise ValueError(
            f"early_stopping: monitor={monitor!r} is an array, needed a number; {known_names('', numbers(event.logs))}"
        )
    if value is not None:
        return float(value)
    if state["best"] is not None:
        # It was logged before: evaluation does not run in every epoch.
        return None
    hint = " Pass eval_data= to fit: val_ values come from it." if monitor.startswith("val_") else ""
    raise ValueError(f"early_stopping: monitor={monitor!r} is not logged; {known_names(monitor, event.logs)}{hint}")
