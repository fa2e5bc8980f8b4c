"""One dispatch that updates many parameters, MXNet's nesting of optimizer states, and the Updater that keeps them."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from jfit import counters, optim
from jfit.facade.box import Box, unbox, write_into
from jfit.formats.sparse import bounded_dense

if TYPE_CHECKING:
    from jfit.facade.optimizer.base import Optimizer

Slots = tuple[Any, ...]


class Rule(NamedTuple):
    """A pure transformation, the names of its slots, and whether it counts updates."""

    transform: Any
    slots: tuple[str, ...]
    counted: bool


def apply_update(
    optimizer: Optimizer,
    indices: Sequence[Any],
    weights: Sequence[Any],
    grads: Sequence[Any],
    states: Sequence[Slots | None],
) -> tuple[list[Array], list[Slots]]:
    """w_i <- w_i + u(rescale_grad * g_i) for all parameters in one dispatch; counts the update of each index.

    Counts, rates, decays and rescale_grad are data: changing them compiles nothing.  Clipping and the rule's own parameters
    (momentum, betas, epsilon ...) are constants of the program: each new value of theirs compiles once.

    Args:
        optimizer: an `Optimizer` with a rule.
        indices: index or name of each parameter, as its optimizer knows it.
        weights: arrays.
        grads: arrays, summed over rows and devices.
        states: of each parameter a tuple of arrays, `()` for rules without state, or None where it is still to be made.

    Returns:
        (new weights, new states), in the order of the indices.

    Raises:
        TypeError: the optimizer updates in Python.
        NotImplementedError: multi_precision with 16-bit weights.

    Example:
        >>> from jfit.facade.optimizer.named import SGD
        >>> new, states = apply_update(SGD(learning_rate=0.5), [0], [jnp.ones(2)], [jnp.ones(2)], [None])
        >>> new[0].tolist(), states
        ([0.5, 0.5], [()])
    """
    key = optimizer.hyper_key()
    if not len(indices) == len(weights) == len(grads) == len(states):
        raise ValueError(
            f"{len(indices)} indices, {len(weights)} weights, {len(grads)} gradients and {len(states)} states do not "
            "belong together; give one of each for every parameter."
        )
    if optimizer.multi_precision:
        check_precision(optimizer, weights)
    made = tuple(new_state(optimizer, w) if s is None else tuple(s) for w, s in zip(weights, states, strict=True))
    data = optimizer.rows(indices)
    if "wd" in dict(key[1]):  # the decay is data as well: the rule decays by 1 times the row, or not at all
        key = key[0], tuple((name, float(data[1].any()) if name == "wd" else value) for name, value in key[1])
    if jax.default_backend() == "cpu":
        # equal leaves share a kernel only if their scalars are arguments of their own, which compiles ten times faster; an
        # accelerator would copy each of them to itself at every call
        data = tuple(tuple(row) for row in data)
    new, after = _program(key)(tuple(weights), made, tuple(grads), data, np.float32(optimizer.rescale_grad))
    return list(new), list(after)


@functools.lru_cache(maxsize=256)
def rule_of(hyper_key: Any) -> Rule:
    """The rule that a `hyper_key` means, without multipliers; one for all optimizers that share it."""
    name, hyper = hyper_key
    transform = optim.get(name, lr_mult=None, wd_mult=None, **dict(hyper)).transform
    # run, not traced: whatever passes through a trace has its slots in alphabetical order, MXNet's order is the rule's
    state = transform.init({"w": np.zeros(1, np.float32)})
    return Rule(transform, tuple(state.slots), state.count is not None)


@functools.lru_cache(maxsize=256)
def _program(hyper_key: Any) -> Callable[..., tuple[tuple[Array, ...], tuple[Slots, ...]]]:
    rule = rule_of(hyper_key)

    def update(
        weights: tuple[Array, ...],
        states: tuple[Slots, ...],
        grads: tuple[Array, ...],
        data: tuple[Any, Any, Any],
        scale: Array,
    ) -> tuple[tuple[Array, ...], tuple[Slots, ...]]:
        counters.count_trace("apply_update")
        rates, decays, done = data
        slots = {name: tuple(s[k] for s in states) for k, name in enumerate(rule.slots)}
        state = optim.OptState(done if rule.counted else None, slots, None, decays)
        grads = tuple(g * scale.astype(g.dtype) for g in grads)
        updates, after = rule.transform.update(grads, state, weights, learning_rate=rates)
        columns = [after.slots[name] for name in rule.slots]
        new = tuple(tuple(column[i] for column in columns) for i in range(len(weights)))
        return cast(Any, optax.apply_updates(weights, updates)), new

    return jax.jit(update)


def slot_names(optimizer: Optimizer) -> tuple[str, ...]:
    """Names of the slots in the order that MXNet stores them; a state that went through a trace has them sorted by name.

    Example:
        >>> from jfit.facade.optimizer.named import RMSProp
        >>> slot_names(RMSProp(centered=True))
        ('n', 'g', 'delta')
    """
    return rule_of(optimizer.hyper_key()).slots


def new_state(optimizer: Optimizer, weight: Any) -> Slots:
    """Zeros for every slot of the rule, shaped and placed like the weight; of 16-bit weights in float32."""
    dtype = jnp.promote_types(weight.dtype, jnp.float32)
    return tuple(jnp.zeros_like(weight, dtype=dtype) for _ in slot_names(optimizer))


def check_precision(optimizer: Optimizer, weights: Sequence[Any]) -> None:
    """Refuse float32 masters of 16-bit weights, which do not exist yet; warn where a 16-bit weight has none.

    Raises:
        NotImplementedError: multi_precision with a 16-bit weight.
    """
    small = {str(w.dtype) for w in weights if jnp.issubdtype(w.dtype, jnp.floating) and w.dtype.itemsize == 2}
    if not small:
        return
    if optimizer.multi_precision:
        raise NotImplementedError(
            f"{type(optimizer).__name__} has multi_precision=True and a weight is {', '.join(sorted(small))}; float32 masters "
            "of 16-bit weights are not there yet: keep the weights in float32, or pass multi_precision=False."
        )
    warnings.warn(
        f"a weight is {', '.join(sorted(small))}: {type(optimizer).__name__} computes in float32 and rounds it after every "
        "update, so small updates are lost; float32 weights converge better.",
        stacklevel=4,
    )


def state_to_mxnet(optimizer: Optimizer, slots: Slots) -> Any:
    """The state of one parameter in MXNet's nesting: None, an array, or a tuple of arrays.

    Example:
        >>> from jfit.facade.optimizer.named import SGD, Adam
        >>> state_to_mxnet(SGD(), ()), state_to_mxnet(SGD(momentum=0.9), (1,)), state_to_mxnet(Adam(), (1, 2))
        (None, 1, (1, 2))
    """
    if not slots:
        return None
    return slots[0] if optimizer.lone_state else tuple(slots)


def state_from_mxnet(optimizer: Optimizer, nested: Any) -> Slots | None:
    """The slots of a state in MXNet's nesting, as plain arrays; None where it is still to be made.

    State of a rule that keeps none (momentum 0) is dropped.

    Raises:
        ValueError: it holds another number of arrays than the rule has slots.

    Example:
        >>> from jfit.facade.optimizer.named import SGD
        >>> [slot.shape for slot in state_from_mxnet(SGD(momentum=0.9), np.ones(2))]
        [(2,)]
    """
    return _slots(optimizer, slot_names(optimizer), nested)


def _slots(optimizer: Optimizer, names: tuple[str, ...], nested: Any) -> Slots | None:
    if not names:
        return ()
    if nested is None:
        return None
    slots = tuple(unbox(bounded_dense(part, "states", names[0])) for part in parts(nested))
    if len(slots) != len(names):
        raise ValueError(
            f"a state holds {len(slots)} arrays, {type(optimizer).__name__} needs {len(names)} ({', '.join(names)}); it was "
            "saved by another optimizer, or with other settings (momentum, centered, multi_precision)."
        )
    return slots


def made_states(optimizer: Optimizer, indices: Sequence[Any], nested: Sequence[Any]) -> list[Slots]:
    """`state_from_mxnet` of states that must exist.

    Raises:
        ValueError: one is None though the rule keeps state.
    """
    names = slot_names(optimizer)
    made = [_slots(optimizer, names, state) for state in nested]
    for index, slots in zip(indices, made, strict=True):
        if slots is None:
            raise ValueError(
                f"the state of {index!r} is None, {type(optimizer).__name__} keeps one; make it with "
                "create_state(index, weight)."
            )
    return cast(Any, made)


def box_of(weight: Any) -> Callable[[Any], Any]:
    """The kind of Box that a weight is, for the state beside it; of a view or a sparse array the plain kind it derives from."""
    return next((kind for kind in type(weight).__mro__ if kind.__init__ is Box.__init__), Box)


def write(box: Any, value: Array, what: str) -> None:
    """Put a result where it belongs; the array itself where shape and dtype agree, which they nearly always do."""
    if isinstance(box, Box) and box.value.dtype == value.dtype and box.value.shape == value.shape:
        box.value = value
    else:
        write_into(box, value, what)


def parts(nested: Any) -> tuple[Any, ...]:
    """The arrays of a nested state, in order."""
    if nested is None:
        return ()
    if isinstance(nested, (tuple, list)) and not hasattr(nested, "todense"):
        return tuple(part for each in nested for part in parts(each))
    return (nested,)


class Updater:
    """Keeps the states of an optimizer and updates weights in place: `updater(index, grad, weight)`.

    Args:
        optimizer: an `Optimizer`; one with an `update` of its own is called parameter by parameter.

    Attributes:
        optimizer: the optimizer.
        states: state by index, in MXNet's nesting, of Boxes.
        states_synced: by index, whether the state lies where its weight lies.
        aggregate_updates: MXNet would update several parameters per call.

    Example:
        >>> from jfit.facade.optimizer.named import SGD
        >>> weight = Box(jnp.ones(2))
        >>> updater = get_updater(SGD(learning_rate=0.5, momentum=0.9))
        >>> updater(0, jnp.ones(2), weight)
        >>> weight.asnumpy().tolist(), updater.states[0].asnumpy().tolist()
        ([0.5, 0.5], [-0.5, -0.5])

    Source: Apache MXNet 1.9.1, `Updater`.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.states: dict[Any, Any] = {}
        self.states_synced: dict[Any, bool] = {}
        self.aggregate_updates = optimizer.aggregate_num > 0

    def _box(self, array: Any) -> Any:
        return Box(array)

    def __call__(self, index: Any, grad: Any, weight: Any) -> None:
        """Update one parameter, or lists of them in one dispatch; states are made on first sight.

        Args:
            index: index or name, or a list.
            grad: array or Box, or a list.
            weight: Box, or a list.
        """
        if not isinstance(index, (list, tuple)):
            index, grad, weight = [index], [grad], [weight]
        if not index:
            return
        optimizer = self.optimizer
        optimizer._set_current_context(_device_id(weight[0]))
        for i, w in zip(index, weight, strict=True):
            self._prepare(i, w)
        states = [self.states[i] for i in index]
        if optimizer.takes_lists:
            optimizer.update(list(index), list(weight), list(grad), states)
            return
        for i, w, g, s in zip(index, weight, grad, states, strict=True):
            optimizer.update_multi_precision(i, w, g, s)

    def get_states(self, dump_optimizer: bool = False) -> bytes:
        """The states as the bytes of a `.states` file of MXNet, with the update counts; waits for the values.

        Args:
            dump_optimizer: keep the optimizer's settings too (rate, decay, schedule ...), as gluon's Trainer does.
        """
        from jfit.formats.mxnet_states import dump_states

        plain = {i: _mapped(unbox, state) for i, state in self.states.items()}
        host = counters.read(plain)  # sync: states go to a file
        settings = self.optimizer.settings() if dump_optimizer else None
        return dump_states(host, self.optimizer.counts(), self.optimizer.num_update, settings)

    def set_states(self, states: Any) -> None:
        """Take over states.

        Args:
            states: bytes of a `.states` file of MXNet or jfit, or a dict by index.  Counts continue where the bytes have
                them; those of MXNet's Module have none, so its counts start again at begin_num_update, as in MXNet.
                Settings of the optimizer are taken over where the bytes have them.

        Raises:
            ValueError: the settings are of another class of optimizer.
        """
        if not isinstance(states, dict):
            from jfit.formats.mxnet_states import load_states

            found = load_states(states)
            states = found.states
            if found.optimizer is not None:
                self.optimizer.restore(_as_dict(found.optimizer))
            if found.counts is not None:
                self.optimizer.set_counts(found.counts, found.num_update)
        self.states = {i: _mapped(functools.partial(self._keep, i), state) for i, state in states.items()}
        self.states_synced = dict.fromkeys(self.states, False)

    def _keep(self, index: Any, value: Any) -> Any:
        value = bounded_dense(value, "states", f"state of {index!r}")
        return self._box(value) if isinstance(value, (np.ndarray, jax.Array)) else value

    def _prepare(self, index: Any, weight: Any) -> None:
        if index not in self.states:
            self.states[index] = self.optimizer.create_state_multi_precision(index, weight)
        elif not self.states_synced.get(index, False):
            self.states[index] = self._beside(index, weight)
        self.states_synced[index] = True

    def _beside(self, index: Any, weight: Any) -> Any:
        """A state that came from outside, on the device of its weight and in its kind of Box."""
        optimizer, state = self.optimizer, self.states[index]
        if optimizer.takes_lists:
            slots = state_from_mxnet(optimizer, state)
            if slots is None:
                return optimizer.create_state_multi_precision(index, weight)
            for name, slot in zip(slot_names(optimizer), slots, strict=True):
                if tuple(slot.shape) != tuple(weight.shape):
                    raise ValueError(
                        f"optimizer state {name!r} of {index!r} has shape {tuple(slot.shape)}, the parameter needs "
                        f"{tuple(weight.shape)}: load the states of the same network."
                    )
            state = state_to_mxnet(optimizer, slots)
        make = box_of(weight) if isinstance(weight, Box) else self._box
        return _mapped(lambda part: make(_placed(part, unbox(weight))) if _is_array(part) else part, state)


def get_updater(optimizer: Optimizer) -> Updater:
    """`Updater(optimizer)`: the function `(index, grad, weight)` that a key-value store calls."""
    return Updater(optimizer)


def _mapped(function: Callable[[Any], Any], nested: Any) -> Any:
    if nested is None:
        return None
    if isinstance(nested, (tuple, list)) and not hasattr(nested, "todense"):
        return tuple(_mapped(function, each) for each in nested)
    return function(nested)


def _as_dict(record: Any) -> Any:
    """Settings as plain data; MXNet's file describes its optimizer and scheduler as objects."""
    if hasattr(record, "attributes"):
        plain = {key: _as_dict(value) for key, value in record.attributes.items()}
        return {**plain, "class": record.name.rpartition(".")[2]}
    return record


def _is_array(value: Any) -> bool:
    return isinstance(value, (Box, np.ndarray, jax.Array))


def _placed(value: Any, weight: Any) -> Array:
    # a copy where it is committed and the other is not would compile the update twice
    value = jnp.asarray(unbox(value))
    return jax.device_put(value, weight.sharding) if getattr(weight, "committed", False) else value


def _device_id(weight: Any) -> int:
    context = getattr(weight, "context", None)
    if context is not None:
        return context.device_id
    value = unbox(weight)
    return min(d.id for d in value.devices()) if getattr(value, "committed", False) else 0
