"""The context that every operator function receives: training mode, PRNG key, row weights and layouts, device axis."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jfit.ops.axis import Axis, axis_index
from jfit.ops.rows import LOST, MaybeLayout, RowLayout, RowsLost, broadcast_weight


@dataclass(frozen=True)
class Ctx:
    """The first argument of every operator function: what it may need besides its inputs and attributes.

    The lowering creates one for each node of the graph and each call.  "Rows" are the examples of the batch.  The
    `RowLayout` of an array says which of its axes has the rows; see `jfit.ops.rows`.

    Attributes:
        train: True in training mode (dropout is active, BatchNorm uses the statistics of the batch).
        key: the PRNG key of this node, or None if the caller passed no key.
        weight: training weight of each row, (batch,) float32, 0 for padding rows; None: all weights are 1.
        rows: `RowLayout` of each input of the node; None if it does not depend on the batch, LOST if its rows are unknown.
        row_ids: position of each row in the global batch, (batch,) int32, which does not depend on the number of devices;
            None: unknown.
        axis_name: name of the device axis for collectives such as `lax.psum`; None outside of pmap and shard_map; a
            `jfit.ops.axis.VirtualSlice` if this is one of the slices of the batch that a device computes one by one.
        node: name of the node, for error messages.
        channels_last: True if 4-D arrays are passed as (batch, height, width, channels) although the graph declares
            (batch, channels, height, width); it is only set for operators whose record has `layout`.
        sync_batch_stats: True: batch statistics are computed over all devices; False: over the batch slice of each device.
        table_rows: for an embedding table of which only some rows are passed, their sorted indices in the full table; None:
            the full table is passed.
        plain: True: convolutions are computed by `lax.conv_general_dilated` even where another form is faster, so that the
            operations of their definition can be counted.
        micro_batch: number of the micro-batch, int or int32 scalar, into which random numbers of unknown rows are folded; None:
            the batch is not divided.
        loss_scale: factor of gradients that an operator adds itself to those of the loss, float32 scalar; None: 1.

    Example:
        >>> import jax.numpy as jnp
        >>> from jfit.ops import Ctx, RowLayout
        >>> ctx = Ctx(weight=jnp.array([1.0, 0.0]), rows=(RowLayout(axis=0, before=1, size=2, after=1),))
        >>> ctx.row_weight(ndim=2).tolist()  # for an input of shape (2, ...)
        [[1.0], [0.0]]
    """

    train: bool = False
    key: Array | None = None
    weight: Array | None = None
    rows: tuple[MaybeLayout, ...] = (None,)
    row_ids: Array | None = None
    axis_name: Axis = None
    node: str = ""
    channels_last: bool = False
    sync_batch_stats: bool = False
    table_rows: Array | None = None
    plain: bool = False
    micro_batch: Any = None
    loss_scale: Array | None = None

    def row_weight(self, ndim: int, which: int = 0) -> Array | None:
        """Return the row weights, reshaped to broadcast against an input.

        Args:
            ndim: number of axes of that input.
            which: position of that input among the inputs of the node.

        Returns:
            float32 array of `ndim` axes; None if all weights are 1 or the input does not depend on the batch.

        Raises:
            RowsLost: the layout of the input is LOST: its rows cannot be distinguished any more.
        """
        rows = self.rows[which]
        if self.weight is None or rows is None:
            return None
        if rows is LOST:
            problem = f"{self.node}: the rows of the batch cannot be identified in its input, so none can be excluded"
            raise RowsLost(f"{problem}; pass batches without padding and equal slices per device")
        assert isinstance(rows, RowLayout)
        return broadcast_weight(self.weight, rows, ndim)

    def row_mask(self, ndim: int, which: int = 0) -> Array | None:
        """Return 1.0 for rows with positive weight and 0.0 for the others; arguments and shape as for `row_weight`."""
        weight = self.row_weight(ndim, which)
        return None if weight is None else (weight > 0).astype(jnp.float32)

    def random(self, draw: Callable[[Array, tuple[int, ...]], Array], shape: tuple[int, ...], which: int | None = 0) -> Array:
        """Draw random numbers that do not depend on how the batch is split over devices and micro-batches.

        Every row draws with the key fold_in(self.key, row_ids[row]).  If the rows are unknown, all numbers are drawn with one
        key, into which the numbers of the micro-batch and of the device are folded.

        Args:
            draw: function (key, shape) -> array, such as `jax.random.normal`.
            shape: shape of the result; the batch rows must be on the same axis as in input `which`.
            which: position of the input whose `RowLayout` is used; None: draw all numbers with one key.

        Returns:
            Array of `shape`, with the dtype of `draw`.

        Raises:
            ValueError: the context has no key.
        """
        key = self.key
        if key is None:
            raise ValueError(f"{self.node}: this operator draws random numbers; pass key= to apply")
        rows: Any = self.rows[which] if which is not None and which < len(self.rows) else None
        if not isinstance(rows, RowLayout) or self.row_ids is None:
            key = key if self.micro_batch is None else jax.random.fold_in(key, self.micro_batch)
            return draw(key if self.axis_name is None else jax.random.fold_in(key, axis_index(self.axis_name)), shape)
        rest = (rows.before, rows.after, *shape[: rows.axis], *shape[rows.axis + 1 :])
        keys = jax.vmap(lambda row: jax.random.fold_in(key, row))(self.row_ids)
        drawn = jax.vmap(lambda row_key: draw(row_key, rest))(keys)  # (size, before, after, *other axes)
        drawn = jnp.moveaxis(drawn, 0, 1).reshape((-1, *rest[2:]))
        return jnp.moveaxis(drawn, 0, rows.axis)
