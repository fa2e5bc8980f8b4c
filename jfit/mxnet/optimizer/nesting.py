"""The state of one parameter in MXNet's nesting and as the slots of a rule.

SGD, NAG, LARS of a 16-bit weight with a master:  (momentum, master)
every other optimizer of such a weight:           (master, what it keeps for a float32 weight)
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import jax
import jax.numpy as jnp

from jfit.formats.plain import shown
from jfit.formats.sparse import bounded_dense
from jfit.mxnet.box import unbox
from jfit.mxnet.optimizer import saved
from jfit.mxnet.optimizer.apply import Slots, new_state, rule_of, slot_names
from jfit.optim.core import MASTER, is_small

if TYPE_CHECKING:
    from jfit.mxnet.optimizer.base import Optimizer


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
    arrays = [unbox(bounded_dense(part, "states", (own or [MASTER])[0])) for part in parts(nested)]
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
    starts = rule_of(optimizer.hyper_key()).starts
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
