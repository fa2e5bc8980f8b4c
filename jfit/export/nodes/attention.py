"""ONNX converters of MXNet's attention operators with interleaved projections, as batched matrix products."""

from __future__ import annotations

import math

from jfit.export.nodes.core import At, Dims, Graph, Size, converts, fixed


def _heads(graph: Graph, node: At, data: str, which: int, parts: int, part: int) -> str:
    """Return one projection of all heads, (batch, heads, time, size).

    which: index of the node's input.  parts: number of projections interleaved in it.  part: index of the one to return.
    """
    shape, heads = node.of(which).shape, node.attrs.heads
    size = fixed(shape[2]) // (heads * parts)
    data = graph.reshape(data, (*shape[:2], heads, parts * size))
    return graph.transpose(graph.slice(data, 3, part * size, (part + 1) * size), [1, 2, 0, 3])


def _scores(graph: Graph, node: At, queries: str, keys: str, size: int) -> str:
    scaled = graph.binary("Mul", queries, 1 / math.sqrt(size), node.dtype)
    scores = graph.add("MatMul", scaled, graph.transpose(keys, [0, 1, 3, 2]))
    return graph.reshape(scores, node.outs[0].shape)


def _attended(graph: Graph, node: At, values: str, attention: str) -> str:
    """Return attention weights times values, with the heads concatenated: (time, batch, heads * size)."""
    shape = node.of(1).shape
    stacked: Dims = (node.shape[1], node.attrs.heads, *shape[1:])
    mixed = graph.add("MatMul", graph.reshape(attention, stacked), values)
    return graph.reshape(graph.transpose(mixed, [2, 0, 1, 3]), node.outs[0].shape)


def _size(node: At, parts: int) -> int:
    return fixed(node.shape[2]) // (node.attrs.heads * parts)


@converts("_contrib_interleaved_matmul_selfatt_qk")
def selfatt_qk(graph: Graph, node: At, data: str) -> str:
    """Convert self-attention scores: Q Kᵀ / √(size of a head), with Q, K interleaved in one input."""
    queries, keys = (_heads(graph, node, data, 0, 3, part) for part in (0, 1))
    return _scores(graph, node, queries, keys, _size(node, 3))


@converts("_contrib_interleaved_matmul_selfatt_valatt")
def selfatt_valatt(graph: Graph, node: At, data: str, attention: str) -> str:
    """Convert self-attention outputs: attention weights times V, V interleaved in one input with Q and K."""
    return _attended(graph, node, _heads(graph, node, data, 0, 3, 2), attention)


@converts("_contrib_interleaved_matmul_encdec_qk")
def encdec_qk(graph: Graph, node: At, queries: str, keys_values: str) -> str:
    """Add ONNX nodes for encoder-decoder attention scores, Q Kᵀ / √(size of a head); return the name of their output.

    keys_values: tensor with the keys and values of each head interleaved, as in MXNet.
    """
    pair = _heads(graph, node, queries, 0, 1, 0), _heads(graph, node, keys_values, 1, 2, 0)
    return _scores(graph, node, *pair, _size(node, 1))


@converts("_contrib_interleaved_matmul_encdec_valatt")
def encdec_valatt(graph: Graph, node: At, keys_values: str, attention: str) -> str:
    """Convert encoder-decoder attention outputs: attention weights times V."""
    return _attended(graph, node, _heads(graph, node, keys_values, 0, 2, 1), attention)


@converts("_contrib_div_sqrt_dim")
def div_sqrt_dim(graph: Graph, node: At, data: str) -> str:
    """Convert div_sqrt_dim: x / √(size of the last axis)."""
    last = node.shape[-1]
    if isinstance(last, Size):
        size = graph.add("Sqrt", graph.cast(graph.dims((last,)), node.dtype))
        return graph.add("Div", data, size)
    return graph.binary("Div", data, math.sqrt(last), node.dtype)
