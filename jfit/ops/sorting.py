"""Sorting along an axis: sort, argsort, topk. All are stable: equal entries keep their order, as in MXNet."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jfit.ops.attributes import choice, flag, integer, maybe_integer
from jfit.ops.registry import operator
from jfit.ops.rules import axis_or_all, dtype_attr_types, dtype_of, normalize_axis, unmixed

ORDER_DTYPES = ["float16", "float32", "float64", "int32", "int64", "uint8"]


def _flat_if_no_axis(attrs: Any, data: Array) -> tuple[Array, int]:
    """Return (data, axis to sort along, not negative); if `attrs.axis` is None, the data flattened and axis 0."""
    return (data.reshape(-1), 0) if attrs.axis is None else (data, normalize_axis(attrs.axis, data.ndim))


def _order(data: Array, axis: int, ascending: bool) -> Array:
    """Return the indices that sort the entries; equal entries keep their order, ascending or descending."""
    if ascending:
        return jnp.argsort(data, axis, stable=True)
    size = data.shape[axis]
    return size - 1 - jnp.flip(jnp.argsort(jnp.flip(data, axis), axis, stable=True), axis)


@operator("sort", outputs=("output0",), attrs={"axis": maybe_integer(-1), "is_ascend": flag(True)}, rows=unmixed(axis_or_all))
def sort(ctx, attrs, data):
    """y = x sorted along the axis; the gradient of each entry goes to its original position."""
    data, axis = _flat_if_no_axis(attrs, data)
    return jnp.take_along_axis(data, lax.stop_gradient(_order(data, axis, attrs.is_ascend)), axis)


@operator(
    "argsort",
    attrs={"axis": maybe_integer(-1), "is_ascend": flag(True), "dtype": choice(*ORDER_DTYPES, default="float32")},
    types=dtype_attr_types,
    rows=unmixed(axis_or_all),
)
def argsort(ctx, attrs, data):
    """y = the indices that sort x along the axis; zero gradient."""
    return _order(*_flat_if_no_axis(attrs, lax.stop_gradient(data)), attrs.is_ascend).astype(dtype_of(attrs.dtype))


def _topk_types(attrs, ins):
    where = np.dtype(attrs.dtype)
    return ins, {"both": [ins[0], where], "indices": [where]}.get(attrs.ret_typ, [ins[0]])


@operator(
    "topk",
    outputs=lambda attrs: {"both": ("output0", "output1"), "value": ("output0",)}.get(attrs.ret_typ, ("output",)),
    attrs={
        "axis": maybe_integer(-1),
        "k": integer(1),
        "ret_typ": choice("both", "indices", "mask", "value", default="indices"),
        "is_ascend": flag(False),
        "dtype": choice(*ORDER_DTYPES, default="float32"),
    },
    aliases=("_npx_topk",),
    types=_topk_types,
    rows=unmixed(axis_or_all),
)
def topk(ctx, attrs, data):
    """y = the k largest entries along the axis (smallest with is_ascend), sorted: values, indices, both, or a 0-1 mask."""
    flat, axis = _flat_if_no_axis(attrs, data)
    size = flat.shape[axis]
    count = attrs.k if attrs.k > 0 else size
    order = lax.slice_in_dim(_order(lax.stop_gradient(flat), axis, attrs.is_ascend), 0, count, axis=axis)
    if attrs.ret_typ == "mask":
        mask = jnp.put_along_axis(jnp.zeros_like(flat), order, jnp.ones(order.shape, data.dtype), axis, inplace=False)
        return mask.reshape(data.shape)
    where = order.astype(dtype_of(attrs.dtype))
    if attrs.ret_typ == "indices":
        return where
    values = jnp.take_along_axis(flat, order, axis)
    return (values, where) if attrs.ret_typ == "both" else values
