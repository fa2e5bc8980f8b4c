"""MXNet's key-value store, for training on several devices.

`push` sums the values of a key over devices, on the device of the first value, and either replaces the stored value or calls
the updater with both; `pull` copies the stored value to the destinations.  All keys of a call are summed in one dispatch.
"""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, ClassVar

import jax
import numpy as np

from jfit import checks, distributed
from jfit.formats.atomic import atomic_write, read_file
from jfit.mxnet.array_types import PLAIN, ArrayTypes
from jfit.mxnet.errors import MXNetError
from jfit.mxnet.job import check_synchronous, join_job
from jfit.mxnet.kvstore import compression
from jfit.mxnet.kvstore.transfer import committed_copy, device_put_all, only_rows, private_copy, sharding_of, sum_groups, write
from jfit.mxnet.mutable import MutableRowSparse, as_array
from jfit.mxnet.optimizer import Updater
from jfit.ops import nearest
from jfit.parallel import check_entry
from jfit.parallel.workers import check_same, from_main, sum_over_processes
from jfit.step.reduce import Reduce

# parameters with more elements are not updated in a 'local' store
BIG = 16 * 1024 * 1024
TYPES = (
    *("local", "device", "nccl", "local_update_cpu", "local_allreduce_cpu", "local_allreduce_device"),
    *("dist", "dist_sync", "dist_device_sync", "dist_sync_device"),
)


class KVStoreBase:
    """Interface of the stores that Module and Trainer use; base class of user-defined stores, which call `register`.

    Attributes:
        type: name of the store type.
        rank: index of this process.
        num_workers: number of processes.

    Example:
        >>> @KVStoreBase.register
        ... class Mine(KVStoreBase):
        ...     type = "mine"
        >>> KVStoreBase.kv_registry["mine"].type
        'mine'
    """

    OPTIMIZER = "optimizer"
    kv_registry: ClassVar[dict[str, type]] = {}

    type: Any = None
    rank = 0
    num_workers = 1

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> Any:
        """Initialize a key with a value, and copy the value into the arrays `out`, one per device.

        Args:
            key: int or str key.
            value: the initial value.
            out: list of `MutableArray`s to write to, one per device.
            priority: hint that a store may ignore.
        """
        raise NotImplementedError(f"{type(self).__name__} defines no broadcast(key, value, out).")

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> Any:
        """Sum the values of a key over devices, and copy the sum into the arrays `out`, one per device.

        Args:
            key: int or str key.
            value: list of arrays, one per device.
            out: list of `MutableArray`s to write to; None: those of `value`.
            priority: hint that a store may ignore.
        """
        raise NotImplementedError(f"{type(self).__name__} defines no pushpull(key, value, out).")

    def is_capable(self, capability: str) -> bool:
        """Return whether the store supports a capability; the only one is "optimizer", updating weights in the store.

        False in this base class.

        Raises:
            ValueError: an unknown capability.
        """
        checks.one_of((self.OPTIMIZER,), capability=capability.lower())
        return False

    @staticmethod
    def register(klass: type) -> type:
        """Class decorator: register the store under its lower-case class name, for `create`."""
        KVStoreBase.kv_registry[klass.__name__.lower()] = klass
        return klass


class KVStore(KVStoreBase):
    """Key-value store: `push` computes stored <- sum of the values, or calls updater(key, sum, stored).

    In a job of several processes, a `dist` store sums over the devices of each process, then over the processes.  Every
    process has a copy of the stored values, applies the same updates to it, and pulls from it.  So all processes call `init`
    and `push` with the same keys in the same order; `init` stores the values of rank 0.

    The keys of a store are all int or all str.  Values are arrays, or lists of arrays, one per device.  `out=` takes a
    `MutableArray`, a NumPy array, or lists of them; without `out` the result is returned, because a jax.Array is immutable.

    Args:
        name: type of the store, one of `jfit.mxnet.kvstore.store.TYPES`, such as `local`, `device` or `dist_sync`.  Case is
            ignored.  The type does not affect where values are summed: always on the device of the first value.

    Raises:
        ValueError: `name` is unknown (for MXNet, such a name is a local store) or asynchronous (`dist_async`).

    Example:
        >>> import numpy as np
        >>> store = KVStore("device")
        >>> store.init("w", np.zeros(2, "float32"))
        >>> store.push("w", [np.ones(2, "float32"), np.ones(2, "float32")])
        >>> store.pull("w").tolist()
        [2.0, 2.0]

    Source: Apache MXNet 1.9.1, `mxnet.kvstore.KVStore`.
    """

    arrays: ArrayTypes = PLAIN
    _updater_class: ClassVar[type[Updater]] = Updater

    def __init__(self, name: str = "local") -> None:
        self._type = checked_type(name)
        if self.distributed:
            check_entry(f"kvstore {name!r}", several=True)
        self._pushed: set[Any] = set()  # keys, shapes and dtypes that were pushed together, which the other processes know
        self._stored: dict[Any, Any] = {}  # MutableArray by key
        self._stypes: dict[Any, str] = {}  # storage types of the values of init; the stored arrays are dense
        self._order: dict[Any, int] = {}  # position of each key in the order of init
        self._updater: Any = None
        self._compression: compression.Compression | None = None

    @property
    def type(self) -> str:
        """The type name passed to the constructor, in lower case."""
        return self._type

    @property
    def reduce(self) -> Reduce | None:
        """How the training step of a `Module` compresses and sums gradients, a `Reduce`; None: it does not compress them."""
        return self._compression and self._compression.rule

    @property
    def distributed(self) -> bool:
        """Whether the type is a `dist` one."""
        return "dist" in self._type

    @property
    def rank(self) -> int:
        """Number of this process in its job; 0 unless the type is a `dist` one."""
        return distributed.rank() if self.distributed else 0

    @property
    def num_workers(self) -> int:
        """Number of processes of the job; 1 unless the type is a `dist` one."""
        return distributed.num_processes() if self.distributed else 1

    def barrier(self) -> None:
        """Wait until all processes of the job have called this method, if the type is a `dist` one."""
        if self.distributed:
            distributed.barrier("kvstore.barrier")

    _barrier = barrier

    def _send_command_to_servers(self, head: int, body: str) -> None:
        raise NotImplementedError("a kvstore of jfit has no servers; call set_optimizer, or set_updater, in all processes")

    def is_capable(self, capability: str) -> bool:
        """True for "optimizer", the only capability; raises ValueError for any other."""
        return not super().is_capable(capability)

    def init(self, key: Any, value: Any) -> None:
        """Add new keys with initial values; the values are copied.

        Args:
            key: int or str key, or list of keys.
            value: array, or list of one array per key.  In a job of several processes, that of rank 0 is stored.

        Raises:
            MXNetError: a key already exists, has several values, or is of another type (int, str) than the others.
            ValueError: the processes have values of different shapes.
        """
        new: dict[Any, Any] = {}
        stypes: dict[Any, str] = {}
        for k, values in self._pairs(key, value):
            if k in self._stored or k in new or len(values) > 1:
                what = f"has {len(values)} values" if len(values) > 1 else "is already in the store"
                raise MXNetError(f"key {k!r} {what}; a key is initialized once, with one value; use push to change it.")
            new[k] = as_array(values[0])
            stypes[k] = getattr(values[0], "stype", "default")
        if self.num_workers > 1:
            main = from_main(new, "values of kvstore.init")
            values = device_put_all(list(main.values()), [sharding_of(new[k]) for k in main])
            new = dict(zip(main, values, strict=True))
        for k, first in new.items():
            self._stored[k] = self.arrays.mutable(committed_copy(first))
            self._order[k] = len(self._order)
        self._stypes |= stypes

    def push(self, key: Any, value: Any, priority: int = 0) -> None:
        """Sum the values of each key over devices and processes, then store the sum, or call the updater with it.

        Args:
            key: key or list of keys; the values of a repeated key are summed.
            value: array or list of arrays for one key; for several keys a list of these.
            priority: accepted and ignored; XLA schedules the transfers.

        Raises:
            MXNetError: a key was not initialized, or a value has another shape than the stored one.
        """
        gathered: dict[Any, list[Any]] = {}
        pairs = self._pairs(key, value, must_exist=True)
        dense = {k for k, values in pairs if not all(self._is_by_rows(k, v) for v in values)}
        stored: dict[Any, list[Any]] = {}  # for each value the indices of the rows that it stores; None: no RowSparseNDArray
        for k, values in pairs:
            gathered.setdefault(k, []).extend(self._checked(k, v) for v in values)
            if k not in dense:
                stored.setdefault(k, []).extend(getattr(v, "indices", None) for v in values)
        # MXNet's update order: int keys ascending, str keys in the order of init
        keys = sorted(gathered, key=self._order.__getitem__ if self._strings else None)
        sums = self._reduce(keys, [gathered[k] for k in keys])
        if self.num_workers > 1:
            sums = self._over_processes(keys, sums)
        if self._updater is None:
            for k, value in zip(keys, sums, strict=True):
                # the sum of a single value is the caller's array itself, so copy it
                copies = len(gathered[k]) == 1 or isinstance(value, np.ndarray)
                self._stored[k].value = committed_copy(value) if copies else value
            return
        cells = [self._stored[k] for k in keys]
        merged = [self.arrays.mutable(v) for v in device_put_all(sums, [sharding_of(c.value) for c in cells])]
        if isinstance(self._updater, Updater):
            by_rows = lambda k, m: MutableRowSparse(m.value, self._stored_rows(stored[k], len(m.value)))  # noqa: E731
            summed = [m if k in dense else by_rows(k, m) for k, m in zip(keys, merged, strict=True)]
            for where in dict.fromkeys(sharding_of(c.value) for c in cells):
                local = [i for i, c in enumerate(cells) if sharding_of(c.value) == where]
                self._updater([keys[i] for i in local], [summed[i] for i in local], [cells[i] for i in local])
            return
        for k, value, cell in zip(keys, merged, cells, strict=True):
            self._updater(k, value, cell)

    def _is_by_rows(self, key: Any, gradient: Any) -> bool:
        """Whether the update after a push is to change only the rows of the weight that this gradient stores.

        `Trainer` has decided that for its gradients already: they are of class `MutableRowSparse` if it is so.
        """
        if getattr(gradient, "stype", "default") != "row_sparse":
            return False
        is_decided = isinstance(gradient, MutableRowSparse) or not isinstance(self._updater, Updater)
        return is_decided or self._updater.optimizer.updates_rows(self._stypes[key])

    def _stored_rows(self, indices: Sequence[Any], size: int) -> np.ndarray | None:
        """Return which of `size` rows the gradients with these indices store, as bools; None if that is not known here.

        It is not if a gradient has no indices, nor in a job, where other processes have other gradients.
        """
        if self.num_workers > 1 or any(i is None for i in indices):
            return None
        return np.isin(np.arange(size), np.concatenate([as_array(i) for i in indices]))

    def pull(self, key: Any, out: Any = None, priority: int = 0, ignore_sparse: bool = True) -> Any:
        """Copy the stored values to `out`, or return them.

        Args:
            key: key or list of keys.
            out: destinations: per key a `MutableArray`, or a list of them (one per device); None: return the values.
            priority, ignore_sparse: accepted and ignored.

        Returns:
            None with `out`; else a copy of the array of the key, or a list of arrays for a list of keys.

        Raises:
            MXNetError: a key was not initialized.
        """
        if out is None:
            values = [self.arrays.wrap(private_copy(self._stored[k].value)) for k, _ in self._pairs(key, key, must_exist=True)]
            return values if isinstance(key, (list, tuple)) else values[0]
        pairs = self._pairs(key, out, must_exist=True)
        write([(cell, self._stored[k].value) for k, cells in pairs for cell in cells])
        return None

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> Any:
        """Push `value`, then pull the new stored values into `out`; if `out` is None, into the pushed `MutableArray`s.

        Args:
            key, value, priority: as in `push`.
            out: as in `pull`.

        Returns:
            None; if `out` is None and the values are jax arrays, what `pull` returns.
        """
        self.push(key, value, priority)
        cells = [v for _, values in self._pairs(key, value) for v in values]
        in_place = out is None and not any(isinstance(v, jax.Array) for v in cells)
        return self.pull(key, value if in_place else out, priority)

    def broadcast(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> Any:
        """Initialize keys with their values, then copy the values into `out`, on every device.

        Args:
            key, value: as in `init`.
            out, priority: as in `pull`.
        """
        self.init(key, value)
        return self.pull(key, out, priority)

    def row_sparse_pull(self, key: Any, out: Any = None, priority: int = 0, row_ids: Any = None) -> Any:
        """Copy the rows `row_ids` of the stored values; all other rows of the result are 0.

        Args:
            key: key or list of keys.
            out: as in `pull`; the destinations are dense arrays.
            priority: accepted and ignored.
            row_ids: integer array of row indices in any order, repeats allowed; or a list of such arrays, one per
                destination, or one for all.

        Returns:
            As in `pull`.

        Raises:
            AssertionError: row_ids is missing.
            IndexError: a row index is out of range.
        """
        assert row_ids is not None, "row_sparse_pull needs row_ids, the rows to fetch; to fetch all rows use pull."
        pairs = self._pairs(key, key if out is None else out, must_exist=True)
        flat = [(k, cell) for k, cells in pairs for cell in cells]
        ids = jax.tree.leaves(row_ids, is_leaf=lambda i: not isinstance(i, (list, tuple)))
        ids = [*ids] * len(flat) if len(ids) == 1 else ids
        rows = [only_rows(self._stored[k].value, np.asarray(as_array(i))) for (k, _), i in zip(flat, ids, strict=True)]
        if out is None:
            values = [self.arrays.wrap(r) for r in rows]
            return values if isinstance(key, (list, tuple)) else values[0]
        write([(cell, r) for (_, cell), r in zip(flat, rows, strict=True)])
        return None

    def set_optimizer(self, optimizer: Any) -> None:
        """Update the stored values with an optimizer on every push; the object is kept, so later changes to it take effect."""
        updater = self._updater_class(optimizer)
        updater.one_by_one = True
        self.set_updater(updater)

    def set_updater(self, updater: Callable[[Any, Any, Any], Any]) -> None:
        """Call `updater(key, sum, stored)` on every push; both are `MutableArray`s, and the updater writes into `stored`.

        Example:
            >>> store = KVStore()
            >>> store.init(3, np.ones(1))
            >>> def add_twice(key, value, stored):
            ...     stored[:] = stored.value + 2 * value.value
            >>> store.set_updater(add_twice)
            >>> store.push(3, np.ones(1))
            >>> store.pull(3).tolist()
            [3.0]
        """
        self._updater = updater

    _set_updater = set_updater

    def set_gradient_compression(self, compression_params: Mapping[str, Any]) -> None:
        """Quantize pushed gradients to fewer bits; the quantization error of 2 bits is added to the next push.

        In a `device` store each device compresses its gradient before the sum, also if there is only one device; in a `dist`
        store each process compresses the sum over its devices.  `push` sends float32 between processes; a Module packs
        the bits.

        Args:
            compression_params: `{"type": "2bit", "threshold": 0.5}` or `{"type": "bfloat16"}`.  MXNet has "2bit" only.

        Raises:
            MXNetError: the store is neither a `device` nor a `dist` one, or a parameter is invalid.
            TypeError: an unknown parameter name.

        Example:
            >>> store = KVStore("device")
            >>> store.set_gradient_compression({"type": "2bit"})
            >>> store.init("w", np.zeros(2, "float32"))
            >>> store.push("w", [np.array([0.75, -0.25], "float32")])
            >>> store.pull("w").tolist()
            [0.5, 0.0]
        """
        if "device" not in self._type and not self.distributed:
            raise MXNetError(f"gradient compression is not supported for a {self._type!r} kvstore; create a 'device' one.")
        self._compression = compression.parse(compression_params)

    def save_optimizer_states(self, fname: str, dump_optimizer: bool = False) -> None:
        """Write the optimizer's states to a file, atomically.  They are equal in all processes: one of them writes.

        Args:
            fname: path of the file.
            dump_optimizer: include the optimizer's settings.

        Raises:
            AssertionError: no optimizer is set.
        """
        atomic_write(fname, self._states("save").get_states(dump_optimizer))

    def load_optimizer_states(self, fname: str) -> None:
        """Load the optimizer's states from a file written by `save_optimizer_states` or MXNet; all processes load it.

        Raises:
            AssertionError: no optimizer is set.
            FormatError: the file is damaged.
        """
        self._states("load").set_states(read_file(fname), fname)

    @property
    def _strings(self) -> bool:
        return isinstance(next(iter(self._stored), None), str)

    def _states(self, verb: str) -> Any:
        assert self._updater is not None, f"cannot {verb} the kvstore's states: it has no optimizer; call set_optimizer first."
        return self._updater

    def _pairs(self, key: Any, value: Any, must_exist: bool = False) -> list[tuple[Hashable, list[Any]]]:
        """Return a list of (key, list of its values) for one key or a list of keys.

        must_exist: raise MXNetError if a key was not initialized.
        """
        if isinstance(key, (list, tuple)):
            if not isinstance(value, (list, tuple)) or len(key) != len(value):
                count = len(value) if isinstance(value, (list, tuple)) else "no list of"
                raise ValueError(f"got {len(key)} keys and {count} values; pass a list with one entry per key.")
            return [pair for k, v in zip(key, value, strict=True) for pair in self._pairs(k, v, must_exist)]
        key = key if isinstance(key, str) else operator.index(key)
        if self._stored and self._strings != isinstance(key, str):
            kind = "str" if self._strings else "int"
            raise MXNetError(f"key {key!r} cannot be used with a kvstore whose keys are {kind}; use one type of keys.")
        if must_exist and key not in self._stored:
            raise MXNetError(f"key {key!r} is not in the kvstore; call init({key!r}, value) first.")
        return [(key, list(value) if isinstance(value, (list, tuple)) else [value])]

    def _checked(self, key: Hashable, value: Any) -> Any:
        value, stored = as_array(value), self._stored[key]
        if tuple(value.shape) != stored.shape:
            raise MXNetError(f"key {key!r} has shape {stored.shape}, but the pushed value has shape {tuple(value.shape)}.")
        # copy NumPy arrays: the caller may write to them later
        return value if isinstance(value, jax.Array) else np.array(value, stored.dtype)

    def _reduce(self, keys: list[Hashable], groups: list[list[Any]]) -> list[Any]:
        if self._compression is None:
            return sum_groups(groups)
        if self.distributed:
            return list(self._compression([(k, 0) for k in keys], sum_groups(groups)))
        flat = [((k, i), v) for k, values in zip(keys, groups, strict=True) for i, v in enumerate(values)]
        sent = iter(self._compression([place for place, _ in flat], [v for _, v in flat]))
        return sum_groups([[next(sent) for _ in values] for values in groups])

    def _over_processes(self, keys: list[Hashable], sums: list[Any]) -> list[Any]:
        """Sum arrays over processes; the sums are on the devices of the arrays."""
        pushed = [[str(k), list(v.shape), str(v.dtype)] for k, v in zip(keys, sums, strict=True)]
        if (known := repr(pushed)) not in self._pushed:  # a program for other arrays than those of the others would not end
            check_same(pushed, "values of kvstore.push")
            self._pushed.add(known)
        places = [sharding_of(v) for v in sums]
        return device_put_all(sum_over_processes(sums), places)


def checked_type(name: str) -> str:
    """Return the name of a store type in lower case; raise ValueError if it is asynchronous, or not one of `TYPES`.

    Example:
        >>> checked_type("Device")
        'device'
    """
    check_synchronous(name)
    lower = name.lower()
    if lower not in TYPES:
        known = ", ".join(map(repr, (*TYPES, *KVStoreBase.kv_registry)))
        near = nearest(lower, TYPES)
        raise ValueError(f"kvstore {name!r} is unknown; {f'did you mean {near}? T' if near else 't'}he types are {known}.")
    return lower


def workers_of(store: Any) -> int:
    """Return the number of processes whose gradients a store adds in one step: more than 1 for a `dist_sync` store in a job.

    Example:
        >>> workers_of(None), workers_of(KVStore("dist_sync"))
        (1, 1)
    """
    kind = getattr(store, "type", None) or ""
    return store.num_workers if "dist" in kind and "_sync" in kind else 1


def check_spans_job(store: Any, kvstore: Any) -> None:
    """Raise an error if this process is one of a job, but its store sums over its own devices only.

    Args:
        store: the store, or None.
        kvstore: what the caller passed; None is allowed, for a process that trains a model of its own.

    Raises:
        ValueError: the store is not a `dist` one.

    Example:
        >>> check_spans_job(None, "local")
    """
    count = distributed.num_processes()
    if count == 1 or kvstore is None or (store is not None and (not isinstance(store, KVStore) or store.distributed)):
        return
    name = kvstore if isinstance(kvstore, str) else getattr(store, "type", None)
    problem = f"kvstore={name!r} sums over the devices of one process, but the job has {count} processes"
    raise ValueError(f"{problem}, each of which would train a model of its own; pass kvstore='dist_sync', or None to do so")


def create(name: str = "local", make: Callable[..., KVStoreBase] = KVStore) -> KVStoreBase:
    """Create a key-value store by type name.

    Args:
        name: a type of `KVStore`, or the class name of a registered store; case is ignored.  For a `dist` type, this process
            joins the job that environment variables describe, if there are any (see `jfit.mxnet.job`).
        make: constructor for types that are not registered.

    Returns:
        The store.

    Raises:
        ValueError: the name is unknown, or `dist_async`, which is not supported.

    Example:
        >>> create("Local").type
        'local'
    """
    klass = KVStoreBase.kv_registry.get(name.lower())
    if klass is not None:
        return klass()
    kind = checked_type(name)
    if "dist" in kind:
        join_job(name)
    return make(name)


def select(
    kvstore: Any, num_device: int, arg_params: Mapping[str, Any], make: Callable[[str], Any] = create
) -> tuple[Any, bool]:
    """Choose the key-value store, and whether it updates the weights, as MXNet's Python Module and Trainer do.

    Args:
        kvstore: None, a type name, or a store.
        num_device: number of devices; for one device there is no store, unless the type is a `dist` one.
        arg_params: parameters by name; if one has more than 16M elements, a `local` store does not update.
        make: function that creates a store from a type name.

    Returns:
        (store or None, whether the store updates the weights).  The store does not update if the environment variable
        MXNET_UPDATE_ON_KVSTORE is 0, or if it does not support it.

    Raises:
        TypeError: `kvstore` is neither None, a name nor a store.
        ValueError: the name is unknown, or the store sums over the devices of this process only, but the job has several
            processes.

    Example:
        >>> select("local", 1, {}), select("device", 2, {})[1]
        ((None, False), True)

    Source: Apache MXNet 1.9.1, `mxnet.model`.
    """
    if kvstore is not None and not isinstance(kvstore, (str, KVStoreBase)):
        raise TypeError(f"kvstore is {kvstore!r}; expected a KVStore, the name of a type or None.")
    if isinstance(kvstore, str) and kvstore.lower() not in KVStoreBase.kv_registry:
        checked_type(kvstore)
    if kvstore is None or (isinstance(kvstore, str) and num_device == 1 and "dist" not in kvstore):
        check_spans_job(None, kvstore)
        return None, False
    update = bool(int(os.getenv("MXNET_UPDATE_ON_KVSTORE", "1")))
    if kvstore == "local" and any(math.prod(array.shape) > BIG for array in arg_params.values()):
        update = False
    store = make(kvstore) if isinstance(kvstore, str) else kvstore
    check_spans_job(store, kvstore)
    return store, update and store.is_capable(KVStoreBase.OPTIMIZER)
