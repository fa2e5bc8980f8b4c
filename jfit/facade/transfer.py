"""Arrays on several devices: where they live, their sums, and how they get into cells that live elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jfit.facade.box import Box, unbox, write_into


def home(value: Any) -> Any:
    """Where an array lives: its sharding, or None for an array of the host.

    Example:
        >>> home(np.ones(1)) is None
        True
    """
    return value.sharding if isinstance(value, jax.Array) else None


def own(value: Any) -> Any:
    """The array, committed to its device, in memory that nobody else can write to; 64-bit data stays on the host.

    An update of arrays that are committed and others that are not would compile twice.
    """
    if isinstance(value, np.ndarray):
        value = np.array(value)
        if jax.dtypes.canonicalize_dtype(value.dtype) != value.dtype:
            return value
        value = jnp.asarray(value)
    return jax.device_put(value, value.sharding)


def moved(values: Sequence[Any], places: Sequence[Any]) -> list[Any]:
    """The arrays at their new places, in one transfer; those that are there, or whose place is None, stay as they are.

    Args:
        values: arrays.
        places: a device or sharding for each, or None.

    Example:
        >>> moved([np.ones(1)], [jax.local_devices()[0]])[0].devices() == {jax.local_devices()[0]}
        True
    """
    out = list(values)
    going = [i for i, place in enumerate(places) if place is not None and home(out[i]) != place]
    if going:
        # a device of the host may share memory with a numpy array, which its owner may write to
        leaving = [np.array(out[i]) if isinstance(out[i], np.ndarray) else out[i] for i in going]
        arrived = jax.device_put(leaving, [places[i] for i in going])
        for i, value in zip(going, arrived, strict=True):
            out[i] = value
    return out


def total(groups: Sequence[Sequence[Any]]) -> list[Any]:
    """Sum of each group of arrays, on the device of its first one; one dispatch for all groups of a device.

    Example:
        >>> [a.tolist() for a in total([[np.ones(2), np.ones(2)], [np.zeros(1)]])]
        [[2.0, 2.0], [0.0]]
    """
    sums = [group[0] for group in groups]
    many = [i for i, group in enumerate(groups) if len(group) > 1]
    for where in {home(groups[i][0]): None for i in many}:
        mine = [i for i in many if home(groups[i][0]) == where]
        flat = [value for i in mine for value in groups[i]]
        here = iter(moved(flat, [where] * len(flat)))
        for i, value in zip(mine, _added([[next(here) for _ in groups[i]] for i in mine]), strict=True):
            sums[i] = value
    return sums


def write(pairs: Sequence[tuple[Any, Any]]) -> None:
    """Write values into cells; each cell stays on its device, and all values travel in one transfer.

    Args:
        pairs: (a Box or a numpy array, its value of the same shape).

    Raises:
        TypeError: a jax.Array instead of a cell.

    Example:
        >>> cell = Box(np.zeros(2))
        >>> write([(cell, np.ones(2))])
        >>> cell.asnumpy().tolist()
        [1.0, 1.0]
    """
    places = [home(cell.value) if isinstance(cell, Box) else None for cell, _ in pairs]
    values = moved([unbox(value) for _, value in pairs], places)
    for (cell, _), value in zip(pairs, values, strict=True):
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
