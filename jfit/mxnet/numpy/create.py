"""Functions that create `mx.np.ndarray`s; the default dtype is float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jfit.mxnet.mutable import MutableArray
from jfit.mxnet.ndarray import create
from jfit.mxnet.ndarray.array import NDArray, copy_as
from jfit.mxnet.numpy.arrays import compute, ndarray, write


def array(object: Any, dtype: Any = None, ctx: Any = None) -> ndarray:
    """Create an ndarray by copying an array-like.

    Args:
        object: ndarray, JAX array, NumPy array, nested list or number.
        dtype: by default that of an array, and float32 for lists and numbers.  64-bit dtypes are kept on the host until the
            first computation.
        ctx: device; the current context by default.

    Raises:
        TypeError: a nested list is ragged.
        ValueError: the source is an `mx.nd.NDArray`.

    Example:
        >>> array([[1, 2], [3, 4]])
        array([[1., 2.],
               [3., 4.]])
    """
    if isinstance(object, NDArray) and not isinstance(object, ndarray):
        raise ValueError("mx.np.array does not take an mx.nd.NDArray; use its method as_np_ndarray(), which does not copy")
    if dtype is None:
        dtype = getattr(object, "dtype", np.float32)
    if not isinstance(object, (MutableArray, jax.Array)):
        try:
            object = np.array(object, dtype)
        except ValueError as error:
            raise TypeError(str(error)) from None
    return ndarray(copy_as(object, dtype, ctx))


def full(shape: Any, fill_value: Any, dtype: Any = None, order: str = "C", ctx: Any = None, out: Any = None) -> ndarray:
    """Create an ndarray filled with one value.

    Args:
        shape: int or tuple.
        fill_value: number, or an array that broadcasts to the shape.
        dtype: float32 by default.
        order: accepted and ignored; XLA chooses the layout in memory.
        ctx: device; the current context by default.
        out: ndarray to write into instead.

    Example:
        >>> full((2,), 3, dtype="int32")
        array([3, 3], dtype=int32)
    """
    if isinstance(fill_value, (NDArray, np.ndarray)):
        return write(out, array(np.broadcast_to(np.asarray(fill_value), shape), dtype, ctx))
    dtype = (bool if isinstance(fill_value, (bool, np.bool_)) else np.float32) if dtype is None else dtype
    return write(out, ndarray(create.full(shape, fill_value, ctx, dtype).value))


def zeros(shape: Any, dtype: Any = np.float32, order: str = "C", ctx: Any = None) -> ndarray:
    """Create an ndarray of zeros, see `full`."""
    return full(shape, 0, dtype or np.float32, order, ctx)


def ones(shape: Any, dtype: Any = np.float32, order: str = "C", ctx: Any = None) -> ndarray:
    """Create an ndarray of ones, see `full`."""
    return full(shape, 1, dtype or np.float32, order, ctx)


empty = zeros


def full_like(a: Any, fill_value: Any, dtype: Any = None, order: str = "C", ctx: Any = None, out: Any = None) -> ndarray:
    """Create an ndarray of the shape, dtype and device of `a`, filled with one value; a symbol if `a` is one."""
    if not isinstance(a, NDArray):
        return compute(jnp.full_like, (a, fill_value), {"dtype": dtype and jax.dtypes.canonicalize_dtype(np.dtype(dtype))})
    return full(a.shape, fill_value, dtype or a.dtype, order, ctx or a.ctx, out)


def zeros_like(a: Any, dtype: Any = None, order: str = "C", ctx: Any = None, out: Any = None) -> ndarray:
    """Create an ndarray of zeros of the shape, dtype and device of `a`."""
    return full_like(a, 0, dtype, order, ctx, out)


def ones_like(a: Any, dtype: Any = None, order: str = "C", ctx: Any = None, out: Any = None) -> ndarray:
    """Create an ndarray of ones of the shape, dtype and device of `a`."""
    return full_like(a, 1, dtype, order, ctx, out)


def empty_like(prototype: Any, dtype: Any = None, order: str = "C", subok: bool = False, shape: Any = None) -> ndarray:
    """Create an ndarray of the shape, dtype and device of `prototype`, to be written later; it is filled with 0."""
    return zeros_like(prototype, dtype, order)


def _of_numpy(fn: Callable[..., Any], default: Any = np.float32) -> Callable[..., Any]:
    def make(*args: Any, dtype: Any = None, ctx: Any = None, **kwargs: Any) -> Any:
        made = fn(*args, **kwargs)
        if isinstance(made, tuple):  # linspace(retstep=True)
            return array(made[0], dtype or default, ctx), made[1]
        return array(made, dtype or default, ctx)

    make.__name__ = make.__qualname__ = fn.__name__
    make.__doc__ = f"Create the ndarray that `numpy.{fn.__name__}` returns, of dtype {np.dtype(default).name} by default."
    return make


def arange(start: Any, stop: Any = None, step: Any = 1, dtype: Any = None, ctx: Any = None) -> ndarray:
    """Create an ndarray of evenly spaced values in [start, stop); with one argument in [0, start).

    Example:
        >>> arange(1, 4)
        array([1., 2., 3.])
    """
    return array(np.arange(start, stop, step), dtype or np.float32, ctx)


linspace, logspace = _of_numpy(np.linspace), _of_numpy(np.logspace)
eye, identity, indices = _of_numpy(np.eye), _of_numpy(np.identity), _of_numpy(np.indices, np.int32)
hanning, hamming, blackman = _of_numpy(np.hanning), _of_numpy(np.hamming), _of_numpy(np.blackman)
genfromtxt = _of_numpy(np.genfromtxt)
