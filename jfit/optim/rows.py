"""Row-sparse gradients of embedding tables, and updates that touch only the rows with a gradient.

A batch may look up a thousand rows of a table with a million.  Only those rows have a gradient, stored as a `SparseRows`.
An update rule that gets a `SparseRows` reads and writes only those rows, so the cost of an update grows with the batch,
not with the table.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SparseRows:
    """A row-sparse array of shape (size, ...): `values[k]` is added to row `indices[k]`, all other rows are zero.

    Attributes:
        indices: row numbers, int32 of shape (n,), in any order.  Duplicates are summed; numbers outside 0 .. size - 1 are
            ignored.
        values: array of shape (n, ...), one row for each index.
        unique: True if the indices contain no duplicates, as in the result of `coalesce`.

    Example:
        >>> SparseRows(jnp.array([2, 0, 2]), jnp.array([1.0, 5.0, 2.0])).dense(4).tolist()
        [5.0, 0.0, 3.0, 0.0]
    """

    indices: Array
    values: Array
    unique: bool = dataclasses.field(default=False, metadata={"static": True})

    def dense(self, size: int) -> Array:
        """Convert to a dense array of shape (size, ...); `size` is the number of rows of the table."""
        table = jnp.zeros((size, *self.values.shape[1:]), self.values.dtype)
        return table.at[self.indices].add(self.values, mode="drop", unique_indices=self.unique, wrap_negative_indices=False)

    def gathered(self, axis_name: str) -> SparseRows:
        """Sum over devices: concatenate the rows of all devices along the mapped axis `axis_name` (of pmap or shard_map)."""
        return SparseRows(*(lax.all_gather(x, axis_name, tiled=True) for x in (self.indices, self.values)))


def is_rows(x: Any) -> bool:
    """Return whether x is a `SparseRows`; pass it as `is_leaf=` to treat a `SparseRows` as one leaf of a pytree.

    Args:
        x: anything.

    Returns:
        bool.

    Example:
        >>> is_rows(SparseRows(jnp.arange(2), jnp.ones(2)))
        True
    """
    return isinstance(x, SparseRows)


def coalesce(rows: SparseRows, size: int) -> SparseRows:
    """Sum duplicate rows.  The number of rows stays n, so shapes are static.

    Args:
        rows: `SparseRows` with n rows, in any order.
        size: number of rows of the whole table.

    Returns:
        `SparseRows` with n rows and unique indices, in ascending order but for the entry that each duplicate leaves: it has a
        zero value and an out-of-range index (`size` or larger).

    Example:
        >>> once = coalesce(SparseRows(jnp.array([2, 0, 2]), jnp.array([1.0, 5.0, 2.0])), 4)
        >>> once.indices.tolist(), once.values.tolist()
        ([0, 2, 6], [5.0, 3.0, 0.0])
    """
    if rows.unique:
        return rows
    indices = in_range(rows.indices, size)
    ascending = jnp.sort(indices)
    segment = jnp.searchsorted(ascending, indices)  # cheaper than an argsort above
    return SparseRows(distinct(ascending, size), jax.ops.segment_sum(rows.values, segment, len(indices)), unique=True)


def in_range(indices: Array, size: int) -> Array:
    """Return indices of rows with `size` in place of those outside 0 .. size - 1; both int32 of shape (n,).

    Example:
        >>> in_range(jnp.array([2, -1, 0, 9]), 4).tolist()
        [2, 4, 0, 4]
    """
    return jnp.where((indices >= 0) & (indices < size), indices, size)


def distinct(ascending: Array, size: int) -> Array:
    """Return indices of rows without duplicates: each is replaced by another out-of-range index, as unique_indices=True needs.

    Args:
        ascending: sorted indices in 0 .. size, int32 (n,).
        size: number of rows of the table.

    Example:
        >>> distinct(jnp.array([0, 2, 2, 4]), 4).tolist()
        [0, 2, 6, 4]
    """
    is_first = jnp.concatenate([jnp.ones(1, bool), ascending[1:] != ascending[:-1]])[: len(ascending)]
    return jnp.where(is_first, ascending, size + jnp.arange(len(ascending), dtype=ascending.dtype))


def stored_rows(table: Array, stored: Any = None) -> SparseRows:
    """Convert a dense table to `SparseRows`, keeping the rows that are stored.

    Args:
        table: array of shape (size, ...).
        stored: bool of shape (size,), which rows are stored; None: those that are not all zero.

    Returns:
        `SparseRows` with n = size, so that shapes are static; rows that are not stored get an out-of-range index.

    Example:
        >>> stored_rows(jnp.array([[0.0, 0.0], [1.0, 0.0]])).indices.tolist()
        [2, 1]
    """
    size = len(table)
    stored = jnp.any(table.reshape(size, -1), axis=1) if stored is None else stored
    return without(SparseRows(jnp.arange(size, dtype=jnp.int32), table, unique=True), ~stored, size)


def without(rows: SparseRows, dropped: Array, size: int) -> SparseRows:
    """Drop rows by giving them an out-of-range index, so that the number of rows n and all shapes stay the same.

    Args:
        rows: `SparseRows` with n rows.
        dropped: bool of shape (n,) or (); True drops the row.
        size: number of rows of the table.

    Returns:
        The `SparseRows` without the dropped rows.

    Example:
        >>> without(SparseRows(jnp.array([1, 3]), jnp.ones(2)), jnp.array([True, False]), 4).indices.tolist()
        [4, 3]
    """
    out_of_range = size + jnp.arange(len(rows.indices), dtype=rows.indices.dtype)
    return dataclasses.replace(rows, indices=jnp.where(dropped, out_of_range, rows.indices))


def read(table: Array, rows: SparseRows) -> Array:
    """Gather the rows of `table` at `rows.indices`.  Out-of-range indices return an arbitrary row; ignore it.

    Args:
        table: array of shape (size, ...).
        rows: only its n indices are used.

    Returns:
        Array of shape (n, ...).

    Example:
        >>> read(jnp.array([4.0, 5.0, 6.0]), SparseRows(jnp.array([2, 0]), jnp.ones(2))).tolist()
        [6.0, 4.0]
    """
    return table.at[rows.indices].get(mode="clip", unique_indices=rows.unique, wrap_negative_indices=False)


def in_rows(update: Callable[..., tuple[Any, Any]], gradient: SparseRows, weight: Array, slots: Any) -> tuple[SparseRows, Any]:
    """Apply an update rule to the rows with a gradient only; the slots of other rows are neither read nor written.

    Args:
        update: `update(gradient, weight, slots) -> (update to add to the weight, new slots)`, called on arrays of n rows.
        gradient: gradient of the table, with n rows.
        weight: the table, shape (size, ...).
        slots: pytree of per-parameter optimizer state, arrays of shape (size, ...).

    Returns:
        (update, slots): `SparseRows` with the n rows to add to the weight, and the slots with those rows replaced.

    Example:
        >>> momentum = lambda g, w, m: (0.5 * m - g, 0.5 * m - g)
        >>> delta, slot = in_rows(momentum, SparseRows(jnp.array([1]), jnp.ones(1)), jnp.zeros(3), jnp.full(3, 4.0))
        >>> delta.values.tolist(), slot.tolist()
        ([1.0], [4.0, 1.0, 4.0])
    """
    gradient = coalesce(gradient, len(weight))
    weight_rows, slot_rows = jax.tree.map(lambda x: read(x, gradient), (weight, slots))
    # The barrier keeps XLA from gathering the rows a second time after the write, which would need a copy of the whole table.
    delta, new = lax.optimization_barrier(update(gradient.values, weight_rows, slot_rows))
    return dataclasses.replace(gradient, values=delta), jax.tree.map(lambda x, y: _write(x, gradient, y), slots, new)


def add_rows(table: Array, rows: SparseRows) -> Array:
    """Add rows to a table, which is written in place if it is donated.

    Args:
        table: array of shape (size, ...).
        rows: what is added to its rows.

    Returns:
        The new table, in the dtype of `table`.

    Example:
        >>> add_rows(jnp.ones(3), SparseRows(jnp.array([1, 1]), jnp.array([1.0, 2.0]))).tolist()
        [1.0, 4.0, 1.0]
    """
    rows = coalesce(rows, len(table))
    # As in `in_rows`, the barrier keeps XLA from copying the whole table.
    return _write(table, rows, lax.optimization_barrier((read(table, rows) + rows.values).astype(table.dtype)))


def on_values(function: Callable[[Any], Any], tree: Any) -> Any:
    """Call `function(tree)` with each `SparseRows` replaced by its values, and put the results back as `SparseRows`.

    Args:
        function: maps a pytree to one of the same structure; it must compute the same for a row at every index.
        tree: pytree of arrays and `SparseRows`.

    Returns:
        The resulting pytree, with `SparseRows` where the input has them.

    Example:
        >>> on_values(lambda g: {"w": g["w"] * 2}, {"w": SparseRows(jnp.array([1]), jnp.ones(1))})["w"].values.tolist()
        [2.0]
    """
    leaves, structure = jax.tree.flatten(tree, is_leaf=is_rows)
    values = structure.flatten_up_to(function(structure.unflatten([x.values if is_rows(x) else x for x in leaves])))
    results = [dataclasses.replace(x, values=y) if is_rows(x) else y for x, y in zip(leaves, values, strict=True)]
    return structure.unflatten(results)


def _write(table: Array, rows: SparseRows, values: Array) -> Array:
    return table.at[rows.indices].set(values, mode="drop", unique_indices=rows.unique, wrap_negative_indices=False)
