"""Optimizer state in MXNet's `.states` files, extended by update counts and shared scalars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from jfit import counters
from jfit.formats.atomic import atomic_write, read_file
from jfit.formats.mxnet_states import dump_states, load_states
from jfit.mxnet.module.parameters import Index, Parameters
from jfit.mxnet.optimizer.apply import check_arrays, new_state, slot_names, state_from_mxnet, state_to_mxnet
from jfit.mxnet.optimizer.saved import check_counts
from jfit.mxnet.optimizer.settings import progress_of, restore_settings
from jfit.optim import OptState
from jfit.optim.core import is_small


def save_states_of(parameters: Parameters, fname: str) -> None:
    """Write the optimizer state of `parameters` to the file `fname`, in MXNet's format."""
    optimizer = parameters.optimizer
    if parameters.updater is not None:
        data = parameters.updater.get_states()
    else:
        states, counts = export_states(parameters)
        data = dump_states(states, counts, optimizer.num_update, progress_of(optimizer) or None)
    atomic_write(fname, data)


def load_states_into(parameters: Parameters, fname: str) -> None:
    """Read the optimizer state of `parameters` from a file written by MXNet or jfit.

    Raises:
        FormatError: the file is damaged or is not an optimizer state file.
        ValueError: its parameters are not those of this network.
    """
    if parameters.updater is not None:
        parameters.updater.set_states(read_file(fname), fname)
        return
    saved = load_states(fname)
    check_counts(fname, saved.counts, saved.num_update)
    check_arrays(fname, saved.states)
    import_states(parameters, saved.states, saved.counts, saved.num_update)
    if isinstance(saved.optimizer, Mapping) and parameters.optimizer is not None:
        restore_settings(parameters.optimizer, {"shared": saved.optimizer.get("shared", {})}, fname)


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
