"""Random keys for the classes of `jfit.mxnet`, all derived from one global seed.

MXNet scripts call `mx.random.seed(n)` and then create modules; the same calls in the same order give the same keys.
`with use_key(key):` derives the keys from an explicit key instead.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import jax
from jax import Array

from jfit import checks

_STATE = {"seed": 0, "count": 0}  # count: number of keys derived since the seed was set
_local = threading.local()


def seed(seed_state: int, ctx: Any = "all") -> None:
    """Set the global seed of `jfit.mx`; the same calls after the same seed give the same random numbers.

    Args:
        seed_state: the seed, an integer.
        ctx: accepted and ignored; the seed applies to all devices.

    Raises:
        ValueError: the seed is not an integer.

    Example:
        >>> seed(3)
        >>> first = next_key()
        >>> seed(3)
        >>> bool((jax.random.key_data(next_key()) == jax.random.key_data(first)).all())
        True
    """
    checks.integer(seed_state=seed_state)
    _STATE.update(seed=int(seed_state), count=0)


def position() -> tuple[int, int]:
    """Return (seed, number of keys derived since it was set), which determine the next keys.

    Example:
        >>> seed(3)
        >>> position()
        (3, 0)
    """
    return _STATE["seed"], _STATE["count"]


def next_key() -> Array:
    """Return the next typed key: fold_in(key(seed), n) for the n-th call, or a key derived from that of `use_key`.

    Returns:
        Scalar key array.

    Example:
        >>> bool(next_key() == next_key())
        False
    """
    streams = _local.__dict__.setdefault("streams", [])
    if not streams:
        from jfit.init.sampling import folded_seed  # which `import jfit.mx` does not have to wait for

        number = _STATE["count"]
        _STATE["count"] = number + 1
        key = folded_seed(_STATE["seed"], number)
        return jax.random.fold_in(jax.random.key(_STATE["seed"]), number) if key is None else key
    stream = streams[-1]
    stream[1] += 1
    return stream[0] if stream[1] == 1 else jax.random.fold_in(stream[0], stream[1])


@contextlib.contextmanager
def use_key(key: Array) -> Iterator[None]:
    """Context manager in which `next_key` derives its keys from `key`; the first one is `key` itself.

    Args:
        key: scalar typed key.

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
