"""Where the random numbers of `jfit.mx` come from: the seed of all shells, or a key that a pure caller lends."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import jax
from jax import Array

from jfit.mxnet import rng

_local = threading.local()


def next_key() -> Array:
    """The next key: of the lent stream if there is one, else of `mx.random.seed`'s."""
    streams = _local.__dict__.setdefault("streams", [])
    if not streams:
        return rng.next_key()
    stream = streams[-1]
    stream[1] += 1
    return stream[0] if stream[1] == 1 else jax.random.fold_in(stream[0], stream[1])


@contextlib.contextmanager
def lent(key: Array) -> Iterator[None]:
    """Draw from `key` inside the block: the first draw is the key itself.

    Example:
        >>> with lent(jax.random.key(3)):
        ...     bool(next_key() == jax.random.key(3))
        True
    """
    streams = _local.__dict__.setdefault("streams", [])
    streams.append([key, 0])
    try:
        yield
    finally:
        streams.pop()
