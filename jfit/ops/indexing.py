"""Indexing operators (take, pick, one_hot, gather_nd, scatter_nd, ...) and sequence operators (SequenceMask, ...)."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jfit.ops.attributes import CAST_TO_NUMBERS, choice, flag, integer, maybe_integer, number, several, shape
from jfit.ops.registry import operator
from jfit.ops.rows import LOST, RowLayout, elementwise_rows, first_rows, lost_rows
from jfit.ops.rules import (
    common_rows,
    drop_axes,
    dtype_attr_types,
    dtype_of,
    first_types,
    insert_axis,
    last_axis,
    need_shape,
    normalize_axis,
    same_shape,
    unify,
    unmixed,
)
from jfit.ops.slicing import SLICE, slice_rows, slices


def _within(ids: Array, size: int, mode: str) -> Array:
    """Return indices as int32 in [0, size): out-of-range ones are taken modulo size in mode "wrap", otherwise clipped."""
    ids = ids.astype(jnp.int32)
    return jnp.mod(ids, size) if mode == "wrap" else jnp.clip(ids, 0, size - 1)


def _take_rows(attrs, rows, shapes, outs):
    axis = normalize_axis(attrs.axis, len(shapes[0]))
    data, ids = rows
    if isinstance(data, RowLayout):
        shift = len(shapes[1]) - 1 if data.axis > axis else 0
        data = LOST if data.axis == axis else data._replace(axis=data.axis + shift)
    if isinstance(ids, RowLayout):
        ids = ids._replace(axis=ids.axis + axis)
    return [common_rows([data, ids])]


@operator(
    "take",
    attrs={"axis": integer(0), "mode": choice("clip", "raise", "wrap", default="clip")},
    types=first_types,
    rows=_take_rows,
)
def take(ctx, attrs, a, indices):
    """y = a[indices] along the axis; out-of-range indices are wrapped (mode wrap) or clipped (modes clip and raise)."""
    axis = normalize_axis(attrs.axis, a.ndim)
    return jnp.take(a, _within(indices, a.shape[axis], attrs.mode), axis, mode="clip")


def _pick_shapes(attrs, ins, outs):
    data, index = ins
    if data is None or attrs.axis is None:
        return ins
    axis = normalize_axis(attrs.axis, len(data))
    keepdims = index is not None and len(index) == len(data)
    expected = (*data[:axis], *((1,) if keepdims else ()), *data[axis + 1 :])
    return [data, unify([expected, index], f"index has the shape of the data without axis {axis}, or with size 1 there")]


def _pick_rows(attrs, rows, shapes, outs):
    if attrs.axis is None:
        return lost_rows(attrs, rows, shapes, outs)
    data, index = rows
    axis, has_axis = normalize_axis(attrs.axis, len(shapes[0])), len(shapes[1]) == len(shapes[0])
    if has_axis and not attrs.keepdims:
        index = drop_axes(index, (axis,))
    elif attrs.keepdims and not has_axis:
        index = insert_axis(index, axis)
    return [common_rows([drop_axes(data, (axis,), attrs.keepdims), index])]


@operator(
    "pick",
    attrs={"axis": maybe_integer(-1), "keepdims": flag(False), "mode": choice("clip", "wrap", default="clip")},
    aliases=("choose_element_0index", "_npx_pick"),
    fill=_pick_shapes,
    types=first_types,
    rows=_pick_rows,
)
def pick(ctx, attrs, data, index):
    """y[i] = data[i, index[i]] for the last axis, or for `axis`; axis=None indexes the flattened data."""
    if attrs.axis is None:
        return jnp.take(data.reshape(-1), _within(index, data.size, attrs.mode), mode="clip")
    axis = normalize_axis(attrs.axis, data.ndim)
    size_1 = (*data.shape[:axis], 1, *data.shape[axis + 1 :])  # keepdims
    picked = jnp.take_along_axis(data, _within(index, data.shape[axis], attrs.mode).reshape(size_1), axis)
    return picked if attrs.keepdims else jnp.squeeze(picked, axis)


@operator(
    "one_hot",
    aliases=("_npx_one_hot",),
    attrs={"depth": integer()}
    | several(number, on_value=1.0, off_value=0.0)
    | {"dtype": choice(*CAST_TO_NUMBERS, default="float32")},
    types=dtype_attr_types,
    rows=first_rows,
)
def one_hot(ctx, attrs, indices):
    """y[..., k] = on_value where indices = k, else off_value; only off_value for indices outside [0, depth)."""
    places = jnp.arange(attrs.depth, dtype=jnp.int32).reshape((1,) * indices.ndim + (attrs.depth,))
    hit = indices.astype(jnp.int32)[..., None] == places
    dtype = dtype_of(attrs.dtype)
    return jnp.where(hit, jnp.asarray(attrs.on_value, dtype), jnp.asarray(attrs.off_value, dtype))


# ------------------------------------------------------------------ sequences: time and batch are the first two axes


def _with_length(attrs):
    return ("data", "sequence_length") if attrs.use_sequence_length else ("data",)


def _length_shapes(attrs, ins, outs):
    data = unify([ins[0], outs[0]]) if outs[0] is not None and ins[0] is not None and len(outs[0]) == len(ins[0]) else ins[0]
    if len(ins) == 1 or data is None:
        return [data, *ins[1:]]
    lengths = unify([(data[1 - attrs.axis],), ins[1]], "each sequence of the batch has one length")
    assert lengths is not None
    return [tuple(lengths[0] if a == 1 - attrs.axis else d for a, d in enumerate(data)), lengths]


_not_time_rows = unmixed(lambda attrs, ndim: (attrs.axis,))


def _lengths_as(lengths: Array, data: Array, axis: int) -> Array:
    """Reshape lengths (batch,) to int32 that broadcast against the data."""
    return lengths.astype(jnp.int32).reshape([-1 if a == 1 - axis else 1 for a in range(data.ndim)])


def _times(data: Array, axis: int) -> Array:
    return jnp.arange(data.shape[axis], dtype=jnp.int32).reshape([-1 if a == axis else 1 for a in range(data.ndim)])


_SEQUENCE: dict[str, Any] = {"inputs": _with_length, "fill": _length_shapes, "types": first_types}
_SEQUENCE_ATTRS = {"use_sequence_length": flag(False), "axis": integer(0)}


@operator(
    "SequenceMask",
    attrs={"use_sequence_length": flag(False), "value": number(0.0), "axis": integer(0)},
    aliases=("_npx_sequence_mask",),
    rows=_not_time_rows,
    **_SEQUENCE,
)
def sequence_mask(ctx, attrs, data, sequence_length=None):
    """y[t, n] = x[t, n] where t < length[n], else value."""
    if sequence_length is None:
        return data
    inside = _times(data, attrs.axis) < _lengths_as(sequence_length, data, attrs.axis)
    return jnp.where(inside, data, jnp.asarray(attrs.value, data.dtype))


@operator(
    "SequenceLast",
    attrs=_SEQUENCE_ATTRS,
    rows=lambda attrs, rows, shapes, outs: [drop_axes(r, (attrs.axis,)) for r in _not_time_rows(attrs, rows, shapes, outs)],
    **_SEQUENCE,
)
def sequence_last(ctx, attrs, data, sequence_length=None):
    """y[n] = x[length[n] - 1, n], the last entry of each sequence."""
    axis = attrs.axis
    if sequence_length is None:
        return jnp.take(data, data.shape[axis] - 1, axis)
    last = jnp.clip(_lengths_as(sequence_length, data, axis) - 1, 0, data.shape[axis] - 1)
    return jnp.squeeze(jnp.take_along_axis(data, last, axis), axis)


@operator("SequenceReverse", attrs=_SEQUENCE_ATTRS, rows=_not_time_rows, **_SEQUENCE)
def sequence_reverse(ctx, attrs, data, sequence_length=None):
    """y[t, n] = x[length[n] - 1 - t, n] where t < length[n], else x[t, n]."""
    axis = attrs.axis
    if sequence_length is None:
        return jnp.flip(data, axis)
    times, lengths = _times(data, axis), _lengths_as(sequence_length, data, axis)
    source = jnp.where(times < lengths, lengths - 1 - times, times)
    return jnp.take_along_axis(data, jnp.clip(source, 0, data.shape[axis] - 1), axis)


# ----------------------------------------------------------------------------------------------------
# Reading and writing at indices: gather_nd, scatter_nd, index_copy, slice assignment, raveled indices.  Negative indices count
# from the end.  Out-of-range indices are clipped, where MXNet raises an error, which compiled code cannot.


def _places(indices: Array, shape_: tuple[int, ...]) -> tuple[Array, ...]:
    """Return one int32 index array for each leading axis of `shape_`, all within bounds."""
    ids = indices.astype(jnp.int32)
    return tuple(jnp.clip(jnp.where(i < 0, i + d, i), 0, d - 1) for i, d in zip(ids, shape_[: len(ids)], strict=True))


def _gather_rows(attrs, rows, shapes, outs):
    """Return where the batch rows are in the output (`RowLayout`).

    They stay on axes of `indices` after the first, and on axes of `data` that are not indexed; on other axes they become LOST
    (cannot be distinguished any more).
    """
    data, ids = rows
    indexed = shapes[1][0]  # number of axes of data that are indexed
    if isinstance(data, RowLayout):
        data = LOST if data.axis < indexed else data._replace(axis=data.axis - indexed + len(shapes[1]) - 1)
    if isinstance(ids, RowLayout):
        ids = LOST if ids.axis == 0 else ids._replace(axis=ids.axis - 1)
    return [common_rows([data, ids])]


@operator("gather_nd", aliases=("_npx_gather_nd",), types=first_types, rows=_gather_rows)
def gather_nd(ctx, attrs, data, indices):
    """y[i...] = x[indices[0, i...], indices[1, i...], ...]."""
    return data[_places(indices, data.shape)]


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _scattered(data: Array, indices: Array, size: tuple[int, ...]) -> Array:
    return jnp.zeros(size, data.dtype).at[_places(indices, size)].set(data)


def _scattered_backward(size, indices, head):
    # as in MXNet, the gradient is read at every index, even where a later duplicate index has overwritten the value
    return head[_places(indices, size)], jnp.zeros_like(indices) if jnp.issubdtype(indices.dtype, jnp.floating) else None


_scattered.defvjp(lambda data, indices, size: (_scattered(data, indices, size), indices), _scattered_backward)


@operator("scatter_nd", attrs={"shape": shape()}, types=first_types, rows=lost_rows)
def scatter_nd(ctx, attrs, data, indices):
    """y[indices[0, i...], indices[1, i...], ...] = x[i...], all other entries 0; the last of equal indices wins."""
    need_shape("data", data.shape, (*indices.shape[1:], *attrs.shape[indices.shape[0] :]))
    return _scattered(data, indices, attrs.shape)


@operator("_scatter_set_nd", attrs={"shape": shape()}, types=first_types, rows=lost_rows)
def scatter_set_nd(ctx, attrs, lhs, rhs, indices):
    """y = a copy of lhs with y[indices[0, i...], indices[1, i...], ...] = rhs[i...]."""
    return lhs.at[_places(indices, lhs.shape)].set(rhs)


@jax.custom_vjp
def _copied(old: Array, index: Array, new: Array) -> Array:
    return old.at[_places(index[None], old.shape)].set(new)


def _copied_backward(index, head):
    # as in MXNet, every row of `new` gets its gradient, even one that a later duplicate index has overwritten
    at = _places(index[None], head.shape)
    d_index = jnp.zeros_like(index) if jnp.issubdtype(index.dtype, jnp.floating) else None
    return head.at[at].set(jnp.zeros((), head.dtype)), d_index, head[at]


_copied.defvjp(lambda old, index, new: (_copied(old, index, new), index), _copied_backward)


def _copied_rows(attrs, rows, shapes, outs):
    old, index, new = rows
    if index is not None or (isinstance(old, RowLayout) and old.axis == 0) or (isinstance(new, RowLayout) and new.axis == 0):
        return lost_rows(attrs, rows, shapes, outs)
    return elementwise_rows(attrs, [old, new], [shapes[0], shapes[2]], outs)


@operator("_contrib_index_copy", inputs=("old_tensor", "index_vector", "new_tensor"), types=first_types, rows=_copied_rows)
def index_copy(ctx, attrs, old, index, new):
    """y = a copy of old with y[index[i]] = new[i]; the last of equal indices wins."""
    return _copied(old, index, new)


def _batch_take_shapes(attrs, ins, outs):
    if ins[0] is None:
        return ins
    return [ins[0], unify([ins[0][:-1], ins[1], *outs], "each vector along the last axis of a needs one index")]


@operator(
    "batch_take",
    fill=_batch_take_shapes,
    types=lambda attrs, ins: ([ins[0], dtype_of("int32") if ins[1] is None else ins[1]], [ins[0]]),
    rows=unmixed(last_axis, shared=True),
)
def batch_take(ctx, attrs, a, indices):
    """y[i] = a[i, indices[i]]; out-of-range indices are clipped."""
    ids = jnp.clip(indices.astype(jnp.int32), 0, a.shape[-1] - 1).reshape((*a.shape[:-1], 1))
    return jnp.take_along_axis(a, ids, -1).reshape(indices.shape)


@operator("_slice_assign", attrs=SLICE, aliases=("_crop_assign",), types=first_types, rows=slice_rows)
def slice_assign(ctx, attrs, lhs, rhs):
    """y = a copy of lhs with y[begin:end:step] = rhs."""
    return lhs.at[slices(attrs)].set(rhs.astype(lhs.dtype))


@operator(
    "_slice_assign_scalar",
    attrs=SLICE | {"scalar": number(0.0)},
    aliases=("_crop_assign_scalar",),
    fill=same_shape,
    rows=slice_rows,
)
def slice_assign_scalar(ctx, attrs, data):
    """y = a copy of x with y[begin:end:step] = scalar."""
    return data.at[slices(attrs)].set(jnp.asarray(attrs.scalar, data.dtype))


def _strides(size: tuple[int, ...]) -> list[int]:
    return [math.prod(size[k + 1 :]) for k in range(len(size))]


@operator(
    "_ravel_multi_index",
    attrs={"shape": shape()},
    aliases=("ravel_multi_index",),
    rows=lambda attrs, rows, shapes, outs: [drop_axes(rows[0], (0,))],
)
def ravel_multi_index(ctx, attrs, data):
    """y = Σₖ x[k] strides[k]: the flat index (C order) of multi-index x in an array of `shape`, as np.ravel_multi_index."""
    pairs = zip(data.astype(jnp.int32), _strides(attrs.shape), strict=True)
    total: Any = sum((ids * stride for ids, stride in pairs), start=jnp.zeros(data.shape[1:], jnp.int32))
    return (total.reshape((1,)) if total.ndim == 0 else total).astype(data.dtype)


@operator(
    "_unravel_index",
    attrs={"shape": shape()},
    aliases=("unravel_index",),
    rows=lambda attrs, rows, shapes, outs: [insert_axis(rows[0], 0)],
)
def unravel_index(ctx, attrs, data):
    """y[k] = index along axis k of the entry with flat index x (C order) in an array of `shape`, as np.unravel_index."""
    ids = data.astype(jnp.int32)
    first, *others = [ids // s for s in _strides(attrs.shape)]
    return jnp.stack([first, *(i % d for i, d in zip(others, attrs.shape[1:], strict=True))]).astype(data.dtype)
