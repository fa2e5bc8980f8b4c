"""The table of optimizers, generated from the registry: `python -m jfit.optim`, or `python -m jfit.optim --markdown`."""

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
# settings that change what a rule keeps
_SETTINGS: dict[str, Any] = {"momentum": 0.5, "centered": True, "batch_scale": 2}


def table() -> list[tuple[str, ...]]:
    """One row for each optimizer, by name; columns as `COLUMNS`.

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
    """`name=default`; of the shared ones only those with a default of their own."""
    usual = inspect.signature(OPTIMIZERS["sgd"].make).parameters
    given = inspect.signature(make).parameters.values()
    return ", ".join(f"{p.name}={p.default!r}" for p in given if p.name not in SHARED or p.default != usual[p.name].default)


def _state(make: Callable[..., Any]) -> str:
    """The slots in their order, those that a setting adds with its name in brackets; then the scalars of all parameters."""
    known = {name: value for name, value in _SETTINGS.items() if name in inspect.signature(make).parameters}
    because: dict[str, str] = {}
    for given in ({}, *({name: value} for name, value in known.items()), known):
        for slot in (kept := _kept(make(**given))):
            because.setdefault(slot, "".join(f" ({name})" for name in given))
    return ", ".join(slot + because[slot] for slot in kept) or "none"


def _kept(transform: Any) -> list[str]:
    shared = jax.eval_shape(transform.init, {"w_weight": jax.ShapeDtypeStruct((1, 1), jnp.float32)}).shared
    return [*transform.state_spec.slots, *([f"of all parameters: {', '.join(shared)}"] if shared else [])]


def markdown() -> str:
    """The table as a Markdown page."""

    def line(cells: tuple[str, ...]) -> str:
        return "| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |"

    rows = [
        (f"`{name}`", _code(aliases), _code(given), state, f"`{formula}`") for name, aliases, given, state, formula in table()
    ]
    head = "# Optimizers\n\nMade by `python -m jfit.optim --markdown > docs/optimizers.md`; do not edit by hand.\n\n"
    return head + _TEXT + "\n".join([line(COLUMNS), line(("---",) * len(COLUMNS)), *map(line, rows)]) + "\n"


_SHARED = ", ".join(f"`{name}`" for name in SHARED)
_TEXT = f"""Each is a function of `jfit.optim`, and goes into `fit`, the train step and `jfit.optim.get` by name. In the
formulas `g` is the rescaled gradient, `w` the weight, `lr` the rate, `t` the number of the update; `c(.)` clips to
±clip_gradient.
All take {_SHARED} as well; the table shows those whose default is another one.
With multi_precision there is a last slot, `master`: 16-bit weights in float32.

Any other name means an optimizer of optax or optax.contrib with its own parameters, such as `"lion"` or `"muon"`;
`python -m jfit.optim` lists those of the optax that is installed. Where both have a name it means jfit's, whose numbers are
those of MXNet 1.9.1; optax's goes in as an instance, `optax.lamb(...)`.

"""


def _code(cell: str) -> str:
    return "" if cell == "none" else f"`{cell}`"


def plain() -> str:
    """The table as text, an optimizer a paragraph, then the names of optax."""
    parts = []
    for name, aliases, given, state, formula in table():
        parts.append(f"{name}  {formula}\n    aliases: {aliases}; parameters: {given}; state: {state}")
    return "\n".join([*parts, "", f"of optax: {', '.join(optax_names())}"]) + "\n"


if __name__ == "__main__":
    sys.stdout.write(markdown() if "--markdown" in sys.argv[1:] else plain())
