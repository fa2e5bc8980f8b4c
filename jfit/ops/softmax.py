"""softmax, log_softmax, softmin, SoftmaxActivation, softmax_cross_entropy: operators that JAX differentiates."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import jax
import jax.numpy as jnp
from jax import Array

from jfit.ops.attributes import Attrs, choice, integer, maybe_choice, maybe_flag, maybe_number
from jfit.ops.context import Ctx
from jfit.ops.registry import operator
from jfit.ops.rows import lost_rows
from jfit.ops.rules import (
    accumulating,
    along,
    axis_or_all,
    cast_types,
    dtype_of,
    fill_unknown,
    label_of_rows,
    label_types,
    need_rank,
    normalize_axis,
    unmixed,
)

_ATTRS = {
    "axis": integer(-1),
    "temperature": maybe_number(),
    "dtype": maybe_choice("float16", "float32", "float64"),
    "use_length": maybe_flag(False),
}


def _along_axis(f: Callable, attrs: Attrs, data: Array, length: Array | None = None) -> Array:
    """Return f(data / temperature) along `attrs.axis`, f = softmax or log_softmax, computed in float32 for half precision.

    length: number of entries of each vector along the axis, in the shape of the data without that axis.  Entries from index
    `length` on are excluded and 0 in the result.
    """
    axis = normalize_axis(attrs.axis, data.ndim)
    wide = data.astype(accumulating(data.dtype))
    if attrs.temperature not in (None, 1.0):
        wide = wide / attrs.temperature
    if length is None:
        out = f(wide, axis=axis)
    else:
        position = along(jnp.arange(data.shape[axis]), axis, data.ndim)
        inside = position < jnp.expand_dims(length.astype(jnp.int32), axis)
        # a finite number instead of -inf, so that a row of length 0 gives no NaN
        low = jnp.asarray(jnp.finfo(wide.dtype).min / 2, wide.dtype)
        out = jnp.where(inside, f(jnp.where(inside, wide, low), axis=axis), jnp.zeros((), wide.dtype))
    return out.astype(dtype_of(attrs.dtype) if attrs.dtype else data.dtype)


def _no_length(op: str, attrs: Attrs) -> None:
    if attrs.use_length:
        raise ValueError(f"{op}: use_length is True, but this operator has no length input; use softmax(use_length=True)")


def _length_fill(attrs: Attrs, ins: list, outs: list) -> list:
    if len(ins) < 2 or ins[0] is None:
        return ins
    axis = normalize_axis(attrs.axis, len(ins[0]))
    return [ins[0], fill_unknown(ins[1], ins[0][:axis] + ins[0][axis + 1 :])]


@operator(
    "softmax",
    inputs=lambda a: ("data", "length") if a.use_length else ("data",),
    attrs=_ATTRS,
    aliases=("_npx_softmax",),
    fill=_length_fill,
    types=cast_types,
    rows=unmixed(axis_or_all),
)
def softmax(ctx: Ctx, attrs: Attrs, data: Array, length: Array | None = None) -> Array:
    """y = e^(x/T) / Σ e^(x/T) along `axis`; T = temperature."""
    return _along_axis(jax.nn.softmax, attrs, data, length)


@operator("log_softmax", attrs=_ATTRS, aliases=("_npx_log_softmax",), types=cast_types, rows=unmixed(axis_or_all))
def log_softmax(ctx: Ctx, attrs: Attrs, data: Array) -> Array:
    """y = x/T - log Σ e^(x/T) along `axis`; T = temperature."""
    _no_length("log_softmax", attrs)
    return _along_axis(jax.nn.log_softmax, attrs, data)


@operator("softmin", attrs=_ATTRS, types=cast_types, rows=unmixed(axis_or_all))
def softmin(ctx: Ctx, attrs: Attrs, data: Array) -> Array:
    """y = e^(-x/T) / Σ e^(-x/T) along `axis`; T = temperature."""
    _no_length("softmin", attrs)
    return _along_axis(jax.nn.softmax, attrs, -data)


@jax.custom_vjp
def _softmax_last(data: Array) -> Array:
    """Return the softmax along the last axis; its gradient is computed as if it were along axis 1, as MXNet 1.9.1 does."""
    return jax.nn.softmax(data, axis=-1)


def _softmax_last_backward(out, grad):
    return (out * (grad - jnp.sum(out * grad, axis=min(1, out.ndim - 1), keepdims=True)),)


_softmax_last.defvjp(lambda data: (out := _softmax_last(data), out), _softmax_last_backward)


@operator(
    "SoftmaxActivation",
    attrs={"mode": choice("channel", "instance", default="instance")},
    rows=unmixed(lambda attrs, ndim: (1 if attrs.mode == "channel" else ndim - 1,)),
)
def softmax_activation(ctx: Ctx, attrs: Attrs, data: Array) -> Array:
    """y = eˣ / Σ eˣ along axis 1 (channel) or along the LAST axis (instance).

    As in MXNet 1.9.1, the gradient is that of a softmax along axis 1 in both modes, which is wrong for `instance` if x has
    more than two axes; training curves depend on it.
    """
    wide = data.astype(accumulating(data.dtype))
    if attrs.mode == "instance":
        return cast(Array, _softmax_last(wide)).astype(data.dtype)
    need_rank("SoftmaxActivation", data.shape, 3, "mode is 'channel'")
    return jax.nn.softmax(wide, axis=1).astype(data.dtype)


@operator("softmax_cross_entropy", fill=label_of_rows, types=label_types, rows=lost_rows)
def softmax_cross_entropy(ctx: Ctx, attrs: Attrs, data: Array, label: Array) -> Array:
    """y = -Σ_rows log softmax(x)[label]; x (rows, classes), label (rows,), y (1,)."""
    logs = jax.nn.log_softmax(data.astype(accumulating(data.dtype)), axis=1)
    picked = jnp.take_along_axis(logs, label.astype(jnp.int32).reshape(-1, 1), axis=1, mode="clip")
    return -jnp.sum(picked).reshape(1).astype(data.dtype)
