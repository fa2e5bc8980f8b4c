"""Optimizer state in files: `.states` as MXNet writes them, with jfit's update counts and what parameters share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from jfit import counters
from jfit.formats.atomic import atomic_write
from jfit.formats.mxnet_states import dump_states, load_states
from jfit.mxnet.module.parameters import Index, Parameters
from jfit.mxnet.optimizer.apply import check_arrays, new_state, slot_names, state_from_mxnet, state_to_mxnet
from jfit.mxnet.optimizer.saved import check_counts
from jfit.mxnet.optimizer.settings import progress_of, restore_settings
from jfit.optim import OptState
from jfit.optim.core import is_small
from jfit.parallel import place, place_split


def save_states_of(parameters: Parameters, fname: str) -> None:
    """Write the optimizer state of parameters."""
    optimizer = parameters.optimizer
    assert optimizer is not None
    if parameters.updater is not None:
        data = parameters.updater.get_states()
    else:
        states, counts = export_states(parameters)
        data = dump_states(states, counts, optimizer.num_update, progress_of(optimizer) or None)
    atomic_write(fname, data)


def load_states_into(parameters: Parameters, fname: str) -> None:
    """Read optimizer state of MXNet or jfit.

    Raises:
        FormatError: the file is damaged, or holds something that is no optimizer state.
        ValueError: it is of another network.
    """
    if parameters.updater is not None:
        with open(fname, "rb") as file:
            parameters.updater.set_states(file.read(), fname)
        return
    found = load_states(fname)
    check_counts(fname, found.counts, found.num_update)
    check_arrays(fname, found.states)
    import_states(parameters, found.states, found.counts, found.num_update)
    if isinstance(found.optimizer, Mapping) and parameters.optimizer is not None:
        restore_settings(parameters.optimizer, {"shared": found.optimizer.get("shared", {})}, fname)


def export_states(parameters: Parameters) -> tuple[dict[Index, Any], dict[Index, int]]:
    """(state by index, update count by index) of parameters, in MXNet's form; fixed gammas have their first state."""
    optimizer, state = parameters.optimizer, parameters.state
    assert optimizer is not None and state is not None
    devices, on_store = len(parameters.devices), parameters.update_on_kvstore
    states: dict[Index, Any] = {}
    counts: dict[Index, int] = {}
    done = optimizer.counts()
    firsts = {name: new_state(optimizer, _of_device(state.params[name], parameters, 0)) for name in parameters.gammas}
    whole, firsts = counters.read((state.opt_state, firsts))  # sync: the caller writes a file
    names = slot_names(optimizer)  # a compiled step gives them back in another order
    for number, name in enumerate(parameters.names):
        if name not in parameters.learns and name not in parameters.gammas:
            continue
        for device in range(1 if on_store else devices):
            slots = firsts.get(name) or tuple(_of_device(whole.slots[slot][name], parameters, device) for slot in names)
            index: Index = name if on_store else number * devices + device
            states[index] = state_to_mxnet(optimizer, slots)
            counts[index] = int(done.get(name if on_store else number * devices, optimizer.num_update))
    return states, counts


def _of_device(value: Any, parameters: Parameters, device: int) -> Any:
    return value[device] if parameters.split and value is not None else value


def import_states(
    parameters: Parameters, states: Mapping[Index, Any], counts: Mapping[Index, int] | None, num_update: int | None
) -> None:
    """Take optimizer state in MXNet's form; without counts they stay as they are (MXNet's own files hold none)."""
    optimizer, state = parameters.optimizer, parameters.state
    assert optimizer is not None and state is not None
    whole, devices = state.opt_state, len(parameters.devices)
    slots: dict[str, dict[str, Any]] = {slot: dict(tree) for slot, tree in whole.slots.items()}
    for name in parameters.learns:
        number = parameters.names.index(name)
        keys = [name, *(number * devices + d for d in range(devices))]
        given = [states[k] for k in keys if k in states]
        if not given:
            raise ValueError(
                f"the optimizer states hold nothing for parameter {name!r} ({number}); they are of {list(states)[:12]}; "
                "load the states of the same network"
            )
        made = [state_from_mxnet(optimizer, g, is_small(state.params[name])) for g in given]
        for k, slot in enumerate(slot_names(optimizer)):
            column = [None if m is None else m[k] for m in made]
            slots[slot][name] = _placed(parameters, name, slot, column, whole.slots[slot][name])
    parameters.state = state._replace(opt_state=whole._replace(slots=slots))
    if counts is not None or num_update is not None:
        _import_counts(parameters, counts or {}, num_update or 0)


def _import_counts(parameters: Parameters, known: Mapping[Index, int], num_update: int) -> None:
    optimizer, state, devices = parameters.optimizer, parameters.state, len(parameters.devices)
    assert optimizer is not None and state is not None
    done = max([num_update, *known.values()])
    updated = (*parameters.learns, *parameters.gammas)
    counts = {n: known.get(n, known.get(parameters.names.index(n) * devices, done)) for n in updated}
    optimizer.set_counts({parameters.index(n): count for n, count in counts.items()}, done)
    of_name = [counts[n] for n in sorted(parameters.learns)]
    whole = state.opt_state
    if isinstance(whole, OptState) and whole.count is not None:
        full = np.asarray(of_name, np.int32)
        full = full.max() if full.min() == full.max() else full  # one count where all agree
        whole = whole._replace(count=parameters.stacked(full) if parameters.split else place(full, parameters.devices))
    parameters.state = state._replace(step=place(jnp.int32(done), parameters.devices), opt_state=whole)


def _placed(parameters: Parameters, name: str, slot: str, column: Sequence[Any], now: Array | None) -> Any:
    """One slot of a parameter on the devices; what a file has nothing for starts again."""
    if now is None:
        return None
    needed = now.shape[1:] if parameters.split else now.shape
    if any(v is None for v in column):
        column = [np.zeros(needed, now.dtype)]
    values = [np.asarray(v, now.dtype) for v in column]
    if values[0].shape != needed:
        raise ValueError(
            f"optimizer state {slot!r} of {name!r} has shape {values[0].shape} in the file, the parameter needs {needed}: "
            "load the states of the same network"
        )
    if parameters.split:
        values = values if len(values) == len(parameters.devices) else values[:1] * len(parameters.devices)
        return place_split(np.stack(values), parameters.devices)
    return place(values[0], parameters.devices)
