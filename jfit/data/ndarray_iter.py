"""MXNet's data iterator interface on NumPy arrays: `DataDesc`, `DataBatch`, `DataIter` and `NDArrayIter`.

All batches have the same size.  `last_batch_handle` decides what happens to the rows that do not fill a batch, as in MXNet
1.9.1: `pad` fills the last batch with rows from the start of the epoch and reports their number, `discard` drops it,
`roll_over` moves its rows to the next epoch.
"""

from __future__ import annotations

import copy
from collections import namedtuple
from collections.abc import Mapping
from typing import Any

import numpy as np

from jfit.checks import one_of, positive_integer
from jfit.data.arrays import is_mapped, to_array
from jfit.data.batch import equal_rows
from jfit.data.csr import as_csr, take_rows

HANDLES = ("pad", "discard", "roll_over")


class DataDesc(namedtuple("DataDesc", ["name", "shape"])):
    """Name, shape, dtype and layout of one array in the batches of an iterator.

    Args:
        name: input name.
        shape: shape of the array, batch axis included.
        dtype: NumPy scalar type.
        layout: one letter per axis, such as "NCHW" ("N" is the batch axis), or None.

    Example:
        >>> DataDesc("data", (2, 3)).layout, DataDesc.get_batch_axis("TNC")
        ('NCHW', 1)
    """

    dtype: Any
    layout: str | None

    def __new__(cls, name: str, shape: tuple[int, ...], dtype: Any = np.float32, layout: str | None = "NCHW"):
        self = super().__new__(cls, name, tuple(shape))
        self.dtype, self.layout = dtype, layout
        return self

    def __getnewargs__(self):
        return (self.name, self.shape, self.dtype, self.layout)

    def __repr__(self) -> str:
        return f"DataDesc[{self.name},{self.shape},{self.dtype},{self.layout}]"

    @staticmethod
    def get_batch_axis(layout: str | None) -> int:
        """Return the index of "N", the batch axis, in a layout; 0 if the layout is None."""
        return 0 if layout is None else layout.find("N")

    @staticmethod
    def get_list(shapes, types=None) -> list[DataDesc]:
        """Build a list of `DataDesc` from `shapes`, (name, shape) pairs, and optionally `types`, (name, dtype) pairs."""
        dtypes = dict(types or ())
        return [DataDesc(s[0], s[1], dtypes.get(s[0], np.float32)) for s in shapes]


class DataBatch:
    """One batch of an MXNet-style iterator: lists of data and label arrays, the number of padding rows, the row indices.

    Args:
        data: list or tuple of arrays, batch axis first.
        label: list or tuple of arrays, or None.
        pad: number of padding rows at the end of the batch.
        index: (batch_size,) indices of the rows in the data set, or None.
        bucket_key: key of the batch's bucket, for `BucketingModule`.
        provide_data: list of `DataDesc`, one per data array, or None.
        provide_label: list of `DataDesc`, one per label array, or None.

    Raises:
        TypeError: data or label is not a list or tuple.

    Example:
        >>> import numpy as np
        >>> DataBatch([np.ones((4, 2))], [np.ones(4)], pad=1).pad
        1
    """

    def __init__(
        self,
        data: Any,
        label: Any = None,
        pad: int | None = None,
        index: Any = None,
        bucket_key: Any = None,
        provide_data: Any = None,
        provide_label: Any = None,
    ):
        for side, value in (("data", data), ("label", label)):
            if value is not None and not isinstance(value, (list, tuple)):
                raise TypeError(f"{side} of a DataBatch is a {type(value).__name__}, expected a list of arrays: pass [{side}].")
        self.data: Any = data
        self.label: Any = label
        self.pad, self.index = pad, index
        self.bucket_key, self.provide_data, self.provide_label = (bucket_key, provide_data, provide_label)
        self.rolled = False  # whether `pad` counts rows that rolled over from the previous epoch

    def __str__(self) -> str:
        label = None if self.label is None else [np.shape(a) for a in self.label]
        return f"{type(self).__name__}: data shapes: {[np.shape(a) for a in self.data]} label shapes: {label}"


class _Unread(DataBatch):
    """The batch at the position of an iterator, made when an attribute is first read."""

    def __init__(self, source: DataIter) -> None:
        self._source = source

    def __getattr__(self, name: str) -> Any:
        source = vars(self).pop("_source", None)
        if source is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        vars(self).update(vars(source._batch()) | vars(self))  # attributes that were set stay
        return getattr(self, name)


class DataIter:
    """Base class of MXNet-style iterators: override `iter_next`, `getdata`, `getlabel`, `getpad` and `reset`.

    Args:
        batch_size: number of rows per batch.

    Example:
        >>> class Twice(DataIter):
        ...     left = 2
        ...     def iter_next(self):
        ...         self.left -= 1
        ...         return self.left >= 0
        ...     def getdata(self):
        ...         return [self.left]
        >>> [b.data for b in Twice(1)]
        [[1], [0]]
    """

    def __init__(self, batch_size: int = 0):
        self.batch_size = batch_size

    def __iter__(self):
        return self

    def __next__(self) -> DataBatch:
        return self.next()

    def next(self) -> DataBatch:
        """Return the next batch; raise StopIteration at the end of the epoch."""
        if not self.iter_next():
            raise StopIteration
        return self._batch()

    def _batch(self) -> DataBatch:
        return DataBatch(self.getdata(), self.getlabel(), self.getpad(), self.getindex())

    def reset(self) -> None:
        """Start the next epoch."""

    def iter_next(self) -> bool:
        """Advance to the next batch; return False at the end of the epoch."""
        return False

    def getdata(self) -> list[Any]:
        """Data arrays of the current batch."""
        return []

    def getlabel(self) -> list[Any]:
        """Label arrays of the current batch."""
        return []

    def getindex(self) -> np.ndarray | None:
        """Row indices of the current batch, or None if unknown."""
        return None

    def getpad(self) -> int:
        """Number of padding rows in the current batch."""
        return 0


class NDArrayIter(DataIter):
    """Iterate over arrays in memory in batches of equal size.

    Args:
        data: array, list of arrays or dict name -> array, batch axis first.  The entries of a dict are sorted by name; the
            arrays of a list of several are named `_0_data`, `_1_data` ...  CSR matrices yield sparse batches; h5py datasets
            are read batch by batch.  Other values than jax.Array and NDArray are converted to float32.
        label: the same for labels, or None.
        batch_size: number of rows per batch.
        shuffle: whether to shuffle the rows at construction and at each reset.
        last_batch_handle: what to do with the last rows if they do not fill a batch: "pad" (add rows from the start of the
            epoch), "discard" (drop them) or "roll_over" (move them to the start of the next epoch).
        data_name: name of a single data array.
        label_name: name of a single label array.
        layout: layout in `provide_data` and `provide_label`.
        seed: integer seed of the shuffle; None: NumPy's global generator, as in MXNet.

    Attributes:
        sources: (data, labels) as they are read: two lists of (name, array).

    Raises:
        ValueError: no rows, unequal numbers of rows, or an unknown `last_batch_handle`.

    With "roll_over", an epoch with fewer rows than a batch (rolled-over rows included) yields no batch and rolls all its rows
    over (MXNet fails if the data is much smaller than a batch).

    Example:
        >>> import numpy as np
        >>> it = NDArrayIter(np.arange(5.0), batch_size=2)
        >>> [(b.data[0].tolist(), b.pad) for b in it]
        [([0.0, 1.0], 0), ([2.0, 3.0], 0), ([4.0, 0.0], 1)]

    Source: mxnet.io.NDArrayIter of Apache MXNet 1.9.1.
    """

    plain = True  # whether batches are exactly the rows of the arrays in `epoch_rows` order; a subclass may change them

    def __init__(
        self,
        data: Any,
        label: Any = None,
        batch_size: int = 1,
        shuffle: bool = False,
        last_batch_handle: str = "pad",
        data_name: str = "data",
        label_name: str = "softmax_label",
        layout: str = "NCHW",
        seed: int | None = None,
    ):
        super().__init__(batch_size)
        one_of(HANDLES, last_batch_handle=last_batch_handle)
        positive_integer(batch_size=batch_size)
        self.sources = _named(data, data_name), _named(label, label_name)
        self.num_data = _count(self.sources[0] + self.sources[1])
        self.shuffle, self.last_batch_handle, self.layout = (shuffle, last_batch_handle, layout)
        self._rng = None if seed is None else np.random.Generator(np.random.Philox(seed))  # None: NumPy's global generator
        self._order = self._mix = np.arange(self.num_data)  # rows in reading order; the permutation that `reset` applies
        self._carry = self._order[:0]  # rows rolled over into this epoch
        self._begin(self._carry)

    @property
    def data(self) -> list[tuple[str, Any]]:
        """The data: a list of (name, array)."""
        return self.sources[0]

    @property
    def label(self) -> list[tuple[str, Any]]:
        """The labels: a list of (name, array)."""
        return self.sources[1]

    @property
    def provide_data(self) -> list[DataDesc]:
        """Descriptions of the data arrays."""
        return self._describe(self.sources[0])

    @property
    def provide_label(self) -> list[DataDesc]:
        """Descriptions of the label arrays."""
        return self._describe(self.sources[1])

    @property
    def num_batches(self) -> int:
        """Number of batches in the current epoch."""
        if self.last_batch_handle == "pad":
            return -(-self.num_data // self.batch_size)
        return len(self._stream) // self.batch_size

    @property
    def in_memory(self) -> bool:
        """Whether all arrays are NumPy arrays (none is sparse or an h5py dataset)."""
        return all(isinstance(array, np.ndarray) for _, array in self.sources[0] + self.sources[1])

    @property
    def started(self) -> bool:
        """Whether a batch of the current epoch has been read."""
        return self._position >= 0

    @property
    def batches_read(self) -> int:
        """Number of batches of the current epoch that were read or skipped."""
        return self._position + 1

    def epoch_rows(self) -> np.ndarray:
        """Row indices of the current epoch in reading order, without padding rows; (rows,) int64."""
        return self._stream

    def batch_at(self, number: int) -> DataBatch:
        """Return batch `number` of the current epoch, without going to it; its arrays are gathered when they are first read."""
        there = copy.copy(self)
        there._position = number
        return _Unread(there)

    def skip(self, batches: int) -> None:
        """Skip a number of batches without reading them."""
        self._position = min(self._position + batches, self.num_batches)

    def reset(self) -> None:
        """Start the next epoch; with "roll_over", the last rows of a finished epoch come first."""
        finished = self._position >= self.num_batches
        rest = self._stream[self.num_batches * self.batch_size :] if finished else self._order[:0]
        self._begin(rest if self.last_batch_handle == "roll_over" else self._order[:0])

    def hard_reset(self) -> None:
        """Start the next epoch and drop rolled-over rows."""
        self._begin(self._order[:0])

    def iter_next(self) -> bool:
        """Advance to the next batch; return False at the end of the epoch."""
        self._position = min(self._position + 1, self.num_batches)
        return self._position < self.num_batches

    def getdata(self) -> list[Any]:
        """Data arrays of the current batch."""
        return self._pick(self.sources[0])

    def getlabel(self) -> list[Any]:
        """Label arrays of the current batch."""
        return self._pick(self.sources[1])

    def getindex(self) -> np.ndarray:
        """Row indices of the current batch in the arrays passed to the constructor, (batch_size,)."""
        low = self._position * self.batch_size
        if low + self.batch_size <= len(self._stream):
            return self._stream[low : low + self.batch_size]
        return self._stream[np.arange(low, low + self.batch_size) % len(self._stream)]

    def _batch(self) -> DataBatch:
        batch = super()._batch()
        batch.rolled = self.last_batch_handle == "roll_over"
        return batch

    def getpad(self) -> int:
        """Number of padding rows ("pad"), or of rows rolled over from the previous epoch into the first batch ("roll_over")."""
        if self.last_batch_handle == "pad":
            return max(0, (self._position + 1) * self.batch_size - self.num_data)
        return len(self._carry) if self._position == 0 else 0

    def state_dict(self) -> dict[str, Any]:
        """Return position, order and rolled-over rows: enough to continue this epoch and, with `seed`, all later ones."""
        rng = None if self._rng is None else self._rng.bit_generator.state
        return {"position": self._position, "order": self._order, "mix": self._mix, "carry": self._carry, "rng": rng}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the `state_dict` of an iterator over the same data.

        Raises:
            ValueError: the state was saved with a different number of rows.
        """
        order, mix, carry = (np.array(state[key], np.int64) for key in ("order", "mix", "carry"))
        if len(order) != self.num_data:
            raise ValueError(f"the saved position is of data with {len(order)} rows, this iterator has {self.num_data}")
        self._order, self._mix, self._carry, self._position = order, mix, carry, int(state["position"])
        self._stream = np.concatenate([carry, order])
        rng = state["rng"]
        if rng is not None and self._rng is not None:
            self._rng.bit_generator.state = rng

    def _begin(self, carry: np.ndarray) -> None:
        if self.shuffle:
            # MXNet permutes data that is already permuted; doing the same gives MXNet's order for the same global seed.
            self._mix = self._mix[(self._rng or np.random).permutation(self.num_data)]
            self._order = self._order[self._mix]
        self._carry, self._position = carry, -1
        self._stream = np.concatenate([carry, self._order])  # rows of this epoch in reading order

    def _pick(self, named: list[tuple[str, Any]]) -> list[Any]:
        low = self._position * self.batch_size
        plain = not self.shuffle and not len(self._carry) and low + self.batch_size <= self.num_data
        pick = slice(low, low + self.batch_size) if plain else self.getindex()
        return [take_rows(array, pick) for _, array in named]

    def _describe(self, named: list[tuple[str, Any]]) -> list[DataDesc]:
        return [DataDesc(k, (self.batch_size, *a.shape[1:]), a.dtype.type, self.layout) for k, a in named]


def _named(value: Any, default: str) -> list[tuple[str, Any]]:
    if value is None:
        return []
    if isinstance(value, Mapping):
        pairs = sorted(value.items())
    elif isinstance(value, (list, tuple)):
        pairs = [(default, value[0])] if len(value) == 1 else [(f"_{k}_{default}", v) for k, v in enumerate(value)]
    else:
        pairs = [(default, value)]
    return [(name, _array(v, name)) for name, v in pairs]


def _array(value: Any, name: str) -> Any:
    sparse = as_csr(value)
    if sparse is not None:
        return sparse if hasattr(value, "stype") else sparse._replace(data=sparse.data.astype(np.float32))
    is_dataset = type(value).__module__.startswith("h5py.") and hasattr(value, "chunks")
    if is_dataset or (is_mapped(value) and value.dtype != np.float32):
        return LazyRows(value)
    array = to_array(np.asarray(value) if isinstance(value, np.ndarray) else value, name)  # without a mask, as in MXNet
    # MXNet keeps the dtype of NDArrays and converts all other arrays to float32.
    keep_dtype = hasattr(value, "asnumpy") or hasattr(value, "addressable_shards")
    return array if keep_dtype else array.astype(np.float32, copy=False)


def _count(named: list[tuple[str, Any]]) -> int:
    counts = {name: array.shape[0] if array.shape else 0 for name, array in named}
    count = equal_rows(counts)
    if not count:
        raise ValueError(f"empty data: the numbers of rows are {counts}; expected at least one array with at least one row.")
    return count


class LazyRows:
    """Rows of an h5py dataset or a memory map, read on indexing and converted to float32.

    Args:
        source: h5py dataset, memory map, or other object with `shape`, indexed by a slice or by increasing row indices.

    Example:
        >>> LazyRows(np.arange(6.0).reshape(3, 2))[np.array([2, 0, 2])].tolist()
        [[4.0, 5.0], [0.0, 1.0], [4.0, 5.0]]
    """

    def __init__(self, source: Any):
        self.source, self.shape, self.dtype = source, tuple(source.shape), np.dtype(np.float32)

    def __getitem__(self, pick: slice | np.ndarray) -> np.ndarray:
        if isinstance(pick, slice):
            return np.asarray(self.source[pick], np.float32)
        rows, inverse = np.unique(pick, return_inverse=True)  # h5py accepts increasing indices only
        return np.asarray(self.source[rows], np.float32)[inverse]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.source[:], dtype or np.float32)


class WholeBatches(DataIter):
    """Base class of iterators that read whole batches: override `iter_next`, which sets `current_batch`, and `reset`.

    Args:
        batch_size: number of rows per batch.

    Example:
        >>> class Once(WholeBatches):
        ...     def iter_next(self):
        ...         fresh = self.current_batch is None
        ...         self.current_batch = self.current_batch or DataBatch([[1.0]], pad=0)
        ...         return fresh
        >>> [batch.data for batch in Once(1)]
        [[[1.0]]]
    """

    def __init__(self, batch_size: int):
        super().__init__(batch_size)
        self.current_batch: Any = None

    def _batch(self) -> DataBatch:
        return self.current_batch

    def getdata(self) -> list[Any]:
        """Data arrays of the current batch."""
        return self.current_batch.data

    def getlabel(self) -> list[Any]:
        """Label arrays of the current batch."""
        return self.current_batch.label

    def getindex(self) -> Any:
        """Row indices of the current batch, or None if unknown."""
        return self.current_batch.index

    def getpad(self) -> int:
        """Number of padding rows in the current batch."""
        return self.current_batch.pad or 0
