"""Callback that compares the copies of the state that the devices and processes have."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jfit import activity, counters
from jfit.callbacks.base import Callback, Event
from jfit.distributed import RanksDiffer, exchange, job, num_processes
from jfit.interrupts import in_thread

EVERY = 500  # default number of steps between two checks


def check_replicas(every: int | None = EVERY) -> Callback:
    """Compare the copies of the state on all devices of all processes every N steps, and stop the job if two differ.

    Every device updates its own copy of parameters, auxiliary states and optimizer state, from the same summed gradients, so
    that the bits are equal.  A difference is a broken device or memory, other hardware or another program in one process, or a
    callback that changes the state in one process only; such a job trains several models without another sign.

    A small program reduces each array to 32 bits on each device.  These are read and exchanged on a background thread, and
    compared at the next check, so that neither the devices nor the host wait.  The state is also compared before the first step
    and after the last one.  `fit` adds this callback in jobs of several processes, unless `callbacks` has one.  Arrays that are
    split over devices (`reduce="sharded"`, residuals of "2bit") have no copies and are not compared.

    Args:
        every: number of steps between two checks.  None: no checks, also in a job.

    Returns:
        A `Callback`.  It raises `jfit.distributed.RanksDiffer` (a RuntimeError) in all processes; the message names the array,
        the rank and the device whose copy differs from most others, and the step of the last check without a difference.

    Example:
        >>> check_replicas(100).every
        100
    """
    if every is None:
        return Callback(on=lambda event, state: state, events=(), name="check_replicas")
    events = ("fit_start", "step", "fit_end")
    return Callback(on=_Check().on, events=events, every=every, name="check_replicas")


class _Pending(NamedTuple):
    """A check whose digests are being read and exchanged."""

    step: int
    names: list[str]
    digests: Future[np.ndarray]  # (devices of all processes, arrays)


class _Check:
    """The function `on` of `check_replicas`."""

    def __init__(self) -> None:
        self._pending: _Pending | None = None
        self._equal_at: int | None = None  # step of the last check without a difference
        self._outer: BaseException | None = None  # the exception that was being handled when training began

    def on(self, event: Event, state: Any) -> Any:
        if event.kind == "fit_start":
            self._pending, self._equal_at, self._outer = None, None, sys.exception()
        elif sys.exception() is not self._outer:
            self._pending = None  # training failed: the other processes may not come here
            return state
        # All processes compare at the same step, and so raise at the same step.
        self._finish()
        self._begin(event)
        if event.kind != "step":
            self._finish()
        return state

    def _begin(self, event: Event) -> None:
        state = event.run.state
        trees = {"params": state.params, "aux": state.aux, "opt_state": state.opt_state, "base_lr": state.base_lr}
        flat, _ = jax.tree.flatten_with_path({**trees, "key": state.key})
        flat = [(path, leaf) for path, leaf in flat if leaf.is_fully_replicated]
        names = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in flat]
        digests = _digests([leaf for _, leaf in flat])
        digests.copy_to_host_async()
        self._pending = _Pending(event.step, names, in_thread(_exchanged, digests))

    def _finish(self) -> None:
        if self._pending is None:
            return
        pending, self._pending = self._pending, None
        with activity.Doing(activity.PEERS, "waiting for the digests of the other processes"):
            digests = pending.digests.result()  # usually done: it was begun at the check before this one
        if (digests != digests[0]).any():
            raise RanksDiffer(_problem(pending, digests, self._equal_at))
        self._equal_at = pending.step


def _exchanged(digests: Array) -> np.ndarray:
    """The digests of all devices of all processes, by rank: uint32 array (devices, arrays)."""
    shards = sorted(digests.addressable_shards, key=lambda shard: shard.device.id)
    own = np.stack(counters.read([shard.data for shard in shards]))  # sync: on a background thread
    parts = exchange(own.tobytes(), "digests of the replicas")
    return np.concatenate([np.frombuffer(part, np.uint32).reshape(-1, own.shape[1]) for part in parts])


def _problem(pending: _Pending, digests: np.ndarray, equal_at: int | None) -> str:
    """The message for digests that differ."""
    wrong = np.flatnonzero((digests != digests[0]).any(axis=0))
    texts = [f"{pending.names[i]!r} {_who(digests[:, i])}" for i in wrong[:3]]
    more = f"; and {len(wrong) - 3} more arrays" if len(wrong) > 3 else ""
    when = f"at step {pending.step}" if pending.step else "before the first step"
    if equal_at is None:
        remedy = "start all processes with the same parameters, from the same checkpoint, and with the same libraries"
    else:
        remedy = f"they were equal at step {equal_at}: resume from a checkpoint of that step or an earlier one"
        remedy += ", on other hardware if it happens again; a callback must not change the state in one process only"
    return f"the copies of the state differ {when}: {'; '.join(texts)}{more}; {remedy}"


def _who(column: np.ndarray) -> str:
    """Which copies of an array differ from most others."""
    (common, count), *rest = Counter(column.tolist()).most_common()
    if rest and rest[0][1] == count:
        groups = [np.flatnonzero(column == digest).tolist() for digest in (common, *(digest for digest, _ in rest))]
        return "differs between " + " and ".join(_copies(group, len(column)) for group in groups[:4])
    return f"in {_copies(np.flatnonzero(column != common).tolist(), len(column))} differs from the other {count} copies"


def _copies(indices: Sequence[int], total: int) -> str:
    per_process = total // num_processes()
    texts = []
    for process in sorted({i // per_process for i in indices}):
        devices = [str(i % per_process) for i in indices if i // per_process == process]
        current = job.current()
        host = f" on {current.peers[process].host}" if current is not None else ""
        where = "" if len(devices) == per_process else f", device {', '.join(devices)}"
        texts.append(f"rank {process}{host}{where}" if num_processes() > 1 else f"device {', '.join(devices)}")
    return ", ".join(texts[:8]) + (f" and {len(texts) - 8} more" if len(texts) > 8 else "")


@jax.jit
def _digests(leaves: Sequence[Array]) -> Array:
    """One uint32 per array: the sum of its words, each multiplied by an odd number that depends on its position.

    A change of one word always changes the sum, and so does a swap of two.  Every device computes that of its own copy.
    """
    return jnp.stack([_digest(leaf) for leaf in leaves])


def _digest(x: Array) -> Array:
    x = counters.key_data(x)
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        x = jnp.stack([x.real, x.imag])
    if x.dtype == jnp.bool_ or jnp.issubdtype(x.dtype, jnp.int4) or jnp.issubdtype(x.dtype, jnp.uint4):
        x = x.astype(jnp.uint8)
    width = {1: jnp.uint8, 2: jnp.uint16}.get(x.dtype.itemsize, jnp.uint32)
    words = lax.bitcast_convert_type(x, width).astype(jnp.uint32).reshape(-1)  # of 8 bytes: two words
    weights = (2 * lax.iota(jnp.uint32, words.size) + 1) * jnp.uint32(0x9E3779B1)
    return jnp.sum(words * weights, dtype=jnp.uint32)
