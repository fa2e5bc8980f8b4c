"""Optimizer state in MXNet's `.states` files, extended by update counts and shared scalars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from jfit import counters
from jfit.formats.mxnet_states import dump_states, load_states
from jfit.mxnet.module.parameters import Index, Parameters
from jfit.mxnet.optimizer.apply import check_arrays, map_state, new_state, slot_names, state_from_mxnet, state_to_mxnet
from jfit.mxnet.optimizer.saved import Path, check_counts
from jfit.mxnet.optimizer.settings import progress_of, restore_settings, settings_of
from jfit.optim import OptState
from jfit.optim.core import is_small


class States:
    """The optimizer state of a module, with what MXNet's scripts use of the `Updater` in its place: `module._updater`.

    Args:
        parameters: the parameters of the module.

    Attributes:
        optimizer: the optimizer of the module.
    """

    def __init__(self, parameters: Parameters) -> None:
        self._parameters, self.optimizer = parameters, parameters.optimizer

    @property
    def states(self) -> dict[Index, Any]:
        """Copies of the states by index, in MXNet's nesting; `set_states` changes them."""
        return {i: map_state(self._parameters.mutable, state) for i, state in export_states(self._parameters)[0].items()}

    def get_states(self, dump_optimizer: bool = False) -> bytes:
        """Return the content of a `.states` file, in MXNet's format; `dump_optimizer`: with the settings of the optimizer."""
        states, counts = export_states(self._parameters)
        settings = settings_of(self.optimizer) if dump_optimizer else progress_of(self.optimizer)
        return dump_states(states, counts, self.optimizer.num_update, settings or None)

    def set_states(self, states: bytes, where: Path = "bytes") -> None:
        """Replace the optimizer state by that of the content of a `.states` file, written by MXNet or jfit.

        Args:
            states: the content of the file.
            where: name of the file in error messages.

        Raises:
            FormatError: the file is damaged or is not an optimizer state file.
            ValueError: its parameters are not those of this network.
        """
        saved = load_states(states, where)
        check_counts(where, saved.counts, saved.num_update)
        check_arrays(where, saved.states)
        import_states(self._parameters, saved.states, saved.counts, saved.num_update)
        if isinstance(saved.optimizer, Mapping):
            restore_settings(self.optimizer, {"shared": saved.optimizer.get("shared", {})}, where)


def export_states(parameters: Parameters) -> tuple[dict[Index, Any], dict[Index, int]]:
    """Return (state by index, update count by index) in MXNet's structure; fixed gammas have their initial state."""
    optimizer, state = parameters.optimizer, parameters.state
    devices, on_store = len(parameters.devices), parameters.update_on_kvstore
    states: dict[Index, Any] = {}
    counts: dict[Index, int] = {}
    done = optimizer.counts()
    initial = {name: new_state(optimizer, _of_device(state.params[name], parameters, 0)) for name in parameters.fixed_gammas}
    opt_state, initial = counters.read((state.opt_state, initial))  # sync: the caller writes a file
    names = slot_names(optimizer)  # not the order of `slots`: a compiled step returns dicts with sorted keys
    for number, name in enumerate(parameters.names):
        if name not in parameters.trainable and name not in parameters.fixed_gammas:
            continue
        for device in range(1 if on_store else devices):
            slots = initial.get(name) or tuple(_of_device(opt_state.slots[slot][name], parameters, device) for slot in names)
            index: Index = name if on_store else number * devices + device
            states[index] = state_to_mxnet(optimizer, slots)
            counts[index] = int(done.get(name if on_store else number * devices, optimizer.num_update))
    return states, counts


def _of_device(value: Any, parameters: Parameters, device: int) -> Any:
    return value[device] if parameters.split and value is not None else value


def import_states(
    parameters: Parameters, states: Mapping[Index, Any], counts: Mapping[Index, int] | None, num_update: int | None
) -> None:
    """Set the optimizer state from MXNet's structure; without `counts` (MXNet's files have none) counts are unchanged."""
    optimizer, state = parameters.optimizer, parameters.state
    whole, devices = state.opt_state, len(parameters.devices)
    slots: dict[str, dict[str, Any]] = {slot: dict(tree) for slot, tree in whole.slots.items()}
    for name in parameters.trainable:
        number = parameters.names.index(name)
        keys = [name, *(number * devices + d for d in range(devices))]
        saved = [states[k] for k in keys if k in states]
        if not saved:
            raise ValueError(f"the optimizer states have no entry for parameter {name!r} ({number}), only {list(states)[:12]}")
        per_device = [state_from_mxnet(optimizer, s, is_small(state.params[name])) for s in saved]
        for k, slot in enumerate(slot_names(optimizer)):
            column = [None if s is None else s[k] for s in per_device]
            slots[slot][name] = _placed(parameters, name, slot, column, whole.slots[slot][name])
    parameters.state = state._replace(opt_state=whole._replace(slots=slots))
    if counts is not None or num_update is not None:
        _import_counts(parameters, counts or {}, num_update or 0)


def _import_counts(parameters: Parameters, saved: Mapping[Index, int], num_update: int) -> None:
    optimizer, state, devices = parameters.optimizer, parameters.state, len(parameters.devices)
    done = max([num_update, *saved.values()])
    updated = (*parameters.trainable, *parameters.fixed_gammas)
    counts = {n: saved.get(n, saved.get(parameters.names.index(n) * devices, done)) for n in updated}
    optimizer.set_counts({parameters.index(n): count for n, count in counts.items()}, done)
    of_name = [counts[n] for n in sorted(parameters.trainable)]
    whole = state.opt_state
    if isinstance(whole, OptState) and whole.count is not None:
        full = np.asarray(of_name, np.int32)
        full = full.max() if full.min() == full.max() else full  # a scalar if all counts are equal
        whole = whole._replace(count=parameters.put(full))
    parameters.state = state._replace(step=parameters.place(jnp.int32(done)), opt_state=whole)


def _placed(parameters: Parameters, name: str, slot: str, column: Sequence[Any], old: Array | None) -> Any:
    """Return one slot of a parameter on the devices, with the shape and dtype of `old`; zeros if the file has no value.

    column: the saved value of each device, or one for all.  old: the present value; None if the slot is not stored.
    """
    if old is None:
        return None
    shape = old.shape[1:] if parameters.split else old.shape
    if any(v is None for v in column):
        column = [np.zeros(shape, old.dtype)]
    values = [np.asarray(v, old.dtype) for v in column]
    if values[0].shape != shape:
        found = f"{slot!r} of {name!r} has shape {values[0].shape}, not {shape}"
        raise ValueError(f"optimizer state {found}; load the states of the same network")
    if parameters.split:
        values = values if len(values) == len(parameters.devices) else values[:1] * len(parameters.devices)
        return parameters.place_slices({name: np.stack(values)})[name]
    return parameters.place({name: values[0]})[name]
