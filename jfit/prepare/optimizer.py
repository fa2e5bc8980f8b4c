"""The optimizer and the learning-rate schedule of a run, from its options."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

from jfit import optim
from jfit.lowering.model import Model
from jfit.optim.schedules import run_schedule
from jfit.prepare.options import FitOptions


class Chosen(NamedTuple):
    """An optimizer with its schedule.

    Attributes:
        optimizer: the `Optimizer`, with the moving average of the parameters if there is one (ema=).
        resolved: the optimizer without the moving average.
        schedule: the `Schedule` of the run, with all lengths in updates; None: a constant learning rate.
        learning_rate: the base learning rate that the user passed; None: the default of the optimizer or schedule.
    """

    optimizer: optim.Optimizer
    resolved: optim.Optimizer
    schedule: optim.Schedule | None
    learning_rate: float | None


def choose_optimizer(options: FitOptions, model: Model, num_batches: int | None) -> Chosen:
    """Make the optimizer and the schedule of a run.

    Args:
        options: the arguments of `fit`.
        model: the model to train; the `lr_mult` and `wd_mult` attributes of its graph become parameters of the optimizer.
        num_batches: number of training batches per epoch; None if it is not known.
    """
    rate, schedule = (options.optimizer_params or {}).get("learning_rate"), options.schedule
    passed = _passed_rate(options.optimizer, rate, schedule, options.schedule_params)
    if schedule is not None:
        updates = num_batches and num_batches * options.num_epoch
        schedule = run_schedule(schedule, options.schedule_params, rate, updates, num_batches)
    resolved = resolve_optimizer(options.optimizer, options.optimizer_params, model, schedule)
    return Chosen(_with_average(resolved, options.ema), resolved, schedule, passed)


def resolve_optimizer(
    optimizer: Any, optimizer_params: Mapping[str, Any] | None, model: Model, schedule: Any = None
) -> optim.Optimizer:
    """Make the optimizer from the arguments of `fit`, with the `lr_mult` and `wd_mult` attributes of the graph's variables."""
    params = dict(optimizer_params or {})
    attrs = {} if model.symbol is None else model.symbol.attr_dict()
    for kind in ("lr_mult", "wd_mult"):
        multipliers = {n: float(a[f"__{kind}__"]) for n, a in attrs.items() if f"__{kind}__" in a}
        if multipliers and isinstance(optimizer, str) and optimizer.lower() in optim.OPTIMIZERS:
            params.setdefault(kind, multipliers)
        elif multipliers:
            warnings.warn(
                f"the {kind} attributes of {', '.join(multipliers)} are ignored: only jfit optimizers by name support them",
                stacklevel=3,
            )
    if schedule is not None and isinstance(optimizer, str) and "learning_rate" not in params:
        base = optim.as_schedule(schedule).base_lr
        if base is not None:
            params["learning_rate"] = base
    return optim.get(optimizer, **params)


def _passed_rate(optimizer: Any, learning_rate: Any, schedule: Any, schedule_params: Any) -> float | None:
    """The base learning rate that the user passed to `fit`; None for the default of the optimizer or schedule."""
    if not isinstance(optimizer, str):
        return optim.get(optimizer).learning_rate
    if learning_rate is None:
        learning_rate = (schedule_params or {}).get("base_lr", getattr(schedule, "base_lr", None))
    return None if learning_rate is None or callable(learning_rate) else float(learning_rate)


def _with_average(optimizer: optim.Optimizer, ema: Any) -> optim.Optimizer:
    if ema is None:
        return optimizer
    options = ema if isinstance(ema, Mapping) else {"decay": ema}
    if unknown := [repr(name) for name in options if name not in ("decay", "debias")]:
        raise ValueError(f"ema has {', '.join(unknown)}; expected a dict with 'decay' and 'debias', as jfit.optim.ema has them")
    return optim.ema(optimizer, **options)
