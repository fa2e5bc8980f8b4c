"""Gradients and updates that hold some rows of a table, and what it takes to train those rows alone.

A batch looks up a thousand rows of a table of a million: only these have a gradient.  A rule that gets a `SparseRows`
in place of an array reads and writes no other row, so the update costs what the batch costs, not what the table costs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SparseRows:
    """Some rows of a table (size, ...): row `indices[k]` is `values[k]`; rows named twice are summed, rows not named are 0.

    Attributes:
        indices: int32 (n,), in any order; a number outside 0 .. size - 1 names no row.
        values: (n, ...).
        unique: whether no row is named twice, which `coalesce` makes so.

    Example:
        >>> SparseRows(jnp.array([2, 0, 2]), jnp.array([1.0, 5.0, 2.0])).dense(4).tolist()
        [5.0, 0.0, 3.0, 0.0]
    """

    indices: Array
    values: Array
    unique: bool = dataclasses.field(default=False, metadata={"static": True})

    def dense(self, size: int) -> Array:
        """The whole table, (size, ...)."""
        table = jnp.zeros((size, *self.values.shape[1:]), self.values.dtype)
        return table.at[self.indices].add(self.values, mode="drop", unique_indices=self.unique, wrap_negative_indices=False)

    def gathered(self, axis_name: str) -> SparseRows:
        """The rows of all devices: their sum."""
        return SparseRows(*(lax.all_gather(x, axis_name, tiled=True) for x in (self.indices, self.values)))


def is_rows(x: Any) -> bool:
    """Whether it is a `SparseRows`: the `is_leaf` of trees that hold some.

    Example:
        >>> is_rows(SparseRows(jnp.arange(2), jnp.ones(2)))
        True
    """
    return isinstance(x, SparseRows)


def coalesce(rows: SparseRows, size: int) -> SparseRows:
    """The same rows of a table of `size`, each named once: sorted and summed; what is left of n names no row.

    Args:
        rows: n rows, in any order.
        size: rows of the table.

    Returns:
        n rows; the last of them name `size` and up where some were named twice.

    Example:
        >>> once = coalesce(SparseRows(jnp.array([2, 0, 2]), jnp.array([1.0, 5.0, 2.0])), 4)
        >>> once.indices.tolist(), once.values.tolist()
        ([0, 2, 6], [5.0, 3.0, 0.0])
    """
    if rows.unique:
        return rows
    within = (rows.indices >= 0) & (rows.indices < size)
    numbers = jnp.where(within, rows.indices, size)
    ascending = jnp.sort(numbers)
    first = jnp.concatenate([jnp.ones(1, bool), ascending[1:] != ascending[:-1]])[: len(numbers)]
    # what is left over gets numbers of its own too, as a scatter of unique rows promises
    rest = size + jnp.arange(len(numbers), dtype=numbers.dtype)
    once = rest.at[jnp.cumsum(first) - 1].set(ascending, indices_are_sorted=True)
    place = jnp.searchsorted(once, numbers)  # cheaper than carrying the order through the sort
    return SparseRows(once, jax.ops.segment_sum(rows.values, place, len(numbers)), unique=True)


def stored_rows(table: Array) -> SparseRows:
    """The rows of a whole table that are not all zero.

    Example:
        >>> stored_rows(jnp.array([[0.0, 0.0], [1.0, 0.0]])).indices.tolist()
        [2, 1]
    """
    size = len(table)
    return without(
        SparseRows(jnp.arange(size, dtype=jnp.int32), table, unique=True), ~jnp.any(table.reshape(size, -1), axis=1), size
    )


def without(rows: SparseRows, dropped: Array, size: int) -> SparseRows:
    """The rows but those that are dropped, (n,) or () bool; they name no row any more.

    Example:
        >>> without(SparseRows(jnp.array([1, 3]), jnp.ones(2)), jnp.array([True, False]), 4).indices.tolist()
        [4, 3]
    """
    rest = size + jnp.arange(len(rows.indices), dtype=rows.indices.dtype)
    return dataclasses.replace(rows, indices=jnp.where(dropped, rest, rows.indices))


def read(table: Array, rows: SparseRows) -> Array:
    """The rows of a table (size, ...) that others name; what names no row reads any, its result is to be dropped.

    Example:
        >>> read(jnp.array([4.0, 5.0, 6.0]), SparseRows(jnp.array([2, 0]), jnp.ones(2))).tolist()
        [6.0, 4.0]
    """
    return table.at[rows.indices].get(mode="clip", unique_indices=rows.unique, wrap_negative_indices=False)


def in_rows(update: Callable[..., tuple[Any, Any]], gradient: SparseRows, weight: Array, slots: Any) -> tuple[SparseRows, Any]:
    """`update(gradient, weight, slots)` on the rows that a gradient names; the slots of no other row are read or written.

    Args:
        update: gives (what to add to the weight, new slots).
        gradient: rows of a table.
        weight: the table, (size, ...).
        slots: tree of arrays (size, ...).

    Returns:
        (what to add to those rows, the slots with those rows replaced).

    Example:
        >>> momentum = lambda g, w, m: (0.5 * m - g, 0.5 * m - g)
        >>> delta, slot = in_rows(momentum, SparseRows(jnp.array([1]), jnp.ones(1)), jnp.zeros(3), jnp.full(3, 4.0))
        >>> delta.values.tolist(), slot.tolist()
        ([1.0], [4.0, 1.0, 4.0])
    """
    gradient = coalesce(gradient, len(weight))
    held, kept = jax.tree.map(lambda x: read(x, gradient), (weight, slots))
    # a barrier: rows that were read again after the table was written in place would need a copy of it
    delta, new = lax.optimization_barrier(update(gradient.values, held, kept))
    return dataclasses.replace(gradient, values=delta), jax.tree.map(lambda x, y: _write(x, gradient, y), slots, new)


def apply_updates(params: Any, updates: Any) -> Any:
    """params + updates, as `optax.apply_updates`; of a `SparseRows` only its rows are written, in place if donated.

    Args:
        params: tree of arrays.
        updates: the same tree, of arrays and `SparseRows`.

    Returns:
        The new parameters, in their own dtypes.

    Example:
        >>> apply_updates({"w": jnp.ones(3)}, {"w": SparseRows(jnp.array([1, 1]), jnp.array([1.0, 2.0]))})["w"].tolist()
        [1.0, 4.0, 1.0]
    """

    def add(weight: Any, update: Any) -> Any:
        if not isinstance(update, SparseRows):
            return optax.apply_updates(weight, update)
        update = coalesce(update, len(weight))
        added = lax.optimization_barrier((read(weight, update) + update.values).astype(weight.dtype))
        return _write(weight, update, added)

    return jax.tree.map(add, params, updates)


def on_values(function: Callable[[Any], Any], tree: Any) -> Any:
    """`function(tree)` with each `SparseRows` replaced by its values: for functions that do not care which rows they are.

    Example:
        >>> on_values(lambda g: {"w": g["w"] * 2}, {"w": SparseRows(jnp.array([1]), jnp.ones(1))})["w"].values.tolist()
        [2.0]
    """
    leaves, structure = jax.tree.flatten(tree, is_leaf=is_rows)
    values = structure.flatten_up_to(function(structure.unflatten([x.values if is_rows(x) else x for x in leaves])))
    made = [dataclasses.replace(x, values=y) if is_rows(x) else y for x, y in zip(leaves, values, strict=True)]
    return structure.unflatten(made)


def _write(table: Array, rows: SparseRows, values: Array) -> Array:
    return table.at[rows.indices].set(values, mode="drop", unique_indices=rows.unique, wrap_negative_indices=False)
