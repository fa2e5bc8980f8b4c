"""Checks of the arrays of a state: replicas that differ, and arrays that share a buffer."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from jfit import counters


def check_replicas(tree: Any) -> None:
    """Check on the host that all devices have the same bits of each replicated array.

    JAX takes it for granted that the copies of a replicated array are equal.  They differ if a function of yours returns values
    of one device as replicated, or if memory is damaged.

    Args:
        tree: pytree of arrays, such as a `TrainState`.  Of an array that is split over devices, only parts that several devices
            have are compared; other leaves are ignored.

    Raises:
        ValueError: two devices have different values.

    Example:
        >>> import jax, jfit, numpy as np
        >>> check_replicas(jfit.parallel.place({"w": np.ones(3)}, jax.local_device_count()))
    """
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if not isinstance(leaf, jax.Array) or len(leaf.sharding.device_set) == 1:
            continue
        shards = leaf.addressable_shards
        values = counters.read([counters.key_data(shard.data) for shard in shards])  # sync: a check that the caller asked for
        first: dict[Any, int] = {}  # part of the array -> position of the first shard that has it
        for i, (shard, value) in enumerate(zip(shards, values, strict=True)):
            part = tuple((s.start, s.stop, s.step) if isinstance(s, slice) else s for s in shard.index)
            j = first.setdefault(part, i)
            if value.tobytes() != values[j].tobytes():
                raise ValueError(_difference(path, leaf, (shards[j].device, values[j]), (shard.device, value)))


def _difference(path: Any, leaf: jax.Array, one: tuple[Any, np.ndarray], other: tuple[Any, np.ndarray]) -> str:
    (device, value), (other_device, other_value) = one, other
    bits = [np.frombuffer(v.tobytes(), np.uint8).reshape(-1, value.dtype.itemsize) for v in (value, other_value)]
    differ = np.flatnonzero((bits[0] != bits[1]).any(axis=1))
    at, index = differ[0], tuple(int(i) for i in np.unravel_index(differ[0], value.shape))
    return (
        f"the replicas of {jax.tree_util.keystr(path) or 'the array'} {leaf.shape} differ: {len(differ)} of {value.size} "
        f"elements on {device} and {other_device}, first at {index}: {value.reshape(-1)[at]} and "
        f"{other_value.reshape(-1)[at]}; a function inside pmap or shard_map returned values of one device as replicated: "
        "reduce them with lax.psum or lax.pmean first"
    )


def shares_buffers(tree: Any, by_address: bool) -> bool:
    """Return whether two leaves of a pytree have the same buffer, so that the tree cannot be donated.

    Args:
        tree: pytree of arrays.
        by_address: also find different arrays with one buffer, such as the result of `jax.device_put` to the same device; waits
            until the arrays are computed.
    """
    seen = set()
    for leaf in jax.tree.leaves(tree):
        if not isinstance(leaf, jax.Array) or not leaf.size:
            continue
        buffer: Any = id(leaf)
        if by_address and not counters.is_key(leaf) and not leaf.is_deleted():
            data = leaf.addressable_shards[0].data
            buffer = data.device, data.unsafe_buffer_pointer()
        if buffer in seen:
            return True
        seen.add(buffer)
    return False
