"""Rules that many operator records share: shapes that must agree, rows that move with an axis, dtypes of the device.

>>> unify([(0, 3), None, (2, 3)])
(2, 3)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jfit.ops.attributes import DTYPES, Attrs
from jfit.ops.rows import LOST, MaybeRows, Rows

Shape = tuple[int, ...]
MaybeShape = Shape | None


def unify(shapes: Sequence[MaybeShape], why: str = "the operator works element by element") -> MaybeShape:
    """The one shape that agrees with all of them; unknown sizes (0) are filled from each other.

    Args:
        shapes: shapes, None for an unknown one, 0 for an unknown size.
        why: the reason for the error sentence.

    Returns:
        The merged shape, None when nothing is known.

    Raises:
        ValueError: two shapes contradict each other.

    Example:
        >>> unify([None, (4, 0)])
        (4, 0)
    """
    found: MaybeShape = None
    for shape in shapes:
        if shape is None:
            continue
        if found is None:
            found = shape
        elif len(found) == len(shape) and all(a == b or 0 in (a, b) for a, b in zip(found, shape, strict=True)):
            found = tuple(a or b for a, b in zip(found, shape, strict=True))
        else:
            raise ValueError(f"shapes {found} and {shape} meet, they must be equal because {why}; change one of them")
    return found


def same_shape(attrs: Attrs, ins: list[MaybeShape], outs: list[MaybeShape]) -> list[MaybeShape]:
    """Shape rule: every input has the shape of the output."""
    return [unify([*ins, *outs])] * len(ins)


def dtype_of(name: str) -> np.dtype:
    """The dtype as the device holds it: 64-bit names become 32-bit ones while JAX's 64-bit mode is off.

    Example:
        >>> dtype_of("float16")
        dtype('float16')
    """
    return np.dtype(jax.dtypes.canonicalize_dtype(DTYPES[name]))


def made_types(attrs: Attrs, ins: list[Any]) -> tuple[list[Any], list[Any]]:
    """Dtype rule: inputs as they are, outputs of attribute `dtype`."""
    return ins, [DTYPES[attrs.dtype]]


def first_types(attrs: Attrs, ins: list[Any]) -> tuple[list[Any], list[Any]]:
    """Dtype rule: the output has the dtype of the first input, the others (ids, lengths) may have any."""
    return ins, [ins[0]]


def inserted(rows: MaybeRows, axis: int) -> MaybeRows:
    """Rows after a new axis at position `axis`."""
    return rows._replace(axis=rows.axis + (axis <= rows.axis)) if isinstance(rows, Rows) else rows


def removed(rows: MaybeRows, axes: Sequence[int], keepdims: bool = False) -> MaybeRows:
    """Rows after `axes` (none negative) were reduced; LOST if the batch axis is among them."""
    if not isinstance(rows, Rows):
        return rows
    if rows.axis in axes:
        return LOST
    return rows if keepdims else rows._replace(axis=rows.axis - sum(a < rows.axis for a in axes))


def agreed(rows: Sequence[MaybeRows]) -> MaybeRows:
    """The rows of all inputs that depend on the batch where they are the same, else LOST."""
    found = [r for r in rows if r is not None]
    return None if not found else found[0] if all(r == found[0] for r in found) else LOST


def kept_where_whole(attrs, rows, shapes, outs):
    """Row rule: the first input's rows stay where its batch axis keeps its size, else they are LOST."""
    first = rows[0]
    if not isinstance(first, Rows):
        return [first] * len(outs)
    size = shapes[0][first.axis]
    return [first if len(o) == len(shapes[0]) and o[first.axis] == size else LOST for o in outs]


def positive(axis: int, ndim: int, what: str = "axis") -> int:
    """`axis` counted from the front.

    Raises:
        ValueError: there is no such axis.

    Example:
        >>> positive(-1, 3)
        2
    """
    if not -ndim <= axis < ndim:
        raise ValueError(f"{what} is {axis}, the data has {ndim} axes, so it must lie in [{-ndim}, {ndim - 1}]; change {what}")
    return axis % ndim


def argument_names(attrs: Attrs) -> tuple[str, ...]:
    """Input names of operators with any number of inputs: arg0, arg1, ..."""
    return tuple(f"arg{i}" for i in range(attrs.num_args))
