"""One dispatch that updates many parameters, and the pure rule behind an optimizer object."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from jax import Array

from jfit import counters, optim
from jfit.mxnet.box import unbox
from jfit.optim.core import MASTER, Start, is_small, wide
from jfit.optim.rows import on_values

if TYPE_CHECKING:
    from jfit.mxnet.optimizer.base import Optimizer

Slots = tuple[Any, ...]


class Rule(NamedTuple):
    """A pure transformation, the first value of each of its slots, whether it counts updates, its shared scalars."""

    transform: Any
    starts: Mapping[str, Start]
    counted: bool
    shared: Callable[[], dict[str, Array]] | None

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the slots, in the order in which MXNet stores them; the master is the last."""
        return tuple(self.starts)


@functools.lru_cache(maxsize=256)
def rule_of(hyper_key: Any) -> Rule:
    """The rule that a `hyper_key` means, without multipliers; one for all optimizers that share it."""
    name, hyper = hyper_key
    transform = optim.get(name, lr_mult=None, wd_mult=None, **dict(hyper)).transform
    recipe = transform.recipe
    return Rule(transform, recipe.slots, recipe.counted, recipe.shared)


def slot_names(optimizer: Optimizer) -> tuple[str, ...]:
    """Names of the slots in the order that MXNet stores them; a state that went through a trace has them sorted by name.

    Example:
        >>> from jfit.mxnet.optimizer.named import RMSProp
        >>> slot_names(RMSProp(centered=True))
        ('n', 'g', 'delta')
    """
    return rule_of(optimizer.hyper_key()).slots


def new_state(optimizer: Optimizer, weight: Any) -> Slots:
    """The first value of every slot of the rule, placed like the weight; of 16-bit weights in float32.

    The master is None where the weight needs none.
    """
    optimizer.check_weight(weight)
    return tuple(
        None if name == MASTER and not is_small(weight) else placed(start(weight), weight)
        for name, start in rule_of(optimizer.hyper_key()).starts.items()
    )


def apply_update(
    optimizer: Optimizer,
    indices: Sequence[Any],
    weights: Sequence[Any],
    grads: Sequence[Any],
    states: Sequence[Slots | None],
    apart: bool = False,
) -> tuple[list[Array], list[Slots]]:
    """w_i <- w_i + u(rescale_grad * g_i) for all parameters in one dispatch; counts the update of each index.

    Counts, rates, decays, rescale_grad and scalars that parameters share are data: changing them compiles nothing.  Clipping
    and the rule's own parameters (momentum, betas, epsilon ...) are constants of the program: each new value of theirs
    compiles once.

    Args:
        optimizer: an `Optimizer` with a rule.
        indices: index or name of each parameter, as its optimizer knows it.
        weights: arrays.
        grads: arrays or `jfit.optim.SparseRows`, summed over rows and devices.
        states: of each parameter a tuple of arrays (`slot_names`), `()` for rules without state, or None where it is still
            to be made.
        apart: count and ask for rates parameter by parameter, as where MXNet's key-value store updates.

    Returns:
        (new weights, new states), in the order of the indices.

    Raises:
        TypeError: the optimizer updates in Python.

    Example:
        >>> import jax.numpy as jnp
        >>> from jfit.mxnet.optimizer.named import SGD
        >>> new, states = apply_update(SGD(learning_rate=0.5), [0], [jnp.ones(2)], [jnp.ones(2)], [None])
        >>> new[0].tolist(), states
        ([0.5, 0.5], [()])
    """
    if not len(indices) == len(weights) == len(grads) == len(states):
        raise ValueError(
            f"{len(indices)} indices, {len(weights)} weights, {len(grads)} gradients and {len(states)} states do not "
            "belong together; give one of each for every parameter."
        )
    key = optimizer.hyper_key(optimizer.turns(indices, apart))
    made = tuple(new_state(optimizer, w) if s is None else tuple(s) for w, s in zip(weights, states, strict=True))
    data = optimizer.rows(indices, apart)
    if "wd" in dict(key[1]):  # the decay is data as well: the rule decays by 1 times the row, or not at all
        key = key[0], tuple((name, float(data[1].any()) if name == "wd" else value) for name, value in key[1])
    if jax.default_backend() == "cpu":
        # equal leaves share a kernel only if their scalars are arguments of their own, which compiles ten times faster; an
        # accelerator would copy each of them to itself at every call
        data = tuple(tuple(row) for row in data)
    shared = {name: placed(value, weights[0]) for name, value in optimizer.shared_for(indices).items()} if weights else {}
    scale = np.float32(optimizer.rescale_grad)
    new, after, scalars = _program(key)(tuple(weights), made, tuple(grads), data, scale, shared)
    optimizer.keep_shared(scalars)
    return list(new), list(after)


def gradient_of(box: Any) -> Any:
    """The values of a gradient; of one that is stored by rows, those rows."""
    rows = getattr(box, "by_rows", None)
    return unbox(box) if rows is None else rows


@functools.lru_cache(maxsize=256)
def _program(hyper_key: Any) -> Callable[..., tuple[tuple[Array, ...], tuple[Slots, ...], dict[str, Array]]]:
    rule = rule_of(hyper_key)

    def update(
        weights: tuple[Array, ...],
        states: tuple[Slots, ...],
        grads: tuple[Array, ...],
        data: tuple[Any, Any, Any, Any],
        scale: Array,
        shared: dict[str, Array],
    ) -> tuple[tuple[Array, ...], tuple[Slots, ...], dict[str, Array]]:
        counters.count_trace("apply_update")
        rates, decays, done, mults = data
        slots = {name: tuple(s[k] for s in states) for k, name in enumerate(rule.slots)}
        state = optim.OptState(done if rule.counted else None, slots, mults if len(mults) else None, decays, shared or None)
        # 16-bit gradients are rescaled in float32: 1 / batch size would cost them their last digits
        scaled = lambda g: wide(g) * scale if is_small(g) else g * scale.astype(g.dtype)  # noqa: E731
        grads = on_values(lambda each: tuple(map(scaled, each)), grads)
        updates, after = rule.transform.update(grads, state, weights, learning_rate=rates)
        columns = [after.slots[name] for name in rule.slots]
        new = tuple(tuple(column[i] for column in columns) for i in range(len(weights)))
        return optim.apply_updates(weights, updates), new, dict(after.shared or {})

    return jax.jit(update)


def placed(value: Any, weight: Any) -> Array:
    """A value on the device of a weight, if that is committed to one."""
    # a copy where it is committed and the other is not would compile the update twice
    value = jax.numpy.asarray(value)
    return jax.device_put(value, weight.sharding) if getattr(weight, "committed", False) else value
