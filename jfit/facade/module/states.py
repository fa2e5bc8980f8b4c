"""Optimizer state in files: `.states` as MXNet writes them, with jfit's update counts."""

from __future__ import annotations

from collections.abc import Sequence

from jfit.facade.module.session import Session
from jfit.formats.atomic import atomic_write
from jfit.formats.mxnet_states import dump_states, load_states


def save_states_of(session: Session, fname: str, frozen: Sequence[str] = ()) -> None:
    """Write a session's optimizer state; `frozen` parameters get the zero state that MXNet keeps for them."""
    optimizer = session.optimizer
    assert optimizer is not None
    if session.updater is not None:
        data = session.updater.get_states()
    else:
        states, counts = session.export_states(frozen)
        data = dump_states(states, counts=counts, num_update=optimizer.num_update)
    atomic_write(fname, data)


def load_states_into(session: Session, fname: str) -> None:
    """Read optimizer state of MXNet or jfit.

    Raises:
        FormatError: the file is damaged, or holds something that is no optimizer state.
        ValueError: it is of another network.
    """
    if session.updater is not None:
        with open(fname, "rb") as file:
            session.updater.set_states(file.read())
        return
    found = load_states(fname)
    session.import_states(found.states, found.counts, found.num_update)
