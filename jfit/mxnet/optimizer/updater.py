"""The Updater: states of an optimizer by index, and weights updated in place."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np

from jfit import counters
from jfit.formats.mxnet_states import dump_states, load_states
from jfit.formats.sparse import bounded_dense
from jfit.mxnet.array_types import PLAIN, ArrayTypes
from jfit.mxnet.mutable import MutableArray, as_array, mutable_class
from jfit.mxnet.optimizer import saved
from jfit.mxnet.optimizer.apply import check_arrays, check_shapes, float32_of, mapped, placed, state_from_mxnet, state_to_mxnet
from jfit.mxnet.optimizer.base import Optimizer
from jfit.mxnet.optimizer.settings import progress_of, restore_settings, settings_of
from jfit.optim.core import is_small


class Updater:
    """Keeps the states of an optimizer and updates weights in place: `updater(index, grad, weight)`.

    Args:
        optimizer: an `Optimizer`; one with an `update` of its own is called parameter by parameter.

    Attributes:
        optimizer: the optimizer.
        states: state by index, in MXNet's nesting, of Boxes.
        states_synced: by index, whether the state lies where its weight lies.
        aggregate_updates: MXNet would update several parameters per call.
        apart: a key-value store calls it: MXNet's hands over one key at a time, which matters to counts and rates.

    Example:
        >>> import jax.numpy as jnp
        >>> from jfit.mxnet.optimizer.named import SGD
        >>> weight = MutableArray(jnp.ones(2))
        >>> updater = get_updater(SGD(learning_rate=0.5, momentum=0.9))
        >>> updater(0, jnp.ones(2), weight)
        >>> weight.asnumpy().tolist(), updater.states[0].asnumpy().tolist()
        ([0.5, 0.5], [-0.5, -0.5])

    Source: Apache MXNet 1.9.1, `Updater`.
    """

    arrays: ArrayTypes = PLAIN

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.states: dict[Any, Any] = {}
        self.states_synced: dict[Any, bool] = {}
        self.aggregate_updates = optimizer.aggregate_num > 0
        self.apart = False

    def __call__(self, index: Any, grad: Any, weight: Any) -> None:
        """Update one parameter, or lists of them in one dispatch; states are made on first sight.

        Args:
            index: index or name, or a list.
            grad: array or MutableArray, or a list.
            weight: MutableArray, or a list.
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
            optimizer.update_lists(list(index), list(weight), list(grad), states, apart=self.apart)
            return
        for i, w, g, s in zip(index, weight, grad, states, strict=True):
            optimizer.update_multi_precision(i, w, g, s)

    def get_states(self, dump_optimizer: bool = False) -> bytes:
        """The states as the bytes of a `.states` file of MXNet, with the update counts; waits for the values.

        Args:
            dump_optimizer: keep the optimizer's settings too (rate, decay, schedule ...), as gluon's Trainer does.
        """
        plain = {i: mapped(as_array, state) for i, state in self.states.items()}
        host = counters.read(plain)  # sync: states go to a file
        kept = settings_of(self.optimizer) if dump_optimizer else progress_of(self.optimizer)
        return dump_states(host, self.optimizer.counts(), self.optimizer.num_update, kept or None)

    def set_states(self, states: Any, where: saved.Path = "bytes") -> None:
        """Take over states.

        Args:
            states: bytes of a `.states` file of MXNet or jfit, or a dict by index.  Counts continue where the bytes have
                them; those of MXNet's Module have none, so its counts start again at begin_num_update, as in MXNet.
                Settings of the optimizer are taken over where the bytes have them.
            where: what errors call the bytes, such as the name of their file.

        Raises:
            ValueError: the settings are of another class of optimizer.
            FormatError: the bytes are damaged, or a number among the settings is not what it needs to be.
        """
        if not isinstance(states, dict):
            found = load_states(states, where)
            states, updates = found.states, saved.check_counts(where, found.counts, found.num_update)
            if self.optimizer.takes_lists:
                check_arrays(where, states)
            if found.optimizer is not None:
                restore_settings(self.optimizer, _as_dict(found.optimizer), where, updates)
            if found.counts is not None:
                self.optimizer.set_counts(found.counts, found.num_update)
        self.states = {i: mapped(functools.partial(self._keep, i), state) for i, state in states.items()}
        self.states_synced = dict.fromkeys(self.states, False)

    def _keep(self, index: Any, value: Any) -> Any:
        value = bounded_dense(value, "states", f"state of {index!r}")
        return self.arrays.mutable(value) if isinstance(value, (np.ndarray, jax.Array)) else value

    def _prepare(self, index: Any, weight: Any) -> None:
        if index not in self.states:
            self.states[index] = self.optimizer.create_state_multi_precision(index, weight)
        elif not self.states_synced.get(index, False):
            self.states[index] = self._beside(index, weight)
        self.states_synced[index] = True

    def _beside(self, index: Any, weight: Any) -> Any:
        """A state that came from outside, on the device of its weight and in its kind of MutableArray."""
        optimizer, state, value = self.optimizer, self.states[index], as_array(weight)
        make = mutable_class(weight) if isinstance(weight, MutableArray) else self.arrays.mutable
        if optimizer.takes_lists:
            slots = state_from_mxnet(optimizer, state, is_small(value))
            if slots is None:
                return optimizer.create_state_multi_precision(index, weight)
            check_shapes(optimizer, index, slots, value)
            held = tuple(None if slot is None else make(placed(float32_of(slot), value)) for slot in slots)
            return state_to_mxnet(optimizer, held)
        return mapped(lambda part: make(placed(as_array(part), value)) if _is_array(part) else part, state)


def get_updater(optimizer: Optimizer) -> Updater:
    """`Updater(optimizer)`: the function `(index, grad, weight)` that a key-value store calls."""
    return Updater(optimizer)


def _as_dict(record: Any, deeper: bool = True) -> Any:
    """Settings as plain data; MXNet's file describes its optimizer, and the scheduler in it, as objects."""
    if not hasattr(record, "attributes"):
        return record
    # No deeper than that: a hostile optimizer is its own scheduler.
    plain = {key: _as_dict(value, False) if deeper else value for key, value in record.attributes.items()}
    return {**plain, "class": record.name.rpartition(".")[2]}


def _is_array(value: Any) -> bool:
    return isinstance(value, (MutableArray, np.ndarray, jax.Array))


def _device_id(weight: Any) -> int:
    context = getattr(weight, "context", None)
    if context is not None:
        return context.device_id
    value = as_array(weight)
    return min(d.id for d in value.devices()) if getattr(value, "committed", False) else 0
