"""`mx.np.linalg`: linear algebra of jax.numpy, and what MXNet computes with NumPy on the host."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from jfit.mxnet.namespaces import absent
from jfit.mxnet.numpy.functions import host, of_jax

_JAX = "cholesky det eigh eigvalsh inv pinv slogdet solve svd tensorinv tensorsolve"
_HOST = "cond eig eigvals lstsq matrix_power matrix_rank multi_dot qr"  # JAX computes eig on CPUs only


def svd(a: Any) -> tuple[Any, ...]:
    """Compute the singular value decomposition a = (u * s[..., None, :]) @ v.

    Args:
        a: ndarray (..., m, n).

    Returns:
        (u, s, v) of shapes (..., m, k), (..., k) and (..., k, n) with k = min(m, n), s descending.

    Example:
        >>> import jfit.mx as mx
        >>> svd(mx.np.eye(2))[1].tolist()
        [1.0, 1.0]
    """
    return of_jax(jnp.linalg.svd, a, full_matrices=False)


def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    """Compute the norm of a matrix or of vectors.

    Args:
        x: ndarray.
        ord: order, as of numpy.linalg.norm; infinity also as "inf".
        axis: axis of the vectors, or the two axes of the matrices; None: all axes.
        keepdims: whether the axes stay, with size 1.

    Returns:
        ndarray.

    Example:
        >>> import jfit.mx as mx
        >>> norm(mx.np.array([3.0, -4.0]), ord="inf")
        array(4.)
    """
    return of_jax(jnp.linalg.norm, x, ord=np.inf if ord == "inf" else ord, axis=axis, keepdims=keepdims)


@functools.cache
def __getattr__(name: str) -> Callable[..., Any]:
    if name in _JAX.split():
        return functools.partial(of_jax, getattr(jnp.linalg, name))
    if name in _HOST.split():
        return functools.partial(host, f"linalg.{name}", getattr(np.linalg, name))
    absent("mx.np.linalg", name, __dir__())


def __dir__() -> list[str]:
    return sorted(f"{_JAX} {_HOST} norm".split())
