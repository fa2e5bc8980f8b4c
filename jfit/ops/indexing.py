"""Choosing entries by number (take, pick, one_hot) and by sequence length (SequenceMask, SequenceLast, SequenceReverse)."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from jfit.ops.attributes import choice, flag, integer, maybe_integer, number
from jfit.ops.registry import operator
from jfit.ops.rows import LOST, RowLayout, first_rows
from jfit.ops.rules import agreed, dtype_of, first_types, made_types, positive, removed, unify

DTYPES_OUT = ["bfloat16", "float16", "float32", "float64", "int32", "int64", "int8", "uint8"]


def _within(ids: Array, size: int, mode: str) -> Array:
    """Ids as int32 in [0, size): cut off at the ends, or counted round."""
    ids = ids.astype(jnp.int32)
    return jnp.mod(ids, size) if mode == "wrap" else jnp.clip(ids, 0, size - 1)


def _take_rows(attrs, rows, shapes, outs):
    axis = positive(attrs.axis, len(shapes[0]))
    data, ids = rows
    if isinstance(data, RowLayout):
        shift = len(shapes[1]) - 1 if data.axis > axis else 0
        data = LOST if data.axis == axis else data._replace(axis=data.axis + shift)
    if isinstance(ids, RowLayout):
        ids = ids._replace(axis=ids.axis + axis)
    return [agreed([data, ids])]


@operator(
    "take",
    inputs=("a", "indices"),
    attrs={"axis": integer(0), "mode": choice("clip", "raise", "wrap", default="clip")},
    types=first_types,
    rows=_take_rows,
)
def take(ctx, attrs, a, indices):
    """y = a[indices] along the axis; ids outside are clipped (also in mode raise: compiled code cannot stop) or wrapped."""
    axis = positive(attrs.axis, a.ndim)
    return jnp.take(a, _within(indices, a.shape[axis], attrs.mode), axis, mode="clip")


def _pick_axis(attrs, ndim):
    return positive(attrs.axis, ndim)


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
    return [agreed([removed(rows[0], axes, attrs.keepdims), index])]


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
    types=made_types,
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
    rows=lambda attrs, rows, shapes, outs: [removed(r, (attrs.axis,)) for r in _beside_time(attrs, rows, shapes, outs)],
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
