"""MXNet's array iterator and its small vocabulary (DataDesc, DataBatch, DataIter), on host arrays.

Batches have one size always; the three ways to treat a tail are those of MXNet 1.9.1: `pad` wraps to the start and reports how
many rows it wrapped, `discard` drops the tail, `roll_over` gives it to the next epoch.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Mapping
from typing import Any

import numpy as np

from jfit.data.arrays import to_array
from jfit.data.csr import as_csr, cut

HANDLES = ("pad", "discard", "roll_over")


class DataDesc(namedtuple("DataDesc", ["name", "shape"])):
    """Name, shape, dtype and layout of one array that an iterator gives.

    Args:
        name: input name.
        shape: shape of a whole batch.
        dtype: NumPy scalar type.
        layout: a letter per axis, the batch axis is `N`.

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
        """Index of `N` in a layout; 0 where there is no layout."""
        return 0 if layout is None else layout.find("N")

    @staticmethod
    def get_list(shapes, types=None) -> list[DataDesc]:
        """Descriptions from (name, shape) pairs and, optionally, (name, dtype) pairs."""
        known = dict(types or ())
        return [DataDesc(s[0], s[1], known.get(s[0], np.float32)) if types else DataDesc(s[0], s[1]) for s in shapes]


class DataBatch:
    """Data and label lists of one batch, how many of its last rows are padding, and the rows' indices.

    Args:
        data: list or tuple of arrays.
        label: list or tuple of arrays, or None.
        pad: number of padded rows at the end.
        index: indices of the rows in the data set, where known.
        bucket_key: which bucket the batch belongs to.
        provide_data: descriptions of `data`.
        provide_label: descriptions of `label`.

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
                raise TypeError(
                    f"{side} of a DataBatch is a {type(value).__name__}, a list of arrays is needed: pass [{side}]."
                )
        self.data: Any = data
        self.label: Any = label
        self.pad, self.index = pad, index
        self.bucket_key, self.provide_data, self.provide_label = (bucket_key, provide_data, provide_label)
        self.rolled = False

    @property
    def wrapped(self) -> int:
        """Rows at the end that were seen before: `pad`, but none where `pad` counts rows rolled over from the last epoch."""
        return 0 if self.rolled else int(self.pad or 0)

    def __str__(self) -> str:
        label = None if self.label is None else [np.shape(a) for a in self.label]
        return f"{type(self).__name__}: data shapes: {[np.shape(a) for a in self.data]} label shapes: {label}"


class DataIter:
    """Base of MXNet-style iterators: write `iter_next`, `getdata`, `getlabel`, `getpad` and `reset`.

    Args:
        batch_size: rows of a batch.

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
        """The next batch.  Raises StopIteration at the end of the epoch."""
        if not self.iter_next():
            raise StopIteration
        return DataBatch(self.getdata(), self.getlabel(), self.getpad(), self.getindex())

    def reset(self) -> None:
        """Go back to the start."""

    def iter_next(self) -> bool:
        """Move on by one batch; False at the end."""
        return False

    def getdata(self) -> list[Any]:
        """Data arrays of the current batch."""
        return []

    def getlabel(self) -> list[Any]:
        """Label arrays of the current batch."""
        return []

    def getindex(self) -> np.ndarray | None:
        """Row indices of the current batch, where known."""
        return None

    def getpad(self) -> int:
        """Number of padded rows in the current batch."""
        return 0


class NDArrayIter(DataIter):
    """Batches of equal size from arrays in memory, with MXNet's three ways to end an epoch.

    Args:
        data: array, list of arrays or dict name -> array, rows on axis 0.  A dict is read in the order of its sorted keys;
            arrays of a list with more than one element are named `_0_data`, `_1_data` ...  Sparse matrices (CSR) give
            sparse batches; datasets of h5py are read batch by batch.
        label: the same for labels, or None.
        batch_size: rows of a batch.
        shuffle: a new order at construction and at each reset.
        last_batch_handle: `pad`, `discard` or `roll_over`.
        data_name: name of a single data array.
        label_name: name of a single label array.
        layout: layout that the descriptions report.
        seed: integer for an order of its own; None draws from NumPy's global generator, as MXNet does.

    Raises:
        ValueError: no rows, unequal row counts, or an unknown `last_batch_handle`.

    A `roll_over` epoch whose data and cache together do not fill one batch gives no batch and keeps its rows (MXNet fails
    where the data is far smaller than a batch).

    Example:
        >>> import numpy as np
        >>> it = NDArrayIter(np.arange(5.0), batch_size=2)
        >>> [(b.data[0].tolist(), b.pad) for b in it]
        [([0.0, 1.0], 0), ([2.0, 3.0], 0), ([4.0, 0.0], 1)]

    Source: mxnet.io.NDArrayIter of Apache MXNet 1.9.1.
    """

    plain = True  # of this very class: batches are rows of the arrays in `epoch_rows` order; a subclass may do anything

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
        if last_batch_handle not in HANDLES:
            raise ValueError(f"last_batch_handle is {last_batch_handle!r}, needed one of {', '.join(HANDLES)}.")
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}, at least 1 is needed.")
        self.data, self.label = _named(data, data_name), _named(label, label_name)
        self.num_data = _count(self.data + self.label)
        self.shuffle, self.last_batch_handle, self.layout = (shuffle, last_batch_handle, layout)
        self._rng = None if seed is None else np.random.Generator(np.random.Philox(seed))  # None: numpy's global one
        self._order = self._mix = np.arange(self.num_data)  # rows in reading order; the permutation that reset applies
        self._carry = self._order[:0]  # rows that roll over into this epoch
        self._begin(self._carry)

    @property
    def provide_data(self) -> list[DataDesc]:
        """Descriptions of the data arrays."""
        return self._describe(self.data)

    @property
    def provide_label(self) -> list[DataDesc]:
        """Descriptions of the label arrays."""
        return self._describe(self.label)

    @property
    def num_batches(self) -> int:
        """Batches of the current epoch."""
        if self.last_batch_handle == "pad":
            return -(-self.num_data // self.batch_size)
        return len(self._stream) // self.batch_size

    @property
    def in_memory(self) -> bool:
        """Whether all arrays are dense ones of the host: none is sparse, or read from its file batch by batch."""
        return all(isinstance(array, np.ndarray) for _, array in self.data + self.label)

    @property
    def started(self) -> bool:
        """Whether a batch of the current epoch was read."""
        return self._position >= 0

    @property
    def batches_read(self) -> int:
        """Batches of the current epoch that were read or skipped."""
        return self._position + 1

    def epoch_rows(self) -> np.ndarray:
        """Row numbers of the current epoch in reading order, what a short last batch wraps around left out."""
        return self._stream

    def skip(self, batches: int) -> None:
        """Move on as if so many batches had been read."""
        self._position = min(self._position + batches, self.num_batches)

    def reset(self) -> None:
        """Start the next epoch; `roll_over` takes the unread tail of a finished one along."""
        finished = self._position >= self.num_batches
        rest = self._stream[self.num_batches * self.batch_size :] if finished else self._order[:0]
        self._begin(rest if self.last_batch_handle == "roll_over" else self._order[:0])

    def hard_reset(self) -> None:
        """Start the next epoch and forget what rolled over."""
        self._begin(self._order[:0])

    def iter_next(self) -> bool:
        """Move on by one batch; False at the end of the epoch."""
        self._position = min(self._position + 1, self.num_batches)
        return self._position < self.num_batches

    def getdata(self) -> list[Any]:
        """Data arrays of the current batch."""
        return self._pick(self.data)

    def getlabel(self) -> list[Any]:
        """Label arrays of the current batch."""
        return self._pick(self.label)

    def getindex(self) -> np.ndarray:
        """Indices of the current rows in the arrays given at construction, (batch_size,)."""
        low = self._position * self.batch_size
        if low + self.batch_size <= len(self._stream):
            return self._stream[low : low + self.batch_size]
        return self._stream[np.arange(low, low + self.batch_size) % len(self._stream)]

    def next(self) -> DataBatch:
        """The next batch.  Raises StopIteration at the end of the epoch."""
        batch = super().next()
        batch.rolled = self.last_batch_handle == "roll_over"
        return batch

    def getpad(self) -> int:
        """`pad`: rows wrapped from the start; `roll_over`: rows of the first batch that come from the epoch before."""
        if self.last_batch_handle == "pad":
            return max(0, (self._position + 1) * self.batch_size - self.num_data)
        return len(self._carry) if self._position == 0 else 0

    def state_dict(self) -> dict[str, Any]:
        """Position, order and rolled-over rows: what it takes to continue this epoch (and, with a seed, the later ones)."""
        rng = None if self._rng is None else self._rng.bit_generator.state
        return {"position": self._position, "order": self._order, "mix": self._mix, "carry": self._carry, "rng": rng}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict` of an iterator over the same data.

        Raises:
            ValueError: the state belongs to data with another number of rows.
        """
        order, mix, carry = (np.array(state[key], np.int64) for key in ("order", "mix", "carry"))
        if len(order) != self.num_data:
            raise ValueError(f"the saved position is of data with {len(order)} rows, this iterator has {self.num_data}.")
        self._order, self._mix, self._carry, self._position = order, mix, carry, int(state["position"])
        self._stream = np.concatenate([carry, order])
        if state.get("rng") is not None and self._rng is not None:
            self._rng.bit_generator.state = state["rng"]

    def _begin(self, carry: np.ndarray) -> None:
        if self.shuffle:
            # MXNet shuffles its index again and permutes data already permuted: with one global seed the orders agree.
            self._mix = self._mix[(self._rng or np.random).permutation(self.num_data)]
            self._order = self._order[self._mix]
        self._carry, self._position = carry, -1
        self._stream = np.concatenate([carry, self._order])  # rows of this epoch in reading order

    def _pick(self, named: list[tuple[str, Any]]) -> list[Any]:
        low = self._position * self.batch_size
        plain = not self.shuffle and not len(self._carry) and low + self.batch_size <= self.num_data
        pick = slice(low, low + self.batch_size) if plain else self.getindex()
        return [cut(array, pick) for _, array in named]

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
    lazy = as_lazy(value)
    if lazy is not None:
        return lazy
    array = to_array(value, name)
    # MXNet keeps the dtype of device arrays and reads everything else as float32.
    keeps = hasattr(value, "asnumpy") or hasattr(value, "addressable_shards")
    return array if keeps else array.astype(np.float32, copy=False)


def _count(named: list[tuple[str, Any]]) -> int:
    counts = {name: array.shape[0] if array.shape else 0 for name, array in named}
    if not counts or min(counts.values()) == 0:
        raise ValueError(f"empty data: rows by name are {counts}; at least one array with one row is needed.")
    if len(set(counts.values())) > 1:
        raise ValueError(f"arrays have unequal numbers of rows: {counts}; every array needs one entry per sample on axis 0.")
    return next(iter(counts.values()))


class LazyRows:
    """A dataset of h5py as rows of float32.

    Args:
        source: something with a shape and a dtype whose rows are read by a slice or by increasing indices.

    Example:
        >>> LazyRows(np.arange(6.0).reshape(3, 2))[np.array([2, 0, 2])].tolist()
        [[4.0, 5.0], [0.0, 1.0], [4.0, 5.0]]
    """

    def __init__(self, source: Any):
        self.source, self.shape, self.dtype = source, tuple(source.shape), np.dtype(np.float32)

    def __getitem__(self, pick: slice | np.ndarray) -> np.ndarray:
        if isinstance(pick, slice):
            return np.asarray(self.source[pick], np.float32)
        once, back = np.unique(pick, return_inverse=True)  # such files want increasing indices
        return np.asarray(self.source[once], np.float32)[back]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.source[:], dtype or np.float32)


def as_lazy(value: Any) -> LazyRows | None:
    """The rows of a dataset of h5py, None where it is something else."""
    return LazyRows(value) if type(value).__module__.startswith("h5py.") and hasattr(value, "chunks") else None


class WholeBatches(DataIter):
    """An iterator whose `iter_next` writes `current_batch`; the rest of the protocol follows.

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

    def next(self) -> DataBatch:
        """The next batch.  Raises StopIteration at the end of the epoch."""
        if not self.iter_next():
            raise StopIteration
        return self.current_batch

    def getdata(self) -> list[Any]:
        """Data arrays of the current batch."""
        return self._current().data

    def getlabel(self) -> list[Any]:
        """Label arrays of the current batch."""
        return self._current().label

    def getindex(self) -> Any:
        """Row indices of the current batch, where known."""
        return self._current().index

    def getpad(self) -> int:
        """Padded rows of the current batch."""
        return self._current().pad or 0

    def _current(self) -> DataBatch:
        if self.current_batch is None:
            raise ValueError(f"{type(self).__name__}: there is no current batch before the first next() or iter_next().")
        return self.current_batch
