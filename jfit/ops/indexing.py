"""Choosing entries by number (take, pick, one_hot) and by sequence length (SequenceMask, SequenceLast, SequenceReverse)."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jfit.ops.attributes import choice, flag, integer, maybe_integer, number, shape
from jfit.ops.registry import operator
from jfit.ops.rows import LOST, RowLayout, elementwise_rows, first_rows, lost_rows
from jfit.ops.rules import common_rows, drop_axes, dtype_attr_types, dtype_of, first_types, normalize_axis, same_shape, unify
from jfit.ops.slicing import slices

DTYPES_OUT = ["bfloat16", "float16", "float32", "float64", "int32", "int64", "int8", "uint8"]


def _within(ids: Array, size: int, mode: str) -> Array:
    """Ids as int32 in [0, size): cut off at the ends, or counted round."""
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
    inputs=("a", "indices"),
    attrs={"axis": integer(0), "mode": choice("clip", "raise", "wrap", default="clip")},
    types=first_types,
    rows=_take_rows,
)
def take(ctx, attrs, a, indices):
    """y = a[indices] along the axis; ids outside are clipped (also in mode raise: compiled code cannot stop) or wrapped."""
    axis = normalize_axis(attrs.axis, a.ndim)
    return jnp.take(a, _within(indices, a.shape[axis], attrs.mode), axis, mode="clip")


def _pick_axis(attrs, ndim):
    return normalize_axis(attrs.axis, ndim)


def _pick_shapes(attrs, ins, outs):
    data, index = ins
    if data is None or attrs.axis is None:
        return ins
    axis = _pick_axis(attrs, len(data))
    dropped, kept = data[:axis] + data[axis + 1 :], (*data[:axis], 1, *data[axis + 1 :])
    if index is not None and len(index) == len(data):
        return [data, unify([kept, index], f"index needs one entry for each position of the data beside axis {axis}")]
    return [data, unify([dropped, index], f"index needs one entry for each position of the data beside axis {axis}")]


def _pick_rows(attrs, rows, shapes, outs):
    if attrs.axis is None:
        return [LOST if any(r is not None for r in rows) else None]
    axes, ndim = (_pick_axis(attrs, len(shapes[0])),), len(shapes[0])
    index = rows[1] if len(shapes[1]) < ndim and not attrs.keepdims else _index_rows(rows[1], axes[0], shapes, attrs)
    return [common_rows([drop_axes(rows[0], axes, attrs.keepdims), index])]


def _index_rows(index, axis, shapes, attrs):
    """Rows of the index in the axes of the output."""
    if not isinstance(index, RowLayout):
        return index
    full = len(shapes[1]) == len(shapes[0])
    if full and not attrs.keepdims:
        return index._replace(axis=index.axis - (index.axis > axis))
    return index if full else index._replace(axis=index.axis + (index.axis >= axis))


@operator(
    "pick",
    inputs=("data", "index"),
    attrs={"axis": maybe_integer(-1), "keepdims": flag(False), "mode": choice("clip", "wrap", default="clip")},
    aliases=("choose_element_0index", "_npx_pick"),
    fill=_pick_shapes,
    types=first_types,
    rows=_pick_rows,
)
def pick(ctx, attrs, data, index):
    """y = one entry of the data along the axis for each index: y[i] = data[i, index[i]]."""
    if attrs.axis is None:
        return jnp.take(data.reshape(-1), _within(index, data.size, attrs.mode), mode="clip")
    axis = _pick_axis(attrs, data.ndim)
    kept = (*data.shape[:axis], 1, *data.shape[axis + 1 :])
    found = jnp.take_along_axis(data, _within(index, data.shape[axis], attrs.mode).reshape(kept), axis)
    return found if attrs.keepdims else found.reshape(kept[:axis] + kept[axis + 1 :])


@operator(
    "one_hot",
    aliases=("_npx_one_hot",),
    inputs=("indices",),
    attrs={
        "depth": integer(),
        "on_value": number(1.0),
        "off_value": number(0.0),
        "dtype": choice(*DTYPES_OUT, default="float32"),
    },
    types=dtype_attr_types,
    rows=first_rows,
)
def one_hot(ctx, attrs, indices):
    """y[..., k] = on_value where indices = k, else off_value; ids outside [0, depth) give no on_value."""
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
    if len(data) < 2:
        raise ValueError(f"data has shape {data}, sequences need a time and a batch axis first; add the missing axis")
    lengths = unify([(data[1 - attrs.axis],), ins[1]], "each sequence of the batch has one length")
    assert lengths is not None
    return [tuple(lengths[0] if a == 1 - attrs.axis else d for a, d in enumerate(data)), lengths]


def _sequence_axis(attrs) -> int:
    if attrs.axis not in (0, 1):
        raise ValueError(f"axis is {attrs.axis}, time can be axis 0 or 1; change axis")
    return attrs.axis


def _beside_time(attrs, rows, shapes, outs):
    r = rows[0]
    if r is None and any(x is not None for x in rows[1:]):
        return [LOST]
    return [LOST if isinstance(r, RowLayout) and r.axis == attrs.axis else r]


def _lengths_as(lengths: Array, data: Array, axis: int) -> Array:
    """Lengths (batch,) as int32 that broadcast against the data."""
    return lengths.astype(jnp.int32).reshape([-1 if a == 1 - axis else 1 for a in range(data.ndim)])


def _times(data: Array, axis: int) -> Array:
    return jnp.arange(data.shape[axis], dtype=jnp.int32).reshape([-1 if a == axis else 1 for a in range(data.ndim)])


@operator(
    "SequenceMask",
    inputs=_with_length,
    attrs={"use_sequence_length": flag(False), "value": number(0.0), "axis": integer(0)},
    aliases=("_npx_sequence_mask",),
    fill=_length_shapes,
    types=first_types,
    rows=_beside_time,
)
def sequence_mask(ctx, attrs, data, sequence_length=None):
    """y[t, n] = x[t, n] where t < length[n], else value."""
    if sequence_length is None:
        return data
    axis = _sequence_axis(attrs)
    inside = _times(data, axis) < _lengths_as(sequence_length, data, axis)
    return jnp.where(inside, data, jnp.asarray(attrs.value, data.dtype))


@operator(
    "SequenceLast",
    inputs=_with_length,
    attrs={"use_sequence_length": flag(False), "axis": integer(0)},
    fill=_length_shapes,
    types=first_types,
    rows=lambda attrs, rows, shapes, outs: [drop_axes(r, (attrs.axis,)) for r in _beside_time(attrs, rows, shapes, outs)],
)
def sequence_last(ctx, attrs, data, sequence_length=None):
    """y[n] = x[length[n] - 1, n], the last entry of each sequence."""
    axis = _sequence_axis(attrs)
    if sequence_length is None:
        return jnp.take(data, data.shape[axis] - 1, axis)
    last = jnp.clip(_lengths_as(sequence_length, data, axis) - 1, 0, data.shape[axis] - 1)
    return jnp.squeeze(jnp.take_along_axis(data, last, axis), axis)


@operator(
    "SequenceReverse",
    inputs=_with_length,
    attrs={"use_sequence_length": flag(False), "axis": integer(0)},
    fill=_length_shapes,
    types=first_types,
    rows=_beside_time,
)
def sequence_reverse(ctx, attrs, data, sequence_length=None):
    """y[t, n] = x[length[n] - 1 - t, n] where t < length[n], else x[t, n]."""
    axis = _sequence_axis(attrs)
    if sequence_length is None:
        return jnp.flip(data, axis)
    times, lengths = _times(data, axis), _lengths_as(sequence_length, data, axis)
    source = jnp.where(times < lengths, lengths - 1 - times, times)
    return jnp.take_along_axis(data, jnp.clip(source, 0, data.shape[axis] - 1), axis)


# ----------------------------------------------------------------------------------------------------
# Reading and writing entries by number: gather_nd, scatter_nd, index_copy, slices that are assigned, raveled numbers. Numbers
# outside are clipped and negative ones count from the end; MXNet stops at the former, compiled code cannot.


def _places(indices: Array, shape_: tuple[int, ...]) -> tuple[Array, ...]:
    """One int32 array of numbers for each leading axis, all inside."""
    if len(indices) > len(shape_):
        raise ValueError(
            f"indices of shape {indices.shape} name {len(indices)} axes, the data has shape {shape_}; the first axis of "
            "indices must not be longer than the data has axes"
        )
    ids = indices.astype(jnp.int32)
    return tuple(jnp.clip(jnp.where(i < 0, i + d, i), 0, d - 1) for i, d in zip(ids, shape_, strict=False))


def _gather_rows(attrs, rows, shapes, outs):
    """Rows stay where the indices carry them past their first axis, or data has them in an axis that is not indexed."""
    data, ids = rows
    named = shapes[1][0]
    moved = []
    if isinstance(data, RowLayout):
        moved.append(LOST if data.axis < named else data._replace(axis=data.axis - named + len(shapes[1]) - 1))
    elif data is LOST:
        moved.append(LOST)
    if isinstance(ids, RowLayout):
        moved.append(LOST if ids.axis == 0 else ids._replace(axis=ids.axis - 1))
    elif ids is LOST:
        moved.append(LOST)
    return [common_rows(moved)]


@operator("gather_nd", inputs=("data", "indices"), aliases=("_npx_gather_nd",), types=first_types, rows=_gather_rows)
def gather_nd(ctx, attrs, data, indices):
    """y[i...] = x[indices[0, i...], indices[1, i...], ...]."""
    return data[_places(indices, data.shape)]


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _scattered(data: Array, indices: Array, size: tuple[int, ...]) -> Array:
    return jnp.zeros(size, data.dtype).at[_places(indices, size)].set(data)


def _scattered_forward(data, indices, size):
    return _scattered(data, indices, size), indices


def _scattered_backward(size, indices, head):
    # MXNet reads the gradient back at every number, also at those that a later one overwrote
    return head[_places(indices, size)], jnp.zeros_like(indices) if jnp.issubdtype(indices.dtype, jnp.floating) else None


_scattered.defvjp(_scattered_forward, _scattered_backward)


@operator("scatter_nd", inputs=("data", "indices"), attrs={"shape": shape()}, types=first_types, rows=lost_rows)
def scatter_nd(ctx, attrs, data, indices):
    """y[indices[0, i...], indices[1, i...], ...] = x[i...], all other entries 0; of equal numbers the last one counts."""
    wanted = (*indices.shape[1:], *attrs.shape[indices.shape[0] :])
    if data.shape != wanted:
        raise ValueError(f"data has shape {data.shape}, needed {wanted} for these indices and shape {attrs.shape}")
    return _scattered(data, indices, attrs.shape)


@operator(
    "_scatter_set_nd",
    inputs=("lhs", "rhs", "indices"),
    attrs={"shape": shape()},
    types=first_types,
    rows=lost_rows,
)
def scatter_set_nd(ctx, attrs, lhs, rhs, indices):
    """y = lhs with y[indices[0, i...], indices[1, i...], ...] = rhs[i...]."""
    return lhs.at[_places(indices, lhs.shape)].set(rhs)


@jax.custom_vjp
def _copied(old: Array, index: Array, new: Array) -> Array:
    return old.at[_places(index[None], old.shape)].set(new)


def _copied_forward(old, index, new):
    return _copied(old, index, new), index


def _copied_backward(index, head):
    # every row of `new` reads the gradient back, also one that a later row overwrote
    at = _places(index[None], head.shape)
    none = jnp.zeros_like(index) if jnp.issubdtype(index.dtype, jnp.floating) else None
    return head.at[at].set(jnp.zeros((), head.dtype)), none, head[at]


_copied.defvjp(_copied_forward, _copied_backward)


def _copied_rows(attrs, rows, shapes, outs):
    old, index, new = rows
    if index is not None or (isinstance(old, RowLayout) and old.axis == 0) or (isinstance(new, RowLayout) and new.axis == 0):
        return [LOST if any(r is not None for r in rows) else None]
    return elementwise_rows(attrs, [old, new], [shapes[0], shapes[2]], outs)


@operator("_contrib_index_copy", inputs=("old_tensor", "index_vector", "new_tensor"), types=first_types, rows=_copied_rows)
def index_copy(ctx, attrs, old, index, new):
    """y = old with y[index[i]] = new[i]; of equal numbers the last one counts."""
    return _copied(old, index, new)


def _batch_take_shapes(attrs, ins, outs):
    return ins if ins[0] is None else [ins[0], unify([ins[0][:-1], ins[1], *outs], "each row of a needs one number")]


def _batch_take_rows(attrs, rows, shapes, outs):
    if isinstance(rows[0], RowLayout) and rows[0].axis == len(shapes[0]) - 1:
        return [LOST]
    return [common_rows(rows)]


@operator(
    "batch_take",
    inputs=("a", "indices"),
    fill=_batch_take_shapes,
    types=lambda attrs, ins: ([ins[0], dtype_of("int32") if ins[1] is None else ins[1]], [ins[0]]),
    rows=_batch_take_rows,
)
def batch_take(ctx, attrs, a, indices):
    """y[i] = a[i, indices[i]]; numbers outside are clipped."""
    ids = jnp.clip(indices.astype(jnp.int32), 0, a.shape[-1] - 1).reshape((*a.shape[:-1], 1))
    return jnp.take_along_axis(a, ids, -1).reshape(indices.shape)


def _slice_assign_rows(attrs, rows, shapes, outs):
    """Rows stay where the slice takes in the whole batch axis."""
    for r in rows:
        if isinstance(r, RowLayout) and r.axis < len(attrs.begin):
            size = shapes[0][r.axis]
            if slices(attrs, len(shapes[0]))[r.axis].indices(size) != (0, size, 1):
                return [LOST]
    return [common_rows(rows)]


SLICE = {"begin": shape(), "end": shape(), "step": shape(())}


@operator(
    "_slice_assign",
    inputs=("lhs", "rhs"),
    attrs=SLICE,
    aliases=("_crop_assign",),
    types=first_types,
    rows=_slice_assign_rows,
)
def slice_assign(ctx, attrs, lhs, rhs):
    """y = lhs with y[begin:end:step] = rhs."""
    return lhs.at[slices(attrs, lhs.ndim)].set(rhs.astype(lhs.dtype))


@operator(
    "_slice_assign_scalar",
    attrs=SLICE | {"scalar": number(0.0)},
    aliases=("_crop_assign_scalar",),
    fill=same_shape,
    rows=_slice_assign_rows,
)
def slice_assign_scalar(ctx, attrs, data):
    """y = x with y[begin:end:step] = scalar."""
    return data.at[slices(attrs, data.ndim)].set(jnp.asarray(attrs.scalar, data.dtype))


def _strides(size: tuple[int, ...]) -> list[int]:
    return [math.prod(size[k + 1 :]) for k in range(len(size))]


def _dropped(attrs, rows, shapes, outs):
    r = rows[0]
    return [r if not isinstance(r, RowLayout) else LOST if r.axis == 0 else r._replace(axis=r.axis - 1)]


@operator("_ravel_multi_index", attrs={"shape": shape()}, aliases=("ravel_multi_index",), rows=_dropped)
def ravel_multi_index(ctx, attrs, data):
    """y = the number in an array of `shape`, C order, of the entry whose number along axis k is x[k]."""
    if len(attrs.shape) != data.shape[0]:
        raise ValueError(
            f"shape {attrs.shape} has {len(attrs.shape)} axes, data of shape {data.shape} names {data.shape[0]}; needed a row "
            "of data for each axis"
        )
    ids = data.astype(jnp.int32)
    total: Any = sum((ids[k] * s for k, s in enumerate(_strides(attrs.shape))), start=jnp.zeros(data.shape[1:], jnp.int32))
    return (total.reshape((1,)) if total.ndim == 0 else total).astype(data.dtype)


def _lifted(attrs, rows, shapes, outs):
    return [r._replace(axis=r.axis + 1) if isinstance(r, RowLayout) else r for r in rows]


@operator("_unravel_index", attrs={"shape": shape()}, aliases=("unravel_index",), rows=_lifted)
def unravel_index(ctx, attrs, data):
    """y[k] = the number along axis k of the entry with number x in an array of `shape`, C order."""
    ids = data.astype(jnp.int32)
    found = [ids // s for s in _strides(attrs.shape)]
    return jnp.stack([found[0], *(f % d for f, d in zip(found[1:], attrs.shape[1:], strict=True))]).astype(data.dtype)
