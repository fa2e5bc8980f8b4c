"""The random numbers of the stateful shells: one seed, from which every shell draws its keys in order.

MXNet's scripts call `mx.random.seed(n)` and then build modules; the same calls in the same order give the same keys.
"""

from __future__ import annotations

import jax
from jax import Array

_STATE = {"seed": 0, "drawn": 0}


def seed(number: int) -> None:
    """Start the sequence of keys again.

    Example:
        >>> seed(3)
        >>> first = next_key()
        >>> seed(3)
        >>> bool((jax.random.key_data(next_key()) == jax.random.key_data(first)).all())
        True
    """
    _STATE.update(seed=int(number), drawn=0)


def next_key() -> Array:
    """The next key, typed: fold_in(key(seed); how many were drawn before)."""
    number = _STATE["drawn"]
    _STATE["drawn"] = number + 1
    return jax.random.fold_in(jax.random.key(_STATE["seed"]), number)
