"""Linear algebra: dot, batch_dot, khatri_rao, diag and MXNet's linalg_* operators (products, solves, decompositions)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jfit.ops.attributes import flag, integer, maybe_choice, number, several
from jfit.ops.registry import operator
from jfit.ops.rows import LOST, RowLayout, lost_rows
from jfit.ops.rules import (
    SEVERAL_INPUTS,
    accumulating,
    drop_axes,
    last_axis,
    need_shape,
    normalize_axis,
    same_shape,
    unify,
    unmixed,
)

ATTRS = several(flag, transpose_a=False, transpose_b=False) | {"forward_stype": maybe_choice("csr", "default", "row_sparse")}


def _contracted(attrs, ndim_a, ndim_b):
    """Return the axes that a dot product contracts: (axis of lhs, axis of rhs)."""
    return 0 if attrs.transpose_a else ndim_a - 1, ndim_b - 1 if attrs.transpose_b else 0


def _unify_contracted(lhs, rhs, a, b):
    """Return [lhs, rhs], the shapes, with an unknown contracted size (0) from the other one; a, b are the contracted axes."""
    size = lhs[a] or rhs[b]
    return [(*lhs[:a], size, *lhs[a + 1 :]), (*rhs[:b], size, *rhs[b + 1 :])]


def _dot_shapes(attrs, ins, outs):
    lhs, rhs = ins
    if lhs is None or rhs is None or not lhs or not rhs:
        return ins
    return _unify_contracted(lhs, rhs, *_contracted(attrs, len(lhs), len(rhs)))


def _dot_rows(attrs, rows, shapes, outs):
    a, b = _contracted(attrs, len(shapes[0]), len(shapes[1]))
    lhs, rhs = rows
    if lhs is None and rhs is None:
        return [None]
    if rhs is None and isinstance(lhs, RowLayout) and lhs.axis != a:
        return [lhs._replace(axis=lhs.axis - (lhs.axis > a))]
    if lhs is None and isinstance(rhs, RowLayout) and rhs.axis != b:
        return [rhs._replace(axis=len(shapes[0]) - 1 + rhs.axis - (rhs.axis > b))]
    return [LOST]


@operator("dot", attrs=ATTRS, aliases=("_sparse_dot",), fill=_dot_shapes, rows=_dot_rows)
def dot(ctx, attrs, lhs, rhs):
    """y = lhs · rhs, contracting the last axis of lhs (first with transpose_a) and the first of rhs (last with transpose_b)."""
    a, b = _contracted(attrs, lhs.ndim, rhs.ndim)
    result = jnp.tensordot(lhs, rhs, axes=((a,), (b,)))
    return result.reshape((1,)) if result.ndim == 0 else result


def used_columns(data):
    """Return int32 [0, 1, ..., n - 1] for an array of n columns, with n in place of each column that is all zero."""
    count = data.shape[-1]
    used = jnp.any(data != 0, axis=tuple(range(data.ndim - 1)))
    return jnp.where(used, jnp.arange(count, dtype=jnp.int32), count)


# the batch rows are where they are in the inputs, unless on the axes of the matrices
stack_rows = unmixed(lambda attrs, ndim: (ndim - 2, ndim - 1), shared=True)


def _batch_axes(attrs, ndim):
    return ndim - 2 if attrs.transpose_a else ndim - 1, ndim - 1 if attrs.transpose_b else ndim - 2


def _batch_dot_shapes(attrs, ins, outs):
    lhs, rhs = ins
    if lhs is None or rhs is None:
        return ins
    lead = tuple(a or b for a, b in zip(lhs[:-2], rhs[:-2], strict=True))
    return _unify_contracted(lead + lhs[-2:], lead + rhs[-2:], *_batch_axes(attrs, len(lhs)))


@operator("batch_dot", attrs=ATTRS, aliases=("_npx_batch_dot",), fill=_batch_dot_shapes, rows=stack_rows)
def batch_dot(ctx, attrs, lhs, rhs):
    """y[n] = op(lhs[n]) op(rhs[n]), a matrix product for each batch index n; op transposes if transpose_a or transpose_b."""
    return jnp.matmul(_transposed(lhs, attrs.transpose_a), _transposed(rhs, attrs.transpose_b))


# ------------------------------------------------------------------ linalg_*: the last two axes are the matrices


def wide(array: Array) -> Array:
    """Cast half precision to float32, because decompositions do not support it and long sums lose digits in it."""
    return array.astype(accumulating(array.dtype))


def need_square(matrix: Array) -> None:
    """Raise a ValueError unless the last two axes have equal sizes, for operators that would read other entries than these."""
    if matrix.shape[-1] != matrix.shape[-2]:
        raise ValueError(f"A has shape {matrix.shape}, expected square matrices in its last two axes; reshape or slice it")


def _transposed(matrix: Array, transpose: bool = True) -> Array:
    return jnp.swapaxes(matrix, -1, -2) if transpose else matrix


def _operator(name: str, **record: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that registers `_linalg_<name>`, by default with one input A and `stack_rows`."""
    fields: dict[str, Any] = {"inputs": ("A",), "aliases": (f"linalg_{name}",), "rows": stack_rows}
    return operator(f"_linalg_{name}", **fields | record)


_GEMM = several(flag, transpose_a=False, transpose_b=False) | several(number, alpha=1.0, beta=1.0) | {"axis": integer(-2)}
_GEMM2 = {name: attr for name, attr in _GEMM.items() if name != "beta"}


_gemm_rows = unmixed(lambda attrs, ndim: (normalize_axis(attrs.axis, ndim), ndim - 1), shared=True)


def _product(attrs, left: Array, right: Array) -> Array:
    """Return alpha op(A) op(B), matrix rows along `axis`, columns along the last axis; half precision becomes float32."""
    axis = normalize_axis(attrs.axis, left.ndim)
    if axis == left.ndim - 1:
        raise ValueError(f"axis is {attrs.axis}, which holds the matrix columns; set it to the axis of the matrix rows")
    a, b = (jnp.moveaxis(wide(x), axis, -2) for x in (left, right))
    product = jnp.matmul(_transposed(a, attrs.transpose_a), _transposed(b, attrs.transpose_b))
    return jnp.moveaxis(attrs.alpha * product, -2, axis)


def _gemm_shapes(attrs, ins, outs):
    """Infer the shapes of A, B and C: unknown (0) sizes of A and B that must be equal; C has the shape of the product."""
    if ins[0] is None or ins[1] is None:
        return ins
    axis = normalize_axis(attrs.axis, len(ins[0]))
    left, right = (list(s) for s in ins[:2])
    a, b = axis if attrs.transpose_a else -1, -1 if attrs.transpose_b else axis
    left[a] = right[b] = left[a] or right[b]
    for at in set(range(len(left) - 1)) - {axis}:
        left[at] = right[at] = left[at] or right[at]
    product = list(left)
    product[axis] = left[-1 if attrs.transpose_a else axis]
    product[-1] = right[axis if attrs.transpose_b else -1]
    filled = [tuple(left), tuple(right)]
    if len(ins) == 2:
        return filled
    return [*filled, unify([tuple(product), ins[2], *outs], "C is added to the product")]


@_operator("gemm", inputs=("A", "B", "C"), attrs=_GEMM, fill=_gemm_shapes, rows=_gemm_rows)
def gemm(ctx, attrs, left, right, summand):
    """y = alpha op(A) op(B) + beta C; op transposes if transpose_a or transpose_b; matrix rows are on `axis`, columns last."""
    return (_product(attrs, left, right) + attrs.beta * wide(summand)).astype(left.dtype)


@_operator("gemm2", inputs=("A", "B"), attrs=_GEMM2, fill=_gemm_shapes, rows=_gemm_rows)
def gemm2(ctx, attrs, left, right):
    """y = alpha op(A) op(B); op transposes if transpose_a or transpose_b; matrix rows are on `axis`, columns last."""
    return _product(attrs, left, right).astype(left.dtype)


@_operator("syrk", attrs={"transpose": flag(False), "alpha": number(1.0)})
def syrk(ctx, attrs, matrix):
    """y = alpha A Aᵀ, or alpha Aᵀ A with transpose."""
    a = _transposed(wide(matrix), attrs.transpose)
    return (attrs.alpha * jnp.matmul(a, _transposed(a))).astype(matrix.dtype)


def _triangular_shapes(attrs, ins, outs):
    """Infer the input shapes: B has the shape of the output, A is square with the number of rows (rightside: columns) of B."""
    matrix, other = ins[0], unify([ins[1], *outs])
    if other is not None and len(other) >= 2:
        side = other[-1] if attrs.rightside else other[-2]
        why = "A is square and multiplies B" + " from the right" * attrs.rightside
        matrix = unify([matrix, (*other[:-2], side, side)], why)
    return [matrix, other]


TRIANGULAR_RECORD: dict[str, Any] = {
    "inputs": ("A", "B"),
    "attrs": several(flag, transpose=False, rightside=False, lower=True) | {"alpha": number(1.0)},
    "fill": _triangular_shapes,
}


@_operator("trmm", **TRIANGULAR_RECORD)
def trmm(ctx, attrs, matrix, other):
    """y = alpha op(A) B, or alpha B op(A) with rightside; A is triangular: the entries of the other triangle are ignored."""
    half = (jnp.tril if attrs.lower else jnp.triu)(wide(matrix))
    half, b = _transposed(half, attrs.transpose), wide(other)
    return (attrs.alpha * (jnp.matmul(b, half) if attrs.rightside else jnp.matmul(half, b))).astype(other.dtype)


@_operator("trsm", **TRIANGULAR_RECORD)
def trsm(ctx, attrs, matrix, other):
    """Solve op(A) y = alpha B, or y op(A) = alpha B with rightside, for y; only one triangle of A (`lower`) is read."""
    y = lax.linalg.triangular_solve(
        wide(matrix), attrs.alpha * wide(other), left_side=not attrs.rightside, lower=attrs.lower, transpose_a=attrs.transpose
    )
    return y.astype(other.dtype)


@operator("khatri_rao", attrs={"num_args": integer()}, rows=lost_rows, **SEVERAL_INPUTS)
def khatri_rao(ctx, attrs, *args):
    """Column-wise Kronecker product of matrices: y[:, k] = arg0[:, k] ⊗ arg1[:, k] ⊗ ..."""
    product = args[0]
    for i, a in enumerate(args):
        need_shape(f"arg{i}", a.shape, (a.shape[0], product.shape[1]))
    for a in args[1:]:
        product = (product[:, None, :] * a[None, :, :]).reshape((-1, a.shape[1]))
    return product


# ----------------------------------------------------------------------------------------------------
# Decompositions and inverses of square matrices (the last two axes). A matrix that is singular or not positive definite results
# in nan where MXNet raises an error: compiled code cannot raise.

CLOSE = 1e-30  # smallest eigenvalue gap used as a divisor in the gradient of syevd


def _from_lower(matrix: Array) -> Array:
    """Return the symmetric matrix with the lower triangle of `matrix`; its gradient is symmetric, as in MXNet."""
    # The value is that of the mirrored lower triangle, the gradient that of (A + Aᵀ) / 2.
    average = (matrix + _transposed(matrix)) / 2
    mirrored = jnp.tril(matrix) + _transposed(jnp.tril(matrix, -1))
    return average + lax.stop_gradient(mirrored - average)


@_operator("potrf", attrs={"lower": flag(True)}, fill=same_shape)
def potrf(ctx, attrs, matrix):
    """y = L, the Cholesky factor: A = L Lᵀ, or Lᵀ for lower=False; reads that triangle of A; the gradient is symmetric."""
    need_square(matrix)
    lower = _from_lower(_transposed(wide(matrix), not attrs.lower))
    return _transposed(lax.linalg.cholesky(lower, symmetrize_input=False), not attrs.lower).astype(matrix.dtype)


@_operator("potri", attrs={"lower": flag(True)}, fill=same_shape)
def potri(ctx, attrs, matrix):
    """y = (A Aᵀ)⁻¹ for a lower triangular A, (Aᵀ A)⁻¹ for an upper: the inverse of the matrix whose Cholesky factor is A."""
    factor = _transposed(wide(matrix), not attrs.lower)
    one = jnp.broadcast_to(jnp.eye(factor.shape[-1], dtype=factor.dtype), factor.shape)
    inverse = lax.linalg.triangular_solve(factor, one, left_side=True, lower=True)
    return jnp.matmul(_transposed(inverse), inverse).astype(matrix.dtype)


@_operator("inverse", fill=same_shape)
def inverse(ctx, attrs, matrix):
    """y = A⁻¹, the inverse of each matrix."""
    return jnp.linalg.inv(wide(matrix)).astype(matrix.dtype)


@jax.custom_jvp
def _log_det(matrix: Array) -> tuple[Array, Array]:
    """Return (sign of det A, ln|det A|)."""
    sign, size = jnp.linalg.slogdet(matrix)
    return sign, size


@_log_det.defjvp
def _log_det_jvp(primals, tangents):
    # As in MXNet: the gradient of a singular matrix is 0, and so is that of the sign.
    (matrix,), (change,) = primals, tangents
    sign, size = _log_det(matrix)
    singular = (sign == 0).reshape((*sign.shape, 1, 1))
    safe = jnp.where(singular, jnp.eye(matrix.shape[-1], dtype=matrix.dtype).reshape(_matrix_shape(matrix)), matrix)
    slope = jnp.where(singular, jnp.zeros_like(matrix), _transposed(jnp.linalg.inv(safe)))
    return (sign, size), (jnp.zeros_like(sign), jnp.sum(slope * change, (-2, -1)))


def _matrix_shape(matrix: Array) -> tuple[int, ...]:
    return (1,) * (matrix.ndim - 2) + matrix.shape[-2:]


@_operator("slogdet", outputs=("output0", "output1"))
def slogdet(ctx, attrs, matrix):
    """y₀ = sign of det A, y₁ = ln|det A|; for a singular matrix 0 and -inf, with gradient 0."""
    sign, size = _log_det(wide(matrix))
    return jnp.atleast_1d(sign).astype(matrix.dtype), jnp.atleast_1d(size).astype(matrix.dtype)


@_operator("det", outputs=("output0",))
def det(ctx, attrs, matrix):
    """y = det A; the gradient of a singular matrix is 0, as in MXNet."""
    sign, size = _log_det(wide(matrix))
    return jnp.atleast_1d(sign * jnp.exp(size)).astype(matrix.dtype)


@_operator("sumlogdiag")
def sumlogdiag(ctx, attrs, matrix):
    """y = Σᵢ ln A[i, i] of each matrix."""
    need_square(matrix)
    return jnp.atleast_1d(jnp.sum(jnp.log(jnp.diagonal(wide(matrix), axis1=-2, axis2=-1)), -1)).astype(matrix.dtype)


@_operator("gelqf", outputs=("output0", "output1"))
def gelqf(ctx, attrs, matrix):
    """LQ factorization A = L Q: y₀ = Q with orthonormal rows, y₁ = L lower triangular; A (m, n) must have m ≤ n."""
    columns, upper = jnp.linalg.qr(_transposed(wide(matrix)))
    return _transposed(columns).astype(matrix.dtype), _transposed(upper).astype(matrix.dtype)


@jax.custom_vjp
def _eigen(matrix: Array) -> tuple[Array, Array]:
    """Return (U, ascending eigenvalues), A = Uᵀ diag(values) U; the entry of largest magnitude in each row of U is positive."""
    vectors, values = lax.linalg.eigh(jnp.tril(matrix) + _transposed(jnp.tril(matrix, -1)), symmetrize_input=False)
    rows = _transposed(vectors)
    largest = jnp.take_along_axis(rows, jnp.argmax(jnp.abs(rows), -1)[..., None], -1)
    return jnp.where(largest < 0, -rows, rows), values


def _eigen_backward(residuals, cotangents):
    rows, values = residuals
    d_rows, d_values = cotangents
    turned = jnp.matmul(d_rows, _transposed(rows))
    gap = values[..., :, None] - values[..., None, :]  # positive below the diagonal
    below = jnp.tril((turned - _transposed(turned)) / (2 * jnp.maximum(gap, CLOSE)), -1)
    diagonal = d_values[..., None] * jnp.eye(rows.shape[-1], dtype=rows.dtype).reshape(_matrix_shape(rows))
    inner = diagonal + below + _transposed(below)
    return (jnp.matmul(_transposed(rows), jnp.matmul(inner, rows)),)


_eigen.defvjp(lambda matrix: (out := _eigen(matrix), out), _eigen_backward)


@_operator("syevd", outputs=("output0", "output1"), aliases=())
def syevd(ctx, attrs, matrix):
    """Eigenvectors y₀ = U (as rows) and eigenvalues y₁ = λ of a symmetric A = Uᵀ diag(λ) U; reads the lower triangle of A."""
    need_square(matrix)
    rows, values = _eigen(wide(matrix))
    return rows.astype(matrix.dtype), values.astype(matrix.dtype)


# ----------------------------------------------------------------------------------------------------
# Extract or build the diagonals and triangles of matrices.

Indices = tuple[np.ndarray, np.ndarray]


def _need_diagonal(offset: int, rows: int, columns: int) -> None:
    if not -rows < offset < columns:
        raise ValueError(f"a matrix ({rows}, {columns}) has diagonals {1 - rows} to {columns - 1}, but not {offset}; change it")


def _diagonal(size: int, offset: int) -> Indices:
    """Return (row indices, column indices) of a diagonal of a (size, size) matrix; offset > 0 is above the main diagonal."""
    _need_diagonal(offset, size, size)
    at = np.arange(size - abs(offset))
    return at + max(-offset, 0), at + max(offset, 0)


def _triangle(size: int, offset: int, lower: bool) -> Indices:
    """Return (row indices, column indices) of the triangle of a (size, size) matrix that is bounded by the diagonal `offset`.

    It is the lower triangle if offset < 0, the upper one if offset > 0, and selected by `lower` if offset = 0.

    The entries of a lower triangle are listed row by row, those of an upper one column by column.
    """
    _need_diagonal(offset, size, size)
    row, column = np.tril_indices(size, -abs(offset))
    return (row, column) if offset < 0 or (offset == 0 and lower) else (column, row)


@_operator("extractdiag", attrs={"offset": integer(0)})
def extractdiag(ctx, attrs, matrix):
    """y[i] = A[i, i + offset]: one diagonal of each matrix."""
    need_square(matrix)
    row, column = _diagonal(matrix.shape[-1], attrs.offset)
    return matrix[..., row, column]


@_operator("makediag", attrs={"offset": integer(0)}, rows=unmixed(last_axis))
def makediag(ctx, attrs, vector):
    """y[i, i + offset] = A[i], all other entries 0."""
    size = vector.shape[-1] + abs(attrs.offset)
    row, column = _diagonal(size, attrs.offset)
    return jnp.zeros((*vector.shape[:-1], size, size), vector.dtype).at[..., row, column].set(vector, unique_indices=True)


TRIANGLE = {"offset": integer(0), "lower": flag(True)}


@_operator("extracttrian", attrs=TRIANGLE)
def extracttrian(ctx, attrs, matrix):
    """y = a triangle of each matrix as a vector: the lower one by rows (offset < 0), the upper one by columns (offset > 0)."""
    need_square(matrix)
    row, column = _triangle(matrix.shape[-1], attrs.offset, attrs.lower)
    return matrix[..., row, column]


@_operator("maketrian", attrs=TRIANGLE, rows=unmixed(last_axis))
def maketrian(ctx, attrs, vector):
    """y = square matrices with the vectors in one triangle, 0 elsewhere; the inverse of extracttrian."""
    count = vector.shape[-1]
    side = (math.isqrt(8 * count + 1) - 1) // 2
    size = side + abs(attrs.offset)
    row, column = _triangle(size, attrs.offset, attrs.lower)
    return jnp.zeros((*vector.shape[:-1], size, size), vector.dtype).at[..., row, column].set(vector, unique_indices=True)


def _diag_rows(attrs, rows, shapes, outs):
    ndim = len(shapes[0])
    if ndim == 1:
        return [LOST if isinstance(rows[0], RowLayout) else rows[0]]
    return [drop_axes(rows[0], (normalize_axis(attrs.axis1, ndim, "axis1"), normalize_axis(attrs.axis2, ndim, "axis2")))]


@operator("diag", attrs={"k": integer(0), "axis1": integer(0), "axis2": integer(1)}, rows=_diag_rows)
def diag(ctx, attrs, data):
    """y[..., i] = x[i, i + k] along axis1 and axis2; a vector becomes the k-th diagonal of a matrix."""
    if data.ndim == 1:
        return jnp.diag(data, attrs.k)
    first, second = normalize_axis(attrs.axis1, data.ndim, "axis1"), normalize_axis(attrs.axis2, data.ndim, "axis2")
    _need_diagonal(attrs.k, data.shape[first], data.shape[second])
    return jnp.diagonal(data, attrs.k, first, second)
