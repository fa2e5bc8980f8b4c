"""Checks of the argument `updates` of `fit`."""

from __future__ import annotations

from typing import Any

from jfit.step.updates import Update

_SUMS = (None, "psum", "bfloat16")  # how gradients may be reduced: rules without a state per device
_EXCLUDED = {"optimizer": "sgd", "optimizer_params": None, "loss": None, "loss_weights": None, "shard": None, "mesh": None}
_EXCLUDED |= {"log": ()}


def check_updates(options: Any) -> None:
    """Raise an error if `updates` is no list of `Update`, or is combined with what it replaces or does not support."""
    updates = options.updates
    if not isinstance(updates, list | tuple) or not updates or not all(isinstance(u, Update) for u in updates):
        raise TypeError(f"updates is {updates!r}; expected a list of jfit.Update")
    if updates[0].every != 1:
        raise ValueError(f"updates: {updates[0].name!r} has every={updates[0].every}, but the first one runs in every step")
    names = [update.name for update in updates]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"updates: two have the name {twice[0]!r}; pass name= to jfit.Update")
    for name, default in _EXCLUDED.items():
        if getattr(options, name) != default:
            own = "is not supported" if name in ("log", "shard", "mesh") else "is an argument of each jfit.Update"
            raise ValueError(f"{name}= cannot be combined with updates=: it {own}; leave it out")
    if options.reduce not in _SUMS:
        raise ValueError(f'reduce={options.reduce!r} cannot be combined with updates=; pass "psum" or "bfloat16"')
