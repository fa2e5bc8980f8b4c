"""Split a batch over devices into slices that may have different numbers of rows (`work_load_list`).

All devices run the same program, so shorter slices are padded with rows of weight 0, which are removed from the outputs.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jfit.data.batch import Batch, rows
from jfit.ops.rows import MaybeLayout, RowLayout
from jfit.parallel.devices import merge_row_axis, split_batch, split_row_axis, split_rows


def split_slices(batch: Batch, counts: Sequence[int], axes: Mapping[str, int] | None = None) -> Batch:
    """Return the batch split into `counts[d]` rows for device d, (devices, slots, ...) with slots = max(counts).

    Shorter slices are padded by repeating rows with weight 0.  axes: batch axis by input name, where it is not axis 0.

    Example:
        >>> import numpy as np
        >>> from jfit.data import Batch
        >>> cut = split_slices(Batch({"data": np.arange(3.0)}), [1, 2])
        >>> cut.inputs["data"].tolist(), cut.weight.tolist()
        ([[0.0, 0.0], [1.0, 2.0]], [[1.0, 0.0], [1.0, 1.0]])
    """
    if len(counts) == 1:
        return batch
    if len(set(counts)) == 1:
        return split_batch(batch, len(counts), axes)
    table, real = row_table(tuple(counts))  # both (devices, slots)
    size = rows(batch, axes)

    def cut(value: Any, axis: int = 0) -> Any:
        lib = jnp if isinstance(value, jax.Array) else np
        if np.shape(value)[axis : axis + 1] != (size,):  # an input without a row axis: the same on every device
            return lib.broadcast_to(value, (len(counts), *np.shape(value)))
        taken = lib.take(value, table.reshape(-1), axis=axis)
        return split_rows(taken, len(counts), axis)

    split = {k: cut(v, (axes or {}).get(k, 0)) for k, v in batch.inputs.items()}
    weight = real if batch.weight is None else cut(batch.weight) * real
    metric_weight = weight if batch.metric_weight is None else cut(batch.metric_weight) * real
    return Batch(split, weight, metric_weight)


@functools.lru_cache(maxsize=64)
def row_table(counts: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return (row index of each slot, weight of the slot), both (devices, slots) with slots = max(counts).

    The weight is 1, or 0 for padding.
    """
    starts, longest = np.cumsum([0, *counts[:-1]]), max(counts)
    table = np.stack([start + np.arange(longest) % count for start, count in zip(starts, counts, strict=True)])
    return table, np.stack([(np.arange(longest) < count) for count in counts]).astype(np.float32)


@functools.partial(jax.jit, static_argnums=(1, 2))
def merge_slices(
    outputs: tuple[jax.Array, ...], rows: tuple[MaybeLayout, ...], counts: tuple[int, ...]
) -> tuple[jax.Array, ...]:
    """Concatenate per-device outputs along the row axis, without padding: (devices, slots, ...) -> (sum(counts), ...).

    Outputs without a row axis are concatenated along axis 0, as in MXNet.
    """
    return tuple(
        jnp.concatenate(slices_of(out, where, counts), axis=where.axis if isinstance(where, RowLayout) else 0)
        for out, where in zip(outputs, rows, strict=True)
    )


def slices_of(out: jax.Array, where: MaybeLayout, counts: Sequence[int]) -> list[jax.Array]:
    """Split a per-device output (leading device axis) into one array for each device, without its padding rows.

    where: `RowLayout` of the output (which axis has the rows), else it has no rows and only the device axis is split.
    """
    if not isinstance(where, RowLayout):
        return [jnp.atleast_1d(piece) for piece in out]
    return [merge_row_axis(split_row_axis(p, where), where.axis, count) for p, count in zip(out, counts, strict=True)]


def drop_rows(out: Array, where: MaybeLayout, rows: int, without: int) -> Array:
    """Return an output without the last `without` of its `rows` rows; `where` is its `RowLayout` (the axis of the rows)."""
    if not out.ndim:
        return out
    if isinstance(where, RowLayout) and where.before == 1:
        return jax.lax.slice_in_dim(out, 0, (rows - without) * where.after, axis=where.axis)
    return out[: out.shape[0] - without]


@functools.partial(jax.jit, static_argnums=(1, 2))
def dense_rows(gradient: Any, size: int, several: bool) -> Array:
    """Return the gradient of some rows of a table (SparseRows) as an array of `size` rows, per device if there are several."""
    return jax.vmap(lambda each: each.dense(size))(gradient) if several else gradient.dense(size)
