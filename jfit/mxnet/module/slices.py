"""Slices of a batch that need not be of one length: a context may carry more rows than another (`work_load_list`).

Devices run one program, so shorter slices are filled up with rows of weight 0; outputs lose them again.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jfit.data.batch import Batch, rows
from jfit.ops.rows import MaybeLayout, RowLayout
from jfit.parallel.devices import merge_row_axis, split_batch, split_row_axis, split_rows


def split_slices(batch: Batch, counts: Sequence[int], axes: Mapping[str, int] | None = None) -> Batch:
    """A batch cut into `counts[d]` rows for device d; shorter slices repeat their rows, with weight 0, up to the longest.

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
    table, real = slots_of(tuple(counts))
    size = rows(batch, axes)

    def cut(value: Any, axis: int = 0) -> Any:
        lib = jnp if isinstance(value, jax.Array) else np
        if np.shape(value)[axis : axis + 1] != (size,):  # an input without rows: the same on every device
            return lib.broadcast_to(value, (len(counts), *np.shape(value)))
        taken = lib.take(value, table.reshape(-1), axis=axis)
        return split_rows(taken, len(counts), axis)

    split = {k: cut(v, (axes or {}).get(k, 0)) for k, v in batch.inputs.items()}
    weight = real if batch.weight is None else cut(batch.weight) * real
    counted = weight if batch.metric_weight is None else cut(batch.metric_weight) * real
    return Batch(split, weight, counted)


@functools.lru_cache(maxsize=64)
def slots_of(counts: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """(row number of each slot, 1 where a slot is real), both (devices, slots)."""
    starts, longest = np.cumsum([0, *counts[:-1]]), max(counts)
    table = np.stack([start + np.arange(longest) % count for start, count in zip(starts, counts, strict=True)])
    return table, np.stack([(np.arange(longest) < count) for count in counts]).astype(np.float32)


@functools.partial(jax.jit, static_argnums=(1, 2))
def merge_slices(
    outputs: tuple[jax.Array, ...], rows: tuple[MaybeLayout, ...], counts: tuple[int, ...]
) -> tuple[jax.Array, ...]:
    """Outputs with a leading device axis as those of the whole batch, where device d had `counts[d]` rows.

    Outputs without rows of the batch stand side by side on axis 0, as MXNet concatenates them.
    """
    return tuple(
        jnp.concatenate(slices_of(out, where, counts), axis=where.axis if isinstance(where, RowLayout) else 0)
        for out, where in zip(outputs, rows, strict=True)
    )


def slices_of(out: jax.Array, where: MaybeLayout, counts: Sequence[int]) -> list[jax.Array]:
    """What each device computed, the rows it repeated cut off."""
    if not isinstance(where, RowLayout):
        return [jnp.atleast_1d(piece) for piece in out]
    return [merge_row_axis(split_row_axis(p, where), where.axis, count) for p, count in zip(out, counts, strict=True)]
