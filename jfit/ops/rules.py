"""Functions shared by operator families that infer shapes and dtypes and track the batch axis.

In shape inference a size of 0 is unknown, and the shape None has unknown rank.  Functions named `*_rows`
compute the `RowLayout` of each output (where its batch rows are) from those of the inputs; see `jfit.ops.rows`.

>>> size_of((2, 3, 4)), size_of((2, 0, 4))
(24, 0)
>>> unify([(0, 3), None, (2, 3)])
(2, 3)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jfit.ops.attributes import DTYPES, Attrs
from jfit.ops.registry import MaybeShape, Shape
from jfit.ops.rows import LOST, MaybeLayout, RowLayout, RowsRule

AxesOf = Callable[[Any, int], Collection[int]]  # (attributes, number of axes of the first input) -> axes

CHANNELS_FIRST = {1: "NCW", 2: "NCHW", 3: "NCDHW"}  # number of spatial axes -> layout
# position of each axis of a (N, C, H, W) array in (N, H, W, C)
TO_CHANNELS_LAST = (0, 3, 1, 2)


def size_of(shape: Sequence[int]) -> int:
    """Return the number of elements of a shape; 0 if one of its sizes is unknown."""
    return math.prod(shape)


def fill_unknown(shape: MaybeShape, other: MaybeShape) -> MaybeShape:
    """Return `shape` with its unknown sizes taken from `other`; `shape` itself if the ranks differ."""
    if shape is None or other is None or len(shape) != len(other):
        return other if shape is None else shape
    return tuple(a or b for a, b in zip(shape, other, strict=True))


def need_rank(op: str, shape: Shape, least: int, why: str) -> None:
    """Raise a ValueError if data has fewer than `least` axes; `op` (operator) and `why` are parts of the message."""
    if len(shape) < least:
        raise ValueError(f"{op}: data has shape {shape}, expected at least {least} axes ({why}); reshape the data")


def need_shape(what: str, shape: Shape, expected: Shape) -> None:
    """Raise a ValueError unless `what` has the expected shape, for operators that would broadcast or reshape another one."""
    if shape != expected:
        raise ValueError(f"{what} has shape {shape}, expected {expected}; reshape it")


def per_axis(attrs: Attrs, key: str, dims: int, default: int | None = None, positive: bool = False) -> tuple[int, ...]:
    """Return an attribute with one entry for each of `dims` spatial axes; an empty one means `default` for every axis."""
    value = attrs[key] or (() if default is None else (default,) * dims)
    if len(value) != dims or (positive and min(value) < 1):
        raise ValueError(f"{key} is {value}, expected {dims} entries{' of at least 1' * positive}, one for each spatial axis")
    return value


def batch_rows(attrs: Any, rows: Sequence[MaybeLayout], shapes: Any, outs: Sequence[Shape]) -> list[MaybeLayout]:
    """Return where the batch rows are in the outputs (`RowLayout`).

    On axis 0, as in the first input; LOST (they cannot be distinguished any more) if they are on another axis of it.
    """
    first = rows[0]
    if any(r is not None for r in rows[1:]):
        return [LOST] * len(outs)
    if isinstance(first, RowLayout):
        return [first if first.axis == 0 and o[:1] == (first.length,) else LOST for o in outs]
    return [first] * len(outs)


def data_rows(attrs: Any, rows: Sequence[MaybeLayout], shapes: Any, outs: Sequence[Shape]) -> list[MaybeLayout]:
    """`batch_rows` of the first input alone."""
    return batch_rows(attrs, rows[:1], shapes, outs)


def shared_batch_rows(attrs: Any, rows: Sequence[MaybeLayout], shapes: Any, outs: Sequence[Shape]) -> list[MaybeLayout]:
    """Return where the batch rows are in the outputs (`RowLayout`).

    On axis 0 if all inputs that depend on the batch have them there, else LOST (they cannot be distinguished any more).
    """
    return batch_rows(attrs, [common_rows(rows)], shapes, outs)


def unmixed(axes: AxesOf, shared: bool = False) -> RowsRule:
    """Make the rule of the rows (`RowsRule`) of an operator that mixes the entries of `axes(attrs, number of axes)`.

    The batch rows are where they are in the first input, or with `shared` in all inputs that depend on the batch; they are LOST
    (cannot be distinguished any more) if they are on one of these axes, or elsewhere in other inputs.
    """

    def rule(attrs: Any, rows: Sequence[MaybeLayout], shapes: Any, outs: Sequence[Shape]) -> list[MaybeLayout]:
        first = common_rows(rows) if shared else rows[0]
        mixed = isinstance(first, RowLayout) and first.axis in axes(attrs, len(shapes[0]))
        if mixed or (first is None and any(r is not None for r in rows[1:])):
            return [LOST] * len(outs)
        return [first] * len(outs)

    return rule


def reduced(axes: AxesOf) -> RowsRule:
    """Make the rule of the rows of a reduction over `axes(attrs, number of axes)`; it keeps them with keepdims."""

    def rule(attrs: Any, rows: Sequence[MaybeLayout], shapes: Any, outs: Sequence[Shape]) -> list[MaybeLayout]:
        return [drop_axes(rows[0], tuple(axes(attrs, len(shapes[0]))), attrs.get("keepdims", False))] * len(outs)

    return rule


def axis_or_all(attrs: Attrs, ndim: int) -> Sequence[int]:
    """The attribute `axis` as a number from 0; all axes if it is None."""
    return range(ndim) if attrs.axis is None else (normalize_axis(attrs.axis, ndim),)


def last_axis(attrs: Attrs, ndim: int) -> Sequence[int]:
    """The number of the last axis."""
    return (ndim - 1,)


def from_data(rule: Callable[..., Any]) -> Callable[..., Any]:
    """Make a `ShapeRule` of `rule(attrs, shape of the first input, *shapes of the others)`; unknown while that is unknown."""
    return lambda attrs, ins, outs: ins if ins[0] is None else rule(attrs, *ins)


def label_of_rows(attrs: Attrs, ins: list[MaybeShape], outs: list[MaybeShape]) -> list[MaybeShape]:
    """Infer input shapes: a label has one entry for each row of the data."""
    return ins if ins[0] is None else [ins[0], fill_unknown(ins[1], ins[0][:1])]


def label_types(attrs: Attrs, ins: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Infer dtypes: outputs have the dtype of data; a label may have any dtype, and if unknown has that of data."""
    return [ins[0], *(ins[0] if t is None else t for t in ins[1:])], [ins[0]]


def cast_types(attrs: Attrs, ins: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Infer dtypes: the output has the dtype named by the attribute `dtype`, or that of data if the attribute is None."""
    return list(ins), [ins[0] if attrs.dtype is None else DTYPES[attrs.dtype]]


def accumulating(dtype: Any) -> Any:
    """Return the dtype to accumulate sums in: float32 for float16 and bfloat16, otherwise the dtype itself."""
    return jnp.promote_types(dtype, np.float32) if jnp.issubdtype(dtype, jnp.floating) else dtype


def along(vector: Any, axis: int, ndim: int) -> Any:
    """Reshape a vector to broadcast along `axis` of an array with `ndim` axes."""
    return vector.reshape([-1 if k == axis else 1 for k in range(ndim)])


def unify(shapes: Sequence[MaybeShape], why: str = "the operator works element by element") -> MaybeShape:
    """Merge partially known shapes of the same array into one, taking unknown sizes (0) from each other.

    Args:
        shapes: the shapes; None for unknown rank, 0 for an unknown size.
        why: why the shapes must be equal, for the error message.

    Returns:
        The merged shape, None if all of them are None.

    Raises:
        ValueError: two shapes differ in rank or in a known size.

    Example:
        >>> unify([None, (4, 0)])
        (4, 0)
    """
    merged: MaybeShape = None
    for shape in shapes:
        if shape is None:
            continue
        if merged is None:
            merged = shape
        elif len(merged) == len(shape) and all(a == b or 0 in (a, b) for a, b in zip(merged, shape, strict=True)):
            merged = tuple(a or b for a, b in zip(merged, shape, strict=True))
        else:
            raise ValueError(f"shapes {merged} and {shape} differ, but must be equal because {why}; change one of them")
    return merged


def same_shape(attrs: Attrs, ins: list[MaybeShape], outs: list[MaybeShape]) -> list[MaybeShape]:
    """Infer input shapes: all inputs have the shape of the output."""
    return [unify([*ins, *outs])] * len(ins)


def dtype_of(name: str) -> np.dtype:
    """Return the NumPy dtype of a name as JAX stores it: 64-bit dtypes become 32-bit ones unless `jax_enable_x64` is set.

    Example:
        >>> dtype_of("float16")
        dtype('float16')
    """
    return np.dtype(jax.dtypes.canonicalize_dtype(DTYPES[name]))


def dtype_attr_types(attrs: Attrs, ins: list[Any]) -> tuple[list[Any], list[Any]]:
    """Infer dtypes: the output has the dtype named by the attribute `dtype`, the inputs may have any dtype."""
    return ins, [DTYPES[attrs.dtype]]


def fixed_types(*names: str) -> Callable[..., tuple[list[Any], list[Any]]]:
    """Make the rule of dtypes of an operator whose outputs have these dtypes, whatever the inputs have."""
    return lambda attrs, ins: (ins, [DTYPES[name] for name in names])


def first_types(attrs: Attrs, ins: list[Any]) -> tuple[list[Any], list[Any]]:
    """Infer dtypes: the output has the dtype of the first input; the other inputs (indices, lengths) may have any dtype."""
    return ins, [ins[0]]


def insert_axis(rows: MaybeLayout, axis: int) -> MaybeLayout:
    """Return where the batch rows are (`RowLayout`) after a new axis was inserted at position `axis`."""
    return rows._replace(axis=rows.axis + (axis <= rows.axis)) if isinstance(rows, RowLayout) else rows


def drop_axes(rows: MaybeLayout, axes: Sequence[int], keepdims: bool = False) -> MaybeLayout:
    """Return where the batch rows are (`RowLayout`) after a reduction over `axes` (>= 0); LOST if they were on one of them."""
    if not isinstance(rows, RowLayout):
        return rows
    if rows.axis in axes:
        return LOST
    return rows if keepdims else rows._replace(axis=rows.axis - sum(a < rows.axis for a in axes))


def common_rows(rows: Sequence[MaybeLayout]) -> MaybeLayout:
    """Return where the batch rows are (`RowLayout`) in all inputs that depend on the batch.

    LOST (they cannot be distinguished any more) if the inputs differ; None if no input depends on the batch.
    """
    layouts = [r for r in rows if r is not None]
    return None if not layouts else layouts[0] if all(r == layouts[0] for r in layouts) else LOST


def same_size_rows(attrs, rows, shapes, outs):
    """Return where the batch rows are in the outputs (`RowLayout`).

    As in the first input if the output has the same size on their axis, else LOST (they cannot be distinguished any more).
    """
    first = rows[0]
    if not isinstance(first, RowLayout):
        return [first] * len(outs)
    size = shapes[0][first.axis]
    return [first if len(o) == len(shapes[0]) and o[first.axis] == size else LOST for o in outs]


def normalize_axis(axis: int, ndim: int, what: str = "axis") -> int:
    """Convert a possibly negative axis number to the equal one in [0, ndim).

    Raises:
        ValueError: an array of `ndim` axes does not have this axis; the message calls it `what`.

    Example:
        >>> normalize_axis(-1, 3)
        2
    """
    if not -ndim <= axis < ndim:
        raise ValueError(f"{what} is {axis}, the data has {ndim} axes, so it must be in [{-ndim}, {ndim - 1}]; change {what}")
    return axis % ndim


def argument_names(attrs: Attrs) -> tuple[str, ...]:
    """Return the input names arg0, arg1, ... of an operator whose attribute `num_args` is its number of inputs."""
    return tuple(f"arg{i}" for i in range(attrs.num_args))


SEVERAL_INPUTS: dict[str, Any] = {"inputs": argument_names, "variadic": "num_args"}  # of the record of such an operator


def numbered_outputs(count: int) -> tuple[str, ...]:
    """Return the output names output0, output1, ... of an operator with `count` outputs; "output" for one."""
    return ("output",) if count == 1 else tuple(f"output{i}" for i in range(count))


def at_least_one(size: Any) -> Any:
    """Return max(size, 1) as a float32 divisor; as an array if `size` is a symbolic dimension of an exported program.

    Example:
        >>> at_least_one(0)
        1.0
    """
    return float(max(size, 1)) if isinstance(size, int) else jnp.asarray(jnp.maximum(size, 1), jnp.float32)


def reason(error: Exception) -> str:
    """Describe in one line why an operator failed: the first line of a ValueError, or a generic text for other exceptions.

    Example:
        >>> reason(ValueError("data has 2 axes, expected 4"))
        'data has 2 axes, expected 4'
        >>> reason(IndexError("tuple index out of range"))
        'its shapes and attributes do not fit together (IndexError: tuple index out of range)'
    """
    first = next(iter(str(error).splitlines()), "")
    if first and isinstance(error, ValueError):
        return first
    kind = type(error).__name__
    return f"its shapes and attributes do not fit together ({kind}{': ' * bool(first)}{first})"
