"""Callback for early stopping."""

import math
from typing import Any

from jfit.callbacks.base import Callback, Event
from jfit.callbacks.monitor import maximizes, monitored
from jfit.checks import at_least_0


def early_stopping(
    monitor: str = "val_loss",
    *,
    patience: int = 3,
    min_delta: float = 0.0,
    mode: str = "auto",
    restore_best: bool = True,
) -> Callback:
    """Stop training when a monitored value has not improved for `patience` epochs.

    Args:
        monitor: name of the value in the logs of an epoch: "val_loss", "val_accuracy", "loss", ...
        patience: number of epochs with a value, but without improvement, after which training stops, at least 1; epochs that
            are not evaluated (`eval_every=` of `fit`) have no evaluation value.
        min_delta: an epoch is an improvement if the value is better than the best one by more than this; at least 0.  nan is
            never an improvement.
        mode: "min", "max", or "auto" (maximize if the name contains "acc", "f1", "auc" or the like and does not end in "loss",
            "mse", "error" or the like, else minimize).
        restore_best: whether the run ends with the state of the best epoch; a copy of the state is kept on the host.

    Returns:
        A `Callback`.

    Raises:
        ValueError: an argument is out of range.  During training: the first epoch logs no value of this name, or an array.

    Example:
        >>> early_stopping("val_accuracy", patience=2).name
        'early_stopping(val_accuracy)'
    """
    maximize = maximizes(monitor, mode)
    if not patience >= 1:  # inf: training does not stop, and ends with the best state
        raise ValueError(f"early_stopping: patience is {patience}; expected at least 1")
    at_least_0(min_delta=min_delta)

    def init() -> dict[str, Any]:
        return {"best": None, "best_epoch": None, "waited": 0}

    def on(event: Event, state: dict[str, Any]) -> dict[str, Any]:
        value = monitored("early_stopping: monitor", event, monitor, required=state["best"] is None)
        if value is None:
            return state
        best = state["best"]
        gain = math.inf if best is None else (value - best if maximize else best - value)
        if not math.isnan(value) and gain > min_delta:
            if restore_best:
                event.run.set_best(event.run.snapshot())
            return {"best": value, "best_epoch": event.epoch, "waited": 0}
        waited = state["waited"] + 1
        if waited >= patience:
            summary = "always nan" if best is None else f"best {best:.6g} in epoch {state['best_epoch']}"
            event.run.stop(f"early_stopping: {monitor} has not improved for {waited} epochs ({summary}).")
        return state | {"waited": waited}

    return Callback(on=on, init=init, events=("epoch_end",), name=f"early_stopping({monitor})")
