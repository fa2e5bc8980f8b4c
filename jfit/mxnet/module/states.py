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
from jfit.mxnet.module.session import Index, Session
from jfit.mxnet.optimizer.apply import check_arrays, new_state, slot_names, state_from_mxnet, state_to_mxnet
from jfit.mxnet.optimizer.saved import check_counts
from jfit.mxnet.optimizer.settings import progress_of, restore_settings
from jfit.optim import OptState
from jfit.optim.core import is_small
from jfit.parallel import place, place_split


def save_states_of(session: Session, fname: str) -> None:
    """Write a session's optimizer state."""
    optimizer = session.optimizer
    assert optimizer is not None
    if session.updater is not None:
        data = session.updater.get_states()
    else:
        states, counts = export_states(session)
        data = dump_states(states, counts, optimizer.num_update, progress_of(optimizer) or None)
    atomic_write(fname, data)


def load_states_into(session: Session, fname: str) -> None:
    """Read optimizer state of MXNet or jfit.

    Raises:
        FormatError: the file is damaged, or holds something that is no optimizer state.
        ValueError: it is of another network.
    """
    if session.updater is not None:
        with open(fname, "rb") as file:
            session.updater.set_states(file.read(), fname)
        return
    found = load_states(fname)
    check_counts(fname, found.counts, found.num_update)
    check_arrays(fname, found.states)
    import_states(session, found.states, found.counts, found.num_update)
    if isinstance(found.optimizer, Mapping) and session.optimizer is not None:
        restore_settings(session.optimizer, {"shared": found.optimizer.get("shared", {})}, fname)


def export_states(session: Session) -> tuple[dict[Index, Any], dict[Index, int]]:
    """(state by index, update count by index) of a session, in MXNet's form; fixed gammas have their first state."""
    optimizer, state = session.optimizer, session.state
    assert optimizer is not None and state is not None
    devices, on_store = len(session.devices), session.update_on_kvstore
    states: dict[Index, Any] = {}
    counts: dict[Index, int] = {}
    done = optimizer.counts()
    firsts = {name: new_state(optimizer, _of_device(state.params[name], session, 0)) for name in session.gammas}
    whole, firsts = counters.read((state.opt_state, firsts))  # sync: the caller writes a file
    names = slot_names(optimizer)  # a compiled step gives them back in another order
    for number, name in enumerate(session.names):
        if name not in session.learns and name not in session.gammas:
            continue
        for device in range(1 if on_store else devices):
            slots = firsts.get(name) or tuple(_of_device(whole.slots[slot][name], session, device) for slot in names)
            index: Index = name if on_store else number * devices + device
            states[index] = state_to_mxnet(optimizer, slots)
            counts[index] = int(done.get(name if on_store else number * devices, optimizer.num_update))
    return states, counts


def _of_device(value: Any, session: Session, device: int) -> Any:
    return value[device] if session.split and value is not None else value


def import_states(
    session: Session, states: Mapping[Index, Any], counts: Mapping[Index, int] | None, num_update: int | None
) -> None:
    """Take optimizer state in MXNet's form; without counts they stay as they are (MXNet's own files hold none)."""
    optimizer, state = session.optimizer, session.state
    assert optimizer is not None and state is not None
    whole, devices = state.opt_state, len(session.devices)
    slots: dict[str, dict[str, Any]] = {slot: dict(tree) for slot, tree in whole.slots.items()}
    for name in session.learns:
        number = session.names.index(name)
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
            slots[slot][name] = _placed(session, name, slot, column, whole.slots[slot][name])
    session.state = state._replace(opt_state=whole._replace(slots=slots))
    if counts is not None or num_update is not None:
        _import_counts(session, counts or {}, num_update or 0)


def _import_counts(session: Session, known: Mapping[Index, int], num_update: int) -> None:
    optimizer, state, devices = session.optimizer, session.state, len(session.devices)
    assert optimizer is not None and state is not None
    done = max([num_update, *known.values()])
    counts = {n: known.get(n, known.get(session.names.index(n) * devices, done)) for n in (*session.learns, *session.gammas)}
    optimizer.set_counts({session.index(n): count for n, count in counts.items()}, done)
    of_name = [counts[n] for n in sorted(session.learns)]
    whole = state.opt_state
    if isinstance(whole, OptState) and whole.count is not None:
        full = np.asarray(of_name, np.int32)
        full = full.max() if full.min() == full.max() else full  # one count where all agree
        whole = whole._replace(count=session.stacked(full) if session.split else place(full, session.devices))
    session.state = state._replace(step=place(jnp.int32(done), session.devices), opt_state=whole)


def _placed(session: Session, name: str, slot: str, column: Sequence[Any], now: Array | None) -> Any:
    """One slot of a parameter on the devices; what a file has nothing for starts again."""
    if now is None:
        return None
    needed = now.shape[1:] if session.split else now.shape
    if any(v is None for v in column):
        column = [np.zeros(needed, now.dtype)]
    values = [np.asarray(v, now.dtype) for v in column]
    if values[0].shape != needed:
        raise ValueError(
            f"optimizer state {slot!r} of {name!r} has shape {values[0].shape} in the file, the parameter needs {needed}: "
            "load the states of the same network"
        )
    if session.split:
        values = values if len(values) == len(session.devices) else values[:1] * len(session.devices)
        return place_split(np.stack(values), session.devices)
    return place(values[0], session.devices)
