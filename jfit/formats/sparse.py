"""Sparse arrays as MXNet's files hold them: the values that are there, and where they are."""

from __future__ import annotations

import math
import os
from typing import Any, NamedTuple

import jax
import numpy as np

from jfit.formats.atomic import FormatError

STYPES = ("default", "row_sparse", "csr")


class SparseArray(NamedTuple):
    """A sparse array as the file has it.

    Args:
        stype: 'row_sparse' (data holds whole rows) or 'csr' (data holds single values of a matrix).
        data: the values, (rows present, *shape[1:]) or (values present,).
        aux: integer arrays: (row indices,) or (indptr, column indices).
        shape: shape of the array it stands for.

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
        """NumPy dtype of the values."""
        return self.data.dtype

    def todense(self) -> np.ndarray:
        """The array with its zeros; takes the memory of its full shape, which may be far more than the file's."""
        dense = np.zeros(self.shape, self.data.dtype)
        if self.stype == "row_sparse":
            dense[self.aux[0]] = self.data
        else:
            dense[np.repeat(np.arange(self.shape[0]), np.diff(self.aux[0])), self.aux[1]] = self.data
        return dense

    def tobcoo(self) -> Any:
        """The same as a `jax.experimental.sparse.BCOO`: of whole rows (`n_dense`) or of single values; no zeros are made.

        Example:
            >>> SparseArray("row_sparse", np.ones((1, 2), "float32"), (np.array([1]),), (3, 2)).tobcoo().shape
            (3, 2)
        """
        from jax.experimental.sparse import BCOO  # where it is asked for: most files hold nothing sparse

        if self.stype == "row_sparse":
            places = self.aux[0][:, None]
        else:
            places = np.stack([np.repeat(np.arange(self.shape[0]), np.diff(self.aux[0])), self.aux[1]], axis=1)
        return BCOO((jax.numpy.asarray(self.data), jax.numpy.asarray(places.astype(np.int32))), shape=self.shape)


def from_bcoo(array: Any) -> SparseArray:
    """A BCOO of whole rows or of single values of a matrix as the file holds it: in order, values of one place added up.

    Raises:
        ValueError: MXNet's files have no such sparse array.

    Example:
        >>> rows = SparseArray("row_sparse", np.ones((1, 2), "float32"), (np.array([1]),), (3, 2))
        >>> from_bcoo(rows.tobcoo()).aux[0].tolist()
        [1]
    """
    if array.n_batch or (array.n_sparse, array.n_dense) not in ((1, array.ndim - 1), (2, 0)):
        raise ValueError(
            f"a BCOO of shape {array.shape} with n_batch={array.n_batch}, n_sparse={array.n_sparse} is to be written, but "
            "files hold whole rows (n_sparse=1) or single values of a matrix (n_sparse=2, n_dense=0); make it dense"
        )
    data, places = np.asarray(array.data), np.asarray(array.indices).astype(np.int64)
    inside = (places < np.array(array.shape[: array.n_sparse])).all(axis=1)  # JAX pads with places that are outside
    places, which = np.unique(places[inside], axis=0, return_inverse=True)
    values = np.zeros((len(places), *data.shape[1:]), data.dtype)
    np.add.at(values, which.reshape(-1), data[inside])
    if array.n_sparse == 1:
        return SparseArray("row_sparse", values, (places[:, 0],), array.shape)
    starts = np.searchsorted(places[:, 0], np.arange(array.shape[0] + 1))
    return SparseArray("csr", values, (starts.astype(np.int64), places[:, 1]), array.shape)


def bounded_dense(sparse: Any, path: str | os.PathLike[str], where: str, shape: tuple[int, ...] | None = None) -> Any:
    """The dense array of a file's sparse one; of more than 64 MB + 64 times what the file holds only where it was expected.

    Args:
        sparse: what the file gave; anything but a SparseArray comes back as it is.
        path: the file, for the message.
        where: the field, for the message.
        shape: the shape that is known to be needed, which makes any size right.

    Raises:
        FormatError: it would take far more memory than the file's size lets one expect.

    Example:
        >>> bounded_dense(SparseArray("row_sparse", np.ones((1, 2)), (np.array([1]),), (2, 2)), "w.params", "w").tolist()
        [[0.0, 0.0], [1.0, 1.0]]
    """
    if not isinstance(sparse, SparseArray):
        return sparse
    needed = math.prod(sparse.shape) * sparse.dtype.itemsize
    present = sparse.data.nbytes + sum(part.nbytes for part in sparse.aux)
    if sparse.shape != shape and needed > (64 << 20) + 64 * present:
        problem = f"a {sparse.stype} array of shape {sparse.shape} would take {needed} bytes, its parts in the file {present}"
        remedy = "read it with jfit.formats.load_arrays, which keeps the parts, and make it dense if that is what it should be."
        raise FormatError(path, where, problem, remedy)
    return sparse.todense()


def sparse_problem(sparse: SparseArray) -> str | None:
    """What makes a sparse array contradict itself, or None.

    Example:
        >>> sparse_problem(SparseArray("row_sparse", np.ones((1, 2)), (np.array([5]),), (3, 2)))
        'its indices run from 5 to 5, needed 0 to 2'
    """
    stype, data, aux, shape = sparse
    if any(a.ndim != 1 or a.dtype.kind not in "iu" for a in aux):
        return "its indices are no one-axis integers"
    if stype == "row_sparse":
        if not shape or data.shape != (aux[0].size, *shape[1:]):
            return f"{aux[0].size} row indices do not fit values of shape {data.shape}"
        return _range_problem(aux[0], shape[0])
    if len(shape) != 2 or data.shape != aux[1].shape:
        return f"{aux[1].size} column indices do not fit values of shape {data.shape}"
    starts = aux[0]
    if starts.size != shape[0] + 1 or starts[0] != 0 or starts[-1] != data.size or (starts[1:] < starts[:-1]).any():
        return f"its {starts.size} row starts do not count up from 0 to {data.size} over {shape[0]} rows"
    return _range_problem(aux[1], shape[1])


def _range_problem(indices: np.ndarray, size: int) -> str | None:
    if indices.size and (int(indices.min()) < 0 or int(indices.max()) >= size):
        return f"its indices run from {indices.min()} to {indices.max()}, needed 0 to {size - 1}"
    return None


def from_dense(dense: np.ndarray, stype: str) -> SparseArray:
    """A dense array as the file holds it: its rows, or its values, that are not 0.

    Raises:
        ValueError: no such storage type, or csr of an array that is no matrix.

    Example:
        >>> from_dense(np.array([[0.0, 2.0], [0.0, 0.0]]), "row_sparse").data.tolist()
        [[0.0, 2.0]]
    """
    if stype == "row_sparse":
        rows = np.flatnonzero(dense.reshape(len(dense), -1).any(axis=1)).astype(np.int64)
        return SparseArray(stype, dense[rows], (rows,), dense.shape)
    if stype != "csr" or dense.ndim != 2:
        raise ValueError(f"storage type {stype!r} of an array with {dense.ndim} axes: csr needs 2, or use row_sparse")
    rows, columns = np.nonzero(dense)
    starts = np.searchsorted(rows, np.arange(dense.shape[0] + 1)).astype(np.int64)
    return SparseArray(stype, dense[rows, columns], (starts, columns.astype(np.int64)), dense.shape)
