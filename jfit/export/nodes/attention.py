"""ONNX converters of MXNet's attention operators with interleaved projections, as batched matrix products."""

from __future__ import annotations

import math

from jfit.export.nodes.core import At, Converter, Dims, Graph, Size, converts, fixed


def _heads(graph: Graph, node: At, data: str, which: int, parts: int, part: int) -> str:
    """Return one projection of all heads, (batch, heads, time, size).

    which: index of the node's input.  parts: number of projections interleaved in it.  part: index of the one to return.
    """
    shape, heads = node.of(which).shape, node.attrs.heads
    size = fixed(shape[2]) // (heads * parts)
    data = graph.reshape(data, (*shape[:2], heads, parts * size))
    return graph.transpose(graph.slice(data, 3, part * size, (part + 1) * size), [1, 2, 0, 3])


def _qk(graph: Graph, node: At, *inputs: str) -> str:
    """Convert attention scores, Q Kᵀ / √(size of a head); for self-attention, Q and K are interleaved in one input with V."""
    if len(inputs) == 1:
        pair = [_heads(graph, node, inputs[0], 0, 3, part) for part in (0, 1)]
    else:
        pair = [_heads(graph, node, data, i, i + 1, 0) for i, data in enumerate(inputs)]
    size = fixed(node.shape[2]) // (node.attrs.heads * (3 if len(inputs) == 1 else 1))
    scaled = graph.binary("Mul", pair[0], 1 / math.sqrt(size), node.dtype)
    return graph.reshape(graph.add("MatMul", scaled, graph.transpose(pair[1], [0, 1, 3, 2])), node.outs[0].shape)


def _valatt(parts: int) -> Converter:
    """Return the converter of attention weights times V, the last of `parts` projections interleaved in the first input."""

    def convert(graph: Graph, node: At, data: str, attention: str) -> str:
        values, shape = _heads(graph, node, data, 0, parts, parts - 1), node.of(1).shape
        stacked: Dims = (node.shape[1], node.attrs.heads, *shape[1:])
        mixed = graph.add("MatMul", graph.reshape(attention, stacked), values)
        return graph.reshape(graph.transpose(mixed, [2, 0, 1, 3]), node.outs[0].shape)  # (time, batch, heads * size)

    return convert


converts("_contrib_interleaved_matmul_selfatt_qk", "_contrib_interleaved_matmul_encdec_qk")(_qk)
converts("_contrib_interleaved_matmul_selfatt_valatt")(_valatt(3))
converts("_contrib_interleaved_matmul_encdec_valatt")(_valatt(2))


@converts("_contrib_div_sqrt_dim")
def div_sqrt_dim(graph: Graph, node: At, data: str) -> str:
    """Convert div_sqrt_dim: x / √(size of the last axis)."""
    last = node.shape[-1]
    if isinstance(last, Size):
        size = graph.add("Sqrt", graph.cast(graph.dims((last,)), node.dtype))
        return graph.add("Div", data, size)
    return graph.binary("Div", data, math.sqrt(last), node.dtype)
