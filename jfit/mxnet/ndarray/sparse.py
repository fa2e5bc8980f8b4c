"""Row-sparse and CSR arrays: boxes that remember their parts and become dense when they are computed with."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from jfit import counters
from jfit.formats.sparse import SparseArray, from_dense
from jfit.mxnet.mutable import as_array
from jfit.mxnet.ndarray.array import STORAGE, NDArray
from jfit.optim.rows import SparseRows


class BaseSparseNDArray(NDArray):
    """An array of which only some values are stored; dense once it is computed with or written into."""

    __slots__ = ("_dense", "_record")

    def __init__(self, record: SparseArray) -> None:
        self._record: SparseArray | None = record
        self._dense: Any = None

    @property
    def value(self) -> Any:
        """The dense values."""
        if self._dense is None:
            assert self._record is not None
            self._dense = self._record.todense()
        return self._dense

    @value.setter
    def value(self, new: Any) -> None:
        self._dense, self._record = new, None

    @property
    def record(self) -> SparseArray:
        """The stored parts."""
        if self._record is None:
            host = counters.read(self._dense)  # sync: the stored parts are asked for, which only the values say
            self._record = from_dense(np.asarray(host), self.stype)
        return self._record

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes."""
        return tuple(self._record.shape if self._record is not None else self._dense.shape)

    @property
    def dtype(self) -> Any:
        """NumPy scalar type."""
        return np.dtype((self._record.data if self._record is not None else self._dense).dtype).type

    @property
    def data(self) -> NDArray:
        """The stored values."""
        return NDArray(self.record.data)

    def copy(self) -> NDArray:
        """A new array with the same values and storage."""
        return type(self)(self.record)

    def tostype(self, stype: str) -> Any:
        """The same values in another storage type."""
        return self if stype == self.stype else NDArray(self.value) if stype == "default" else super().tostype(stype)

    def __reduce__(self):
        return from_record, (self.record,)


class CSRNDArray(BaseSparseNDArray):
    """A matrix in compressed rows: data, indices (columns), indptr (where each row begins)."""

    __slots__ = ()
    stype = "csr"

    @property
    def indptr(self) -> NDArray:
        """Where each row begins in `data`, (rows + 1,) int64."""
        return NDArray(self.record.aux[0])

    @property
    def indices(self) -> NDArray:
        """Column of each stored value, int64."""
        return NDArray(self.record.aux[1])


class RowSparseNDArray(BaseSparseNDArray):
    """An array of which only some rows are stored: data (rows), indices (their numbers)."""

    __slots__ = ()
    stype = "row_sparse"

    @property
    def indices(self) -> NDArray:
        """Number of each stored row, int64."""
        return NDArray(self.record.aux[0])

    @property
    def by_rows(self) -> SparseRows:
        """The stored rows for an optimizer; their number is rounded up to a power of two, so that few programs are compiled."""
        numbers, data = self.record.aux[0].astype(np.int32), self.record.data
        spare = (1 << max(len(numbers) - 1, 0).bit_length()) - len(numbers)
        values = np.pad(data, [(0, spare), *[(0, 0)] * (data.ndim - 1)])
        return SparseRows(jnp.asarray(np.pad(numbers, (0, spare), constant_values=self.shape[0])), jnp.asarray(values))

    def retain(self, indices: Any) -> RowSparseNDArray:
        """Only these rows of those that are stored."""
        return retain(self, indices)


def retain(data: RowSparseNDArray, indices: Any) -> RowSparseNDArray:
    """A row-sparse array with only those of its stored rows that `indices` names.

    Example:
        >>> some = row_sparse_array(([[1.0], [2.0]], [0, 2]), shape=(3, 1))
        >>> retain(some, [2, 1]).indices.asnumpy().tolist()
        [2]
    """
    record, wanted = data.record, np.asarray(as_array(indices)).astype(np.int64)
    kept = np.isin(record.aux[0], wanted)
    return RowSparseNDArray(record._replace(data=record.data[kept], aux=(record.aux[0][kept],)))


STORAGE.update(csr=CSRNDArray, row_sparse=RowSparseNDArray)


def from_record(record: SparseArray) -> NDArray:
    """The box of a stored sparse array."""
    return STORAGE[record.stype](record)


def to_record(box: Any) -> Any:
    """What a file keeps of a box: the parts of a sparse one, the values of any other, still on the device; None stays None."""
    if box is None:
        return None
    return box.record if isinstance(box, BaseSparseNDArray) else as_array(box)


def csr_matrix(arg1: Any, shape: Any = None, ctx: Any = None, dtype: Any = None) -> CSRNDArray:
    """A CSR matrix from (data, indices, indptr) or from dense values."""
    if isinstance(arg1, tuple) and len(arg1) == 3:
        data, indices, indptr = (np.asarray(as_array(a)) for a in arg1)
        starts, columns = indptr.astype(np.int64), indices.astype(np.int64)
        sizes = shape or (len(starts) - 1, int(columns.max(initial=-1)) + 1)
        return CSRNDArray(SparseArray("csr", data.astype(dtype or np.float32), (starts, columns), tuple(sizes)))
    return CSRNDArray(from_dense(np.asarray(as_array(arg1), dtype or np.float32), "csr"))


def row_sparse_array(arg1: Any, shape: Any = None, ctx: Any = None, dtype: Any = None) -> RowSparseNDArray:
    """A row-sparse array from (data, indices) or from dense values."""
    if isinstance(arg1, tuple) and len(arg1) == 2 and not np.isscalar(arg1[0]):
        data, rows = (np.asarray(as_array(a)) for a in arg1)
        rows = rows.astype(np.int64)
        sizes = shape or (int(rows.max(initial=-1)) + 1, *data.shape[1:])
        return RowSparseNDArray(SparseArray("row_sparse", data.astype(dtype or np.float32), (rows,), tuple(sizes)))
    return RowSparseNDArray(from_dense(np.asarray(as_array(arg1), dtype or np.float32), "row_sparse"))
