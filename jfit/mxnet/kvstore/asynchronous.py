"""MXNet's `dist_async`: a server updates the weights with each gradient when it arrives; its actor runs on Ray.

The workers are the processes of the job.  Rank 0 starts Ray on the loopback interface, or uses the cluster that the script has
joined by `ray.init`, and starts the server; all processes connect to it.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jfit import activity, distributed
from jfit.distributed.actors import Actor, RayActors, check_ray, join_ray, named_actor
from jfit.formats.atomic import atomic_write, read_file
from jfit.mxnet.errors import MXNetError
from jfit.mxnet.kvstore.store import KVStore
from jfit.mxnet.kvstore.transfer import device_put_all, sharding_of
from jfit.mxnet.mutable import MutableRowSparse, as_array

PATIENCE = 300.0  # seconds in which rank 0 must initialize the keys and set the optimizer


def connect(name: str, make: type[KVStore] = KVStore) -> AsyncKVStore:
    """Create the store of this process; all processes of the job call it.

    Args:
        name: the type, such as "dist_async".
        make: class of a store of one process, which the server uses; it determines the types of arrays.

    Returns:
        The store, connected to the server.

    Raises:
        ImportError: Ray is not installed.
    """
    needs, actors = f'KVStore("{name}")', None
    check_ray(needs)
    message: dict[str, Any] = {}
    if distributed.is_main():
        actors, key = RayActors(needs), f"kvstore-{uuid.uuid4().hex}"
        options = {"num_cpus": 0, "name": key, "namespace": "jfit"}
        server = actors.start(KeyServer, make, calls=distributed.num_processes() + 2, options=options)
        server.call("keys").result()  # it has been built
        message = {"address": actors.address, "authentication": actors.authentication, "key": key}
    message = distributed.exchange(message, "address of the kvstore's server")[0]
    ray = join_ray(needs, message["address"], message["authentication"])
    if actors is None:
        server = named_actor(ray, message["key"])
    store = AsyncKVStore(name, server, make)
    atexit.register(_leave, ray, actors)
    return store


def _leave(ray: Any, actors: RayActors | None) -> None:
    """At the end of the script: leave Ray, rank 0 as the last."""
    with contextlib.suppress(distributed.JobError):
        distributed.barrier("the end of asynchronous training")
        if actors is None:
            ray.shutdown()
        distributed.barrier("the end of Ray")
    if actors is not None:
        actors.close()
    elif ray.is_initialized():
        ray.shutdown()


class AsyncKVStore(KVStore):
    """Store of type `dist_async`: `push` sends gradients to a server, which updates at once; `pull` gets its newest values.

    Nobody waits for other workers: a pushed gradient may be of older weights than those that it updates.  The number of updates
    that others have made in between is its staleness.

    Args:
        name: the type.
        server: actor with a `KeyServer`.
        make: as for `connect`.

    Example:
        >>> from jfit.distributed.actors import ThreadActors
        >>> from jfit.mxnet.optimizer import create
        >>> actors = ThreadActors()
        >>> store = AsyncKVStore("dist_async", actors.start(KeyServer, KVStore, calls=2))
        >>> store.init("w", np.ones(2, "float32"))
        >>> store.set_optimizer(create("sgd", learning_rate=0.5))
        >>> store.push("w", np.ones(2, "float32"))
        >>> store.pull("w").tolist(), store.staleness()["updates"]
        ([0.5, 0.5], 1)
        >>> actors.close()

    Source: Apache MXNet 1.9.1, `mxnet.kvstore.KVStore`.
    """

    def __init__(self, name: str, server: Actor, make: type[KVStore] = KVStore) -> None:
        super().__init__(name)
        self._server, self._pushes = server, 0
        self.arrays = make.arrays

    def init(self, key: Any, value: Any) -> None:
        """Add new keys with the values of rank 0; other processes wait until it has initialized them.

        Args:
            key: int or str key, or list of keys.
            value: array, or list of one array per key.

        Raises:
            MXNetError: a key already exists, or has several values, or rank 0 has a value of another shape.
        """
        super().init(key, value)  # checks, and the shapes for `push`
        keys = [k for k, _ in self._pairs(key, key)]
        if self.rank == 0:
            self._call("init", keys, [np.asarray(self._stored[k].value) for k in keys])
        self._fetch(keys)

    def push(self, key: Any, value: Any, priority: int = 0) -> None:
        """Send the sum of the values of each key over the devices of this process to the server, which updates at once.

        Args:
            key, value, priority: as for `KVStore.push`.

        Raises:
            MXNetError: a key was not initialized, or a value has another shape, or no optimizer was set.
        """
        del priority
        gathered: dict[Any, list[Any]] = {}
        pairs = self._pairs(key, value, must_exist=True)
        dense = {k for k, values in pairs if any(getattr(v, "stype", "default") != "row_sparse" for v in values)}
        for k, values in pairs:
            gathered.setdefault(k, []).extend(self._checked(k, v) for v in values)
        keys = list(gathered)
        sums = jax.device_get(self._reduce(keys, [gathered[k] for k in keys]))  # sync: they are sent
        self._call("push", self.rank, keys, [np.asarray(v) for v in sums], [k not in dense for k in keys])
        self._pushes += 1
        activity.went_on(f"gradient {self._pushes} for the kvstore")

    def pull(self, key: Any, out: Any = None, priority: int = 0, ignore_sparse: bool = True) -> Any:
        """Copy the newest values of the server to `out`, or return them; as `KVStore.pull`."""
        self._fetch([k for k, _ in self._pairs(key, key, must_exist=True)])
        return super().pull(key, out, priority, ignore_sparse)

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> Any:
        """Push `value`, then pull the newest values, as `KVStore.pushpull`."""
        self.push(key, value, priority)
        cells = [v for _, values in self._pairs(key, value) for v in values]
        if out is not None or not any(isinstance(v, jax.Array) for v in cells):
            return self.pull(key, value if out is None else out, priority)
        self._fetch([k for k, _ in self._pairs(key, key)])
        return self._pulled_like(key, value)

    def row_sparse_pull(self, key: Any, out: Any = None, priority: int = 0, row_ids: Any = None) -> Any:
        """Copy rows of the newest values of the server, as `KVStore.row_sparse_pull`."""
        self._fetch([k for k, _ in self._pairs(key, key, must_exist=True)])
        return super().row_sparse_pull(key, out, priority, row_ids)

    def set_optimizer(self, optimizer: Any) -> None:
        """Send a copy of the optimizer of rank 0 to the server; later changes to the object have no effect, as in MXNet."""
        if self.rank == 0:
            self._call("set_optimizer", optimizer)

    def set_updater(self, updater: Any) -> None:
        """Not possible: updates are made by the server."""
        raise NotImplementedError(
            f"a {self.type!r} kvstore updates on its server, where functions of this process are not called; pass an optimizer "
            "to set_optimizer, such as a subclass of Optimizer with your update"
        )

    _set_updater = set_updater

    def staleness(self) -> dict[str, Any]:
        """How stale the gradients were that the server has applied so far.

        Returns:
            dict with "updates", the number of pushes of all workers, "mean" and "max" of their staleness, and "workers", a list
            of [number of pushes, mean, max] by rank.
        """
        return self._call("staleness", self.num_workers)

    def save_optimizer_states(self, fname: str, dump_optimizer: bool = False) -> None:
        """Write the optimizer's states, which are those of the server, to a file; as `KVStore.save_optimizer_states`."""
        atomic_write(fname, self._call("get_states", dump_optimizer))

    def load_optimizer_states(self, fname: str) -> None:
        """Load the optimizer's states of the server; only rank 0 needs the file, and the others do nothing."""
        if self.rank == 0:
            self._call("set_states", read_file(fname), str(fname))

    def _fetch(self, keys: Sequence[Any]) -> None:
        """Copy the values of the server to `_stored`, on the devices where they are."""
        cells = [self._stored[k] for k in keys]
        values = self._call("pull", self.rank, list(keys))
        for key, cell, value in zip(keys, cells, values, strict=True):
            if value.shape != cell.shape:
                raise MXNetError(f"key {key!r} has shape {cell.shape} in rank {self.rank}, but {value.shape} in rank 0.")
        places = [sharding_of(cell.value) for cell in cells]
        for cell, value in zip(cells, device_put_all(list(values), places), strict=True):
            cell.value = value

    def _call(self, method: str, *args: Any) -> Any:
        with activity.Doing(activity.PEERS, "waiting for the server of the kvstore"):
            return self._server.call(method, *args).result()


class KeyServer:
    """The server: it holds one store, whose methods the workers call remotely, each call on a thread of its own.

    Args:
        make: class of the store that it creates.
    """

    def __init__(self, make: type[KVStore] = KVStore) -> None:
        self._store, self._changed = make("local"), threading.Condition()
        self._keys: set[Any] = set()
        self._version, self._pulled = 0, dict[int, int]()
        self._seen: dict[int, list[int]] = {}  # staleness of each push by rank
        self._device = jax.local_devices(backend="cpu")[0]

    def keys(self) -> list[Any]:
        """The keys that were initialized."""
        with self._changed:
            return list(self._keys)

    def init(self, keys: list[Any], values: list[Any]) -> None:
        """Store the initial values of rank 0."""
        with self._changed, jax.default_device(self._device):
            self._store.init(keys, values)
            self._keys.update(keys)
            self._changed.notify_all()

    def set_optimizer(self, optimizer: Any) -> None:
        """Update with this optimizer."""
        with self._changed:
            self._store.set_optimizer(optimizer)
            self._changed.notify_all()

    def push(self, rank: int, keys: list[Any], values: list[Any], by_rows: list[bool]) -> None:
        """Update values with gradients."""
        with self._changed, jax.default_device(self._device):
            optimizer = "an optimizer: call set_optimizer in rank 0 before the first push"
            self._wait(lambda: self._store._updater is not None, optimizer)
            gradients = [MutableRowSparse(jax.numpy.asarray(v)) if s else v for v, s in zip(values, by_rows, strict=True)]
            self._store.push(keys, gradients)
            self._seen.setdefault(rank, []).append(self._version - self._pulled.get(rank, 0))
            self._version += 1
            # its own update does not make its next gradient stale, if it pushes several keys one after the other
            self._pulled[rank] = self._pulled.get(rank, 0) + 1

    def pull(self, rank: int, keys: list[Any]) -> list[Any]:
        """Return the newest values, NumPy arrays."""
        with self._changed, jax.default_device(self._device):
            self._wait(lambda: self._keys.issuperset(keys), f"the keys {keys}: call init with the same keys in all processes")
            self._pulled[rank] = self._version
            return [np.array(as_array(self._store.pull(k))) for k in keys]

    def staleness(self, workers: int) -> dict[str, Any]:
        """See `AsyncKVStore.staleness`."""
        with self._changed:
            seen = [self._seen.get(rank, []) for rank in range(max([workers, *(rank + 1 for rank in self._seen)]))]
        every = [s for of_worker in seen for s in of_worker]
        return {"updates": len(every), **_summary(every), "workers": [[len(s), *_summary(s).values()] for s in seen]}

    def get_states(self, dump_optimizer: bool) -> bytes:
        """The states of the optimizer in MXNet's format."""
        with self._changed:
            return self._store._states("save").get_states(dump_optimizer)

    def set_states(self, content: bytes, name: str) -> None:
        """Replace the states of the optimizer."""
        with self._changed, jax.default_device(self._device):
            self._store._states("load").set_states(content, name)

    def _wait(self, condition: Any, what: str) -> None:
        if not self._changed.wait_for(condition, PATIENCE):
            raise MXNetError(f"the server of the kvstore has waited {PATIENCE:.0f} s for {what}")


def _summary(staleness: Sequence[int]) -> Mapping[str, float]:
    return {"mean": float(np.mean(staleness)) if staleness else 0.0, "max": max(staleness, default=0)}
