"""Diagonals and triangles of matrices, taken out and put in."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np

from jfit.ops.attributes import flag, integer
from jfit.ops.linalg import need_matrices, stack_rows
from jfit.ops.registry import operator
from jfit.ops.rows import LOST, RowLayout
from jfit.ops.rules import positive, removed

Places = tuple[np.ndarray, np.ndarray]


def _diagonal(size: int, offset: int) -> Places:
    """Row and column numbers of a diagonal of a square matrix, above the main one where offset > 0."""
    if abs(offset) >= size:
        raise ValueError(f"offset is {offset}, a matrix of side {size} has diagonals {1 - size} to {size - 1}; change offset")
    at = np.arange(size - abs(offset))
    return at + max(-offset, 0), at + max(offset, 0)


def _triangle(size: int, offset: int, lower: bool) -> Places:
    """Row and column numbers of the triangle that starts at a diagonal; offset 0 leaves the choice to `lower`.

    A lower triangle goes row by row, an upper one column by column.
    """
    _diagonal(size, offset)
    row, column = np.tril_indices(size, -abs(offset))
    return (row, column) if offset < 0 or (offset == 0 and lower) else (column, row)


def _vector_rows(attrs, rows, shapes, outs):
    """Vectors in the last axis become matrices: rows of the leading axes stay."""
    first = rows[0]
    return [LOST if isinstance(first, RowLayout) and first.axis == len(shapes[0]) - 1 else first]


@operator("_linalg_extractdiag", inputs=("A",), attrs={"offset": integer(0)}, aliases=("linalg_extractdiag",), rows=stack_rows)
def extractdiag(ctx, attrs, matrix):
    """y[i] = A[i, i + offset], a diagonal of each matrix."""
    need_matrices("A", matrix.shape)
    row, column = _diagonal(matrix.shape[-1], attrs.offset)
    return matrix[..., row, column]


@operator("_linalg_makediag", inputs=("A",), attrs={"offset": integer(0)}, aliases=("linalg_makediag",), rows=_vector_rows)
def makediag(ctx, attrs, vector):
    """y[i, i + offset] = A[i], all other entries 0."""
    size = vector.shape[-1] + abs(attrs.offset)
    row, column = _diagonal(size, attrs.offset)
    return jnp.zeros((*vector.shape[:-1], size, size), vector.dtype).at[..., row, column].set(vector, unique_indices=True)


TRIANGLE = {"offset": integer(0), "lower": flag(True)}


@operator("_linalg_extracttrian", inputs=("A",), attrs=TRIANGLE, aliases=("linalg_extracttrian",), rows=stack_rows)
def extracttrian(ctx, attrs, matrix):
    """y = the triangle of each matrix as a vector (offset > 0: the upper one, column by column; < 0: the lower, row by row)."""
    need_matrices("A", matrix.shape)
    row, column = _triangle(matrix.shape[-1], attrs.offset, attrs.lower)
    return matrix[..., row, column]


@operator("_linalg_maketrian", inputs=("A",), attrs=TRIANGLE, aliases=("linalg_maketrian",), rows=_vector_rows)
def maketrian(ctx, attrs, vector):
    """y = square matrices with the vectors as their triangle, all other entries 0; the inverse of extracttrian."""
    count = vector.shape[-1]
    side = (math.isqrt(8 * count + 1) - 1) // 2
    if side * (side + 1) // 2 != count:
        raise ValueError(
            f"A has shape {vector.shape}, {count} entries make no triangle (1, 3, 6, 10, ... do); change its last axis"
        )
    size = side + abs(attrs.offset)
    row, column = _triangle(size, attrs.offset, attrs.lower)
    return jnp.zeros((*vector.shape[:-1], size, size), vector.dtype).at[..., row, column].set(vector, unique_indices=True)


def _diag_rows(attrs, rows, shapes, outs):
    ndim = len(shapes[0])
    if ndim == 1:
        return [LOST if isinstance(rows[0], RowLayout) else rows[0]]
    return [removed(rows[0], (positive(attrs.axis1, ndim, "axis1"), positive(attrs.axis2, ndim, "axis2")))]


@operator("diag", attrs={"k": integer(0), "axis1": integer(0), "axis2": integer(1)}, rows=_diag_rows)
def diag(ctx, attrs, data):
    """y[..., i] = x[i, i + k] along axis1 and axis2; a vector becomes the k-th diagonal of a matrix."""
    if data.ndim == 1:
        return jnp.diag(data, attrs.k)
    first, second = positive(attrs.axis1, data.ndim, "axis1"), positive(attrs.axis2, data.ndim, "axis2")
    if first == second:
        raise ValueError(f"axis1 and axis2 are both axis {first}, a diagonal needs two; change one of them")
    if not -data.shape[first] < attrs.k < data.shape[second]:
        raise ValueError(f"k is {attrs.k}, data of shape {data.shape} has no such diagonal of axes {first}, {second}; change k")
    return jnp.diagonal(data, attrs.k, first, second)
