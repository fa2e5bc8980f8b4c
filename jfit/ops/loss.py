"""Output heads: operators such as SoftmaxOutput, which define their own gradient and ignore the incoming cotangent.

The gradient of an output head is multiplied by the row weights (0 for padding rows); its denominators count only rows
with weight > 0.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax import Array, lax

from jfit.ops.attributes import Attrs, choice, flag, number, several
from jfit.ops.context import Ctx
from jfit.ops.registry import MaybeShape, operator
from jfit.ops.rules import accumulating, at_least_one, batch_rows, label_of_rows, label_types, size_of, unmixed

_head = functools.partial(operator, types=label_types, kind="head", label="label")

TINY = 1e-30  # lower bound of probabilities before log, so that log(0) stays finite


def head(forward: Callable[[Attrs, Array], Array], gradient: Callable[..., Array]) -> Callable[..., Array]:
    """Build the function of an output head: `call(attrs, data, label, weight)` = forward(attrs, data), with a custom gradient.

    Its gradient with respect to data is gradient(attrs, output, label, weight, cotangent) * weight; label and weight have
    none.  `weight` is None or the row weights (0 for padding rows), broadcastable against data.
    """

    @functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
    def call(attrs: Attrs, data: Array, label: Any, weight: Any) -> Array:
        return forward(attrs, data)

    def call_forward(attrs, data, label, weight):
        out = forward(attrs, data)
        return out, (out, label, weight)

    def call_backward(attrs, residuals, cotangent):
        out, label, weight = residuals
        wide = out.astype(accumulating(out.dtype))
        grad = gradient(attrs, wide, label, weight, cotangent.astype(wide.dtype))
        grad = grad if weight is None else grad * weight.astype(grad.dtype)
        return grad.astype(out.dtype), None, None

    call.defvjp(call_forward, call_backward)
    return cast(Callable[..., Array], call)


def need_entries(label: Array | None, count: int, what: str) -> None:
    """Raise a ValueError unless a label, if there is one, has `count` entries; `what` says which."""
    if label is not None and label.size != count:
        raise ValueError(f"label has shape {label.shape}, expected {what}; reshape the label")


def _row_means(values: Array) -> Array:
    """Return the mean over all axes but the first, (rows,), float32 or wider."""
    values = values.astype(jnp.promote_types(values.dtype, jnp.float32))
    return jnp.mean(values.reshape(values.shape[0] if values.ndim else 1, -1), axis=1)


# ------------------------------------------------------------------------------------------ SoftmaxOutput
def _class_axis(attrs: Attrs, ndim: int) -> int | None:
    """Return the class axis; None: all axes but the first are flattened into one class axis."""
    if attrs.multi_output:
        return 1
    return ndim - 1 if attrs.preserve_shape or ndim <= 2 else None


def _label_shape(attrs: Attrs, data: tuple[int, ...]) -> tuple[int, ...]:
    axis = _class_axis(attrs, len(data))
    return data[:1] if axis is None else data[:axis] + data[axis + 1 :]


def _softmax_output_fill(attrs: Attrs, ins: list[MaybeShape], outs: list[MaybeShape]) -> list[MaybeShape]:
    data, label = ins
    if data is None:
        return ins
    if label is None:
        return [data, _label_shape(attrs, data)]
    for shape in (_label_shape(attrs, data), data):
        if len(shape) == len(label) and all(a == b or 0 in (a, b) for a, b in zip(shape, label, strict=True)):
            return [data, tuple(a or b for a, b in zip(label, shape, strict=True))]
    return ins  # a label with as many entries, or a wrong one: see `softmax_output`


def _probabilities(attrs: Attrs, data: Array) -> Array:
    axis = _class_axis(attrs, data.ndim)
    wide = data.astype(accumulating(data.dtype))
    if axis is None:
        flat = wide.reshape(data.shape[0], size_of(data.shape[1:]))
        return jax.nn.softmax(flat, axis=1).reshape(data.shape).astype(data.dtype)
    return jax.nn.softmax(wide, axis=axis).astype(data.dtype)


def _row_size(attrs: Attrs, shape: tuple[int, ...]) -> int:
    return math.prod(shape[1:])


def _by_class(attrs: Attrs, out: Array) -> tuple[Array, int]:
    """Return (output, class axis); without multi_output or preserve_shape the output is flattened to (rows, classes)."""
    axis = _class_axis(attrs, out.ndim)
    return (out.reshape(out.shape[0], size_of(out.shape[1:])), 1) if axis is None else (out, axis)


def _softmax_gradient(attrs: Attrs, out: Array, label: Array, weight: Array | None, cotangent: Array) -> Array:
    """Return (p - onehot(label)) * grad_scale / denominator, the gradient of MXNet 1.9.1's SoftmaxOutput."""
    if label.shape == out.shape:  # probabilities
        grad = (out - label.astype(out.dtype)) * attrs.grad_scale
    else:
        grad = _hard_gradient(attrs, out, label, weight).reshape(out.shape)
    # With out_grad, MXNet 1.9.1 multiplies by its own output instead of the incoming cotangent; training curves depend on it.
    return grad * out if attrs.out_grad else grad


def _hard_gradient(attrs: Attrs, out: Array, label: Array, weight: Array | None) -> Array:
    prob, axis = _by_class(attrs, out)
    ids = label.astype(jnp.int32).reshape(prob.shape[:axis] + prob.shape[axis + 1 :])
    classes = prob.shape[axis]
    # an out-of-range class id equals no class index, so its row of `hit` is all False
    hit = jnp.expand_dims(ids, axis) == lax.broadcasted_iota(jnp.int32, prob.shape, axis)
    alpha = 0.0 if attrs.multi_output else attrs.smooth_alpha
    other = alpha / (classes - 1) if alpha and classes > 1 else 0.0
    grad = prob - jnp.where(hit, jnp.asarray(1.0 - alpha, prob.dtype), jnp.asarray(other, prob.dtype))
    ignored = ids == int(attrs.ignore_label)
    if attrs.use_ignore:
        grad = jnp.where(jnp.expand_dims(ignored, axis), jnp.zeros((), prob.dtype), grad)
    scale = attrs.grad_scale
    if attrs.multi_output and attrs.normalization != "valid":
        scale = scale / max(size_of(prob.shape[2:]), 1)
    mask = None if weight is None else weight > 0
    if mask is not None:
        # `mask` broadcasts against data; reshape it to broadcast against the class ids, which lack the class axis
        mask = mask.reshape(-1) if prob.ndim != out.ndim else jnp.squeeze(mask, axis)
    rows = ids.shape[0] if attrs.multi_output else ids.size
    return grad * (scale / _denominator(attrs.normalization, rows, ~ignored, mask))


def _denominator(normalization: str, rows: int, valid: Array, mask: Array | None) -> Any:
    """Return the divisor of the gradient: 1 ("null"), or the number of rows ("batch") or of valid entries ("valid").

    `rows` is the number of rows, `valid` is True for the entries that count.  `mask` is True for rows with weight > 0, or None
    if all rows have weight > 0.
    """
    if normalization == "null":
        return 1.0
    if normalization == "batch":
        if mask is None:
            return at_least_one(rows)
        return jnp.maximum(jnp.sum(jnp.broadcast_to(mask, valid.shape)) * (rows / max(valid.size, 1)), 1)
    return jnp.maximum(jnp.sum(valid if mask is None else valid & mask), 1)


_softmax_output = head(_probabilities, _softmax_gradient)


def _softmax_loss(attrs: Attrs, output: Array, label: Array) -> tuple[Array, Array]:
    """Return (-log p[label], weight 1), each (rows,), float32 or wider; both are 0 for ignore_label if use_ignore."""
    wide = output.astype(accumulating(output.dtype))
    prob, axis = _by_class(attrs, wide)
    if label.shape == output.shape:  # probabilities
        loss = -jnp.sum(label.astype(wide.dtype).reshape(prob.shape) * jnp.log(jnp.maximum(prob, TINY)), axis=axis)
        return _row_means(loss), jnp.ones(output.shape[:1], jnp.float32)
    ids = label.astype(jnp.int32).reshape(prob.shape[:axis] + prob.shape[axis + 1 :])
    picked = jnp.take_along_axis(prob, jnp.expand_dims(jnp.clip(ids, 0, prob.shape[axis] - 1), axis), axis=axis)
    loss = -jnp.log(jnp.maximum(jnp.squeeze(picked, axis), TINY))
    counted = (ids != int(attrs.ignore_label)) if attrs.use_ignore else jnp.ones(ids.shape, bool)
    return _row_means(jnp.where(counted, loss, jnp.zeros((), loss.dtype))), _row_means(counted)


def _softmax_rows(attrs, rows, shapes, outs):
    if not (attrs.multi_output or attrs.preserve_shape):
        return batch_rows(attrs, rows[:1], shapes, outs)
    return unmixed(lambda attrs, ndim: (1 if attrs.multi_output else ndim - 1,))(attrs, rows, shapes, outs)


@_head(
    "SoftmaxOutput",
    attrs=several(number, grad_scale=1.0, ignore_label=-1.0)
    | several(flag, multi_output=False, use_ignore=False, preserve_shape=False)
    | {"normalization": choice("batch", "null", "valid", default="null"), "out_grad": flag(False), "smooth_alpha": number(0.0)},
    aliases=("Softmax",),
    fill=_softmax_output_fill,
    rows=_softmax_rows,
    loss=_softmax_loss,
    positions=lambda attrs, shape: math.prod(_label_shape(attrs, shape)[1:]),
)
def softmax_output(ctx: Ctx, attrs: Attrs, data: Array, label: Array | None = None) -> Array:
    """y = softmax(x); its gradient is (y - onehot(label)) * grad_scale / (1, number of rows, or number of valid labels)."""
    if label is not None and label.shape != data.shape:
        classes, soft = _label_shape(attrs, data.shape), f"{data.shape} (probabilities)"
        need_entries(label, size_of(classes), f"{classes} (class ids) or {soft}, by multi_output and preserve_shape")
    return _softmax_output(attrs, data, label, None if label is None else ctx.row_weight(data.ndim))


# ------------------------------------------------------------------------------------------ regression
def _regression_fill(attrs: Attrs, ins: list, outs: list) -> list:
    data, label = ins
    if data is None:
        return [data if label is None or len(label) < 2 else label, label]
    if label is None:
        return [data, data[:1] if len(data) == 2 and data[1] == 1 else data]
    if len(label) == len(data):
        return [data, tuple(a or b for a, b in zip(label, data, strict=True))]
    return [data, tuple(n or (data[0] if i == 0 else 0) for i, n in enumerate(label))]


def _identity(attrs: Attrs, data: Array) -> Array:
    return data


def _add_regression(
    name: str,
    forward: Callable[[Attrs, Array], Array],
    slope: Callable[[Array, Array], Array],
    value: Callable[[Array, Array], Array],
    formula: str,
) -> None:
    """Register `<name>RegressionOutput`; slope(output, label) is its gradient, value(output, label) the loss of each entry."""

    def gradient(attrs, out, label, weight, cotangent):
        per_row = out.size // max(out.shape[0], 1) if out.ndim else 1
        return slope(out, label.astype(out.dtype).reshape(out.shape)) * (attrs.grad_scale / max(per_row, 1))

    call = head(forward, gradient)

    def loss(attrs: Attrs, output: Array, label: Array) -> tuple[Array, Array]:
        wide = output.astype(accumulating(output.dtype))
        means = _row_means(value(wide, label.astype(wide.dtype).reshape(wide.shape)))
        return means, jnp.ones(means.shape, jnp.float32)

    def fn(ctx: Ctx, attrs: Attrs, data: Array, label: Array | None = None) -> Array:
        need_entries(label, data.size, "as many entries as the data")
        return call(attrs, data, label, None if label is None else ctx.row_weight(data.ndim))

    fn.__doc__ = f"{formula} * grad_scale / (entries per row)."
    _head(
        f"{name}RegressionOutput",
        attrs={"grad_scale": number(1.0)},
        aliases=(f"_sparse_{name}RegressionOutput",),
        fill=_regression_fill,
        rows=lambda attrs, rows, shapes, outs: list(rows[:1]),
        loss=loss,
        positions=_row_size,
    )(fn)


def _binary_cross_entropy(out: Array, label: Array) -> Array:
    return -label * jnp.log(jnp.maximum(out, TINY)) - (1 - label) * jnp.log(jnp.maximum(1 - out, TINY))


def _half_square(out: Array, label: Array) -> Array:
    return 0.5 * jnp.square(out - label)


def _above(out: Array, label: Array) -> Array:
    return jnp.where(out > label, 1, -1).astype(out.dtype)  # MXNet's gradient where both are equal is -1, not 0


_SIGMOID, _RESIDUAL = (lambda attrs, data: jax.nn.sigmoid(data)), (lambda out, label: out - label)
_add_regression("Linear", _identity, _RESIDUAL, _half_square, "y = x; its gradient is (y - label)")
_add_regression("Logistic", _SIGMOID, _RESIDUAL, _binary_cross_entropy, "y = 1 / (1 + e⁻ˣ); its gradient is (y - label)")
_add_regression("MAE", _identity, _above, lambda a, b: jnp.abs(a - b), "y = x; its gradient is (1 where y > label, else -1)")


# ------------------------------------------------------------------------------------------ MakeLoss
def _make_loss_gradient(attrs: Attrs, out: Array, label: None, weight: Array | None, cotangent: Array) -> Array:
    rows = math.prod(out.shape[:-1])  # MXNet counts all axes but the last as rows, so a vector of losses is one row
    valid, mask = out > attrs.get("valid_thresh", 0.0), None if weight is None else weight > 0
    scale = attrs.get("grad_scale", 1.0) / _denominator(attrs.get("normalization", "null"), rows, valid, mask)
    return jnp.broadcast_to(jnp.asarray(scale, out.dtype), out.shape)


_make_loss = head(_identity, _make_loss_gradient)


def _loss_of_output(attrs: Attrs, output: Array, label: None = None) -> tuple[Array, Array]:
    """Return (mean of output * grad_scale over each row, weight 1), each (rows,), float32 or wider."""
    means = _row_means(output) * attrs.get("grad_scale", 1.0)
    return means, jnp.ones(means.shape, jnp.float32)


@operator(
    "MakeLoss",
    attrs=several(number, grad_scale=1.0, valid_thresh=0.0)
    | {"normalization": choice("batch", "null", "valid", default="null")},
    kind="head",
    loss=_loss_of_output,
    positions=_row_size,
)
def make_loss_output(ctx: Ctx, attrs: Attrs, data: Array) -> Array:
    """y = x; its gradient is grad_scale / (1, product of all sizes but the last, or number of entries > valid_thresh)."""
    return _make_loss(attrs, data, None, ctx.row_weight(data.ndim))


@operator(
    "make_loss", kind="head", outputs=("loss",), loss=_loss_of_output, positions=_row_size, aliases=("_sparse_make_loss",)
)
def make_loss(ctx: Ctx, attrs: Attrs, data: Array) -> Array:
    """y = x; its gradient is 1."""
    return _make_loss(attrs, data, None, ctx.row_weight(data.ndim))


@operator("BlockGrad", aliases=("_sparse_stop_gradient", "stop_gradient"))
def block_grad(ctx: Ctx, attrs: Attrs, data: Array) -> Array:
    """y = x; its gradient is 0."""
    return lax.stop_gradient(data)


@operator("smooth_l1", attrs={"scalar": number(1.0)}, aliases=("_npx_smooth_l1",))
def smooth_l1(ctx: Ctx, attrs: Attrs, data: Array) -> Array:
    """y = σ²x²/2 where |x| < 1/σ², else |x| - 1/(2σ²); scalar = σ."""
    square = attrs.scalar * attrs.scalar
    inside = jnp.abs(data) < 1.0 / square
    return jnp.where(inside, 0.5 * square * jnp.square(data), jnp.abs(data) - 0.5 / square)


# ----------------------------------------------------------------------------------------------------
# Other operators with their own gradients: the hinge loss of SVMOutput and the sparsity penalty of IdentityAttachKLSparseReg.


# ------------------------------------------------------------------------------------------ SVMOutput
def _signs(out: Array, label: Array) -> Array:
    """Return an array (rows, classes): +1 at the label's class, -1 elsewhere."""
    ids = label.astype(jnp.int32).reshape(-1, 1)
    return jnp.where(ids == jnp.arange(out.shape[1]).reshape(1, -1), 1.0, -1.0).astype(out.dtype)


def _svm_gradient(attrs: Attrs, out: Array, label: Array, weight: Array | None, cotangent: Array) -> Array:
    signs = _signs(out, label)
    slack = attrs.margin - signs * out
    slope = jnp.where(slack > 0, jnp.ones((), out.dtype) if attrs.use_linear else 2 * slack, jnp.zeros((), out.dtype))
    return -attrs.regularization_coefficient * signs * slope


_svm = head(lambda attrs, data: data, _svm_gradient)


def _svm_loss(attrs: Attrs, output: Array, label: Array) -> tuple[Array, Array]:
    """Return (hinge loss summed over the classes, weight 1), each (rows,), float32 or wider."""
    wide = output.astype(accumulating(output.dtype))
    slack = jnp.maximum(attrs.margin - _signs(wide, label) * wide, 0)
    total = jnp.sum(slack if attrs.use_linear else jnp.square(slack), axis=1) * attrs.regularization_coefficient
    return total, jnp.ones(total.shape, jnp.float32)


@_head(
    "SVMOutput",
    attrs={"margin": number(1.0), "regularization_coefficient": number(1.0), "use_linear": flag(False)},
    fill=label_of_rows,
    rows=lambda attrs, rows, shapes, outs: list(rows[:1]),
    loss=_svm_loss,
)
def svm_output(ctx: Ctx, attrs: Attrs, data: Array, label: Array | None = None) -> Array:
    """y = x; its gradient is that of c Σ max(0, margin ∓ x)ᵖ, - at the label's class, + elsewhere; p = 2, 1 with use_linear."""
    rows, _ = data.shape
    need_entries(label, rows, "one class id per row")
    return _svm(attrs, data, label, ctx.row_weight(data.ndim))


# ------------------------------------------------------------------------------------------ IdentityAttachKLSparseReg
@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _with_penalty(attrs: Attrs, data: Array, average: Array, weight: Any) -> Array:
    """Return data unchanged; penalty * d KL(target ‖ average) / d average is added to its gradient, the same in every row."""
    return data


def _with_penalty_backward(attrs, residuals, grad):
    average, weight = residuals
    target = attrs.sparseness_target
    push = attrs.penalty * ((1 - target) / (1 - average) - target / average)
    push = jnp.broadcast_to(push.reshape(1, *grad.shape[1:]), grad.shape)
    push = push if weight is None else push * weight.astype(push.dtype)
    return (grad.astype(push.dtype) + push).astype(grad.dtype), None, None


_with_penalty.defvjp(lambda attrs, data, average, weight: (data, (average, weight)), _with_penalty_backward)


def _sparse_fill(attrs: Attrs, ins: list, outs: list) -> list:
    data = ins[0]
    return ins if data is None or len(data) != 2 else [data, data[1:]]


@operator(
    "IdentityAttachKLSparseReg",
    aux=("moving_avg",),
    init={"moving_avg": '["zero", {}]'},
    attrs=several(number, sparseness_target=0.100000001, penalty=0.00100000005, momentum=0.899999976),
    fill=_sparse_fill,
    rows=batch_rows,
)
def sparse_identity(ctx: Ctx, attrs: Attrs, data: Array, moving_avg: Array):
    """y = x; its gradient is dy + penalty * ((1 - ρ)/(1 - a) - ρ/a), ρ = sparseness_target, a = moving mean of each unit.

    In training, a ← m * a + (1 - m) * (mean over the rows with weight > 0), before the gradient uses it; m = momentum.
    """
    if not ctx.train:
        return data, (moving_avg,)
    mask, wide = ctx.row_mask(data.ndim), lax.stop_gradient(data.astype(accumulating(data.dtype)))
    count = data.shape[0] if mask is None else jnp.sum(mask)
    mean = jnp.sum(wide if mask is None else wide * mask, axis=0) / jnp.maximum(count, 1)
    moved = attrs.momentum * moving_avg + (1.0 - attrs.momentum) * mean
    moved = jnp.where(jnp.asarray(count) > 0, moved, moving_avg).astype(moving_avg.dtype)
    weight = ctx.row_weight(data.ndim)
    if ctx.loss_scale is not None:
        weight = ctx.loss_scale if weight is None else ctx.loss_scale * weight
    return cast(Array, _with_penalty(attrs, data, moved, weight)), (moved,)
