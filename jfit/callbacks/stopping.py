"""Callback for early stopping."""

import math
from typing import Any

from jfit.callbacks.base import Callback, Event
from jfit.callbacks.intervals import Every
from jfit.callbacks.monitor import begin, check_patience, is_over, maximizes, monitored, waited
from jfit.checks import at_least_0


def early_stopping(
    monitor: str = "val_loss",
    *,
    patience: int | Every = 3,
    min_delta: float = 0.0,
    mode: str = "auto",
    restore_best: bool = True,
) -> Callback:
    """Stop training when a monitored value has not improved for `patience`: a number of values, of steps or of epochs.

    Args:
        monitor: name of a logged value: "val_loss", "val_accuracy", which each evaluation has (`eval_every=` of `fit`); or
            "loss" and other values of training, which each epoch has.
        patience: number of values without improvement after which training stops, at least 1; or
            `jfit.every(steps=2000)`, `jfit.every(epochs=3)`: training stops at the first value so long after the best one.
        min_delta: a value is an improvement if it is better than the best one by more than this; at least 0.  nan is never an
            improvement.
        mode: "min", "max", or "auto" (maximize if the name contains "acc", "f1", "auc" or the like and does not end in "loss",
            "mse", "error" or the like, else minimize).
        restore_best: whether the run ends with the state of the best value; a copy of the state is kept on the host.

    Returns:
        A `Callback`.

    Raises:
        ValueError: an argument is out of range.  During training: no value of this name is logged, or it is an array.

    Example:
        >>> early_stopping("val_accuracy", patience=2).name
        'early_stopping(val_accuracy)'
    """
    maximize = maximizes(monitor, mode)
    check_patience("early_stopping", patience)  # with inf, training does not stop, and ends with the best state
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
            return {"best": value, "best_epoch": event.epoch, "waited": 0} | begin(patience, event)
        count = waited(patience, event, state)
        if is_over(patience, count):
            summary = "always nan" if best is None else f"best {best:.6g} in epoch {state['best_epoch']}"
            by_steps = isinstance(patience, Every) and patience.steps
            unit = "steps" if by_steps else "evaluations" if event.is_within and not isinstance(patience, Every) else "epochs"
            event.run.stop(f"early_stopping: {monitor} has not improved for {count} {unit} ({summary}).")
        return state | {"waited": count}

    return Callback(on=on, init=init, events=("evaluation", "epoch_end"), name=f"early_stopping({monitor})")
