"""The argument `updates` of `fit`: its checks, and the training step that it describes."""

from __future__ import annotations

import functools
import glob
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jfit import optim
from jfit.lowering.model import Model
from jfit.optim.averaging import average
from jfit.optim.several import in_proportion
from jfit.step.state import optimizer_of
from jfit.step.train import TrainStep
from jfit.step.updates import Update, UpdatesStep, states_of

_SUMS = (None, "psum", "bfloat16")  # how gradients may be reduced: rules without a state per device


def check_updates(options: Any) -> None:
    """Raise an error if `updates` is no list of `Update`, or is combined with what it replaces or does not support."""
    updates = options.updates
    if not isinstance(updates, list | tuple) or not updates or not all(isinstance(u, Update) for u in updates):
        raise TypeError(f"updates is {updates!r}; expected a list of jfit.Update")
    if updates[0].every != 1:
        raise ValueError(
            f"updates: the first one, {updates[0].name!r}, has every={updates[0].every}; it must run in every step"
        )
    names = [update.name for update in updates]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"updates: two have the name {twice[0]!r}; pass name= to jfit.Update")
    for name, default in {"optimizer": "sgd", "optimizer_params": None, "loss": None, "loss_weights": None}.items():
        if getattr(options, name) != default:
            raise ValueError(f"updates= and {name}= are both passed; each jfit.Update has its own, leave out {name}=")
    for name in ("shard", "mesh"):
        if getattr(options, name) is not None:
            raise ValueError(f"{name}= does not support updates=; leave it out, and pass devices= for data-parallel training")
    if options.reduce not in _SUMS:
        raise ValueError(f'reduce={options.reduce!r} does not support updates=; pass "psum" or "bfloat16"')


def optimizers_of(updates: Sequence[Update], resolve: Callable[..., optim.Optimizer], model: Model) -> tuple[Any, ...]:
    """Return (the optimizer of the state, that of each update).

    Args:
        updates: the updates.
        resolve: `resolve(optimizer, optimizer_params) -> Optimizer`.
        model: the `Model`.
    """
    parts = in_proportion([resolve(update.optimizer, update.optimizer_params) for update in updates])
    return states_of(updates, [optimizer_of(part, model) for part in parts]), tuple(parts)


def updates_step(
    updates: Sequence[Update],
    models: Sequence[Model],
    parts: Sequence[optim.Optimizer],
    trainable: Mapping[str, Any],
    make: Callable[..., TrainStep],
    ema: Any,
) -> UpdatesStep:
    """Make the training step of several updates.

    Args:
        updates: the updates.
        models: the `Model` of each, with its loss.
        parts: the optimizer of each.
        trainable: the parameters that are not frozen, by name.
        make: `make(model, optimizer, selected, frozen, first) -> TrainStep`.
        ema: the arguments of `jfit.optim.ema` if parameters are averaged, else None.
    """
    names, steps = list(trainable), []
    for i, (update, model, part) in enumerate(zip(updates, models, parts, strict=True)):
        selected = update.select(names)
        frozen = [glob.escape(name) for name in names if name not in selected]
        steps.append(make(model, part, selected, frozen, i == 0))
    averaging = None if ema is None else functools.partial(average, **ema)
    return UpdatesStep(tuple(steps), tuple(u.name for u in updates), tuple(u.every for u in updates), averaging)
