"""ONNX converters: indexing, sorting, sequence operators, matrix products."""

from __future__ import annotations

from typing import Any

import numpy as np

from jfit.export.nodes.core import FARTHEST, INT64, At, Dim, Graph, Unsupported, converts, fixed


def _within(graph: Graph, ids: str, size: Dim, mode: str, dtype: Any) -> str:
    """Convert indices of dtype `dtype` to int64 in [0, size): modulo size if mode is "wrap", else clipped."""
    ids, count = graph.cast(ids, INT64, dtype), fixed(size)
    if mode == "wrap":
        return graph.add("Mod", ids, graph.const(count, INT64), fmod=0)
    return graph.clipped(ids, count)


@converts("take")
def take(graph: Graph, node: At, data: str, indices: str) -> str:
    """Convert to ONNX Gather."""
    axis = node.axis(node.attrs.axis)
    return graph.add("Gather", data, _within(graph, indices, node.shape[axis], node.attrs.mode, node.of(1).dtype), axis=axis)


@converts("pick")
def pick(graph: Graph, node: At, data: str, index: str) -> str:
    """Convert to ONNX GatherElements."""
    attrs, index_shape = node.attrs, node.of(1).shape
    if attrs.axis is None:
        raise Unsupported("pick without an axis (over the flattened array) has no converter")
    axis = node.axis(attrs.axis)
    ids = _within(graph, index, node.shape[axis], attrs.mode, node.of(1).dtype)
    ids = ids if len(index_shape) == node.ndim else graph.unsqueeze(ids, [axis])
    picked = graph.add("GatherElements", data, ids, axis=axis)
    return picked if attrs.keepdims else graph.squeeze(picked, [axis])


@converts("gather_nd")
def gather_nd(graph: Graph, node: At, data: str, indices: str) -> str:
    """Convert to ONNX GatherND, which expects the index of an entry along the last axis instead of the first."""
    ndim = len(node.of(1).shape)
    ids = graph.transpose(graph.cast(indices, INT64, node.of(1).dtype), [*range(1, ndim), 0])
    limits = np.array([fixed(d) for d in node.shape[: fixed(node.of(1).shape[0])]], INT64)
    ids = graph.add("Min", ids, graph.const(limits - 1))
    return graph.add("GatherND", data, graph.add("Max", ids, graph.const(-limits)))  # negative indices count from the end


@converts("one_hot")
def one_hot(graph: Graph, node: At, indices: str) -> str:
    """Convert to Where(id == position): ids out of range give off_value everywhere.

    ONNX's OneHot would count negative ids from the end.
    """
    attrs, dtype = node.attrs, node.outs[0].dtype
    ids = graph.unsqueeze(graph.cast(indices, INT64, node.dtype), [node.ndim])
    hit = graph.add("Equal", ids, graph.const(np.arange(attrs.depth), INT64))
    return graph.add("Where", hit, graph.const(attrs.on_value, dtype), graph.const(attrs.off_value, dtype))


# ------------------------------------------------------------------------------------------ order
def _sorted(graph: Graph, node: At, data: str, count: int | None, rising: bool) -> tuple[str, str]:
    """Return (values, indices) of the first `count` entries (None: all) in sorted order; the data is flattened without an axis.

    rising: ascending order.
    """
    axis, shape = node.attrs.axis, node.shape
    if axis is None:
        data, shape, axis = graph.add("Reshape", data, graph.ints([-1])), (int(np.prod(node.sizes())),), 0
    axis %= len(shape)
    k = graph.ints([fixed(shape[axis]) if not count else min(count, fixed(shape[axis]))])
    return graph.add("TopK", data, k, outputs=2, axis=axis, largest=int(not rising), sorted=1)


@converts("sort", "argsort")
def sort(graph: Graph, node: At, data: str) -> str:
    """Convert to the values, or with the dtype of argsort the indices, of ONNX TopK of all entries."""
    values, indices = _sorted(graph, node, data, None, node.attrs.is_ascend)
    return graph.cast(indices, node.outs[0].dtype) if "dtype" in node.attrs else values


@converts("topk")
def topk(graph: Graph, node: At, data: str) -> Any:
    """Convert to ONNX TopK; ret_typ selects values, indices, both, or a mask with ones at the indices."""
    kind, axis = node.attrs.ret_typ, node.attrs.axis
    values, indices = _sorted(graph, node, data, node.attrs.k, node.attrs.is_ascend)
    if kind == "mask":
        blank = graph.binary("Mul", indices, 0, INT64)
        zeros, ones = graph.full(node.shape, 0, node.dtype), graph.cast(graph.binary("Add", blank, 1, INT64), node.dtype)
        zeros = zeros if axis is not None else graph.add("Reshape", zeros, graph.ints([-1]))
        return graph.reshape(graph.add("ScatterElements", zeros, indices, ones, axis=axis or 0), node.shape)
    if kind == "value":
        return values
    indices = graph.cast(indices, node.outs[-1].dtype)
    return (values, indices) if kind == "both" else indices


# ------------------------------------------------------------------------------------------ sequences
def _lengths(graph: Graph, node: At, lengths: str) -> str:
    return graph.cast(lengths, INT64, node.of(1).dtype)


@converts("SequenceMask")
def sequence_mask(graph: Graph, node: At, data: str, lengths: str = "") -> str:
    """Convert to Where(time < length, data, value)."""
    if not lengths:
        return data
    axis = node.attrs.axis
    times = graph.along(graph.const(np.arange(node.sizes(axis, axis + 1)[0]), INT64), axis, node.ndim)
    inside = graph.add("Less", times, graph.along(_lengths(graph, node, lengths), 1 - axis, node.ndim))
    return graph.add("Where", inside, data, graph.const(node.attrs.value, node.dtype))


@converts("SequenceLast")
def sequence_last(graph: Graph, node: At, data: str, lengths: str = "") -> str:
    """Convert to ONNX GatherND over (row, time): the entry at time length - 1 of each row."""
    axis, size = node.attrs.axis, node.sizes(node.attrs.axis, node.attrs.axis + 1)[0]
    if not lengths:
        return graph.squeeze(graph.slice(data, axis, size - 1, size), [axis])
    if axis == 0:
        data = graph.transpose(data, [1, 0, *range(2, node.ndim)])
    last = graph.add("Sub", _lengths(graph, node, lengths), graph.const(1, INT64))
    return graph.add("GatherND", data, graph.unsqueeze(graph.clipped(last, size), [1]), batch_dims=1)


@converts("SequenceReverse")
def sequence_reverse(graph: Graph, node: At, data: str, lengths: str = "") -> str:
    """Convert to ONNX ReverseSequence, or to Slice with step -1 if there is no sequence_length."""
    axis = node.attrs.axis
    if not lengths:
        return graph.slice(data, axis, -1, -FARTHEST, -1)
    return graph.add("ReverseSequence", data, _lengths(graph, node, lengths), time_axis=axis, batch_axis=1 - axis)


# ------------------------------------------------------------------------------------------ matrix products
@converts("dot")
def dot(graph: Graph, node: At, lhs: str, rhs: str) -> str:
    """Convert to ONNX MatMul of the operands flattened to matrices, with the axis summed over last in lhs and first in rhs."""
    a, b = node.of(0).shape, node.of(1).shape
    if node.attrs.transpose_a:
        lhs, a = graph.transpose(lhs, [*range(1, len(a)), 0]), (*a[1:], a[0])
    if node.attrs.transpose_b:
        rhs, b = graph.transpose(rhs, [len(b) - 1, *range(len(b) - 1)]), (b[-1], *b[:-1])
    lhs = lhs if len(a) < 3 else graph.add("Flatten", lhs, axis=len(a) - 1)
    rhs = rhs if len(b) < 3 else graph.add("Flatten", rhs, axis=1)
    out = graph.add("MatMul", lhs, rhs)
    flat = len(a) < 3 and len(b) < 3 and len(a) + len(b) > 2  # two vectors give a scalar, which has shape (1,) in jfit
    return out if flat else graph.reshape(out, node.outs[0].shape)


@converts("batch_dot")
def batch_dot(graph: Graph, node: At, lhs: str, rhs: str) -> str:
    """Convert to ONNX MatMul over the last two axes, which transpose_a and transpose_b exchange."""
    swap = [*range(node.ndim - 2), node.ndim - 1, node.ndim - 2]
    lhs = graph.transpose(lhs, swap) if node.attrs.transpose_a else lhs
    rhs = graph.transpose(rhs, swap) if node.attrs.transpose_b else rhs
    return graph.add("MatMul", lhs, rhs)


@converts("_linalg_gemm", "_linalg_gemm2")
def linalg_gemm(graph: Graph, node: At, *matrices: str) -> str:
    """Convert to alpha · A B + beta · C; matrix rows on another `axis` are transposed to the second-last axis and back."""
    order = [a for a in range(node.ndim) if a != node.axis(node.attrs.axis)]
    order.insert(node.ndim - 2, node.axis(node.attrs.axis))
    left, right, *summand = (graph.transpose(m, order) for m in matrices)
    out = batch_dot(graph, node, left, right)
    out = out if node.attrs.alpha == 1 else graph.binary("Mul", out, node.attrs.alpha, node.dtype)
    if summand:
        out = graph.add("Add", out, graph.binary("Mul", summand[0], node.attrs.beta, node.dtype))
    return graph.transpose(out, [order.index(a) for a in range(node.ndim)])
