"""`mx.random`: the seed, and eager draws from its sequence of keys."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from jfit.facade import rng
from jfit.mx.keys import next_key
from jfit.mx.nd.array import NDArray, held


def seed(seed_state: int, ctx: Any = "all") -> None:
    """Start the random numbers of everything in `jfit.mx` again; the same calls then give the same numbers.

    Example:
        >>> seed(7)
        >>> first = uniform(shape=2).asnumpy().tolist()
        >>> seed(7)
        >>> uniform(shape=2).asnumpy().tolist() == first
        True
    """
    rng.seed(int(seed_state))


def uniform(low: float = 0, high: float = 1, shape: Any = None, dtype: Any = None, ctx: Any = None, out: Any = None) -> NDArray:
    """y ~ U(low, high)."""
    return _made(lambda key, size: jax.random.uniform(key, size, minval=low, maxval=high), shape, dtype, ctx, out)


def normal(loc: float = 0, scale: float = 1, shape: Any = None, dtype: Any = None, ctx: Any = None, out: Any = None) -> NDArray:
    """y ~ N(loc, scale²)."""
    return _made(lambda key, size: loc + scale * jax.random.normal(key, size), shape, dtype, ctx, out)


def randn(*shape: int, loc: float = 0, scale: float = 1, dtype: Any = None, ctx: Any = None, out: Any = None) -> NDArray:
    """y ~ N(loc, scale²) of the shape given by position."""
    return normal(loc, scale, shape, dtype, ctx, out)


def randint(low: int, high: int, shape: Any = None, dtype: Any = "int32", ctx: Any = None, out: Any = None) -> NDArray:
    """Whole numbers from low to high - 1, equally likely."""
    return _made(lambda key, size: jax.random.randint(key, size, low, high), shape, dtype, ctx, out)


def shuffle(data: Any) -> NDArray:
    """The rows in a random order."""
    return NDArray(jax.random.permutation(next_key(), jax.numpy.asarray(data)))


def _made(draw: Any, shape: Any, dtype: Any, ctx: Any, out: Any) -> NDArray:
    if out is not None:
        out[:] = draw(next_key(), out.shape)
        return out
    size = (1,) if shape is None else (int(shape),) if isinstance(shape, (int, np.integer)) else tuple(shape)
    return NDArray(held(draw(next_key(), size), np.float32 if dtype is None else dtype, ctx))
