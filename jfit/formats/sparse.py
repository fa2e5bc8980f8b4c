"""`SparseArray`: row_sparse and CSR arrays with the fields of MXNet's files, and conversion to dense."""

from __future__ import annotations

import math
import os
from typing import Any, NamedTuple

import numpy as np

from jfit.formats.atomic import FormatError

STYPES = ("default", "row_sparse", "csr")


class SparseArray(NamedTuple):
    """Sparse array with the fields of MXNet's files.

    Args:
        stype: storage type: "row_sparse" (`data` contains the nonzero rows) or "csr" (compressed sparse row matrix).
        data: nonzero rows (nnz, *shape[1:]), or nonzero values (nnz,).
        aux: tuple of integer arrays: (row indices (nnz,),) or (indptr (rows + 1,), column indices (nnz,)).
        shape: shape of the dense array.

    Example:
        >>> SparseArray("row_sparse", np.ones((1, 2)), (np.array([1]),), (3, 2)).todense().tolist()
        [[0.0, 0.0], [1.0, 1.0], [0.0, 0.0]]
    """

    stype: str
    data: np.ndarray
    aux: tuple[np.ndarray, ...]
    shape: tuple[int, ...]

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy dtype of `data`."""
        return self.data.dtype

    def todense(self) -> np.ndarray:
        """Convert to a dense array of `shape`, which may need far more memory than the file has bytes."""
        dense = np.zeros(self.shape, self.data.dtype)
        if self.stype == "row_sparse":
            dense[self.aux[0]] = self.data
        else:
            dense[np.repeat(np.arange(self.shape[0]), np.diff(self.aux[0])), self.aux[1]] = self.data
        return dense


def bounded_dense(sparse: Any, path: str | os.PathLike[str], where: str, shape: tuple[int, ...] | None = None) -> Any:
    """Convert a sparse array read from a file to a dense array, unless a small file would allocate a huge one.

    Args:
        sparse: a SparseArray; any other value is returned unchanged.
        path: the file, for the message.
        where: the field in the file, for the message.
        shape: expected shape of the array, if the caller has one: an array of this shape may have any size.

    Returns:
        Dense array of shape `sparse.shape`.

    Raises:
        FormatError: the dense array would need more than 64 MB + 64 times the bytes of the sparse array.

    Example:
        >>> bounded_dense(SparseArray("row_sparse", np.ones((1, 2)), (np.array([1]),), (2, 2)), "w.params", "w").tolist()
        [[0.0, 0.0], [1.0, 1.0]]
    """
    if not isinstance(sparse, SparseArray):
        return sparse
    needed = math.prod(sparse.shape) * sparse.dtype.itemsize
    present = sparse.data.nbytes + sum(part.nbytes for part in sparse.aux)
    if sparse.shape != shape and needed > (64 << 20) + 64 * present:
        problem = f"a {sparse.stype} array of shape {sparse.shape} would need {needed} bytes, in the file it has {present}"
        remedy = "read it with jfit.formats.load_arrays, which returns a SparseArray, and call its todense()."
        raise FormatError(path, where, problem, remedy)
    return sparse.todense()


def sparse_problem(sparse: SparseArray) -> str | None:
    """Describe why the fields of a sparse array are inconsistent; None if they are consistent.

    Example:
        >>> sparse_problem(SparseArray("row_sparse", np.ones((1, 2)), (np.array([5]),), (3, 2)))
        'its indices range from 5 to 5, expected 0 to 2'
    """
    stype, data, aux, shape = sparse
    if any(a.ndim != 1 or a.dtype.kind not in "iu" for a in aux):
        return "its indices are not integer arrays with one axis"
    if stype == "row_sparse":
        if not shape or data.shape != (aux[0].size, *shape[1:]):
            return f"{aux[0].size} row indices do not match data of shape {data.shape}"
        return _range_problem(aux[0], shape[0])
    if len(shape) != 2 or data.shape != aux[1].shape:
        return f"{aux[1].size} column indices do not match data of shape {data.shape}"
    starts = aux[0]
    if starts.size != shape[0] + 1 or starts[0] != 0 or starts[-1] != data.size or (starts[1:] < starts[:-1]).any():
        return f"its indptr of size {starts.size} does not increase from 0 to {data.size} over {shape[0]} rows"
    return _range_problem(aux[1], shape[1])


def _range_problem(indices: np.ndarray, size: int) -> str | None:
    if indices.size and (int(indices.min()) < 0 or int(indices.max()) >= size):
        return f"its indices range from {indices.min()} to {indices.max()}, expected 0 to {size - 1}"
    return None


def from_dense(dense: np.ndarray, stype: str) -> SparseArray:
    """Convert a dense array to a `SparseArray` of its nonzero rows ("row_sparse") or nonzero values ("csr").

    Raises:
        ValueError: "csr" for an array that is not a matrix.

    Example:
        >>> from_dense(np.array([[0.0, 2.0], [0.0, 0.0]]), "row_sparse").data.tolist()
        [[0.0, 2.0]]
    """
    if stype == "row_sparse":
        rows = np.flatnonzero(dense.reshape(len(dense), -1).any(axis=1)).astype(np.int64)
        return SparseArray(stype, dense[rows], (rows,), dense.shape)
    rows, columns = np.nonzero(dense)
    starts = np.searchsorted(rows, np.arange(dense.shape[0] + 1)).astype(np.int64)
    return SparseArray(stype, dense[rows, columns], (starts, columns.astype(np.int64)), dense.shape)
