"""Several optimizers in one training: each updates the parameters whose names match its pattern."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import optax

from jfit.lowering.model import flatten_names
from jfit.optim.core import Optimizer
from jfit.programs import Constants


def by_pattern(optimizers: Mapping[str, Optimizer]) -> Optimizer:
    """Make one optimizer of several: θ_k ← θ_k + u_k(∇_k) for the parameters θ_k that pattern k matches.

    Each optimizer sees `optax.MaskedNode()` in place of the parameters of the others, as in `optax.multi_transform`, and has
    its own state, in a dict by pattern.

    The base learning rate is that of the first optimizer that was passed by name or comes from `jfit.optim`, if its rate is a
    number.  The learning rates of the other optimizers of this kind keep their ratio to it: a
    schedule, or another base learning rate, changes all of them by the same factor.  The rates of optax transformations, and
    schedules as learning rates of single optimizers, are their own.

    Args:
        optimizers: name or glob pattern of parameters -> optimizer.  The first pattern that matches a name counts.

    Returns:
        `Optimizer`.  Its `init` raises a ValueError for a parameter that no pattern matches, and for a pattern without
        parameters.

    Example:
        >>> import jax.numpy as jnp, jfit
        >>> optimizer = by_pattern({"a*": jfit.optim.get(optax.sgd(1.0)), "*": jfit.optim.sgd(0.5)})
        >>> params = {"a": jnp.ones(1), "b": jnp.ones(1)}
        >>> updates, state = optimizer.update(params, optimizer.init(params), params)
        >>> optimizer.base_lr, {name: float(u[0]) for name, u in updates.items()}
        (0.5, {'a': -1.0, 'b': -0.5})
    """
    parts = dict(zip(optimizers, in_proportion(list(optimizers.values())), strict=True))
    base = next((o.base_lr for o in parts.values() if o.takes_rate), None)

    def owners(params: Any) -> list[str]:
        names = list(flatten_names(params)[0])
        found = [next((p for p in parts if fnmatch.fnmatchcase(name, p)), None) for name in names]
        if None in found:
            problem = f"optimizer= has the patterns {list(parts)}, and none matches {names[found.index(None)]!r}"
            raise ValueError(f'{problem}; add a pattern for it, such as "*" as the last one, or name it in frozen=')
        if unused := [p for p in parts if p not in found]:
            problem = f"optimizer= has the pattern {unused[0]!r}, but no trainable parameter is left for it"
            raise ValueError(f"{problem}; the first pattern that matches a name counts, the names are {names[:20]}")
        return [str(p) for p in found]

    def cut(pattern: str, owner: Sequence[str], leaves: Sequence[Any], tree: Any) -> Any:
        return tree.unflatten([x if p == pattern else optax.MaskedNode() for x, p in zip(leaves, owner, strict=True)])

    def init(params: Any) -> dict[str, Any]:
        (leaves, tree), owner = jax.tree.flatten(params), owners(params)
        return {pattern: part.init(cut(pattern, owner, leaves, tree)) for pattern, part in parts.items()}

    def update(grads: Any, state: Any, params: Any = None, *, learning_rate: Any = None, **extra: Any) -> tuple[Any, Any]:
        (leaves, tree), owner = jax.tree.flatten(params), owners(params)
        gradients, updates, after = tree.flatten_up_to(grads), list(leaves), {}
        for pattern, part in parts.items():
            mine = cut(pattern, owner, gradients, tree), state[pattern], cut(pattern, owner, leaves, tree)
            passed = {"learning_rate": learning_rate} if part.takes_rate else {}
            changes, after[pattern] = part.update(*mine, **passed, **extra)
            changed = zip(tree.flatten_up_to(changes), updates, owner, strict=True)
            updates = [u if p == pattern else other for u, other, p in changed]
        return tree.unflatten(updates), after

    def for_graph(names: Sequence[str], fixed: Sequence[str]) -> Optimizer:
        return by_pattern({p: o if o.for_graph is None else o.in_order(names, fixed) for p, o in optimizers.items()})

    multiplied = {kind: [n for o in parts.values() for n in o.multiplied.get(kind, ())] for kind in ("lr_mult", "wd_mult")}
    return Optimizer(
        init,
        update,
        takes_rate=base is not None,
        base_lr=base,
        for_graph=for_graph if any(o.for_graph for o in parts.values()) else None,
        name=", ".join(f"{pattern}: {part.name}" for pattern, part in parts.items()),
        multiplied=multiplied,
        multi_precision=any(o.state_spec is not None or o.multi_precision for o in parts.values()),
    ).keyed(by_pattern, tuple(parts.items()))


def in_proportion(optimizers: Sequence[Optimizer]) -> list[Optimizer]:
    """Make optimizers that share one base learning rate, that of the first with a number as its rate, and keep their ratios.

    Args:
        optimizers: the optimizers.  Those with such a number, which is then in the state, multiply what is passed by the ratio
            of their number to the first one; the others are not to be passed one (`takes_rate` is False).

    Raises:
        ValueError: the first learning rate is 0, and another one is not.

    Example:
        >>> from jfit import optim
        >>> parts = in_proportion([optim.get(optax.sgd(1.0)), optim.sgd(0.2), optim.adam(0.1)])
        >>> [o.base_lr if o.takes_rate else None for o in parts]
        [None, 0.2, 0.2]
    """
    rates = [o.learning_rate if o.takes_rate else None for o in optimizers]
    base = next((rate for rate in rates if rate is not None), None)
    if base == 0 and any(rates):
        raise ValueError(f"the learning rates are {rates}; the first one is the base of the others, and must not be 0")
    return [_in_proportion(o, rate, base) for o, rate in zip(optimizers, rates, strict=True)]


def _in_proportion(optimizer: Optimizer, rate: float | None, base: float | None) -> Optimizer:
    if rate is None or base is None:
        return Optimizer(*optimizer, **vars(optimizer) | {"takes_rate": False})
    if rate == base:
        return optimizer
    numbers = Constants(ratio=rate / base)

    def update(grads: Any, state: Any, params: Any = None, *, learning_rate: Any = None, **extra: Any) -> tuple[Any, Any]:
        scaled = None if learning_rate is None else learning_rate * numbers.ratio
        return optimizer.update(grads, state, params, learning_rate=scaled, **extra)

    def for_graph(names: Sequence[str], fixed: Sequence[str]) -> Optimizer:
        return _in_proportion(optimizer.in_order(names, fixed), rate, base)

    fields = {"base_lr": base, "for_graph": None if optimizer.for_graph is None else for_graph}
    return Optimizer(optimizer.init, update, **vars(optimizer) | fields).keyed(in_proportion, optimizer, numbers=(numbers,))
