"""Reading and writing entries by number: gather_nd, scatter_nd, index_copy, slices that are assigned, raveled numbers.

Numbers outside are clipped and negative ones count from the end; MXNet stops at the former, compiled code cannot.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jfit.ops.attributes import number, shape
from jfit.ops.registry import operator
from jfit.ops.rows import LOST, RowLayout, elementwise_rows, lost_rows
from jfit.ops.rules import agreed, dtype_of, first_types, same_shape, unify
from jfit.ops.slicing import slices


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
    return [agreed(moved)]


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
    return [agreed(rows)]


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
    return [agreed(rows)]


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
