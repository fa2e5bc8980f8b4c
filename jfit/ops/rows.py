"""Where the batch axis goes: every array of a graph knows which of its elements belong to which row of the batch.

A head multiplies its gradient by the weight of each row, batch normalisation leaves padded rows out, dropout draws the
same numbers for a row on whichever device it sits: all three need to find the rows in arrays that reshapes and transposes
have moved about.  `RowLayout` says it with four numbers; each operator record has a rule from the layouts of
its inputs to those of its outputs.

>>> r = RowLayout(axis=0, before=1, size=4, after=3)   # shape (12, ...): 4 rows of 3 consecutive entries each
>>> reshape_rows(r, (12, 5), (4, 3, 5))
RowLayout(axis=0, before=1, size=4, after=1)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array


class RowLayout(NamedTuple):
    """Axis `axis` has before * size * after entries: `before` repeats of the whole batch, each row `after` times in a run."""

    axis: int
    before: int
    size: int
    after: int


class RowsLost(ValueError):
    """Row weights are needed where the rows of the batch cannot be told apart."""


class _Lost:
    """The array depends on the batch, but its rows cannot be told apart any more."""

    def __repr__(self) -> str:
        return "LOST"


LOST = _Lost()
MaybeLayout = RowLayout | None | _Lost  # None: the array does not depend on the batch
ShapeT = tuple[int, ...]
# (attributes, rows of the inputs, input shapes, output shapes) -> rows of the outputs
RowsRule = Callable[[Any, Sequence[MaybeLayout], Sequence[ShapeT], Sequence[ShapeT]], Sequence[MaybeLayout]]


def spread(weight: Array, rows: RowLayout, ndim: int) -> Array:
    """Weights (size,) as an array that broadcasts against an array of `ndim` axes with these rows."""
    full = jnp.tile(jnp.repeat(weight, rows.after), rows.before)  # (before * size * after,)
    return full.reshape([-1 if k == rows.axis else 1 for k in range(ndim)])


def elementwise_rows(attrs, rows, shapes, outs):
    """Outputs keep the rows of the inputs, aligned from the right as broadcasting does."""
    found: MaybeLayout = None
    for r, shape in zip(rows, shapes, strict=True):
        if r is LOST:
            return [LOST] * len(outs)
        if isinstance(r, RowLayout):
            moved = r._replace(axis=r.axis + len(outs[0]) - len(shape))
            if found is not None and moved != found:
                return [LOST] * len(outs)
            found = moved
    if isinstance(found, RowLayout):
        return [found if o[found.axis : found.axis + 1] == (found.before * found.size * found.after,) else LOST for o in outs]
    return [found] * len(outs)


def first_rows(attrs, rows, shapes, outs):
    """Every output has the batch axis where the first input has it (convolution, pooling, dense: axis 0 stays)."""
    first = rows[0]
    if any(r is not None for r in rows[1:]) and first is None:
        return [LOST] * len(outs)
    if isinstance(first, RowLayout):
        size = first.before * first.size * first.after
        return [first if len(o) > first.axis and o[first.axis] == size else LOST for o in outs]
    return [first] * len(outs)


def reshape_rows(rows: MaybeLayout, shape: ShapeT, out: ShapeT) -> MaybeLayout:
    """Where the rows are after a reshape in C order, or LOST."""
    if not isinstance(rows, RowLayout):
        return rows
    if out[: rows.axis + 1] == shape[: rows.axis + 1]:
        return rows
    stride = rows.after * math.prod(shape[rows.axis + 1 :])  # elements from one row to the next
    step = 1
    for axis in range(len(out) - 1, -1, -1):
        dim = out[axis]
        if stride % step == 0 and dim % max(rows.size * (stride // step), 1) == 0:
            after = stride // step
            if step * dim >= stride * rows.size:
                return RowLayout(axis, dim // (rows.size * after), rows.size, after)
        step *= dim
    return LOST


def lost_rows(attrs, rows, shapes, outs):
    """Outputs of batch-dependent inputs have no rows any more (reductions over the batch, unknown reorderings)."""
    return [LOST if any(r is not None for r in rows) else None] * len(outs)


def no_rows(attrs, rows, shapes, outs):
    """Outputs that do not depend on the batch (constants, shapes)."""
    return [None] * len(outs)
