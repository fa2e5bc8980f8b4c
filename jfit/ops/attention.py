"""Multi-head attention with interleaved projections: the last axis holds query, key and value of head 0, then of head 1, ...

Projections have shape (time, batch, heads * parts * size): parts is 3 for queries, keys and values in one array, 2 for keys and
values, 1 for queries; size is the width of one head.  Attention scores and weights have shape (batch * heads, query time, key
time).

Each operator is one half of attention: the scores are its result, with which a graph may compute anything before it weights the
values.  So they are matrix products, and not `jax.nn.dot_product_attention`, of which some implementations never store the
scores; to use those, write the network as a function (`Model.from_function`).
"""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
from jax import Array

from jfit.ops.attributes import integer
from jfit.ops.registry import operator
from jfit.ops.rows import LOST, RowLayout
from jfit.ops.rules import accumulating, common_rows, need_shape

HEADS = {"heads": integer()}


@operator("_contrib_div_sqrt_dim")
def div_sqrt_dim(ctx, attrs, data):
    """y = x / √(size of the last axis)."""
    return data / jnp.asarray(math.sqrt(data.shape[-1]), data.dtype)


def _heads(attrs, data: Array, parts: int) -> list[Array]:
    """Split interleaved projections into `parts` arrays of shape (batch, heads, time, size); float16 becomes float32."""
    time, batch, _ = data.shape
    split = data.astype(accumulating(data.dtype)).reshape((time, batch, attrs.heads, parts, -1))
    return [split[:, :, :, k].transpose((1, 2, 0, 3)) for k in range(parts)]


def _scores(queries: Array, keys: Array, dtype: Any) -> Array:
    """Return Q Kᵀ / √size, (batch * heads, query time, key time)."""
    scores = jnp.einsum("bhqd,bhkd->bhqk", queries / math.sqrt(queries.shape[-1]), keys)
    return scores.reshape((-1, *scores.shape[2:])).astype(dtype)


def _attended(attrs, values: Array, attention: Array) -> Array:
    """Return the attention-weighted values, (query time, batch, heads * size)."""
    batch, heads, time, size = values.shape
    need_shape("attention", attention.shape, (batch * heads, attention.shape[1], time))
    weights = attention.astype(values.dtype).reshape((batch, heads, *attention.shape[1:]))
    mixed = jnp.einsum("bhqk,bhkd->qbhd", weights, values)
    return mixed.reshape((attention.shape[1], batch, heads * size)).astype(attention.dtype)


def _score_rows(attrs, rows, shapes, outs):
    """Return where the batch rows are in the scores (`RowLayout`).

    They are on axis 1 of the projections (time, batch, ...) and on axis 0 of the scores (batch * heads, ...), where each
    row has `heads` consecutive entries.  LOST: the rows cannot be distinguished any more.
    """
    common = common_rows(rows)
    if not isinstance(common, RowLayout):
        return [common]
    return [common._replace(axis=0, after=common.after * attrs.heads) if common.axis == 1 else LOST]


def _attended_rows(attrs, rows, shapes, outs):
    """Return where the batch rows are in the output (`RowLayout`).

    They are on axis 0 of the attention weights (batch * heads, query time, key time), and on axis 1 of the output (query
    time, batch, heads * size) and of the projections.  LOST: the rows cannot be distinguished any more.
    """
    projections, weights = rows
    if isinstance(weights, RowLayout):
        whole = weights.axis == 0 and weights.after % attrs.heads == 0
        weights = weights._replace(axis=1, after=weights.after // attrs.heads) if whole else LOST
    common = common_rows([projections, weights])
    return [LOST if isinstance(common, RowLayout) and common.axis != 1 else common]


@operator("_contrib_interleaved_matmul_selfatt_qk", attrs=HEADS, rows=_score_rows)
def selfatt_qk(ctx, attrs, queries_keys_values):
    """y = Q Kᵀ / √(head size) for each sequence and head; the input has query, key and value of each head side by side.

    The input has shape (time, batch, heads * 3 * size), y has shape (batch * heads, time, time).
    """
    queries, keys, _ = _heads(attrs, queries_keys_values, 3)
    return _scores(queries, keys, queries_keys_values.dtype)


@operator("_contrib_interleaved_matmul_selfatt_valatt", attrs=HEADS, rows=_attended_rows)
def selfatt_valatt(ctx, attrs, queries_keys_values, attention):
    """y = attention V, heads concatenated on the last axis; V is the value part of queries_keys_values.

    queries_keys_values: (time, batch, heads * 3 * size), with query, key and value of each head side by side.
    attention: (batch * heads, time, time).  y: (time, batch, heads * size).
    """
    return _attended(attrs, _heads(attrs, queries_keys_values, 3)[2], attention)


@operator("_contrib_interleaved_matmul_encdec_qk", attrs=HEADS, rows=_score_rows)
def encdec_qk(ctx, attrs, queries, keys_values):
    """y = Q Kᵀ / √(head size) for each sequence and head; K is the key part of keys_values.

    queries: (query time, batch, heads * size).  keys_values: (key time, batch, heads * 2 * size), with key and value of each
    head side by side.  y: (batch * heads, query time, key time).
    """
    (split_queries,), (keys, _) = _heads(attrs, queries, 1), _heads(attrs, keys_values, 2)
    return _scores(split_queries, keys, queries.dtype)


@operator("_contrib_interleaved_matmul_encdec_valatt", attrs=HEADS, rows=_attended_rows)
def encdec_valatt(ctx, attrs, keys_values, attention):
    """y = attention V, heads concatenated on the last axis; V is the value part of keys_values.

    keys_values: (key time, batch, heads * 2 * size), with key and value of each head side by side.
    attention: (batch * heads, query time, key time).  y: (query time, batch, heads * size).
    """
    return _attended(attrs, _heads(attrs, keys_values, 2)[1], attention)
