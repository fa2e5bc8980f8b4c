"""The pure update rule of an Optimizer: its slots, one compiled update of many parameters, and MXNet's nested states.

State layout in MXNet for a 16-bit weight with a float32 master copy (`multi_precision`):

SGD, NAG, LARS:         (momentum, master)
every other optimizer:  (master, state of a float32 weight)
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jfit import counters, optim
from jfit.checks import shown
from jfit.formats.sparse import bounded_dense
from jfit.mxnet.mutable import MutableRowSparse, as_array, replace
from jfit.mxnet.optimizer import saved
from jfit.mxnet.recording.backward import WaitingPass
from jfit.optim.core import MASTER, is_small, wide
from jfit.optim.registry import by_name
from jfit.optim.rows import on_values
from jfit.platforms import platform_of, traced_for

Arrays = tuple[Array, ...]
Scalars = dict[str, Array]
Slots = tuple[Any, ...]


@functools.lru_cache(maxsize=256)
def rule_of(hyper_key: Any) -> Any:
    """Make the `jfit.optim` transformation (as in optax) of a `hyper_key`: (name, hyperparameters); cached by the key.

    All its learning rate and weight decay multipliers are 1: those of MXNet's optimizer are put into the optimizer state
    (`OptState.lr_mult`, `OptState.wd_mult`), so that a change of them does not compile the update again.
    """
    name, hyper = hyper_key
    return by_name(name, {"lr_mult": None, "wd_mult": None, **dict(hyper)}, checks=False)  # as MXNet does not


def slot_names(optimizer: Any) -> tuple[str, ...]:
    """Return the names of the slots (per-parameter optimizer state) in MXNet's storage order.

    Args:
        optimizer: an `Optimizer` with a rule of `jfit.optim`.

    Returns:
        Tuple of names; empty for a rule without state.

    Example:
        >>> from jfit.mxnet.optimizer.named import RMSProp
        >>> slot_names(RMSProp(centered=True))
        ('n', 'g', 'delta')
    """
    return tuple(rule_of(optimizer.hyper_key()).state_spec.slots)


def new_state(optimizer: Any, weight: Any) -> Slots:
    """Return the initial value of every slot of a parameter, on the device of the weight; float32 for 16-bit weights.

    The master slot is None for weights of 32 or more bits.
    """
    return tuple(
        None if name == MASTER and not is_small(weight) else put_like(start(weight), weight)
        for name, start in rule_of(optimizer.hyper_key()).state_spec.slots.items()
    )


def apply_update(
    optimizer: Any,
    indices: Sequence[Any],
    weights: Sequence[Any],
    grads: Sequence[Any],
    states: Sequence[Slots | None],
    one_by_one: bool = False,
) -> tuple[list[Array], list[Slots]]:
    """Update all parameters in one dispatch: w_i <- w_i + u(rescale_grad * g_i); increments the update count of each index.

    Update counts, learning rates, weight decays, rescale_grad and shared scalars are arguments of the compiled program:
    changing them does not recompile.  Clipping and the rule's hyperparameters (momentum, betas, epsilon ...) are constants
    of the program: each new value compiles once.

    Args:
        optimizer: an `Optimizer` with a rule of `jfit.optim`.
        indices: index or name of each parameter, the key of its update count and multipliers.
        weights: one array per parameter.
        grads: one array or mutable array per parameter, of the weight's shape, summed over rows and devices.
        states: per parameter a tuple of arrays (in the order of `slot_names`), `()` for rules without state, or None to
            initialize the state.
        one_by_one: evaluate the learning rate after each single count, as MXNet's key-value store does, instead of after
            each group of `aggregate_num` parameters.

    Returns:
        (new weights, new states), in the order of the indices.

    Example:
        >>> import jax.numpy as jnp
        >>> from jfit.mxnet.optimizer.named import SGD
        >>> new, states = apply_update(SGD(learning_rate=0.5), [0], [jnp.ones(2)], [jnp.ones(2)], [None])
        >>> new[0].tolist(), states
        ([0.5, 0.5], [()])
    """
    key = optimizer.hyper_key(optimizer.hyper_for_indices(indices, one_by_one))
    slots = tuple([new_state(optimizer, w) if s is None else tuple(s) for w, s in zip(weights, states, strict=True)])
    done, numbers = optimizer.rows(indices, one_by_one)
    program, counted = _program(key, any(numbers[1]))
    platform = platform_of(*weights[:1])
    shares = weights and rule_of(key).state_spec.shared is not None
    shared = {name: put_like(value, weights[0]) for name, value in optimizer.shared_for(indices).items()} if shares else {}
    done = _rows(platform, np.asarray(done, np.int32))[0] if counted else ()
    rest = slots, done, _arguments(platform, *numbers, np.float32(optimizer.rescale_grad)), shared
    source, _ = (grads and getattr(grads[0], "_later", None)) or (None, 0)
    together = source.update(weights, grads, program, *rest) if isinstance(source, WaitingPass) else None
    new, after, scalars = together or program(tuple(weights), tuple(map(gradient_of, grads)), *rest)
    optimizer.keep_shared(scalars)
    return list(new), list(after)


def gradient_of(box: Any) -> Any:
    """Return the gradient as an array, or as `SparseRows` if it is a MutableArray with row_sparse storage."""
    rows = getattr(box, "by_rows", None)
    return as_array(box) if rows is None else rows


@functools.lru_cache(maxsize=256)
def _program(hyper_key: Any, decays: bool) -> tuple[Callable[..., Any], bool]:
    """Return the compiled update, and whether it takes update counts."""
    # its decays are wd * wd_mult, so the rule's own wd is 1, or 0 to leave the term out
    rule = rule_of((hyper_key[0], tuple([(k, float(decays) if k == "wd" else v) for k, v in hyper_key[1]])))

    def update(
        weights: Arrays, grads: Arrays, states: tuple[Slots, ...], done: Any, numbers: tuple[Any, Array], shared: Scalars
    ) -> tuple[Arrays, tuple[Slots, ...], Scalars]:
        counters.count_trace("apply_update")
        (rates, decays, mults), scale = numbers
        slots = {name: tuple(s[k] for s in states) for k, name in enumerate(rule.state_spec.slots)}
        counts = done if rule.state_spec.counted else None
        state = optim.OptState(counts, slots, mults if len(mults) else None, decays, shared or None)
        # Rescale 16-bit gradients in float32: rounding g / batch_size to 16 bits would lose precision.
        scaled = lambda g: wide(g) * scale if is_small(g) else g * scale.astype(g.dtype)  # noqa: E731
        grads = on_values(lambda each: tuple(map(scaled, each)), grads)
        updates, after = rule.update(grads, state, weights, learning_rate=rates)
        columns = [after.slots[name] for name in rule.state_spec.slots]
        new = tuple(tuple(column[i] for column in columns) for i in range(len(weights)))
        return optim.apply_updates(weights, updates), new, dict(after.shared or {})

    return jax.jit(update), rule.state_spec.counted


def _arguments(platform: str, *numbers: Any) -> tuple[Any, ...]:
    """Return rates, decays, multipliers and a scale as arguments of a program; on the device if they come again."""
    known = _known(platform, *numbers)
    known["uses"] += 1
    if known["uses"] == 2:  # not at once: a schedule changes them in each step
        with traced_for(platform):
            known["arguments"] = jax.device_put(known["arguments"])
    return known["arguments"]


@functools.lru_cache(maxsize=64)
def _known(platform: str, *numbers: Any) -> dict[str, Any]:
    return {"arguments": (_rows(platform, *numbers[:3]), numbers[3]), "uses": 0}


def _rows(platform: str, *rows: Any) -> tuple[Any, ...]:
    # One argument per scalar lets equally shaped parameters share a kernel on CPU, which compiles ten times faster.
    # On an accelerator each argument would cost a host-to-device copy per call.
    return rows if platform == "cpu" else tuple([np.asarray(row) if len(row) else () for row in rows])


def put_like(value: Any, weight: Any) -> Array:
    """Return `value` on the weight's device, committed if the weight is."""
    # A mix of committed and uncommitted arguments would compile the update twice.
    value = jnp.asarray(value)
    return jax.device_put(value, weight.sharding) if getattr(weight, "committed", False) else value


# ------------------------------------------------------------------------------------------------ a state in MXNet's nesting
def state_to_mxnet(optimizer: Any, slots: Slots, names: Sequence[str] | None = None) -> Any:
    """Convert the slots of one parameter to MXNet's nested state: None, an array, or a (nested) tuple of arrays.

    Slots that MXNet does not store in states (`Optimizer.hidden_slots`) are left out.

    Args:
        optimizer: the optimizer of the parameter; it determines the nesting.
        slots: values in the order of `slot_names`.
        names: the result of `slot_names`, if the caller has it.

    Returns:
        MXNet's state, with the same leaves.

    Example:
        >>> from jfit.mxnet.optimizer.named import SGD, Adam
        >>> state_to_mxnet(SGD(), ()), state_to_mxnet(SGD(momentum=0.9), (1,)), state_to_mxnet(Adam(), (1, 2))
        (None, 1, (1, 2))
        >>> state_to_mxnet(SGD(multi_precision=True), (3,)), state_to_mxnet(Adam(multi_precision=True), (1, 2, 3))
        ((None, 3), (3, (1, 2)))
    """
    by_name = dict(zip(slot_names(optimizer) if names is None else names, slots, strict=True))
    master = by_name.pop(MASTER, None)
    state = optimizer.nested(tuple(value for name, value in by_name.items() if name not in optimizer.hidden_slots))
    if master is None:
        return state
    return (state, master) if optimizer.master_last else (master, state)


def state_from_mxnet(optimizer: Any, nested: Any, small: bool = False, names: Sequence[str] | None = None) -> Slots | None:
    """Convert MXNet's nested state of one parameter to a tuple of slots.

    A state is ignored if the rule has none (momentum 0).  Slots that MXNet does not store in states
    (`Optimizer.hidden_slots`) are None.

    Args:
        optimizer: the optimizer of the parameter; it determines the slots.
        nested: None, an array, or nested tuples of arrays.
        small: whether the weight has 16 bits, so that its state includes a float32 master.
        names: the result of `slot_names`, if the caller has it.

    Returns:
        Arrays in the order of `slot_names`; None if the rule has slots but `nested` is None (not initialized).

    Raises:
        ValueError: the number of arrays differs from the number of slots.

    Example:
        >>> import numpy as np
        >>> from jfit.mxnet.optimizer.named import SGD
        >>> [slot.shape for slot in state_from_mxnet(SGD(momentum=0.9), np.ones(2))]
        [(2,)]
    """
    names = slot_names(optimizer) if names is None else names
    stored = [name for name in names if name != MASTER and name not in optimizer.hidden_slots]
    has_master = MASTER in names and small
    if not stored and not has_master:
        return tuple(None for _ in names)
    if nested is None:
        return None
    arrays = [as_array(bounded_dense(part, "states", (stored or [MASTER])[0])) for part in nested_leaves(nested)]
    slots: dict[str, Any] = {}
    if has_master and arrays:
        slots[MASTER] = arrays.pop(-1 if optimizer.master_last else 0)
    if (stored and len(arrays) != len(stored)) or (has_master and MASTER not in slots):
        expected = [*stored, MASTER] if has_master else stored
        name, found = type(optimizer).__name__, len(arrays) + len(slots)
        problem = f"the optimizer state has {found} arrays, {name} expects {len(expected)}"
        raise ValueError(f"{problem} ({', '.join(expected)}); it was saved by another optimizer, or with other settings.")
    slots.update(zip(stored, arrays, strict=False))
    return tuple(slots.get(name) for name in names)


def existing_states(optimizer: Any, names: Any, indices: Sequence[Any], nested: Sequence[Any], weights: Any) -> list[Slots]:
    """Convert initialized MXNet states to slots, and add the hidden slots that the optimizer object stores.

    names: the result of `slot_names`.

    Raises:
        ValueError: a state is None although the rule has slots.
    """
    states = []
    hides = optimizer.hidden_slots and not optimizer.hidden_slots.isdisjoint(names)
    for index, state, weight in zip(indices, nested, weights, strict=True):
        slots = state_from_mxnet(optimizer, state, is_small(weight), names)
        if slots is None:
            raise ValueError(f"the optimizer state of parameter {index!r} is None; create it with create_state(index, weight).")
        if hides:
            hidden = optimizer.hidden.get(index) or dict(zip(names, new_state(optimizer, weight), strict=True))
            slots = tuple(hidden[n] if n in optimizer.hidden_slots else s for n, s in zip(names, slots, strict=True))
        states.append(slots)
    return states


def update_in_place(
    optimizer: Any,
    indices: Sequence[Any],
    weights: Sequence[Any],
    grads: Sequence[Any],
    states: Sequence[Any],
    one_by_one: bool,
) -> None:
    """Update mutable arrays and those of their states, see `Optimizer.update_lists`."""
    values, names = [as_array(w) for w in weights], slot_names(optimizer)
    if not optimizer.rows_of_dense:
        grads = [as_array(g) if _updates_all(w, g) else g for w, g in zip(weights, grads, strict=True)]
    slots = existing_states(optimizer, names, indices, states, values) if names else [()] * len(values)
    new, after = apply_update(optimizer, indices, values, grads, slots, one_by_one)
    for box, value in zip(weights, new, strict=True):
        replace(box, value)
    hidden = optimizer.hidden_slots and optimizer.hidden_slots.intersection(names)
    for index, old, columns in zip(indices, states, after, strict=True) if names else ():
        if hidden:
            optimizer.hidden[index] = {name: value for name, value in zip(names, columns, strict=True) if name in hidden}
        for part, column in zip(nested_leaves(old), nested_leaves(state_to_mxnet(optimizer, columns, names)), strict=False):
            replace(part, column)


def _updates_all(weight: Any, gradient: Any) -> bool:
    """Whether a row_sparse gradient must become a dense array because its weight is dense.

    A `MutableRowSparse` stays: it comes from a key-value store or a Trainer, which have asked `updates_rows` before.
    """
    stypes = [getattr(array, "stype", "default") for array in (weight, gradient)]
    return stypes == ["default", "row_sparse"] and not isinstance(gradient, MutableRowSparse)


def check_shapes(optimizer: Any, index: Any, slots: Slots, weight: Any) -> None:
    """Raise ValueError if a slot does not have the shape that the rule gives it for this weight."""
    starts = rule_of(optimizer.hyper_key()).state_spec.slots
    for (name, start), slot in zip(starts.items(), slots, strict=True):
        if slot is None:
            continue
        needed = jax.eval_shape(start, jax.ShapeDtypeStruct(tuple(weight.shape), weight.dtype)).shape
        if tuple(slot.shape) != tuple(needed):
            state = f"optimizer state {name!r} of parameter {index!r} has shape {tuple(slot.shape)}, expected {tuple(needed)}"
            raise ValueError(f"{state}; load the states of the same network.")


def warn_of_precision(optimizer: Any, weight: Any) -> None:
    """Warn if a weight has 16 bits and the optimizer keeps no float32 master copy of it."""
    if is_small(weight) and not optimizer.multi_precision:
        warnings.warn(
            f"a weight is {weight.dtype}: {type(optimizer).__name__} computes in float32 and rounds the weight after every "
            "update, so small updates are lost; multi_precision=True keeps a float32 master copy of the weight.",
            stacklevel=4,
        )


def nested_leaves(nested: Any) -> tuple[Any, ...]:
    """Return the arrays of a nested state as a tuple, depth first; a sparse array is one leaf, None has no leaves."""
    if isinstance(nested, (tuple, list)):
        return tuple([leaf for part in nested for leaf in nested_leaves(part)])
    return () if nested is None else (nested,)


def check_arrays(path: saved.Path, states: Mapping[Any, Any]) -> None:
    """Raise FormatError unless all leaves of the optimizer states read from the file `path` are arrays or None."""
    for index, state in states.items():
        for part in nested_leaves(state):
            if not hasattr(part, "dtype"):
                saved.reject(path, f"state {shown(index)}", part, "an array")


def map_state(function: Callable[[Any], Any], nested: Any) -> Any:
    """Apply a function to every array of a nested state, as `jax.tree.map` does, with sparse arrays as leaves."""
    # a dict is not a state: it comes from a damaged file
    return jax.tree.map(function, nested, is_leaf=lambda part: hasattr(part, "todense") or isinstance(part, dict))
