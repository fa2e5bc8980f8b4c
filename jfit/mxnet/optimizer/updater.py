"""Updater: an optimizer with its states by parameter index; it updates weights in place."""

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
from jfit.mxnet.optimizer.apply import check_arrays, check_shapes, map_state, put_like, state_from_mxnet, state_to_mxnet
from jfit.mxnet.optimizer.base import Optimizer
from jfit.mxnet.optimizer.settings import progress_of, restore_settings, settings_of
from jfit.optim.core import is_small, wide


class Updater:
    """Hold the states of an optimizer and update weights in place: `updater(index, grad, weight)`.

    Args:
        optimizer: an `Optimizer`; a subclass that overrides `update` is called once per parameter.

    Attributes:
        optimizer: the optimizer.
        states: state by index, mutable arrays in MXNet's nesting.
        states_synced: by index, whether the state is on the device of its weight.
        aggregate_updates: whether MXNet updates several parameters per call.
        one_by_one: set by a key-value store: MXNet's calls the updater with one key at a time, which affects update counts
            and learning rates.

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
        self.one_by_one = False

    def __call__(self, index: Any, grad: Any, weight: Any) -> None:
        """Update one parameter, or lists of them in one dispatch; the first update of an index creates its state.

        Args:
            index: index or name, or a list of them.
            grad: array or `MutableArray` (NDArray) of the weight's shape, or a list.
            weight: mutable array, or a list.
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
            optimizer.update_lists(list(index), list(weight), list(grad), states, one_by_one=self.one_by_one)
            return
        for i, w, g, s in zip(index, weight, grad, states, strict=True):
            optimizer.update_multi_precision(i, w, g, s)

    def get_states(self, dump_optimizer: bool = False) -> bytes:
        """Serialize the states and update counts as an MXNet `.states` file; blocks until the values are computed.

        Args:
            dump_optimizer: include the optimizer's settings (learning rate, decay, scheduler ...), as gluon's Trainer does.
        """
        plain = {i: map_state(as_array, state) for i, state in self.states.items()}
        host = counters.read(plain)  # sync: states go to a file
        settings = settings_of(self.optimizer) if dump_optimizer else progress_of(self.optimizer)
        return dump_states(host, self.optimizer.counts(), self.optimizer.num_update, settings or None)

    def set_states(self, states: Any, where: saved.Path = "bytes") -> None:
        """Load states, update counts and optimizer settings.

        Args:
            states: bytes of a `.states` file of MXNet or jfit, or a dict of states by index.  Update counts and optimizer
                settings are restored if the bytes contain them; files of MXNet's Module have no counts, so counting
                starts at begin_num_update, as in MXNet.
            where: name of the bytes in error messages, such as their file name.

        Raises:
            ValueError: the settings are of another optimizer class.
            FormatError: the bytes are damaged, or a setting has the wrong type or range.
        """
        if not isinstance(states, dict):
            file = load_states(states, where)
            states, updates = file.states, saved.check_counts(where, file.counts, file.num_update)
            if self.optimizer.takes_lists:
                check_arrays(where, states)
            if file.optimizer is not None:
                restore_settings(self.optimizer, _as_dict(file.optimizer), where, updates)
            if file.counts is not None:
                self.optimizer.set_counts(file.counts, file.num_update)
        self.states = {i: map_state(functools.partial(self._keep, i), state) for i, state in states.items()}
        self.states_synced = dict.fromkeys(self.states, False)

    def _keep(self, index: Any, value: Any) -> Any:
        value = bounded_dense(value, "states", f"state of {index!r}")
        return self.arrays.mutable(value) if isinstance(value, (np.ndarray, jax.Array)) else value

    def _prepare(self, index: Any, weight: Any) -> None:
        if index not in self.states:
            self.states[index] = self.optimizer.create_state_multi_precision(index, weight)
        elif not self.states_synced.get(index, False):
            self.states[index] = self._synced(index, weight)
        self.states_synced[index] = True

    def _synced(self, index: Any, weight: Any) -> Any:
        """Return a loaded state, copied to the device of its weight and wrapped in the weight's class of mutable array."""
        optimizer, state, value = self.optimizer, self.states[index], as_array(weight)
        make = mutable_class(weight) if isinstance(weight, MutableArray) else self.arrays.mutable
        if optimizer.takes_lists:
            slots = state_from_mxnet(optimizer, state, is_small(value))
            if slots is None:
                return optimizer.create_state_multi_precision(index, weight)
            check_shapes(optimizer, index, slots, value)
            # those of MXNet's 16-bit weights without multi_precision have 16 bits
            slots = tuple(None if s is None else make(put_like(wide(s) if is_small(s) else s, value)) for s in slots)
            return state_to_mxnet(optimizer, slots)
        return map_state(lambda part: make(put_like(as_array(part), value)) if _is_array(part) else part, state)


def get_updater(optimizer: Optimizer) -> Updater:
    """Create an `Updater`, the function `(index, grad, weight)` that a key-value store calls.

    Args:
        optimizer: the optimizer to apply.

    Returns:
        `Updater(optimizer)`, without states.

    Example:
        >>> from jfit.mxnet.optimizer.named import SGD
        >>> get_updater(SGD()).states
        {}
    """
    return Updater(optimizer)


def _as_dict(record: Any, deeper: bool = True) -> Any:
    """Return settings as plain data: MXNet's file has the pickled optimizer and its scheduler, objects with attributes.

    deeper: also convert the attributes (the scheduler).
    """
    if not hasattr(record, "attributes"):
        return record
    # Convert one level only: in a malicious file the scheduler may be the optimizer itself, an endless recursion.
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
