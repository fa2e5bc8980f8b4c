"""Copies between devices and storage types, casts of several arrays, and operators that change only the gradient."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jfit.ops.attributes import DTYPES, choice, flag, integer, number, several
from jfit.ops.elementwise import rounded
from jfit.ops.registry import operator
from jfit.ops.rows import first_rows
from jfit.ops.rules import dtype_of, first_types, numbered_outputs, same_shape

HALVES = (DTYPES["float16"], DTYPES["bfloat16"])


def _same(ctx: Any, attrs: Any, data: Array) -> Array:
    """y = x."""
    return data


operator("_copyto", fill=same_shape, layout="any")(_same)
operator("_CrossDeviceCopy", fill=same_shape, layout="any")(_same)
operator(
    "cast_storage",
    attrs={"stype": choice("csr", "default", "row_sparse")},
    aliases=("_sparse_cast_storage",),
    fill=same_shape,
    layout="any",
)(_same)


@operator("_identity_with_attr_like_rhs", fill=same_shape, types=first_types)
def identity_like(ctx, attrs, lhs, rhs):
    """y = lhs, which has the shape of rhs; the gradient of rhs is 0."""
    return lhs


@operator("_sparse_retain", types=first_types, rows=first_rows)
def sparse_retain(ctx, attrs, data, indices):
    """y[i] = x[i] where i is one of the indices, else 0."""
    rows = jnp.arange(data.shape[0], dtype=jnp.int32)
    selected = jnp.any(rows[:, None] == indices.astype(jnp.int32).reshape((1, -1)), 1)
    return jnp.where(selected.reshape((-1,) + (1,) * (data.ndim - 1)), data, jnp.zeros_like(data))


def _multicast_types(attrs, ins):
    """Infer dtypes: float inputs are cast to float32, or to half precision with cast_narrow; other dtypes are unchanged."""
    dtypes = [np.dtype(t) for t in ins if t is not None]
    floats = [t for t in dtypes if t in HALVES or t == DTYPES["float32"]]
    halves = [t for t in floats if t in HALVES]
    if not halves or (len(halves) == len(floats) and len(set(halves)) == 1):
        return ins, list(ins)
    target = halves[0] if attrs.cast_narrow else DTYPES["float32"]
    return ins, [target if t is not None and np.dtype(t) in floats else t for t in ins]


@operator(
    "amp_multicast",
    inputs=lambda attrs: tuple(f"data_{i}" for i in range(attrs.num_outputs)),
    outputs=lambda attrs: numbered_outputs(attrs.num_outputs),
    variadic="num_outputs",
    attrs={"num_outputs": integer(), "cast_narrow": flag(False)},
    types=_multicast_types,
    rows=lambda attrs, rows, shapes, outs: list(rows),
)
def amp_multicast(ctx, attrs, *data):
    """yᵢ = xᵢ cast to the widest float dtype among all xᵢ, the narrowest with cast_narrow; integers are unchanged."""
    dtypes = _multicast_types(attrs, [d.dtype for d in data])[1]
    return tuple(d.astype(t) for d, t in zip(data, dtypes, strict=True))


# ------------------------------------------------------------------ operators whose gradient is not that of their value


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _straight(function: Any, data: Array) -> Array:
    """Straight-through estimator: function(x), with the gradient of the identity."""
    return function(data)


@_straight.defjvp
def _straight_jvp(function, primals, tangents):
    return _straight(function, primals[0]), tangents[0]


@operator("_contrib_round_ste", aliases=("_sparse__contrib_round_ste",), fill=same_shape, layout="any")
def round_ste(ctx, attrs, data):
    """y = the nearest integer, halves away from 0; the gradient is that of the identity (straight-through estimator)."""
    return _straight(rounded, data)


@operator("_contrib_sign_ste", aliases=("_sparse__contrib_sign_ste",), fill=same_shape, layout="any")
def sign_ste(ctx, attrs, data):
    """y = -1, 0 or 1 as x < 0, x = 0, x > 0; the gradient is that of the identity (straight-through estimator)."""
    return _straight(jnp.sign, data)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _scaled_gradient(scale: float, data: Array) -> Array:
    return data


@_scaled_gradient.defjvp
def _scaled_gradient_jvp(scale, primals, tangents):
    return primals[0], tangents[0] * jnp.asarray(scale, tangents[0].dtype)


@operator("_contrib_gradientmultiplier", attrs={"scalar": number(1.0), "is_int": flag(True)}, fill=same_shape, layout="any")
def gradientmultiplier(ctx, attrs, data):
    """y = x; the gradient is multiplied by scalar (gradient reversal if it is negative)."""
    return _scaled_gradient(attrs.scalar, data) if jnp.issubdtype(data.dtype, jnp.floating) else data


@operator("_contrib_quadratic", attrs=several(number, a=0.0, b=0.0, c=0.0), fill=same_shape, layout="any")
def quadratic(ctx, attrs, data):
    """y = a x² + b x + c."""
    x = data if jnp.issubdtype(data.dtype, jnp.floating) else data.astype(dtype_of("float32"))
    return ((attrs.a * x + attrs.b) * x + attrs.c).astype(data.dtype)
