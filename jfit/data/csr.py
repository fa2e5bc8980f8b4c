"""Row operations on CSR (compressed sparse row) matrices for the data iterators: slice, index, concatenate, copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jfit.formats.sparse import SparseArray


def as_csr(value: Any) -> SparseArray | None:
    """Convert a sparse matrix to a CSR `SparseArray`; return None for any other value.

    Args:
        value: a CSR `SparseArray`, `jfit.mx.nd.sparse.csr_matrix` or `scipy.sparse` matrix, or anything else.

    Example:
        >>> as_csr(np.eye(2)) is None
        True
    """
    if isinstance(value, SparseArray):
        return value if value.stype == "csr" else None
    if getattr(value, "stype", None) == "csr":
        return value.record
    if hasattr(value, "tocsr") and hasattr(value, "nnz"):
        rows = value.tocsr()
        if not rows.has_canonical_format:  # scipy's duplicate entries mean their sum
            rows = rows.copy()
            rows.sum_duplicates()
        parts = (rows.indptr.astype(np.int64), rows.indices.astype(np.int64))
        return SparseArray("csr", np.asarray(rows.data), parts, tuple(rows.shape))
    return None


def pick_rows(matrix: SparseArray, pick: slice | np.ndarray) -> SparseArray:
    """Index the rows of a CSR matrix: `matrix[pick]` for a slice or an integer array.

    Example:
        >>> matrix = SparseArray("csr", np.array([5.0, 7.0]), (np.array([0, 1, 1, 2]), np.array([0, 1])), (3, 2))
        >>> pick_rows(matrix, np.array([2, 2, 0])).todense().tolist()
        [[0.0, 7.0], [0.0, 7.0], [5.0, 0.0]]
    """
    starts, columns = matrix.aux
    if isinstance(pick, slice):
        low, high, step = pick.indices(matrix.shape[0])
        if step == 1:
            high = max(low, high)
            values = slice(int(starts[low]), int(starts[high]))
            parts = (starts[low : high + 1] - starts[low], columns[values])
            return SparseArray("csr", matrix.data[values], parts, (high - low, *matrix.shape[1:]))
        pick = np.arange(low, high, step)
    counts = np.diff(starts)[pick]
    new_starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    # Value k of a row has the index start + k, in the old matrix as in the new one: shift by the difference of the starts.
    places = np.repeat(starts[pick] - new_starts[:-1], counts) + np.arange(new_starts[-1])
    return SparseArray("csr", matrix.data[places], (new_starts, columns[places]), (len(pick), *matrix.shape[1:]))


def stack_rows(parts: Sequence[SparseArray]) -> SparseArray:
    """Concatenate CSR matrices with equal numbers of columns along the rows.

    Example:
        >>> one = SparseArray("csr", np.array([5.0]), (np.array([0, 1]), np.array([1])), (1, 2))
        >>> stack_rows([one, one]).todense().tolist()
        [[0.0, 5.0], [0.0, 5.0]]
    """
    counts = np.concatenate([np.diff(p.aux[0]) for p in parts])
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    columns = np.concatenate([p.aux[1] for p in parts])
    shape = (sum(p.shape[0] for p in parts), *parts[0].shape[1:])
    return SparseArray("csr", np.concatenate([p.data for p in parts]), (starts, columns), shape)


def take_rows(column: Any, pick: slice | np.ndarray) -> Any:
    """Index the rows of an array or CSR matrix: `column[pick]`."""
    return pick_rows(column, pick) if isinstance(column, SparseArray) else column[pick]


def copy_rows(column: Any) -> Any:
    """Copy an array or CSR matrix, so that the caller may write into it."""
    if isinstance(column, SparseArray):
        starts, columns = column.aux
        return column._replace(data=column.data.copy(), aux=(starts.copy(), columns.copy()))
    return column.copy()


def concatenate(parts: Sequence[Any]) -> Any:
    """Concatenate arrays or CSR matrices along axis 0."""
    if len(parts) == 1:
        return parts[0]
    return stack_rows(parts) if isinstance(parts[0], SparseArray) else np.concatenate(parts)
