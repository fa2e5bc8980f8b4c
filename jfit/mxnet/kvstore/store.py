"""The key-value store: values by key, summed over devices, updated in the store or handed back.

A push adds up what the devices give for a key, on the device of the first value, and either replaces the stored value or
hands both to the updater; a pull copies the stored value to where it is wanted.  All keys of one call share a dispatch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Mapping
from typing import Any, ClassVar

import jax
import numpy as np

from jfit.formats.atomic import atomic_write
from jfit.mxnet.array_types import PLAIN, ArrayTypes
from jfit.mxnet.errors import MXNetError
from jfit.mxnet.kvstore import compression
from jfit.mxnet.kvstore.transfer import committed_copy, largest, moved, only_rows, private_copy, sharding_of, total, write
from jfit.mxnet.mutable import MutableRowSparse, as_array
from jfit.mxnet.optimizer import Updater

# elements above which MXNet's Python API stops updating in a 'local' store, and MXNet.jl picks another type
BIG = 16 * 1024 * 1024


class KVStoreBase:
    """What Module and Trainer ask of a store; a store of one's own derives from it and calls `register`.

    Attributes:
        type: its name.
        rank: number of this process.
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
        """Give every device the first value of a key."""
        raise NotImplementedError(f"{type(self).__name__} defines no broadcast(key, value, out).")

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> Any:
        """Give every device the sum of all values of a key."""
        raise NotImplementedError(f"{type(self).__name__} defines no pushpull(key, value, out).")

    def is_capable(self, capability: str) -> bool:
        """Whether the store can update weights itself (`optimizer`); one of one's own cannot unless it says so."""
        check_capability(capability)
        return False

    @staticmethod
    def register(klass: type) -> type:
        """Class decorator: `create` finds the store under its lower-case class name."""
        KVStoreBase.kv_registry[klass.__name__.lower()] = klass
        return klass


def check_capability(capability: str) -> None:
    """Raises ValueError unless the capability is one that can be asked for."""
    if capability.lower() != KVStoreBase.OPTIMIZER:
        raise ValueError(f"capability {capability!r} is unknown; a kvstore can be asked for 'optimizer'.")


class KVStore(KVStoreBase):
    """stored <- sum of the pushed values, or updater(key, sum, stored).

    Args:
        name: type: `local`, `device`, `nccl`, `local_update_cpu`, `local_allreduce_cpu`, `local_allreduce_device`,
            or one with `dist` in it, which is one process, rank 0 of 1, for now.  Case is ignored, and any other name is a
            local store, as in MXNet.  Values are added where they are, whatever the type.

    Keys of a store are all int or all str.  Values are arrays, or lists of them, one per device.  `out=` takes a
    `MutableArray`, a numpy array, or lists of them; where it is left out the result is returned, because a jax.Array cannot be
    written.

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
        self._type = name.lower()
        if self.distributed and jax.process_count() > 1:
            raise NotImplementedError(
                f"kvstore {name!r} over {jax.process_count()} processes is not there yet: this store sees one process. "
                "Train with jfit.fit, or start one process with several devices and kvstore 'device'."
            )
        self._stored: dict[Any, Any] = {}  # cells
        self._order: dict[Any, int] = {}  # numbers of the keys, in the order of init
        self._updater: Any = None
        self._compression: compression.TwoBit | None = None

    @property
    def type(self) -> str:
        """The name it was created with, in lower case."""
        return self._type

    @property
    def distributed(self) -> bool:
        """Whether it is one of the `dist` types."""
        return "dist" in self._type

    def barrier(self) -> None:
        """Wait until all processes are here (there is one)."""

    _barrier = barrier

    def is_capable(self, capability: str) -> bool:
        """Whether the store can do it: `optimizer` it can; ValueError for anything else."""
        check_capability(capability)
        return True

    def init(self, key: Any, value: Any) -> None:
        """Enter new keys with their first values.

        Raises:
            MXNetError: a key that is there already, or int and str keys in one store.
        """
        for k, values in self._pairs(key, value):
            if k in self._stored or len(values) > 1:
                what = "is in the store already" if k in self._stored else f"has {len(values)} values"
                raise MXNetError(f"key {k!r} {what}; a key is initialized once, with one value: push to change it.")
            self._stored[k] = self.arrays.mutable(committed_copy(as_array(values[0])))
            self._order[k] = len(self._order)

    def push(self, key: Any, value: Any, priority: int = 0) -> None:
        """Add up the values of each key over devices, and store the sum or update with it.

        Args:
            key: key or list of keys; the values of one that occurs twice are added up.
            value: array or list of arrays for one key; for several keys a list of these.
            priority: accepted; there is nothing to order, since XLA schedules.

        Raises:
            MXNetError: a key that was not initialized, or a value of another shape.
        """
        del priority
        gathered: dict[Any, list[Any]] = {}
        pairs = self._pairs(key, value, known=True)
        dense = {k for k, values in pairs if any(getattr(v, "stype", "default") != "row_sparse" for v in values)}
        for k, values in pairs:
            gathered.setdefault(k, []).extend(self._checked(k, v) for v in values)
        # MXNet's order of updates: numbers ascending, names as they were initialized
        keys = sorted(gathered, key=self._order.__getitem__ if self._strings else None)
        sums = self._reduce(keys, [gathered[k] for k in keys])
        if self._updater is None:
            for k, value in zip(keys, sums, strict=True):
                # a sum of one is the caller's own array
                self._stored[k].value = (
                    committed_copy(value) if len(gathered[k]) == 1 or isinstance(value, np.ndarray) else value
                )
            return
        cells = [self._stored[k] for k in keys]
        merged = [self.arrays.mutable(v) for v in moved(sums, [sharding_of(c.value) for c in cells])]
        if isinstance(self._updater, Updater):
            summed = [m if k in dense else MutableRowSparse(m.value) for k, m in zip(keys, merged, strict=True)]
            for where in dict.fromkeys(sharding_of(c.value) for c in cells):
                mine = [i for i, c in enumerate(cells) if sharding_of(c.value) == where]
                self._updater([keys[i] for i in mine], [summed[i] for i in mine], [cells[i] for i in mine])
            return
        for k, value, cell in zip(keys, merged, cells, strict=True):
            self._updater(k, value, cell)

    def pull(self, key: Any, out: Any = None, priority: int = 0, ignore_sparse: bool = True) -> Any:
        """The stored values.

        Args:
            key: key or list of keys.
            out: what to write into, per key a cell or a list of cells (one per device); None to have them returned.
            priority, ignore_sparse: accepted.

        Returns:
            None with `out`; else the array of the key, or the list of arrays of the keys.

        Raises:
            MXNetError: a key that was not initialized.
        """
        del priority, ignore_sparse
        if out is None:
            values = [self.arrays.wrap(private_copy(self._stored[k].value)) for k, _ in self._pairs(key, key, known=True)]
            return values if isinstance(key, (list, tuple)) else values[0]
        pairs = self._pairs(key, out, known=True)
        write([(cell, self._stored[k].value) for k, cells in pairs for cell in cells])
        return None

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> Any:
        """Push, then pull into `out`, or without it into the pushed cells themselves.

        Returns:
            None; but where values are jax arrays and `out` is None, the stored values in the structure of `value`, each on
            the device of the value it stands for.
        """
        self.push(key, value, priority)
        cells = [v for _, values in self._pairs(key, value) for v in values]
        if out is not None or not any(isinstance(v, jax.Array) for v in cells):
            return self.pull(key, value if out is None else out, priority)
        return self._give_back(key, value)

    def broadcast(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> Any:
        """Initialize keys and pull them: every device gets the first value of its key."""
        self.init(key, value)
        return self.pull(key, out, priority)

    def row_sparse_pull(self, key: Any, out: Any = None, priority: int = 0, row_ids: Any = None) -> Any:
        """The stored values with only the rows of `row_ids`; the others are 0.

        Args:
            key: key or list of keys.
            out: as for `pull`; arrays are dense here.
            priority: accepted.
            row_ids: integers in any order, repeats allowed; or a list of such arrays, one per cell of `out` or one for all.

        Raises:
            ValueError: no row_ids, or another number of them than of outputs.
        """
        if row_ids is None:
            raise ValueError("row_sparse_pull needs row_ids, the rows to fetch; to fetch all of them use pull.")
        wanted = self._pairs(key, key if out is None else out, known=True)
        flat = [(k, cell) for k, cells in wanted for cell in cells]
        ids = [as_array(r) for r in row_ids] if isinstance(row_ids, (list, tuple)) else [as_array(row_ids)]
        if len(ids) not in (1, len(flat)):
            raise ValueError(
                f"row_sparse_pull got {len(ids)} arrays of row_ids for {len(flat)} outputs; give one, or one each."
            )
        ids = ids * len(flat) if len(ids) == 1 else ids
        rows = [only_rows(self._stored[k].value, np.asarray(i)) for (k, _), i in zip(flat, ids, strict=True)]
        if out is None:
            values = [self.arrays.wrap(r) for r in rows]
            return values if isinstance(key, (list, tuple)) else values[0]
        write([(cell, r) for (_, cell), r in zip(flat, rows, strict=True)])
        return None

    def set_optimizer(self, optimizer: Any) -> None:
        """Update the stored values with an optimizer from now on; its object is shared, so later changes count."""
        updater = self._updater_class(optimizer)
        updater.one_by_one = True
        self.set_updater(updater)

    def set_updater(self, updater: Callable[[Any, Any, Any], Any]) -> None:
        """Call `updater(key, sum, stored)` on every push; both are cells, and it writes into `stored`.

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
        """Send 2 bits per value of a gradient, and keep what is cut off for the next push.

        Between the devices of a `device` store every device compresses its own gradient, a single one too; a `dist` store
        compresses the sum over the devices of the process.

        Args:
            compression_params: `{"type": "2bit", "threshold": 0.5}`.

        Raises:
            MXNetError: a store that is neither `device` nor `dist`, or parameters that mean nothing.
        """
        if "device" not in self._type and not self.distributed:
            raise MXNetError(f"gradient compression is not supported for a {self._type!r} kvstore; create a 'device' one.")
        self._compression = compression.parse(compression_params)

    def save_optimizer_states(self, fname: str, dump_optimizer: bool = False) -> None:
        """Write the optimizer's state to a file (all of it, or the old file stays).

        Args:
            fname: the file.
            dump_optimizer: the optimizer with it.

        Raises:
            AssertionError: no optimizer is set, or the type is a `dist` one.
        """
        atomic_write(fname, self._states("save").get_states(dump_optimizer))

    def load_optimizer_states(self, fname: str) -> None:
        """Read the optimizer's state from a file that `save_optimizer_states` or MXNet wrote; raises as that does."""
        updater = self._states("load")
        with open(fname, "rb") as file:
            updater.set_states(file.read(), fname)

    @property
    def _strings(self) -> bool:
        return isinstance(next(iter(self._stored), None), str)

    def _states(self, verb: str) -> Any:
        if self._updater is None or self.distributed:
            why = "it is distributed" if self.distributed else "it has no optimizer: call set_optimizer first"
            raise AssertionError(f"cannot {verb} optimizer states of the {self._type!r} kvstore, because {why}.")
        return self._updater

    def _pairs(self, key: Any, value: Any, known: bool = False) -> list[tuple[Hashable, list[Any]]]:
        """(key, its values) for one key or many; `known` when they must be in the store."""
        if isinstance(key, (list, tuple)):
            if not isinstance(value, (list, tuple)) or len(key) != len(value):
                found = len(value) if isinstance(value, (list, tuple)) else "no list of"
                raise ValueError(f"{len(key)} keys came with {found} values; give a list with one entry per key.")
            return [pair for k, v in zip(key, value, strict=True) for pair in self._pairs(k, v, known)]
        if isinstance(key, bool) or not isinstance(key, (int, str, np.integer)):
            raise TypeError(f"key {key!r} of a kvstore is a {type(key).__name__}; int or str is needed.")
        key = key if isinstance(key, str) else int(key)
        if self._stored and self._strings != isinstance(key, str):
            kind = "str" if self._strings else "int"
            raise MXNetError(f"key {key!r} cannot be used with a kvstore whose keys are {kind}; use one kind of keys.")
        if known and key not in self._stored:
            raise MXNetError(f"key {key!r} is not in the kvstore; call init({key!r}, value) first.")
        return [(key, list(value) if isinstance(value, (list, tuple)) else [value])]

    def _checked(self, key: Hashable, value: Any) -> Any:
        value, stored = as_array(value), self._stored[key]
        if tuple(value.shape) != stored.shape:
            found = tuple(value.shape)
            raise MXNetError(f"key {key!r} holds an array of shape {stored.shape}; what is pushed has shape {found}.")
        # the store must not alias memory of the caller, who may write to it
        return value if isinstance(value, jax.Array) else np.array(value, stored.dtype)

    def _reduce(self, keys: list[Hashable], groups: list[list[Any]]) -> list[Any]:
        if self._compression is None:
            return total(groups)
        if self.distributed:
            return list(self._compression([(k, 0) for k in keys], total(groups)))
        flat = [((k, i), v) for k, values in zip(keys, groups, strict=True) for i, v in enumerate(values)]
        sent = iter(self._compression([place for place, _ in flat], [v for _, v in flat]))
        return total([[next(sent) for _ in values] for values in groups])

    def _give_back(self, key: Any, value: Any) -> Any:
        if isinstance(key, (list, tuple)):
            return [self._give_back(k, v) for k, v in zip(key, value, strict=True)]
        values = list(value) if isinstance(value, (list, tuple)) else [value]
        stored = self._stored[key].value
        copies = [
            self.arrays.wrap(private_copy(v)) for v in moved([stored] * len(values), [sharding_of(as_array(v)) for v in values])
        ]
        return copies if isinstance(value, (list, tuple)) else copies[0]


def create(name: str = "local", make: Callable[[str], KVStoreBase] = KVStore) -> KVStoreBase:
    """A store by type name.

    Args:
        name: see `KVStore`; or the lower-case class name of a registered store.
        make: what makes a store that is not registered.

    Raises:
        TypeError: the name is not a string.
        ValueError: `horovod` and `byteps`, which are separate programs.

    Example:
        >>> create("Local").type
        'local'
    """
    if not isinstance(name, str):
        raise TypeError(f"a kvstore is created by the name of its type, a str; found {name!r}.")
    found = KVStoreBase.kv_registry.get(name.lower())
    if found is not None:
        return found()
    if name.lower() in ("horovod", "byteps"):
        raise ValueError(f"kvstore {name!r} is a separate program that jfit has no use for; 'device' reduces on the devices.")
    return make(name)


def select(
    kvstore: Any, num_device: int, arg_params: Mapping[str, Any], make: Callable[[str], Any] = create
) -> tuple[Any, bool]:
    """(store or None, whether weights are updated in it), as MXNet's Python Module and Trainer choose.

    Args:
        kvstore: None, a type name, or a store.
        num_device: one device needs no store, unless the type is a `dist` one.
        arg_params: arrays by name; one of more than 16M elements is not updated in a `local` store.
        make: what makes a store of a type name.

    The environment variable MXNET_UPDATE_ON_KVSTORE=0 keeps updates out of the store, and so does a store that is not
    capable of them.

    Raises:
        TypeError: `kvstore` is none of the above.

    Example:
        >>> select("local", 1, {}), select("device", 2, {})[1]
        ((None, False), True)

    Source: Apache MXNet 1.9.1, `mxnet.model`.
    """
    if kvstore is not None and not isinstance(kvstore, (str, KVStoreBase)):
        raise TypeError(f"kvstore is {kvstore!r}; a KVStore, the name of a type or None is needed.")
    if kvstore is None or (isinstance(kvstore, str) and num_device == 1 and "dist" not in kvstore):
        return None, False
    update = bool(int(os.getenv("MXNET_UPDATE_ON_KVSTORE", "1")))
    if kvstore == "local" and largest(arg_params) > BIG:
        update = False
    store = make(kvstore) if isinstance(kvstore, str) else kvstore
    return store, update and store.is_capable(KVStoreBase.OPTIMIZER)


def select_julia(
    kvstore: Any, num_device: int, arg_params: Mapping[str, Any], make: Callable[[str], Any] = create
) -> tuple[Any, bool]:
    """(store or None, whether weights are updated in it), as MXNet.jl chooses.

    Args:
        kvstore: None, a type name, or a store.  `local` becomes `local_update_cpu` where every parameter has fewer than
            16M elements, else `local_allreduce_cpu`; stores of the latter kind only add up.
        num_device: one device needs no store, unless the type is a `dist` one.
        arg_params, make: as for `select`.

    Example:
        >>> store, update = select_julia("local", 2, {"w": np.zeros(3)})
        >>> store.type, update
        ('local_update_cpu', True)

    Source: MXNet.jl, `model.jl`.
    """
    if isinstance(kvstore, str):
        kvstore = kvstore.lstrip(":")
        if kvstore == "local":
            kvstore = "local_update_cpu" if largest(arg_params) < BIG else "local_allreduce_cpu"
            kvstore = None if num_device == 1 else kvstore
    store, _ = select(kvstore, num_device, arg_params, make)
    return store, store is not None and "local_allreduce" not in store.type
