"""Row layouts: which elements of an intermediate array belong to which row (example) of the batch.

jfit pads incomplete batches with rows of weight 0, and computes the same numbers on any number of devices.  For that, some
operators work row by row: an output head (an operator with its own gradient, such as SoftmaxOutput) multiplies the gradient of
each row by its weight, BatchNorm excludes padding rows from its statistics, and Dropout draws the mask of a row from a key that
depends on the row's position in the global batch.  Their inputs, however, may have passed through reshapes and transposes, so
that the rows are no longer axis 0.

The lowering therefore tracks the row layout of every array of the graph, which is one of

- a `RowLayout`: one axis of the array is indexed by the rows, possibly merged with other axes by a reshape: the axis has size
  before * size * after, where `size` is the number of rows and `before` and `after` are the sizes merged in front of and behind
  the rows (1 if there are none);
- `None`: the array does not depend on the batch (a parameter, a constant);
- `LOST`: the array depends on the batch, but none of its axes is indexed by the rows any more (such as a sum over the batch).
  This is no error until an operator needs the rows of the array; then it raises `RowsLost`.

Each operator record has a function `Op.rows` (see `RowsRule`) that computes the layouts of the outputs from
those of the inputs.

>>> merged = RowLayout(axis=0, before=1, size=4, after=3)  # shape (12, 5): 4 rows, each with 3 consecutive entries of axis 0
>>> reshape_rows(merged, (12, 5), (4, 3, 5))               # split again: the rows are axis 0
RowLayout(axis=0, before=1, size=4, after=1)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array


class RowLayout(NamedTuple):
    """The rows of the batch within one axis of an array.

    The axis has before * size * after entries.  Seen as three axes (before, size, after) in C order, the middle one is indexed
    by the rows: entry i of the axis belongs to row (i // after) % size.  A plain batch axis has before = after = 1.

    Attributes:
        axis: the axis that contains the rows.
        before: product of the axes that were merged in front of the rows, such as time in (time * batch, ...).
        size: number of rows.
        after: product of the axes that were merged behind the rows, such as time in (batch * time, ...).

    Example:
        >>> layout = RowLayout(axis=0, before=1, size=2, after=3)  # (batch 2, time 3) reshaped to (6,)
        >>> [i // layout.after % layout.size for i in range(6)]
        [0, 0, 0, 1, 1, 1]
    """

    axis: int
    before: int
    size: int
    after: int

    @property
    def length(self) -> int:
        """Number of entries of the axis."""
        return self.before * self.size * self.after


class RowsLost(ValueError):
    """Raised if an operator needs the batch rows of an array in which they cannot be distinguished any more (layout LOST)."""


class _Lost:
    """Type of `LOST`, the layout of an array that depends on the batch but has no axis that is indexed by the rows."""

    def __repr__(self) -> str:
        return "LOST"


LOST = _Lost()
MaybeLayout = RowLayout | None | _Lost  # None: the array does not depend on the batch
ShapeT = tuple[int, ...]
# (attributes, layouts of the inputs, input shapes, output shapes) -> layouts of the outputs
RowsRule = Callable[[Any, Sequence[MaybeLayout], Sequence[ShapeT], Sequence[ShapeT]], Sequence[MaybeLayout]]


def broadcast_weight(weight: Array, rows: RowLayout, ndim: int) -> Array:
    """Reshape row weights (batch,) to broadcast against an array of `ndim` axes with the layout `rows`."""
    full = jnp.tile(jnp.repeat(weight, rows.after), rows.before)  # (before * size * after,)
    return full.reshape([-1 if k == rows.axis else 1 for k in range(ndim)])


def elementwise_rows(attrs, rows, shapes, outs):
    """Return where the batch rows are in the outputs (`RowLayout`).

    As in the inputs, whose axes are aligned from the right; LOST (they cannot be distinguished any more) if the inputs differ.
    """
    common: MaybeLayout = None
    for r, shape in zip(rows, shapes, strict=True):
        if r is LOST:
            return [LOST] * len(outs)
        if isinstance(r, RowLayout):
            aligned = r._replace(axis=r.axis + len(outs[0]) - len(shape))
            if common is not None and aligned != common:
                return [LOST] * len(outs)
            common = aligned
    if isinstance(common, RowLayout):
        return [common if o[common.axis : common.axis + 1] == (common.length,) else LOST for o in outs]
    return [common] * len(outs)


def first_rows(attrs, rows, shapes, outs):
    """Return where the batch rows are in the outputs (`RowLayout`).

    As in the first input; LOST (they cannot be distinguished any more) if their axis has another size in the output.
    """
    first = rows[0]
    if any(r is not None for r in rows[1:]) and first is None:
        return [LOST] * len(outs)
    if isinstance(first, RowLayout):
        return [first if o[first.axis : first.axis + 1] == (first.length,) else LOST for o in outs]
    return [first] * len(outs)


def reshape_rows(rows: MaybeLayout, shape: ShapeT, out: ShapeT) -> MaybeLayout:
    """Return where the batch rows are after a reshape (C order) from `shape` to `out` (`RowLayout`); LOST: on no one axis."""
    if not isinstance(rows, RowLayout):
        return rows
    if out[: rows.axis + 1] == shape[: rows.axis + 1]:
        return rows
    stride = rows.after * math.prod(shape[rows.axis + 1 :])  # distance between neighbouring rows, in elements
    step = 1  # distance between neighbouring entries of `axis`, in elements
    for axis in range(len(out) - 1, -1, -1):
        dim = out[axis]
        if stride % step == 0 and dim % max(rows.size * (stride // step), 1) == 0:
            after = stride // step
            if step * dim >= stride * rows.size:
                return RowLayout(axis, dim // (rows.size * after), rows.size, after)
        step *= dim
    return LOST


def lost_rows(attrs, rows, shapes, outs):
    """Return the `RowLayout` of outputs in which batch rows are mixed, such as a sum over the batch.

    It is LOST (the rows cannot be distinguished any more) if an input depends on the batch, else None.
    """
    return [LOST if any(r is not None for r in rows) else None] * len(outs)


def no_rows(attrs, rows, shapes, outs):
    """Return None for each output: the layout of outputs that do not depend on the batch and have no batch rows (constants)."""
    return [None] * len(outs)
