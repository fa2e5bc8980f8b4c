"""Order along an axis: sort, argsort, topk.  Equal entries keep their order, as in MXNet."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jfit.ops.attributes import choice, flag, integer, maybe_integer
from jfit.ops.registry import operator
from jfit.ops.rows import LOST, RowLayout
from jfit.ops.rules import dtype_attr_types, dtype_of, normalize_axis

ORDER_DTYPES = ["float16", "float32", "float64", "int32", "int64", "uint8"]


def _lined_up(attrs: Any, data: Array) -> tuple[Array, int]:
    """The data and the axis to sort along; without an axis it is flattened first."""
    return (data.reshape(-1), 0) if attrs.axis is None else (data, normalize_axis(attrs.axis, data.ndim))


def _order(data: Array, axis: int, ascending: bool) -> Array:
    """Positions of the entries in order; equal ones keep their order in both directions."""
    if ascending:
        return jnp.argsort(data, axis, stable=True)
    size = data.shape[axis]
    return size - 1 - jnp.flip(jnp.argsort(jnp.flip(data, axis), axis, stable=True), axis)


def _order_rows(attrs, rows, shapes, outs):
    """Sorting along the batch axis mixes the rows, along another axis each row is sorted by itself."""
    first = rows[0]
    mixed = isinstance(first, RowLayout) and (attrs.axis is None or normalize_axis(attrs.axis, len(shapes[0])) == first.axis)
    return [LOST if mixed else first] * len(outs)


@operator(
    "sort",
    outputs=("output0",),
    attrs={"axis": maybe_integer(-1), "is_ascend": flag(True)},
    rows=_order_rows,
)
def sort(ctx, attrs, data):
    """y = x sorted along the axis; the gradient of each entry goes back to where it came from."""
    lined, axis = _lined_up(attrs, data)
    return jnp.take_along_axis(lined, lax.stop_gradient(_order(lined, axis, attrs.is_ascend)), axis)


@operator(
    "argsort",
    attrs={"axis": maybe_integer(-1), "is_ascend": flag(True), "dtype": choice(*ORDER_DTYPES, default="float32")},
    types=dtype_attr_types,
    rows=_order_rows,
)
def argsort(ctx, attrs, data):
    """y = the positions that sort x along the axis; zero gradient."""
    return _order(*_lined_up(attrs, lax.stop_gradient(data)), attrs.is_ascend).astype(dtype_of(attrs.dtype))


def _topk_names(attrs):
    return {"both": ("output0", "output1"), "value": ("output0",)}.get(attrs.ret_typ, ("output",))


def _topk_types(attrs, ins):
    where = np.dtype(attrs.dtype)
    return ins, {"both": [ins[0], where], "indices": [where]}.get(attrs.ret_typ, [ins[0]])


@operator(
    "topk",
    outputs=_topk_names,
    attrs={
        "axis": maybe_integer(-1),
        "k": integer(1),
        "ret_typ": choice("both", "indices", "mask", "value", default="indices"),
        "is_ascend": flag(False),
        "dtype": choice(*ORDER_DTYPES, default="float32"),
    },
    aliases=("_npx_topk",),
    types=_topk_types,
    rows=_order_rows,
)
def topk(ctx, attrs, data):
    """y = the k largest entries along the axis (smallest with is_ascend), in order: values, positions or a mask of 0 and 1."""
    lined, axis = _lined_up(attrs, data)
    size = lined.shape[axis]
    if attrs.k > size:
        raise ValueError(f"k is {attrs.k}, data of shape {data.shape} has {size} entries there; lower k, or 0 for all of them")
    count = attrs.k if attrs.k > 0 else size
    order = lax.slice_in_dim(_order(lax.stop_gradient(lined), axis, attrs.is_ascend), 0, count, axis=axis)
    if attrs.ret_typ == "mask":
        mask = jnp.put_along_axis(jnp.zeros_like(lined), order, jnp.ones(order.shape, data.dtype), axis, inplace=False)
        return mask.reshape(data.shape)
    where = order.astype(dtype_of(attrs.dtype))
    if attrs.ret_typ == "indices":
        return where
    values = jnp.take_along_axis(lined, order, axis)
    return (values, where) if attrs.ret_typ == "both" else values
