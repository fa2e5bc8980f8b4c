"""Rules that several operator families share: what is known of shapes and dtypes, and where rows stay.

Shapes hold 0 where a size is not known yet; None stands for a shape of unknown rank.

>>> size_of((2, 3, 4))
24
>>> size_of((2, 0, 4))
0
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from jfit.ops.attributes import DTYPES, Attrs
from jfit.ops.registry import MaybeShape, Shape
from jfit.ops.rows import LOST, MaybeRows, Rows

CHANNELS_FIRST = {1: "NCW", 2: "NCHW", 3: "NCDHW"}  # number of spatial axes -> layout
# where the axes of a (N, C, H, W) array are in (N, H, W, C)
TO_CHANNELS_LAST = (0, 3, 1, 2)


def size_of(shape: Sequence[int]) -> int:
    """Number of elements; 0 while any size is unknown."""
    return math.prod(shape)


def known_or(shape: MaybeShape, other: MaybeShape) -> MaybeShape:
    """`shape` with its unknown sizes taken from `other`, where the ranks agree."""
    if shape is None or other is None or len(shape) != len(other):
        return other if shape is None else shape
    return tuple(a or b for a, b in zip(shape, other, strict=True))


def need_rank(op: str, shape: Shape, least: int, why: str) -> None:
    """Raise a sentence where data has fewer than `least` axes."""
    if len(shape) < least:
        raise ValueError(f"{op}: data has shape {shape}, needed at least {least} axes ({why}); reshape the data")


def axis_of(op: str, axis: int, ndim: int) -> int:
    """`axis` counted from the front."""
    if not -ndim <= axis < ndim:
        raise ValueError(f"{op}: axis is {axis}, data has {ndim} axes; needed {-ndim} <= axis < {ndim}")
    return axis % ndim


def batch_rows(attrs: Any, rows: Sequence[MaybeRows], shapes: Any, outs: Sequence[Shape]) -> list[MaybeRows]:
    """Rows on axis 0 of data stay on axis 0 of every output; on any other axis the operator mixes them."""
    first = rows[0]
    if any(r is not None for r in rows[1:]):
        return [LOST] * len(outs)
    if isinstance(first, Rows):
        size = first.before * first.size * first.after
        return [first if first.axis == 0 and o[:1] == (size,) else LOST for o in outs]
    return [first] * len(outs)


def unmixed_rows(axis: int, rows: Sequence[MaybeRows], shapes: Any, outs: Sequence[Shape]) -> list[MaybeRows]:
    """Rows of data stay where they are, unless they lie on `axis`, along which the operator mixes."""
    first = rows[0]
    mixed = isinstance(first, Rows) and first.axis == axis % len(shapes[0])
    if mixed or (first is None and any(r is not None for r in rows[1:])):
        return [LOST] * len(outs)
    return [first] * len(outs)


def label_types(attrs: Attrs, ins: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Outputs have the dtype of data; a label without a dtype gets it too, any other is accepted."""
    return [ins[0], *(ins[0] if t is None else t for t in ins[1:])], [ins[0]]


def cast_types(attrs: Attrs, ins: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The output has the dtype of the attribute `dtype`, or that of data."""
    return list(ins), [ins[0] if attrs.dtype is None else DTYPES[attrs.dtype]]


def accumulating(dtype: Any) -> Any:
    """The dtype to sum in: float32 for half precision, otherwise the dtype itself."""
    return jnp.promote_types(dtype, np.float32) if jnp.issubdtype(dtype, jnp.floating) else dtype


def along(vector: Any, axis: int, ndim: int) -> Any:
    """A vector shaped to broadcast along `axis` of an array of `ndim` axes."""
    return vector.reshape([-1 if k == axis else 1 for k in range(ndim)])
