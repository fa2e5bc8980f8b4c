"""Running sums that keep what their additions round off, in numpy or JAX arrays."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array


def xp(x: Any) -> Any:
    """numpy or jax.numpy, whichever `x` belongs to."""
    return jnp if isinstance(x, jax.Array) else np


def divide(value: Any, count: Any) -> Any:
    """value / count, nan for a count of 0; numpy in, numpy out."""
    lib = xp(count)
    return lib.where(count > 0, value / lib.maximum(count, 1), np.float32(np.nan))


# ------------------------------------------------------------------------------------------------ a float sum and a count
def zero_mean() -> tuple[Array, Array, Array]:
    """(sum, what its additions rounded off, count), each its own buffer."""
    return jnp.zeros((), jnp.float32), jnp.zeros((), jnp.float32), jnp.zeros((), jnp.int32)


def kahan(running: tuple[Array, Array, Array], value: Array, count: Array) -> tuple[Array, Array, Array]:
    """Running sums with `value` added, unless its count is 0; what the addition rounds off goes to the next one."""
    sum_, lost, number = running
    part = jnp.where(count > 0, value, 0.0) - lost
    grown = sum_ + part
    return grown, finite(grown, (grown - sum_) - part), number + count


def finite(grown: Array, lost: Array) -> Array:
    """What an addition rounded off; 0 beside an infinite sum, which stays infinite: inf - inf would be nan."""
    return jnp.where(jnp.isfinite(grown), lost, 0.0)


# ------------------------------------------------------------------------------------------------ many float sums
def nothing(*shape: int) -> Array:
    """Sums of zero, (2, *shape) float32: [0] the sums, [1] what their additions rounded off; the value is the sum of both."""
    return jnp.zeros((2, *shape), jnp.float32)


def added(running: Array, values: Array) -> Array:
    """Sums of `nothing` with `values` added: exact to about 48 bits, so counts in them are exact beyond 2^24.

    Example:
        >>> big = added(nothing(1), jnp.array([2.0**24]))
        >>> np.asarray(added(big, jnp.ones(1)), np.float64).sum(axis=0).tolist()
        [16777217.0]
    """
    high, low = running[0], running[1]
    grown, lost = two_sum(high, values)
    return jnp.stack([grown, low + lost])


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """(a + b rounded, what was rounded off); both exact together.

    Source: D. E. Knuth, The Art of Computer Programming 2, 4.2.2, theorem B.
    """
    grown = a + b
    other = grown - a
    return grown, finite(grown, (a - (grown - other)) + (b - other))


def exact(running: Any) -> Any:
    """The values of sums made by `added`: float64 on the host, float32 on a device."""
    if isinstance(running, jax.Array):
        return running[0] + running[1]
    return np.asarray(running, np.float64).sum(axis=0)
