"""Print the table of optimizers, generated from the registry: `python -m jfit.optim`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jfit.optim.registry import OPTIMIZERS, optax_names

COLUMNS = ("optimizer", "aliases", "parameters", "state", "what it computes")
SHARED = ("wd", "clip_gradient", "lr_mult", "wd_mult", "multi_precision")
# arguments that add state slots
_SETTINGS: dict[str, Any] = {"momentum": 0.5, "centered": True, "batch_scale": 2}


def table() -> list[tuple[str, ...]]:
    """Return one row of text per optimizer, sorted by name, with the columns `COLUMNS`.

    Example:
        >>> dict((row[0], row[3]) for row in table())["adam"]
        'mean, var'
    """
    names: dict[Callable[..., Any], list[str]] = {}
    for name, entry in OPTIMIZERS.items():
        names.setdefault(entry.make, []).append(name)
    rows = []
    for make, (name, *aliases) in names.items():
        formula = (inspect.getdoc(make) or "").split("\n\n")[0].replace("\n", " ")
        rows.append((name, ", ".join(aliases) or "none", _parameters(make), _state(make), formula))
    return sorted(rows)


def _parameters(make: Callable[..., Any]) -> str:
    """Return `name=default` of each parameter of a factory.

    Parameters that all optimizers share are listed only if their default differs from that of sgd.
    """
    usual = inspect.signature(OPTIMIZERS["sgd"].make).parameters
    parameters = inspect.signature(make).parameters.values()
    return ", ".join(
        f"{p.name}={p.default!r}" for p in parameters if p.name not in SHARED or p.default != usual[p.name].default
    )


def _state(make: Callable[..., Any]) -> str:
    """Return the names of the state slots and of the scalars shared by all parameters.

    The argument that adds a slot is shown in brackets after its name.
    """
    settings = {name: value for name, value in _SETTINGS.items() if name in inspect.signature(make).parameters}
    reasons: dict[str, str] = {}
    for arguments in ({}, *({name: value} for name, value in settings.items()), settings):
        for slot in (slots := _slots(make(**arguments))):
            reasons.setdefault(slot, "".join(f" ({name})" for name in arguments))
    return ", ".join(slot + reasons[slot] for slot in slots) or "none"


def _slots(transform: Any) -> list[str]:
    shared = jax.eval_shape(transform.init, {"w_weight": jax.ShapeDtypeStruct((1, 1), jnp.float32)}).shared
    return [*transform.state_spec.slots, *([f"shared: {', '.join(shared)}"] if shared else [])]


def plain() -> str:
    """Return the table as text, one paragraph per optimizer, and the names of optax's optimizers."""
    parts = []
    for name, aliases, given, state, formula in table():
        parts.append(f"{name}  {formula}\n    aliases: {aliases}; parameters: {given}; state: {state}")
    return "\n".join([*parts, "", f"optax: {', '.join(optax_names())}"]) + "\n"


if __name__ == "__main__":
    sys.stdout.write(plain())
