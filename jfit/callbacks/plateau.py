"""Callback that reduces the learning rate when a monitored value stops improving."""

import logging
import math
from typing import Any

from jfit.callbacks.base import Callback, Event
from jfit.callbacks.intervals import Every
from jfit.callbacks.monitor import begin, check_patience, is_over, maximizes, monitored, waited
from jfit.checks import at_least_0, below_1, positive


def reduce_on_plateau(
    monitor: str = "val_loss",
    *,
    factor: float = 0.1,
    patience: int | Every = 10,
    min_delta: float = 1e-4,
    cooldown: int = 0,
    min_lr: float = 0.0,
    mode: str = "auto",
) -> Callback:
    """Multiply the base learning rate by `factor` when a monitored value has not improved for `patience`.

    At each value, `waited` is 0 if the value is better than the best one by more than `min_delta`, else it grows by 1 (with
    `jfit.every`, by the steps or epochs since the last value).  During a cooldown it is 0 too.  Otherwise, if
    `waited >= patience`, the base rate becomes max(factor * base rate, min_lr), `waited` becomes 0, and a cooldown of
    `cooldown` values begins.  A learning-rate schedule is not restarted: it goes on, computed from the reduced base rate.

    Args:
        monitor: name of a logged value: "val_loss", "val_accuracy", which each evaluation has (`eval_every=` of `fit`); or
            "loss" and other values of training, which each epoch has.
        factor: from above 0 to below 1.
        patience: number of values without improvement before a reduction, at least 1; or `jfit.every(steps=2000)`,
            `jfit.every(epochs=3)`.
        min_delta: minimum improvement, at least 0.  nan is never an improvement.
        cooldown: number of values after a reduction in which missing improvement is not counted.
        min_lr: lower bound of the base learning rate.
        mode: "min", "max", or "auto" (maximize if the name contains "acc", "f1", "auc" or the like and does not end in "loss",
            "mse", "error" or the like, else minimize).

    Returns:
        A `Callback`; its state (best value, epochs waited, rest of the cooldown) is saved in checkpoints, as the rate is.
        Reductions are logged to `logging.getLogger("jfit")` at level INFO, and visible as "lr" in the history.

    Raises:
        ValueError: an argument is out of range.  During training: no value of this name is logged, or it is an array;
            or the optimizer is an optax instance with its own learning rate, or the schedule ignores the base
            learning rate.

    Example:
        >>> reduce_on_plateau("val_loss", factor=0.5, patience=3).name
        'reduce_on_plateau(val_loss)'

    Source: `optax.contrib.reduce_on_plateau` and torch's ReduceLROnPlateau (with `patience - 1` there), with an absolute
    threshold; Keras' ReduceLROnPlateau is equal without a cooldown, and its cooldown is one epoch shorter.
    """
    positive(factor=factor)
    below_1(factor=factor)
    check_patience("reduce_on_plateau", patience)
    at_least_0(min_delta=min_delta, cooldown=cooldown, min_lr=min_lr)
    maximize = maximizes(monitor, mode)

    def init() -> dict[str, Any]:
        return {"best": None, "waited": 0, "cooldown": 0}

    def on(event: Event, state: dict[str, Any]) -> dict[str, Any]:
        if event.kind == "fit_start":
            _check_rate(event.run)
            return state
        value = monitored("reduce_on_plateau: monitor", event, monitor, required=state["best"] is None and not state["waited"])
        if value is None:
            return state
        best, count, rest = state["best"], waited(patience, event, state), state["cooldown"]
        gain = math.inf if best is None else (value - best if maximize else best - value)
        if not math.isnan(value) and gain > min_delta:
            best, count = value, 0
        if rest > 0:
            rest, count = rest - 1, 0
        elif is_over(patience, count):
            _reduce(event, factor, min_lr)
            rest, count = cooldown, 0
        return state | {"best": best, "waited": count, "cooldown": rest} | ({} if count else begin(patience, event))

    return Callback(on=on, init=init, events=("fit_start", "evaluation", "epoch_end"), name=f"reduce_on_plateau({monitor})")


def _check_rate(run: Any) -> None:
    if run.base_lr is None:
        remedy = "pass the optimizer by name, or chain it with optax.contrib.reduce_on_plateau"
        raise ValueError(f"reduce_on_plateau: the learning rate of an optax instance cannot be reduced; {remedy}")
    if run.settings.ignores_base_lr:
        remedy = "pass a function (count, base) -> rate, a schedule by name, or none"
        raise ValueError(f"reduce_on_plateau: the schedule is a function of the number of updates alone; {remedy}")


def _reduce(event: Event, factor: float, min_lr: float) -> None:
    rate = event.run.base_lr  # sync: at the end of an epoch the devices are done
    reduced = max(rate * factor, min_lr)
    if reduced < rate:
        event.run.set_base_lr(reduced)
        logging.getLogger("jfit").info("Epoch[%d] reduced the base learning rate from %g to %g", event.epoch, rate, reduced)
