"""Row-sparse and CSR NDArrays.  They store only some of the values and become dense when an operator uses them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, cast

import jax.numpy as jnp
import numpy as np
import scipy.sparse

from jfit import counters
from jfit.formats.sparse import SparseArray, from_dense
from jfit.mxnet.mutable import as_array
from jfit.mxnet.namespaces import PAIRS, find
from jfit.mxnet.ndarray.array import STORAGE, NDArray, binary_function, function
from jfit.optim.rows import SparseRows

__all__ = ["BaseSparseNDArray", "CSRNDArray", "RowSparseNDArray", "array", "csr_matrix", "empty", "row_sparse_array", "zeros"]


class BaseSparseNDArray(NDArray):
    """Base of the sparse arrays: stores a `SparseArray`, and the dense values once an operator reads or writes them.

    Args:
        record: the stored values and their indices.
    """

    __slots__ = ("_dense", "_record")

    def __init__(self, record: SparseArray) -> None:
        self._record: SparseArray | None = record
        self._dense: Any = None

    @property
    def value(self) -> Any:
        """The dense values, computed on first use."""
        if self._dense is None:
            assert self._record is not None
            self._dense = self._record.todense()
        return self._dense

    @value.setter
    def value(self, new: Any) -> None:
        self._dense, self._record = new, None

    @property
    def record(self) -> SparseArray:
        """The stored values and their indices; computed from the dense values after a write."""
        if self._record is None:
            host = counters.read(self._dense)  # sync: which entries to store depends on the values
            self._record = from_dense(np.asarray(host), self.stype)
        return self._record

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the dense array."""
        return tuple(self._record.shape if self._record is not None else self._dense.shape)

    @property
    def dtype(self) -> Any:
        """Dtype of the stored values, a NumPy scalar type."""
        return np.dtype((self._record.data if self._record is not None else self._dense).dtype).type

    data = property(lambda self: NDArray(self.record.data), doc="The stored values: (nnz,), or (stored rows, ...).")

    def __repr__(self) -> str:
        return f"\n<{type(self).__name__} {'x'.join(map(str, self.shape))} @{self.context}>"

    def copy(self) -> NDArray:
        """Return a copy in a new buffer, with the same storage type (sparse)."""
        return type(self)(self.record)

    def copyto(self, other: Any) -> NDArray:
        """Copy the values into another array; for a device return a sparse copy, whose stored values are on the host."""
        return super().copyto(other) if isinstance(other, NDArray) else self.copy()

    def astype(self, dtype: Any, copy: bool = True) -> NDArray:
        """Return the array with its stored values in another dtype; `copy=False`: itself if it has this dtype already."""
        return self if not copy and np.dtype(dtype) == self.dtype else array(self, dtype=dtype)

    def tostype(self, stype: str) -> Any:
        """Return the array in another storage type: "default" (dense), "csr" or "row_sparse"."""
        return self if stype == self.stype else NDArray(self.value) if stype == "default" else super().tostype(stype)

    def __reduce__(self):
        return from_record, (self.record,)


# Operators whose result stores the same entries as their sparse inputs; those of numbers may also have a number.
_KEEPING = """abs arcsin arcsinh arctan arctanh cbrt ceil clip degrees expm1 fix floor log1p negative neg radians relu rint
round sign sin sinh sqrt square tan tanh trunc zeros_like elemwise_add elemwise_sub elemwise_mul add_n ElementWiseSum add sub
subtract multiply mul rmul divide truediv concat""".split()  # noqa: SIM905
_OF_NUMBERS = ("multiply", "mul", "rmul", "divide", "truediv", "clip")


def _keeping(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose result has the storage type of its inputs where MXNet's has."""

    def keeping(*args: Any, **kwargs: Any) -> Any:
        result = call(*args, **kwargs)
        stypes = {a.stype for a in args if isinstance(a, NDArray)}
        plain = name in _OF_NUMBERS or all(isinstance(a, NDArray) for a in args)
        stype = min(stypes) if name in _KEEPING and plain and len(stypes) == 1 else "default"
        return result if stype == "default" or not isinstance(result, NDArray) else result.tostype(stype)

    return functools.wraps(call)(keeping)


for _name in ("add", "sub", "mul", "rmul", "truediv", "neg", "abs"):
    setattr(BaseSparseNDArray, f"__{_name}__", _keeping(_name, getattr(NDArray, f"__{_name}__")))


class CSRNDArray(BaseSparseNDArray):
    """A matrix in compressed sparse row format; make one with `mx.nd.sparse.csr_matrix`.

    Attributes:
        data: (nnz,) stored values.
        indices: (nnz,) int64, column of each stored value.
        indptr: (rows + 1,) int64; row k stores data[indptr[k] : indptr[k + 1]].

    Example:
        >>> csr_matrix([[0, 2], [3, 0]]).indices.asnumpy().tolist()
        [1, 0]
    """

    __slots__ = ()
    stype = "csr"

    indptr = property(lambda self: NDArray(self.record.aux[0]), doc="Index in `data` of the first value of each row.")
    indices = property(lambda self: NDArray(self.record.aux[1]), doc="Column of each stored value, (nnz,) int64.")

    def __getitem__(self, key: Any) -> NDArray:
        """Return one row (1, columns) or a range of rows as a CSRNDArray, any other entries as an NDArray."""
        at = slice(key, key + 1 or None) if isinstance(key, (int, np.integer)) else key
        if not isinstance(at, slice) or at.step not in (None, 1):
            return super().__getitem__(key)
        if at is not key and not -self.shape[0] <= key < self.shape[0]:
            raise IndexError(f"index {key} is out of bounds for axis 0 with size {self.shape[0]}")
        (starts, columns), rows = self.record.aux, range(self.shape[0])[at]
        starts = starts[rows.start : max(rows.start, rows.stop) + 1]
        stored = slice(starts[0], starts[-1])
        aux = starts - starts[0], columns[stored]
        return CSRNDArray(SparseArray("csr", self.record.data[stored], aux, (len(rows), self.shape[1])))

    def asscipy(self) -> Any:
        """Return a `scipy.sparse.csr_matrix` of the same stored values."""
        (starts, columns), data = self.record.aux, self.record.data
        return scipy.sparse.csr_matrix((data, columns, starts), self.shape, dtype=data.dtype)


class RowSparseNDArray(BaseSparseNDArray):
    """An array of which only some rows are stored, the others are zeros; make one with `mx.nd.sparse.row_sparse_array`.

    Attributes:
        data: (stored rows, ...) values.
        indices: (stored rows,) int64, row index of each stored row.

    Example:
        >>> row_sparse_array([[0.0], [5.0]]).indices.asnumpy().tolist()
        [1]
    """

    __slots__ = ()
    stype = "row_sparse"

    indices = property(lambda self: NDArray(self.record.aux[0]), doc="Index of each stored row, (stored rows,) int64.")

    def __getitem__(self, key: Any) -> NDArray:
        """Return the array itself for `[:]`, and other entries as an NDArray."""
        return self if isinstance(key, slice) and key == slice(None) else super().__getitem__(key)

    @property
    def by_rows(self) -> SparseRows:
        """Return the stored rows as `SparseRows`, the form that optimizers of jfit accept.

        The number of rows is padded to a power of two to limit recompilation; padding rows have an out-of-range index.
        """
        indices, data = self.record.aux[0].astype(np.int32), self.record.data
        padding = (1 << max(len(indices) - 1, 0).bit_length()) - len(indices)
        values = np.pad(data, [(0, padding), *[(0, 0)] * (data.ndim - 1)])
        return SparseRows(jnp.asarray(np.pad(indices, (0, padding), constant_values=self.shape[0])), jnp.asarray(values))

    def retain(self, indices: Any) -> RowSparseNDArray:
        """Return an array with only those stored rows whose index is in `indices`; the other rows are zeros."""
        return retain(self, indices)


def retain(data: RowSparseNDArray, indices: Any) -> RowSparseNDArray:
    """Return an array with only those stored rows of `data` whose index is in `indices`; the other rows are zeros.

    Args:
        data: row-sparse array.
        indices: row indices; those that are not stored are ignored.

    Returns:
        RowSparseNDArray of the same shape.

    Example:
        >>> some = row_sparse_array(([[1.0], [2.0]], [0, 2]), shape=(3, 1))
        >>> retain(some, [2, 1]).indices.asnumpy().tolist()
        [2]
    """
    record = data.record
    mask = np.isin(record.aux[0], np.asarray(as_array(indices)).astype(np.int64))
    return RowSparseNDArray(record._replace(data=record.data[mask], aux=(record.aux[0][mask],)))


STORAGE.update(csr=CSRNDArray, row_sparse=RowSparseNDArray)


def from_record(record: SparseArray) -> NDArray:
    """Convert a `SparseArray`, as a file stores it, to an NDArray.

    Args:
        record: the array of a file.

    Returns:
        CSRNDArray or RowSparseNDArray.

    Example:
        >>> from_record(from_dense(np.eye(2, dtype="float32"), "csr")).stype
        'csr'
    """
    return STORAGE[record.stype](record)


def to_record(array: Any) -> Any:
    """Convert an NDArray to the form that a file stores: a `SparseArray`, or the plain dense array; None stays None.

    Args:
        array: NDArray, sparse NDArray, or None.

    Returns:
        SparseArray, jax.Array, or None.

    Example:
        >>> to_record(zeros("csr", (2, 2))).stype
        'csr'
    """
    if array is None:
        return None
    return array.record if isinstance(array, BaseSparseNDArray) else as_array(array)


def csr_matrix(arg1: Any, shape: Any = None, ctx: Any = None, dtype: Any = None) -> CSRNDArray:
    """Create a CSR matrix.

    Args:
        arg1: (data, indices, indptr), see `CSRNDArray`; (data, (rows, columns)); a shape, for a matrix of zeros; a dense
            matrix, a CSRNDArray, or a matrix of scipy.sparse.
        shape: (rows, columns); by default the smallest that fits the indices.
        ctx: accepted and ignored; the stored values are on the host.
        dtype: by default that of an array, and float32 for lists.

    Returns:
        CSRNDArray.

    Example:
        >>> csr_matrix(([1.0, 2.0], [0, 2], [0, 1, 2])).asnumpy().tolist()
        [[1.0, 0.0, 0.0], [0.0, 0.0, 2.0]]
    """
    if isinstance(arg1, tuple) and len(arg1) == 3:
        data, indices, indptr = (np.asarray(as_array(a)) for a in arg1)
        starts, columns = indptr.astype(np.int64), indices.astype(np.int64)
        sizes = shape or (len(starts) - 1, int(columns.max(initial=-1)) + 1)
        return CSRNDArray(SparseArray("csr", data.astype(_dtype(arg1[0], dtype)), (starts, columns), tuple(sizes)))
    if isinstance(arg1, tuple) and len(arg1) == 2 and np.isscalar(arg1[0]):
        return cast(CSRNDArray, zeros("csr", arg1, ctx, dtype))
    if isinstance(arg1, tuple) and len(arg1) == 2:
        data, places = np.asarray(as_array(arg1[0])), [np.asarray(as_array(a)) for a in arg1[1]]
        arg1 = scipy.sparse.coo_matrix((data, places), shape)
    if isinstance(arg1, BaseSparseNDArray) or hasattr(arg1, "tocsr"):
        return cast(CSRNDArray, array(arg1, ctx, dtype).tostype("csr"))
    return CSRNDArray(from_dense(np.asarray(as_array(arg1), _dtype(arg1, dtype)), "csr"))


def _dtype(source: Any, dtype: Any) -> Any:
    return getattr(source, "dtype", np.float32) if dtype is None else dtype


def row_sparse_array(arg1: Any, shape: Any = None, ctx: Any = None, dtype: Any = None) -> RowSparseNDArray:
    """Create a row-sparse array.

    Args:
        arg1: (data, indices), the stored rows and their row indices; a shape, for an array of zeros; or a dense array.
        shape: shape of the dense array; by default the smallest that fits the indices.
        ctx: accepted and ignored; the stored rows are on the host.
        dtype: by default that of an array, and float32 for lists.

    Returns:
        RowSparseNDArray.

    Example:
        >>> row_sparse_array(([[7.0]], [1]), shape=(3, 1)).asnumpy().tolist()
        [[0.0], [7.0], [0.0]]
    """
    if isinstance(arg1, tuple) and all(map(np.isscalar, arg1)):
        return cast(RowSparseNDArray, zeros("row_sparse", arg1, ctx, dtype))
    if isinstance(arg1, tuple) and len(arg1) == 2:
        data, rows = (np.asarray(as_array(a)) for a in arg1)
        rows = rows.astype(np.int64)
        sizes = shape or (int(rows.max(initial=-1)) + 1, *data.shape[1:])
        return RowSparseNDArray(SparseArray("row_sparse", data.astype(_dtype(arg1[0], dtype)), (rows,), tuple(sizes)))
    return RowSparseNDArray(from_dense(np.asarray(as_array(arg1), _dtype(arg1, dtype)), "row_sparse"))


def array(source_array: Any, ctx: Any = None, dtype: Any = None) -> NDArray:
    """Create a sparse array by copying another one.

    Args:
        source_array: CSRNDArray, RowSparseNDArray, or a matrix of scipy.sparse, which becomes a CSRNDArray.
        ctx: accepted and ignored; the stored values are on the host.
        dtype: that of the source by default.

    Returns:
        CSRNDArray or RowSparseNDArray.

    Raises:
        ValueError: the source is not sparse; `mx.nd.array` is for dense ones.

    Example:
        >>> array(csr_matrix([[0, 2]]), dtype="float16").dtype.__name__
        'float16'
    """
    if isinstance(source_array, BaseSparseNDArray):
        record = source_array.record
        return from_record(record._replace(data=np.array(record.data, dtype)))
    if not hasattr(source_array, "tocsr"):
        found = type(source_array).__name__
        raise ValueError(f"sparse.array needs a sparse array, found {found}; use mx.nd.array for dense ones")
    csr = source_array.tocsr()
    return csr_matrix((csr.data, csr.indices, csr.indptr), csr.shape, ctx, csr.dtype if dtype is None else dtype)


def zeros(stype: str, shape: Any, ctx: Any = None, dtype: Any = None, **kwargs: Any) -> NDArray:
    """Create an array without stored entries.

    Args:
        stype: "csr", "row_sparse" or "default" (dense).
        shape: its shape.
        ctx: accepted and ignored.
        dtype: float32 by default.
        kwargs: accepted and ignored.

    Returns:
        NDArray.

    Example:
        >>> zeros("csr", (2, 2)).stype
        'csr'
    """
    dense = np.zeros(shape, np.float32 if dtype is None else dtype)
    return NDArray(jnp.asarray(dense)) if stype == "default" else from_record(from_dense(dense, stype))


empty = zeros


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    if name.endswith("_update"):
        from jfit.mxnet.ndarray import updates  # it imports the optimizers

        if name in updates.SPARSE:
            return updates.update(name)
    pair = PAIRS.get(name)
    return _keeping(name, binary_function(*pair) if pair else find("mx.nd.sparse", ("_sparse_", ""), name, function))
