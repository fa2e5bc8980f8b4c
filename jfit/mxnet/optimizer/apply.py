"""The pure rule behind an optimizer object: its slots, one dispatch that updates many parameters, states as MXNet nests them.

SGD, NAG, LARS of a 16-bit weight with a master:  (momentum, master)
every other optimizer of such a weight:           (master, what it keeps for a float32 weight)
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jfit import counters, optim
from jfit.formats.mxnet_states import shown
from jfit.formats.sparse import bounded_dense
from jfit.mxnet.mutable import as_array
from jfit.mxnet.optimizer import saved
from jfit.optim.core import MASTER, is_small, wide
from jfit.optim.rows import on_values

if TYPE_CHECKING:
    from jfit.mxnet.optimizer.base import Optimizer

Slots = tuple[Any, ...]


@functools.lru_cache(maxsize=256)
def rule_of(hyper_key: Any) -> Any:
    """The transformation of `jfit.optim` that a `hyper_key` means, without multipliers; one for all that share the key."""
    name, hyper = hyper_key
    return optim.get(name, lr_mult=None, wd_mult=None, **dict(hyper)).transform


def slot_names(optimizer: Optimizer) -> tuple[str, ...]:
    """Names of the slots in the order that MXNet stores them; a state that went through a trace has them sorted by name.

    Example:
        >>> from jfit.mxnet.optimizer.named import RMSProp
        >>> slot_names(RMSProp(centered=True))
        ('n', 'g', 'delta')
    """
    return tuple(rule_of(optimizer.hyper_key()).state_spec.slots)


def new_state(optimizer: Optimizer, weight: Any) -> Slots:
    """The first value of every slot of the rule, placed like the weight; of 16-bit weights in float32.

    The master is None where the weight needs none.
    """
    optimizer.check_weight(weight)
    return tuple(
        None if name == MASTER and not is_small(weight) else placed(start(weight), weight)
        for name, start in rule_of(optimizer.hyper_key()).state_spec.slots.items()
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
    return as_array(box) if rows is None else rows


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
        slots = {name: tuple(s[k] for s in states) for k, name in enumerate(rule.state_spec.slots)}
        state = optim.OptState(
            done if rule.state_spec.counted else None, slots, mults if len(mults) else None, decays, shared or None
        )
        # 16-bit gradients are rescaled in float32: 1 / batch size would cost them their last digits
        scaled = lambda g: wide(g) * scale if is_small(g) else g * scale.astype(g.dtype)  # noqa: E731
        grads = on_values(lambda each: tuple(map(scaled, each)), grads)
        updates, after = rule.update(grads, state, weights, learning_rate=rates)
        columns = [after.slots[name] for name in rule.state_spec.slots]
        new = tuple(tuple(column[i] for column in columns) for i in range(len(weights)))
        return optim.apply_updates(weights, updates), new, dict(after.shared or {})

    return jax.jit(update)


def placed(value: Any, weight: Any) -> Array:
    """A value on the device of a weight, if that is committed to one."""
    # a copy where it is committed and the other is not would compile the update twice
    value = jnp.asarray(value)
    return jax.device_put(value, weight.sharding) if getattr(weight, "committed", False) else value


# ------------------------------------------------------------------------------------------------ a state in MXNet's nesting
def state_to_mxnet(optimizer: Optimizer, slots: Slots) -> Any:
    """The state of one parameter in MXNet's nesting: None, an array, or a tuple of arrays.

    Slots that MXNet keeps elsewhere than in states are left out.

    Example:
        >>> from jfit.mxnet.optimizer.named import SGD, Adam
        >>> state_to_mxnet(SGD(), ()), state_to_mxnet(SGD(momentum=0.9), (1,)), state_to_mxnet(Adam(), (1, 2))
        (None, 1, (1, 2))
        >>> state_to_mxnet(SGD(multi_precision=True), (3,)), state_to_mxnet(Adam(multi_precision=True), (1, 2, 3))
        ((None, 3), (3, (1, 2)))
    """
    held = dict(zip(slot_names(optimizer), slots, strict=True))
    master = held.pop(MASTER, None)
    own = optimizer.nested(tuple(value for name, value in held.items() if name not in optimizer.hidden_slots))
    if master is None:
        return own
    return (own, master) if optimizer.master_last else (master, own)


def state_from_mxnet(optimizer: Optimizer, nested: Any, small: bool = False) -> Slots | None:
    """The slots of a state in MXNet's nesting, as plain arrays; None where it is still to be made.

    State of a rule that keeps none (momentum 0) is dropped.  Slots that MXNet keeps elsewhere are None.

    Args:
        optimizer: whose state it is.
        nested: None, an array, or nested tuples of them.
        small: the weight has 16 bits.

    Raises:
        ValueError: it holds another number of arrays than the rule has slots.

    Example:
        >>> import numpy as np
        >>> from jfit.mxnet.optimizer.named import SGD
        >>> [slot.shape for slot in state_from_mxnet(SGD(momentum=0.9), np.ones(2))]
        [(2,)]
    """
    names = slot_names(optimizer)
    own = [name for name in names if name != MASTER and name not in optimizer.hidden_slots]
    keeps_master = MASTER in names and small
    if not own and not keeps_master:
        return tuple(None for _ in names)
    if nested is None:
        return None
    arrays = [as_array(bounded_dense(part, "states", (own or [MASTER])[0])) for part in parts(nested)]
    held: dict[str, Any] = {}
    if keeps_master and arrays:
        held[MASTER] = arrays.pop(-1 if optimizer.master_last else 0)
    if (own and len(arrays) != len(own)) or (keeps_master and MASTER not in held):
        wanted = [*own, MASTER] if keeps_master else own
        raise ValueError(
            f"a state holds {len(arrays) + len(held)} arrays, {type(optimizer).__name__} needs {len(wanted)} "
            f"({', '.join(wanted)}); it was saved by another optimizer, or with other settings (momentum, centered, "
            "multi_precision)."
        )
    held.update(zip(own, arrays, strict=False))
    return tuple(held.get(name) for name in names)


def made_states(optimizer: Optimizer, indices: Sequence[Any], nested: Sequence[Any], weights: Sequence[Any]) -> list[Slots]:
    """`state_from_mxnet` of states that must exist, with what the optimizer keeps beside them.

    Raises:
        ValueError: one is None though the rule keeps state.
    """
    made = [state_from_mxnet(optimizer, state, is_small(w)) for state, w in zip(nested, weights, strict=True)]
    for index, slots in zip(indices, made, strict=True):
        if slots is None:
            raise ValueError(
                f"the state of {index!r} is None, {type(optimizer).__name__} keeps one; make it with "
                "create_state(index, weight)."
            )
    if optimizer.hidden_slots:
        return [_with_hidden(optimizer, i, cast(Any, s), w) for i, s, w in zip(indices, made, weights, strict=True)]
    return cast(Any, made)


def _with_hidden(optimizer: Optimizer, index: Any, slots: Slots, weight: Any) -> Slots:
    names = slot_names(optimizer)
    if not any(name in optimizer.hidden_slots for name in names):
        return slots
    kept = optimizer.hidden.get(index)
    fresh = new_state(optimizer, weight) if kept is None else ()
    hidden = dict(zip(names, fresh, strict=True)) if kept is None else kept
    return tuple(hidden[n] if n in optimizer.hidden_slots else s for n, s in zip(names, slots, strict=True))


def keep_hidden(optimizer: Optimizer, indices: Sequence[Any], states: Sequence[Slots]) -> None:
    """Remember the slots that MXNet keeps elsewhere than in states."""
    names = slot_names(optimizer)
    if any(name in optimizer.hidden_slots for name in names):
        for index, slots in zip(indices, states, strict=True):
            held = zip(names, slots, strict=True)
            optimizer.hidden[index] = {name: value for name, value in held if name in optimizer.hidden_slots}


def check_shapes(optimizer: Optimizer, index: Any, slots: Slots, weight: Any) -> None:
    """Refuse slots of other shapes than the rule has for this weight.

    Raises:
        ValueError: a shape differs.
    """
    starts = rule_of(optimizer.hyper_key()).state_spec.slots
    for (name, start), slot in zip(starts.items(), slots, strict=True):
        if slot is None:
            continue
        needed = jax.eval_shape(start, jax.ShapeDtypeStruct(tuple(weight.shape), weight.dtype)).shape
        if tuple(slot.shape) != tuple(needed):
            raise ValueError(
                f"optimizer state {name!r} of {index!r} has shape {tuple(slot.shape)}, the parameter needs {tuple(needed)}: "
                "load the states of the same network."
            )


def warn_of_precision(optimizer: Optimizer, weight: Any) -> None:
    """Warn where a 16-bit weight has no float32 master."""
    if is_small(weight) and not optimizer.multi_precision:
        warnings.warn(
            f"a weight is {weight.dtype}: {type(optimizer).__name__} computes in float32 and rounds it after every update, so "
            "small updates are lost; multi_precision=True keeps a float32 master of it.",
            stacklevel=4,
        )


def parts(nested: Any) -> tuple[Any, ...]:
    """The arrays of a nested state, in order."""
    if nested is None:
        return ()
    if is_nest(nested):
        return tuple(part for each in nested for part in parts(each))
    return (nested,)


def check_arrays(path: saved.Path, states: Mapping[Any, Any]) -> None:
    """Refuse states of a file that are neither None nor arrays; only an optimizer in Python has others.

    Raises:
        FormatError: there is one.
    """
    for index, state in states.items():
        for part in parts(state):
            if part is not None and not hasattr(part, "dtype"):
                saved.refuse(path, f"state {shown(index)}", part, "an array")


def is_nest(nested: Any) -> bool:
    """A tuple or list of states, and no sparse array."""
    return isinstance(nested, (tuple, list)) and not hasattr(nested, "todense")


def mapped(function: Callable[[Any], Any], nested: Any) -> Any:
    """A nested state with a function of every array in its place."""
    if nested is None:
        return None
    if is_nest(nested):
        return tuple(mapped(function, each) for each in nested)
    return function(nested)


def float32_of(value: Any) -> Any:
    """State that was saved in 16 bits, as MXNet keeps it without masters, in float32; anything else as it is."""
    return jnp.asarray(value).astype(jnp.float32) if hasattr(value, "dtype") and is_small(value) else value
