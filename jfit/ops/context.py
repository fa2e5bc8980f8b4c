"""What an operator function gets besides its inputs: train or eval, randomness, row weights, the device axis."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from jfit.ops.rows import LOST, MaybeLayout, RowLayout, RowsLost, spread


@dataclass(frozen=True)
class Ctx:
    """The context of one node in one call.

    Attributes:
        train: training mode (dropout active, batch statistics used).
        key: this node's PRNG key, or None when the call got none.
        weight: training weight of each row of the batch, (batch,) float32, or None when every row weighs 1.
        rows: for each input of the node, where its rows are (see `jfit.ops.rows`).
        row_ids: global number of each row, (batch,) int32: the same on any number of devices.
        axis_name: name of the device axis inside pmap, else None.
        node: the node's name, for error sentences.
        channels_last: True where the arrays of this node are laid out (batch, spatial..., channels) although the graph says
            (batch, channels, spatial...); only operators whose record has `layout` set ever see it.
        sync_batch_stats: True where batch statistics are taken over all devices instead of each device's slice.
        table_rows: sorted numbers of the rows that the node's table input contains; None for the whole table.
    """

    train: bool = False
    key: Array | None = None
    weight: Array | None = None
    rows: tuple[MaybeLayout, ...] = (None,)
    row_ids: Array | None = None
    axis_name: str | None = None
    node: str = ""
    channels_last: bool = False
    sync_batch_stats: bool = False
    table_rows: Array | None = None

    def row_weight(self, ndim: int, which: int = 0) -> Array | None:
        """Row weights shaped to broadcast against input `which` (of `ndim` axes); None when every row weighs 1."""
        rows = self.rows[which]
        if self.weight is None or rows is None:
            return None
        if rows is LOST:
            raise RowsLost(
                f"{self.node}: rows of the batch cannot be told apart here (an operator before it mixed the batch axis), so "
                "rows of weight 0 cannot be left out; feed batches without padding and equal slices per device"
            )
        assert isinstance(rows, RowLayout)
        return spread(self.weight, rows, ndim)

    def row_mask(self, ndim: int, which: int = 0) -> Array | None:
        """1.0 where the weight of a row is positive, else 0.0, shaped as `row_weight`."""
        weight = self.row_weight(ndim, which)
        return None if weight is None else (weight > 0).astype(jnp.float32)

    def random(self, draw: Callable[[Array, tuple[int, ...]], Array], shape: tuple[int, ...], which: int | None = 0) -> Array:
        """`draw(key, shape)` so that each row gets the same numbers on any number of devices.

        Rows (of input `which`; None: of no input) draw from fold_in(key, global row); where the rows are unknown the device
        index is folded in instead.
        """
        key = self.key
        if key is None:
            raise ValueError(f"{self.node}: this operator draws random numbers; pass key= to apply")
        rows: Any = self.rows[which] if which is not None and which < len(self.rows) else None
        if not isinstance(rows, RowLayout) or self.row_ids is None:
            return draw(key if self.axis_name is None else jax.random.fold_in(key, lax.axis_index(self.axis_name)), shape)
        rest = (rows.before, rows.after, *shape[: rows.axis], *shape[rows.axis + 1 :])
        keys = jax.vmap(lambda row: jax.random.fold_in(key, row))(self.row_ids)
        drawn = jax.vmap(lambda own: draw(own, rest))(keys)  # (size, before, after, *others)
        drawn = jnp.moveaxis(drawn, 0, 1).reshape((-1, *rest[2:]))
        return jnp.moveaxis(drawn, 0, rows.axis)
