"""Decompositions and inverses of square matrices, in the last two axes: the rest of the linalg family.

Matrices that have no inverse or are not positive definite give nan, where MXNet stops: compiled code cannot.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array, lax

from jfit.ops.linalg import need_matrices, stack_rows, wide
from jfit.ops.registry import operator
from jfit.ops.rules import same_shape

SQUARE = {"inputs": ("A",), "fill": same_shape, "rows": stack_rows}
CLOSE = 1e-30  # eigenvalues nearer than this count as this far apart


def _swapped(matrix: Array) -> Array:
    return jnp.swapaxes(matrix, -1, -2)


def _from_lower(matrix: Array) -> Array:
    """The symmetric matrix that the lower half says, with a gradient that is symmetric."""
    even = (matrix + _swapped(matrix)) / 2
    said = jnp.tril(matrix) + _swapped(jnp.tril(matrix, -1))
    return even + lax.stop_gradient(said - even)


@operator("_linalg_potrf", aliases=("linalg_potrf",), **SQUARE)
def potrf(ctx, attrs, matrix):
    """y = L, lower triangular, with A = L Lᵀ; reads the lower half of A, its gradient is symmetric as MXNet has it."""
    need_matrices("A", matrix.shape)
    return lax.linalg.cholesky(_from_lower(wide(matrix)), symmetrize_input=False).astype(matrix.dtype)


@operator("_linalg_potri", aliases=("linalg_potri",), **SQUARE)
def potri(ctx, attrs, matrix):
    """y = (A Aᵀ)⁻¹ for a lower triangular A: the inverse of the matrix of which A is the Cholesky factor."""
    need_matrices("A", matrix.shape)
    factor = wide(matrix)
    one = jnp.broadcast_to(jnp.eye(factor.shape[-1], dtype=factor.dtype), factor.shape)
    inverse = lax.linalg.triangular_solve(factor, one, left_side=True, lower=True)
    return jnp.matmul(_swapped(inverse), inverse).astype(matrix.dtype)


@operator("_linalg_inverse", aliases=("linalg_inverse",), **SQUARE)
def inverse(ctx, attrs, matrix):
    """y = A⁻¹."""
    need_matrices("A", matrix.shape)
    return jnp.linalg.inv(wide(matrix)).astype(matrix.dtype)


@jax.custom_jvp
def _log_det(matrix: Array) -> tuple[Array, Array]:
    """(sign, ln|det A|)."""
    sign, size = jnp.linalg.slogdet(matrix)
    return sign, size


@_log_det.defjvp
def _log_det_jvp(primals, tangents):
    # MXNet: a singular matrix has gradient 0, and the sign never has one
    (matrix,), (change,) = primals, tangents
    sign, size = _log_det(matrix)
    singular = (sign == 0).reshape((*sign.shape, 1, 1))
    safe = jnp.where(singular, jnp.eye(matrix.shape[-1], dtype=matrix.dtype).reshape(_ones(matrix)), matrix)
    slope = jnp.where(singular, jnp.zeros_like(matrix), _swapped(jnp.linalg.inv(safe)))
    return (sign, size), (jnp.zeros_like(sign), jnp.sum(slope * change, (-2, -1)))


def _ones(matrix: Array) -> tuple[int, ...]:
    return (1,) * (matrix.ndim - 2) + matrix.shape[-2:]


def _leading(values: Array, matrix: Array) -> Array:
    return values.reshape(values.shape or (1,)).astype(matrix.dtype)


@operator("_linalg_slogdet", inputs=("A",), outputs=("output0", "output1"), aliases=("linalg_slogdet",), rows=stack_rows)
def slogdet(ctx, attrs, matrix):
    """y₀ = sign of det A, y₁ = ln|det A|; a singular matrix gives 0 and -inf, and gradient 0."""
    need_matrices("A", matrix.shape)
    sign, size = _log_det(wide(matrix))
    return _leading(sign, matrix), _leading(size, matrix)


@operator("_linalg_det", inputs=("A",), outputs=("output0",), aliases=("linalg_det",), rows=stack_rows)
def det(ctx, attrs, matrix):
    """y = det A; a singular matrix has gradient 0, as MXNet has it."""
    need_matrices("A", matrix.shape)
    sign, size = _log_det(wide(matrix))
    return _leading(sign * jnp.exp(size), matrix)


@operator("_linalg_sumlogdiag", inputs=("A",), aliases=("linalg_sumlogdiag",), rows=stack_rows)
def sumlogdiag(ctx, attrs, matrix):
    """y = Σᵢ ln A[i, i]."""
    need_matrices("A", matrix.shape)
    return _leading(jnp.sum(jnp.log(jnp.diagonal(wide(matrix), axis1=-2, axis2=-1)), -1), matrix)


@operator("_linalg_gelqf", inputs=("A",), outputs=("output0", "output1"), aliases=("linalg_gelqf",), rows=stack_rows)
def gelqf(ctx, attrs, matrix):
    """y₀ = Q, y₁ = L with A = L Q: L lower triangular, the rows of Q orthonormal; A has at most as many rows as columns."""
    need_matrices("A", matrix.shape, square=False)
    if matrix.shape[-2] > matrix.shape[-1]:
        raise ValueError(f"A has shape {matrix.shape}, it must not have more rows than columns; transpose it")
    columns, upper = jnp.linalg.qr(_swapped(wide(matrix)))
    return _swapped(columns).astype(matrix.dtype), _swapped(upper).astype(matrix.dtype)


@jax.custom_vjp
def _eigen(matrix: Array) -> tuple[Array, Array]:
    """(U, eigenvalues in ascending order): A = Uᵀ diag(values) U; in each row of U the largest magnitude is positive."""
    vectors, values = lax.linalg.eigh(jnp.tril(matrix) + _swapped(jnp.tril(matrix, -1)), symmetrize_input=False)
    rows = _swapped(vectors)
    largest = jnp.take_along_axis(rows, jnp.argmax(jnp.abs(rows), -1)[..., None], -1)
    return jnp.where(largest < 0, -rows, rows), values


def _eigen_forward(matrix):
    found = _eigen(matrix)
    return found, found


def _eigen_backward(kept, heads):
    rows, values = kept
    d_rows, d_values = heads
    turned = jnp.matmul(d_rows, _swapped(rows))
    gap = values[..., :, None] - values[..., None, :]  # positive below the diagonal
    below = jnp.tril((turned - _swapped(turned)) / (2 * jnp.maximum(gap, CLOSE)), -1)
    diagonal = d_values[..., None] * jnp.eye(rows.shape[-1], dtype=rows.dtype).reshape(_ones(rows))
    inner = diagonal + below + _swapped(below)
    return (jnp.matmul(_swapped(rows), jnp.matmul(inner, rows)),)


_eigen.defvjp(_eigen_forward, _eigen_backward)


@operator("_linalg_syevd", inputs=("A",), outputs=("output0", "output1"), rows=stack_rows)
def syevd(ctx, attrs, matrix):
    """y₀ = U, y₁ = λ with A = Uᵀ diag(λ) U for a symmetric A (its lower half is read); the gradient is symmetric."""
    need_matrices("A", matrix.shape)
    rows, values = _eigen(wide(matrix))
    return rows.astype(matrix.dtype), values.astype(matrix.dtype)
