"""Arrays on several devices: where they live, their sums, and how they get into cells that live elsewhere."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jfit.mxnet.mutable import MutableArray, as_array, write_into

# bytes up to which an array is packed with others that go the same way, and from how many of them on
_SMALL, _FEW = 1 << 20, 4


def sharding_of(value: Any) -> Any:
    """Where an array lives: its sharding, or None for an array of the host.

    Example:
        >>> sharding_of(np.ones(1)) is None
        True
    """
    return value.sharding if isinstance(value, jax.Array) else None


def private_copy(value: Any) -> Any:
    """A copy where the array lives, committed: the owner of the array can neither write to it nor donate it."""
    return np.array(value) if isinstance(value, np.ndarray) else jax.device_put(value, value.sharding, may_alias=False)


def committed_copy(value: Any) -> Any:
    """The array, committed to a device, in memory that nobody else can write to or donate; 64-bit data stays on the host.

    An update of arrays that are committed and others that are not would compile twice.
    """
    value = private_copy(value)
    if isinstance(value, jax.Array) or jax.dtypes.canonicalize_dtype(value.dtype) != value.dtype:
        return value
    value = jnp.asarray(value)
    return jax.device_put(value, value.sharding)


def moved(values: Sequence[Any], places: Sequence[Any]) -> list[Any]:
    """The arrays at their new places, in one transfer; those that are there, or whose place is None, stay as they are.

    Small arrays that go the same way travel as one: a transfer costs more than packing them.

    Args:
        values: arrays.
        places: a device or sharding for each, or None.

    Example:
        >>> moved([np.ones(1)], [jax.local_devices()[0]])[0].devices() == {jax.local_devices()[0]}
        True
    """
    out = list(values)
    alone, together = _routes(out, places)
    packs: dict[Any, Any] = {}  # the same arrays may go to several places
    leaving, targets = [], []
    for way in together:
        what = tuple(id(out[i]) for i in way)
        if what not in packs:
            packs[what] = _packed([out[i] for i in way])
        leaving.append(packs[what])
        targets.append(places[way[0]])
    for i in alone:
        # a device of the host may share memory with a numpy array, which its owner may write to
        leaving.append(np.array(out[i]) if isinstance(out[i], np.ndarray) else out[i])
        targets.append(places[i])
    arrived = jax.device_put(leaving, targets) if leaving else []
    for way, pack in zip(together, arrived, strict=False):
        for i, value in zip(way, _unpacked(pack, tuple(out[i].shape for i in way)), strict=True):
            out[i] = value
    for i, value in zip(alone, arrived[len(together) :], strict=True):
        out[i] = value
    return out


def _routes(values: Sequence[Any], places: Sequence[Any]) -> tuple[list[int], list[list[int]]]:
    """(numbers of the arrays that travel alone, and of those that travel together)."""
    alone, ways = [], {}
    for i, (value, place) in enumerate(zip(values, places, strict=True)):
        here = sharding_of(value)
        if place is None or here == place:
            continue
        devices = set() if here is None else here.device_set
        single = len(devices) == 1 and getattr(place, "num_devices", 1) == 1
        # what is on that device already is committed to it there, without a copy
        if single and value.nbytes <= _SMALL and place not in devices:
            ways.setdefault((here, place, value.dtype), []).append(i)
        else:
            alone.append(i)
    few = [way for way in ways.values() if len(way) < _FEW]
    return [*alone, *(i for way in few for i in way)], [way for way in ways.values() if len(way) >= _FEW]


@jax.jit
def _packed(values: list[jax.Array]) -> jax.Array:
    return jnp.concatenate([value.reshape(-1) for value in values])


@functools.partial(jax.jit, static_argnums=1)
def _unpacked(pack: jax.Array, shapes: tuple[tuple[int, ...], ...]) -> list[jax.Array]:
    ends = np.cumsum([math.prod(shape) for shape in shapes])
    starts = [0, *ends[:-1].tolist()]
    return [pack[a:b].reshape(shape) for a, b, shape in zip(starts, ends.tolist(), shapes, strict=True)]


def total(groups: Sequence[Sequence[Any]]) -> list[Any]:
    """Sum of each group of arrays, on the device of its first one; one dispatch for all groups of a device.

    Example:
        >>> [a.tolist() for a in total([[np.ones(2), np.ones(2)], [np.zeros(1)]])]
        [[2.0, 2.0], [0.0]]
    """
    sums = [group[0] for group in groups]
    many = [i for i, group in enumerate(groups) if len(group) > 1]
    for where in {sharding_of(groups[i][0]): None for i in many}:
        mine = [i for i in many if sharding_of(groups[i][0]) == where]
        flat = [value for i in mine for value in groups[i]]
        here = iter(moved(flat, [where] * len(flat)))
        for i, value in zip(mine, _added([[next(here) for _ in groups[i]] for i in mine]), strict=True):
            sums[i] = value
    return sums


def write(pairs: Sequence[tuple[Any, Any]]) -> None:
    """Write values into cells; each cell stays on its device, and all values travel in one transfer.

    Args:
        pairs: (a MutableArray or a numpy array, its value of the same shape).

    Raises:
        TypeError: a jax.Array instead of a cell.

    Example:
        >>> cell = MutableArray(np.zeros(2))
        >>> write([(cell, np.ones(2))])
        >>> cell.asnumpy().tolist()
        [1.0, 1.0]
    """
    held: list[Any] = [cell.value if isinstance(cell, MutableArray) else None for cell, _ in pairs]
    values = moved([as_array(value) for _, value in pairs], [sharding_of(old) for old in held])
    for (cell, _), old, value in zip(pairs, held, values, strict=True):
        if isinstance(old, jax.Array) and isinstance(value, jax.Array) and (old.shape, old.dtype) == (value.shape, value.dtype):
            cell.value = value  # nothing to cast or broadcast
        else:
            write_into(cell, value)


def only_rows(value: Any, rows: np.ndarray) -> Any:
    """The array with all rows 0 but those given.

    Args:
        value: (rows, ...).
        rows: row numbers, in any order, repeats allowed.

    Raises:
        IndexError: a row number that the array does not have.

    Example:
        >>> only_rows(np.ones(3), np.array([2, 2])).tolist()
        [0.0, 0.0, 1.0]
    """
    rows = np.asarray(rows).astype(np.int64).reshape(-1)
    if rows.size and not 0 <= rows.min() <= rows.max() < value.shape[0]:
        raise IndexError(f"row_ids go from {rows.min()} to {rows.max()}; the array has rows 0 to {value.shape[0] - 1}.")
    keep = np.zeros(value.shape[0], bool)
    keep[rows] = True
    return jnp.where(keep.reshape(-1, *[1] * (value.ndim - 1)), value, 0)


@jax.jit
def _added(groups: list[list[jax.Array]]) -> list[jax.Array]:
    return [sum(group[1:], start=group[0]) for group in groups]


def largest(arrays: Mapping[str, Any]) -> int:
    """How many values the largest array holds."""
    return max((int(np.prod(a.shape, dtype=np.int64)) for a in arrays.values()), default=0)
