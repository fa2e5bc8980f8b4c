"""Dense layers, activations, dropout, embedding."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jfit.ops.attributes import CAST_TO_NUMBERS, DTYPES, Attrs, choice, flag, integer, maybe_flag, number, several, shape
from jfit.ops.context import Ctx
from jfit.ops.elementwise import tanh
from jfit.ops.registry import Shape, operator
from jfit.ops.rows import LOST, RowLayout
from jfit.ops.rules import TO_CHANNELS_LAST, along, batch_rows, fill_unknown, last_axis, need_rank, same_shape, size_of, unmixed

# Constants of self-normalizing networks (Klambauer et al. 2017, arXiv:1706.02515).
SELU_ALPHA = 1.6732632423543772
SELU_SCALE = 1.0507009873554805


# ------------------------------------------------------------------------------------------ FullyConnected
def _dense_fill(attrs: Attrs, ins: list, outs: list) -> list:
    data, out = ins[0], outs[0]
    if data is None:
        return ins  # as in MXNet, parameter shapes stay unknown until the data shape is known
    need_rank("FullyConnected", data, 1, "rows")
    if attrs.flatten:
        width = size_of(data[1:])
        if out is not None and len(out) == 2:
            data = (data[0] or out[0], *data[1:])
        if not width and len(data) == 2 and ins[1] is not None:
            data = (data[0], ins[1][-1])
            width = ins[1][-1]
    else:
        width = data[-1]
        if out is not None and len(out) == len(data):
            data = fill_unknown(data, (*out[:-1], 0))
    return [data, (attrs.num_hidden, width), *([(attrs.num_hidden,)] if not attrs.no_bias else [])]


def _dense_outputs(attrs: Attrs, shapes: Sequence[Shape]) -> list[Shape] | None:
    data = shapes[0]
    if list(shapes) != _dense_fill(attrs, [data, None], [None]):
        return None  # inconsistent shapes: tracing raises the error message
    return [(*(data[:1] if attrs.flatten else data[:-1]), attrs.num_hidden)]


@operator(
    "FullyConnected",
    inputs=lambda a: ("data", "weight") if a.no_bias else ("data", "weight", "bias"),
    attrs={"num_hidden": integer(), "no_bias": flag(False), "flatten": flag(True)},
    aliases=("_npx_fully_connected", "_sparse_FullyConnected"),
    fill=_dense_fill,
    infer_outputs=_dense_outputs,
    rows=lambda attrs, *each: batch_rows(attrs, *each) if attrs.flatten else unmixed(last_axis)(attrs, *each),
)
def fully_connected(ctx: Ctx, attrs: Attrs, data: Array, weight: Array, bias: Array | None = None) -> Array:
    """y = x Wᵀ + b, weight (num_hidden, features); with flatten, all axes but the first are flattened into features."""
    lead = data.shape[:1] if attrs.flatten else data.shape[:-1]
    # Flatten to a 2-D matrix product: its gradient is then one too, which is 1.7 times faster on CPU than a 3-D one.
    flat = data.reshape(size_of(lead), size_of(data.shape[len(lead) :]))  # (rows, features)
    out = lax.dot_general(flat, weight.astype(data.dtype), (((1,), (1,)), ((), ())))  # (rows, num_hidden)
    if bias is not None:
        out = out + bias.astype(out.dtype)[None, :]
    return out.reshape(*lead, attrs.num_hidden)


# ------------------------------------------------------------------------------------------ activations
_ACTIVATIONS = {
    "relu": jax.nn.relu,
    "sigmoid": jax.nn.sigmoid,
    "tanh": tanh,
    "softrelu": jax.nn.softplus,
    "softsign": jax.nn.soft_sign,
}


@operator(
    "Activation", attrs={"act_type": choice(*sorted(_ACTIVATIONS))}, aliases=("_npx_activation",), fill=same_shape, layout="any"
)
def activation(ctx: Ctx, attrs: Attrs, data: Array) -> Array:
    """y = f(x), where f is relu, sigmoid, tanh, softrelu (log(1 + eˣ)) or softsign (x / (1 + |x|))."""
    return _ACTIVATIONS[attrs.act_type](data)


@jax.custom_jvp
def _selu(x: Array) -> Array:
    return SELU_SCALE * jnp.where(x > 0, x, SELU_ALPHA * jnp.expm1(jnp.minimum(x, 0)))


@_selu.defjvp
def _selu_derivative(primals, tangents):
    (x,), (dx,) = primals, tangents
    out = _selu(x)
    # MXNet 1.9.1 adds alpha to the scaled output where the derivative has it unscaled; training curves depend on it.
    return out, dx * SELU_SCALE * jnp.where(x > 0, jnp.ones((), x.dtype), SELU_ALPHA + out)


@jax.custom_jvp
def _scaled_by_itself(slope: Array) -> Array:
    """Return `slope`; its gradient is multiplied by `slope` (see `leaky_relu`)."""
    return slope


@_scaled_by_itself.defjvp
def _scaled_by_itself_derivative(primals, tangents):
    return primals[0], primals[0] * tangents[0]


def _leaky_overwritten(ctx: Ctx, attrs: Attrs, data: Array, gamma: Array) -> Array:
    return leaky_relu(ctx, attrs, data, cast(Array, _scaled_by_itself(gamma.astype(data.dtype))))


def _leaky_fill(attrs: Attrs, ins: list, outs: list) -> list:
    if attrs.act_type != "prelu":
        return ins
    data, gamma = ins
    if data is None or gamma is not None:
        return ins
    return [data, (data[1],)]


@operator(
    "LeakyReLU",
    inputs=lambda a: ("data", "gamma") if a.act_type == "prelu" else ("data",),
    attrs={"act_type": choice("elu", "gelu", "leaky", "prelu", "rrelu", "selu", default="leaky")}
    | several(number, slope=0.25, lower_bound=0.125, upper_bound=0.333999991),
    aliases=("_npx_leaky_relu",),
    init={"gamma": '["Constant", {"value": 0.25}]'},
    fill=_leaky_fill,
    rows=lambda attrs, rows, shapes, outs: [LOST if any(r is not None for r in rows[1:]) else rows[0]],
    needs_rng=True,
    layout="any",
    overwritten=_leaky_overwritten,
)
def leaky_relu(ctx: Ctx, attrs: Attrs, data: Array, gamma: Array | None = None) -> Array:
    """y = x where x > 0, else slope * x (leaky, prelu, rrelu), slope * (eˣ - 1) (elu, selu); gelu = x * Φ(x).

    The gradient of prelu with respect to its slope is the true gradient times the slope where MXNet 1.9.1 overwrites the
    incoming gradient in place before using it: nearly everywhere inside a graph, see `jfit.graph.in_place`. Training curves
    depend on it.
    """
    kind = attrs.act_type
    if kind == "gelu":
        return jax.nn.gelu(data, approximate=False)
    if kind == "selu":
        return _selu(data)
    if kind == "elu":
        # expm1 of large positive entries would overflow, and inf * 0 in its gradient is NaN
        below = jnp.expm1(jnp.where(data > 0, jnp.zeros((), data.dtype), data))
        return jnp.where(data > 0, data, attrs.slope * below)
    if kind == "prelu":
        assert gamma is not None
        slope = gamma.astype(data.dtype)
        if slope.size == 1 or slope.ndim == 1:
            slope = along(slope, 1, data.ndim)
        else:
            slope = slope.reshape(slope.shape + (1,) * (data.ndim - slope.ndim))
    elif kind == "rrelu" and ctx.train:
        low, high = attrs.lower_bound, attrs.upper_bound
        slope = ctx.random(lambda key, size: jax.random.uniform(key, size, data.dtype, low, high), data.shape)
    else:
        slope = (attrs.lower_bound + attrs.upper_bound) / 2 if kind == "rrelu" else attrs.slope
    return jnp.where(data > 0, data, slope * data)


# ------------------------------------------------------------------------------------------ Dropout
@operator(
    "Dropout",
    attrs={
        "p": number(0.5),
        "mode": choice("always", "training", default="training"),
        "axes": shape(()),
        "cudnn_off": maybe_flag(False),
    },
    aliases=("_npx_dropout",),
    needs_rng=True,
    layout="any",
)
def dropout(ctx: Ctx, attrs: Attrs, data: Array) -> Array:
    """y = x * m / (1 - p) in training (mode always: evaluation too), m = 0 with probability p, else 1; shared along `axes`."""
    keep = 1.0 - attrs.p
    if attrs.p <= 0 or not (ctx.train or attrs.mode == "always"):
        return data
    if keep <= 0:
        return jnp.full_like(data, jnp.nan)  # 0 / 0, as in MXNet
    axes = {TO_CHANNELS_LAST[a] for a in attrs.axes} if ctx.channels_last else {a % data.ndim for a in attrs.axes}
    size = tuple(1 if k in axes else n for k, n in enumerate(data.shape))
    rows = ctx.rows[0]
    if isinstance(rows, RowLayout) and rows.axis in axes and ctx.key is not None:
        mask = jax.random.bernoulli(ctx.key, keep, size)  # one mask shared by all rows, so every device draws the same
    else:
        mask = ctx.random(lambda key, n: jax.random.bernoulli(key, keep, n), size)
    return jnp.where(mask, data / keep, jnp.zeros((), data.dtype))


# ------------------------------------------------------------------------------------------ Embedding
def _embedding_fill(attrs: Attrs, ins: list, outs: list) -> list:
    data, out = ins[0], outs[0]
    if out is not None:
        data = fill_unknown(data, out[:-1])
    return [data, (attrs.input_dim, attrs.output_dim)]


def _embedding_types(attrs: Attrs, ins: list) -> tuple[list, list]:
    weight = np.dtype(DTYPES[attrs.dtype]) if ins[1] is None else ins[1]
    return [ins[0], weight], [weight]


def _embedding_rows(attrs, rows, shapes, outs):
    return [LOST if rows[1] is not None else rows[0]]


EMBEDDING = {"input_dim": integer(), "output_dim": integer(), "dtype": choice(*CAST_TO_NUMBERS, default="float32")}


def row_numbers(attrs: Attrs, data: Array) -> Array:
    """Return the row indices of the embedding table that `data` looks up, int32, clipped to [0, input_dim - 1]."""
    return jnp.clip(data.astype(jnp.int32), 0, attrs.input_dim - 1)


_embedding_operator = functools.partial(operator, fill=_embedding_fill, types=_embedding_types, rows=_embedding_rows)


@_embedding_operator(
    "Embedding",
    attrs={**EMBEDDING, "sparse_grad": flag(False)},
    aliases=("_npx_embedding", "_sparse_Embedding"),
)
def embedding(ctx: Ctx, attrs: Attrs, data: Array, weight: Array) -> Array:
    """y = weight[clip(x, 0, input_dim - 1)], weight (input_dim, output_dim)."""
    ids = row_numbers(attrs, data)
    if ctx.table_rows is not None:
        ids = jnp.searchsorted(ctx.table_rows, ids)
    return jnp.take(weight, ids, axis=0, mode="clip")  # (*ids, output_dim)


@_embedding_operator(
    "_contrib_SparseEmbedding",
    attrs={**EMBEDDING, "deterministic": flag(False)},
    hint="sparseembedding",
)
def sparse_embedding(ctx: Ctx, attrs: Attrs, data: Array, weight: Array) -> Array:
    """y = weight[clip(x, 0, input_dim - 1)], weight (input_dim, output_dim), with a row-sparse gradient in MXNet."""
    return embedding(ctx, attrs, data, weight)
