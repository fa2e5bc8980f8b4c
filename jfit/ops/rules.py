"""Rules that several operator families share: what is known of shapes and dtypes, and where rows stay.

Shapes hold 0 where a size is not known yet; None stands for a shape of unknown rank.

>>> size_of((2, 3, 4)), size_of((2, 0, 4))
(24, 0)
>>> unify([(0, 3), None, (2, 3)])
(2, 3)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jfit.ops.attributes import DTYPES, Attrs
from jfit.ops.registry import MaybeShape, Shape
from jfit.ops.rows import LOST, MaybeLayout, RowLayout

CHANNELS_FIRST = {1: "NCW", 2: "NCHW", 3: "NCDHW"}  # number of spatial axes -> layout
# where the axes of a (N, C, H, W) array are in (N, H, W, C)
TO_CHANNELS_LAST = (0, 3, 1, 2)


def size_of(shape: Sequence[int]) -> int:
    """Number of elements; 0 while any size is unknown."""
    return math.prod(shape)


def fill_unknown(shape: MaybeShape, other: MaybeShape) -> MaybeShape:
    """`shape` with its unknown sizes taken from `other`, where the ranks agree."""
    if shape is None or other is None or len(shape) != len(other):
        return other if shape is None else shape
    return tuple(a or b for a, b in zip(shape, other, strict=True))


def need_rank(op: str, shape: Shape, least: int, why: str) -> None:
    """Raise a sentence where data has fewer than `least` axes."""
    if len(shape) < least:
        raise ValueError(f"{op}: data has shape {shape}, needed at least {least} axes ({why}); reshape the data")


def batch_rows(attrs: Any, rows: Sequence[MaybeLayout], shapes: Any, outs: Sequence[Shape]) -> list[MaybeLayout]:
    """Rows on axis 0 of data stay on axis 0 of every output; on any other axis the operator mixes them."""
    first = rows[0]
    if any(r is not None for r in rows[1:]):
        return [LOST] * len(outs)
    if isinstance(first, RowLayout):
        size = first.before * first.size * first.after
        return [first if first.axis == 0 and o[:1] == (size,) else LOST for o in outs]
    return [first] * len(outs)


def shared_batch_rows(attrs: Any, rows: Sequence[MaybeLayout], shapes: Any, outs: Sequence[Shape]) -> list[MaybeLayout]:
    """Rows that all inputs have alike on axis 0 stay there; anything else is LOST."""
    return batch_rows(attrs, [common_rows(rows)], shapes, outs)


def unmixed_rows(axis: int, rows: Sequence[MaybeLayout], shapes: Any, outs: Sequence[Shape]) -> list[MaybeLayout]:
    """Rows of data stay where they are, unless they lie on `axis`, along which the operator mixes."""
    first = rows[0]
    mixed = isinstance(first, RowLayout) and first.axis == axis % len(shapes[0])
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


def dtype_attr_types(attrs: Attrs, ins: list[Any]) -> tuple[list[Any], list[Any]]:
    """Dtype rule: inputs as they are, outputs of attribute `dtype`."""
    return ins, [DTYPES[attrs.dtype]]


def first_types(attrs: Attrs, ins: list[Any]) -> tuple[list[Any], list[Any]]:
    """Dtype rule: the output has the dtype of the first input, the others (ids, lengths) may have any."""
    return ins, [ins[0]]


def insert_axis(rows: MaybeLayout, axis: int) -> MaybeLayout:
    """Rows after a new axis at position `axis`."""
    return rows._replace(axis=rows.axis + (axis <= rows.axis)) if isinstance(rows, RowLayout) else rows


def drop_axes(rows: MaybeLayout, axes: Sequence[int], keepdims: bool = False) -> MaybeLayout:
    """Rows after `axes` (none negative) were reduced; LOST if the batch axis is among them."""
    if not isinstance(rows, RowLayout):
        return rows
    if rows.axis in axes:
        return LOST
    return rows if keepdims else rows._replace(axis=rows.axis - sum(a < rows.axis for a in axes))


def common_rows(rows: Sequence[MaybeLayout]) -> MaybeLayout:
    """The rows of all inputs that depend on the batch where they are the same, else LOST."""
    found = [r for r in rows if r is not None]
    return None if not found else found[0] if all(r == found[0] for r in found) else LOST


def same_size_rows(attrs, rows, shapes, outs):
    """Row rule: the first input's rows stay where its batch axis keeps its size, else they are LOST."""
    first = rows[0]
    if not isinstance(first, RowLayout):
        return [first] * len(outs)
    size = shapes[0][first.axis]
    return [first if len(o) == len(shapes[0]) and o[first.axis] == size else LOST for o in outs]


def normalize_axis(axis: int, ndim: int, what: str = "axis") -> int:
    """`axis` counted from the front.

    Raises:
        ValueError: there is no such axis.

    Example:
        >>> normalize_axis(-1, 3)
        2
    """
    if not -ndim <= axis < ndim:
        raise ValueError(f"{what} is {axis}, the data has {ndim} axes, so it must lie in [{-ndim}, {ndim - 1}]; change {what}")
    return axis % ndim


def argument_names(attrs: Attrs) -> tuple[str, ...]:
    """Input names of operators with any number of inputs: arg0, arg1, ..."""
    return tuple(f"arg{i}" for i in range(attrs.num_args))


def at_least_one(size: Any) -> Any:
    """max(size, 1) as a number to divide by; an array where an exported program leaves the size open.

    Example:
        >>> at_least_one(0)
        1.0
    """
    return float(max(size, 1)) if isinstance(size, int) else jnp.asarray(jnp.maximum(size, 1), jnp.float32)


def reason(error: Exception) -> str:
    """Why an operator refused its inputs, in one line, whatever was raised inside of it.

    Example:
        >>> reason(ValueError("data has 2 axes, needed 4"))
        'data has 2 axes, needed 4'
        >>> reason(IndexError("tuple index out of range"))
        'its shapes and attributes do not fit together (IndexError: tuple index out of range)'
    """
    first = next(iter(str(error).splitlines()), "")
    if first and isinstance(error, ValueError):
        return first
    kind = type(error).__name__
    return f"its shapes and attributes do not fit together ({kind}{': ' * bool(first)}{first})"
