"""Copies and sums of arrays across devices, and writes into `MutableArray`s on other devices."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jfit.mxnet.mutable import MutableArray, as_array, write_into

# arrays of at most _SMALL bytes with the same source, destination and dtype are packed, if there are at least _FEW
_SMALL, _FEW = 1 << 20, 4


def sharding_of(value: Any) -> Any:
    """Return the sharding of a jax.Array; None for a NumPy array.

    Example:
        >>> sharding_of(np.ones(1)) is None
        True
    """
    return value.sharding if isinstance(value, jax.Array) else None


def private_copy(value: Any) -> Any:
    """Return a copy on the same device, committed to it, so that the caller may write to or donate the original."""
    return np.array(value) if isinstance(value, np.ndarray) else jax.device_put(value, value.sharding, may_alias=False)


def committed_copy(value: Any) -> Any:
    """Return a copy committed to a device, so that the caller may write to or donate the original.

    64-bit NumPy data stays a NumPy array on the host.  Committed, because updates with a mix of committed and uncommitted
    arrays would compile twice.
    """
    value = private_copy(value)
    if isinstance(value, jax.Array) or jax.dtypes.canonicalize_dtype(value.dtype) != value.dtype:
        return value
    value = jnp.asarray(value)
    return jax.device_put(value, value.sharding)


def device_put_all(values: Sequence[Any], places: Sequence[Any]) -> list[Any]:
    """Copy arrays to devices with one `jax.device_put`; arrays that are already there are returned unchanged.

    Small arrays with the same source and destination are concatenated for the copy, because each transfer has a fixed cost.

    Args:
        values: arrays.
        places: device or sharding per array, or None to leave the array where it is.

    Returns:
        The arrays on their devices.

    Example:
        >>> device_put_all([np.ones(1)], [jax.local_devices()[0]])[0].devices() == {jax.local_devices()[0]}
        True
    """
    out = list(values)
    single, groups = _routes(out, places)
    keys = [tuple(id(out[i]) for i in group) for group in groups]
    # the same arrays may be copied to several devices: pack them once
    packs = {key: _packed([out[i] for i in group]) for key, group in dict(zip(keys, groups, strict=True)).items()}
    # a CPU device may share memory with a NumPy array, and the caller may write to that
    alone = [np.array(out[i]) if isinstance(out[i], np.ndarray) else out[i] for i in single]
    sources = [*(packs[key] for key in keys), *alone]
    targets = [places[i] for i in (*(group[0] for group in groups), *single)]
    copies = jax.device_put(sources, targets) if sources else []
    for group, pack in zip(groups, copies, strict=False):
        for i, value in zip(group, _unpacked(pack, tuple(out[i].shape for i in group)), strict=True):
            out[i] = value
    for i, value in zip(single, copies[len(groups) :], strict=True):
        out[i] = value
    return out


def _routes(values: Sequence[Any], places: Sequence[Any]) -> tuple[list[int], list[list[int]]]:
    """Return (indices of arrays to copy one by one, groups of indices of arrays to pack into one copy each)."""
    single, routes = [], {}
    for i, (value, place) in enumerate(zip(values, places, strict=True)):
        here = sharding_of(value)
        if place is None or here == place:
            continue
        devices = set() if here is None else here.device_set
        one_device = len(devices) == 1 and getattr(place, "num_devices", 1) == 1
        # an array that is already on that device is only committed to it, without a copy
        if one_device and value.nbytes <= _SMALL and place not in devices:
            routes.setdefault((here, place, value.dtype), []).append(i)
        else:
            single.append(i)
    few = [group for group in routes.values() if len(group) < _FEW]
    return [*single, *(i for group in few for i in group)], [group for group in routes.values() if len(group) >= _FEW]


@jax.jit
def _packed(values: list[jax.Array]) -> jax.Array:
    return jnp.concatenate([value.reshape(-1) for value in values])


@functools.partial(jax.jit, static_argnums=1)
def _unpacked(pack: jax.Array, shapes: tuple[tuple[int, ...], ...]) -> list[jax.Array]:
    ends = np.cumsum([math.prod(shape) for shape in shapes])
    return [part.reshape(shape) for part, shape in zip(jnp.split(pack, ends[:-1]), shapes, strict=True)]


def sum_groups(groups: Sequence[Sequence[Any]]) -> list[Any]:
    """Sum each group of arrays on the device of its first array; one dispatch per device.

    Args:
        groups: non-empty lists of arrays of equal shape, on any devices.

    Returns:
        One array per group; for a group of one the array itself, not a copy.

    Example:
        >>> [a.tolist() for a in sum_groups([[np.ones(2), np.ones(2)], [np.zeros(1)]])]
        [[2.0, 2.0], [0.0]]
    """
    sums = [group[0] for group in groups]
    many = [i for i, group in enumerate(groups) if len(group) > 1]
    for where in {sharding_of(groups[i][0]): None for i in many}:
        local = [i for i in many if sharding_of(groups[i][0]) == where]
        flat = [value for i in local for value in groups[i]]
        here = iter(device_put_all(flat, [where] * len(flat)))
        for i, value in zip(local, _added([[next(here) for _ in groups[i]] for i in local]), strict=True):
            sums[i] = value
    return sums


def write(pairs: Sequence[tuple[Any, Any]]) -> None:
    """Write values into mutable arrays in place; each stays on its device, and all values are copied in one transfer.

    Args:
        pairs: (MutableArray or NumPy array, new value of the same shape).

    Raises:
        TypeError: the destination is a jax.Array, which is immutable.

    Example:
        >>> cell = MutableArray(np.zeros(2))
        >>> write([(cell, np.ones(2))])
        >>> cell.asnumpy().tolist()
        [1.0, 1.0]
    """
    current: list[Any] = [cell.value if isinstance(cell, MutableArray) else None for cell, _ in pairs]
    values = device_put_all([as_array(value) for _, value in pairs], [sharding_of(old) for old in current])
    for (cell, _), old, value in zip(pairs, current, values, strict=True):
        if isinstance(old, jax.Array) and isinstance(value, jax.Array) and (old.shape, old.dtype) == (value.shape, value.dtype):
            cell.value = value  # fast path: nothing to cast or broadcast
        else:
            write_into(cell, value)


def only_rows(value: Any, rows: np.ndarray) -> Any:
    """Return a copy of an array in which all rows except the given ones are 0; `value` is not changed.

    Args:
        value: array (rows, ...).
        rows: row indices to keep, in any order, repeats allowed.

    Returns:
        Array of the shape and dtype of `value`.

    Raises:
        IndexError: a row index is out of range.

    Example:
        >>> only_rows(np.ones(3), np.array([2, 2])).tolist()
        [0.0, 0.0, 1.0]
    """
    rows = np.asarray(rows).astype(np.int64).reshape(-1)
    if rows.size and not 0 <= rows.min() <= rows.max() < value.shape[0]:
        raise IndexError(f"row_ids are from {rows.min()} to {rows.max()}, but the array has rows 0 to {value.shape[0] - 1}.")
    keep = np.zeros(value.shape[0], bool)
    keep[rows] = True
    return jnp.where(keep.reshape(-1, *[1] * (value.ndim - 1)), value, 0)


@jax.jit
def _added(groups: list[list[jax.Array]]) -> list[jax.Array]:
    return [sum(group[1:], start=group[0]) for group in groups]
