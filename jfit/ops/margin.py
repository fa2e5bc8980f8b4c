"""Heads beside the classes and distances of `loss`: margins of a support vector machine, sparse activations."""

from __future__ import annotations

import functools
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax import Array, lax

from jfit.ops.attributes import Attrs, flag, number
from jfit.ops.context import Ctx
from jfit.ops.loss import head
from jfit.ops.registry import operator
from jfit.ops.rules import accumulating, batch_rows, known_or, label_types


# ------------------------------------------------------------------------------------------ SVMOutput
def _signs(out: Array, label: Array) -> Array:
    """+1 at the class of each row, -1 elsewhere."""
    ids = label.astype(jnp.int32).reshape(-1, 1)
    return jnp.where(ids == jnp.arange(out.shape[1]).reshape(1, -1), 1.0, -1.0).astype(out.dtype)


def _svm_gradient(attrs: Attrs, out: Array, label: Array, weight: Array | None, cotangent: Array) -> Array:
    signs = _signs(out, label)
    slack = attrs.margin - signs * out
    slope = jnp.where(slack > 0, jnp.ones((), out.dtype) if attrs.use_linear else 2 * slack, jnp.zeros((), out.dtype))
    return -attrs.regularization_coefficient * signs * slope


_svm = head(lambda attrs, data: data, _svm_gradient)


def _svm_loss(attrs: Attrs, output: Array, label: Array) -> tuple[Array, Array]:
    """Hinge losses of each row, summed over the classes."""
    wide = output.astype(accumulating(output.dtype))
    slack = jnp.maximum(attrs.margin - _signs(wide, label) * wide, 0)
    total = jnp.sum(slack if attrs.use_linear else jnp.square(slack), axis=1) * attrs.regularization_coefficient
    return total.astype(jnp.float32), jnp.ones(total.shape, jnp.float32)


def _svm_fill(attrs: Attrs, ins: list, outs: list) -> list:
    data, label = ins
    return ins if data is None else [data, known_or(label, data[:1])]


@operator(
    "SVMOutput",
    inputs=("data", "label"),
    attrs={"margin": number(1.0), "regularization_coefficient": number(1.0), "use_linear": flag(False)},
    fill=_svm_fill,
    types=label_types,
    rows=lambda attrs, rows, shapes, outs: list(rows[:1]),
    kind="head",
    label="label",
    loss=_svm_loss,
)
def svm_output(ctx: Ctx, attrs: Attrs, data: Array, label: Array | None = None) -> Array:
    """y = x; its gradient is that of c Σ max(0, margin ∓ x)ᵖ, - at the label's class, p = 2 (1 with use_linear)."""
    if data.ndim != 2 or (label is not None and label.size != data.shape[0]):
        found = None if label is None else label.shape
        raise ValueError(f"SVMOutput: data {data.shape}, label {found}; needed (rows, classes) and one class number a row")
    return _svm(attrs, data, label, ctx.row_weight(data.ndim))


# ------------------------------------------------------------------------------------------ IdentityAttachKLSparseReg
@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _with_penalty(attrs: Attrs, data: Array, average: Array, weight: Any) -> Array:
    """data, whose gradient gets penalty * d KL(target ‖ average) / d average added, alike in every row."""
    return data


def _with_penalty_forward(attrs, data, average, weight):
    return data, (average, weight)


def _with_penalty_backward(attrs, kept, grad):
    average, weight = kept
    target = attrs.sparseness_target
    push = attrs.penalty * ((1 - target) / (1 - average) - target / average)
    push = jnp.broadcast_to(push.reshape(1, *grad.shape[1:]), grad.shape)
    push = push if weight is None else push * weight.astype(push.dtype)
    return (grad.astype(push.dtype) + push).astype(grad.dtype), None, None


_with_penalty.defvjp(_with_penalty_forward, _with_penalty_backward)


def _sparse_fill(attrs: Attrs, ins: list, outs: list) -> list:
    data = ins[0]
    return ins if data is None or len(data) != 2 else [data, data[1:]]


@operator(
    "IdentityAttachKLSparseReg",
    aux=("moving_avg",),
    aux_init=("zero",),
    attrs={
        "sparseness_target": number(0.100000001),
        "penalty": number(0.00100000005),
        "momentum": number(0.899999976),
    },
    fill=_sparse_fill,
    rows=batch_rows,
)
def sparse_identity(ctx: Ctx, attrs: Attrs, data: Array, moving_avg: Array):
    """y = x; the gradient gets penalty * ((1 - ρ)/(1 - a) - ρ/a) added, ρ the target, a the moving mean of each unit.

    Training moves a ← m * a + (1 - m) * mean of the rows of positive weight, before the gradient uses it.
    """
    if data.ndim != 2:
        raise ValueError(f"IdentityAttachKLSparseReg: data has shape {data.shape}, needed (rows, units); flatten the data")
    if not ctx.train:
        return data, (moving_avg,)
    mask, wide = ctx.row_mask(data.ndim), lax.stop_gradient(data.astype(accumulating(data.dtype)))
    count = data.shape[0] if mask is None else jnp.sum(mask)
    mean = jnp.sum(wide if mask is None else wide * mask, axis=0) / jnp.maximum(count, 1)
    moved = attrs.momentum * moving_avg + (1.0 - attrs.momentum) * mean
    moved = jnp.where(jnp.asarray(count) > 0, moved, moving_avg).astype(moving_avg.dtype)
    return cast(Array, _with_penalty(attrs, data, moved, ctx.row_weight(data.ndim))), (moved,)
