"""The random numbers of MXNet's classes: one seed, from which all of them draw their keys in order.

MXNet's scripts call `mx.random.seed(n)` and then build modules; the same calls in the same order give the same keys.  A pure
caller may lend a key of its own for a while.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import jax
from jax import Array

_STATE = {"seed": 0, "drawn": 0}
_local = threading.local()


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
    """The next key, typed: of the use_key one if there is one, else fold_in(key(seed); how many were drawn before)."""
    streams = _local.__dict__.setdefault("streams", [])
    if not streams:
        number = _STATE["drawn"]
        _STATE["drawn"] = number + 1
        return jax.random.fold_in(jax.random.key(_STATE["seed"]), number)
    stream = streams[-1]
    stream[1] += 1
    return stream[0] if stream[1] == 1 else jax.random.fold_in(stream[0], stream[1])


@contextlib.contextmanager
def use_key(key: Array) -> Iterator[None]:
    """Draw from `key` inside the block: the first draw is the key itself.

    Example:
        >>> with use_key(jax.random.key(3)):
        ...     bool(next_key() == jax.random.key(3))
        True
    """
    streams = _local.__dict__.setdefault("streams", [])
    streams.append([key, 0])
    try:
        yield
    finally:
        streams.pop()
