"""ONNX converters: BatchNorm in evaluation, LayerNorm, InstanceNorm, GroupNorm, L2Normalization, LRN."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jfit.export.nodes.core import CONVERTERS, At, Dim, Graph, converts

WIDE = np.dtype(np.float32)


def _wide(dtype: np.dtype) -> np.dtype:
    """Return the dtype to compute in: float32 for half precision, else the dtype itself."""
    return WIDE if dtype.itemsize == 2 else dtype


@converts("BatchNorm", "_contrib_SyncBatchNorm")
def batch_norm(graph: Graph, node: At, data: str, gamma: str, beta: str, mean: str, var: str) -> tuple[str, ...]:
    """Convert to ONNX BatchNormalization with the moving statistics; a channel axis other than 1 is swapped with axis 1."""
    wide, axis = _wide(node.dtype), node.axis(node.attrs.get("axis", 1))
    vectors = [graph.cast(v, wide, node.of(i).dtype) for i, v in ((2, beta), (3, mean), (4, var))]
    scale = graph.full(node.of(1).shape, 1, wide) if node.attrs.fix_gamma else graph.cast(gamma, wide, node.of(1).dtype)
    order = list(range(node.ndim))
    single_row = node.ndim == 1  # the only axis is the channel axis
    if not single_row:
        order[1], order[axis] = order[axis], order[1]
    x = graph.cast(data, wide, node.dtype)
    x = graph.unsqueeze(x, [0]) if single_row else graph.transpose(x, order)
    out = graph.add("BatchNormalization", x, scale, *vectors, epsilon=node.attrs.eps)
    out = graph.squeeze(out, [0]) if single_row else graph.transpose(out, order)
    outputs = [graph.cast(out, node.dtype, wide)]
    if node.used - {0}:
        inverse = graph.add("Reciprocal", graph.add("Sqrt", graph.binary("Add", vectors[2], node.attrs.eps, wide)))
        outputs += [graph.add("Identity", vectors[1]), inverse]
    return tuple(outputs)


@converts("_contrib_BatchNormWithReLU")
def batch_norm_with_relu(graph: Graph, node: At, *arrays: str) -> tuple[str, ...]:
    """Convert to ONNX BatchNormalization and Relu."""
    out, *rest = batch_norm(graph, node, *arrays)
    return (graph.add("Relu", out), *rest)


@converts("BatchNorm_v1")
def batch_norm_v1(graph: Graph, node: At, *arrays: str) -> tuple[str, ...]:
    """Convert to ONNX BatchNormalization; the output `var` is the variance itself, not 1 / √(variance + eps)."""
    out, *rest = batch_norm(graph, node, *arrays)
    return (out, rest[0], graph.add("Identity", arrays[4])) if rest else (out,)


def _standardised(graph: Graph, data: str, axes: Sequence[int], eps: float, dtype: Any) -> tuple[str, str, str]:
    """Return ((x - μ) / s, μ, s) with s = √(σ² + ε); μ and σ² are taken over `axes`, kept as axes of size 1."""
    mean = graph.add("ReduceMean", data, axes=list(axes), keepdims=1)
    difference = graph.add("Sub", data, mean)
    var = graph.add("ReduceMean", graph.add("Mul", difference, difference), axes=list(axes), keepdims=1)
    std = graph.add("Sqrt", graph.binary("Add", var, eps, dtype))
    return graph.add("Div", difference, std), mean, std


@converts("LayerNorm")
def layer_norm(graph: Graph, node: At, data: str, gamma: str, beta: str) -> Any:
    """Convert to ONNX LayerNormalization along the last axis.

    Elementary nodes for other axes, or if the outputs mean and std are used.
    """
    wide, axis = _wide(node.dtype), node.axis(node.attrs.axis)
    x = graph.cast(data, wide, node.dtype)
    gamma, beta = (graph.cast(v, wide, node.of(i).dtype) for i, v in ((1, gamma), (2, beta)))
    if axis == node.ndim - 1 and not node.used - {0}:
        out = graph.add("LayerNormalization", x, gamma, beta, axis=-1, epsilon=node.attrs.eps)
        return graph.cast(out, node.dtype, wide)
    unit, mean, std = _standardised(graph, x, [axis], node.attrs.eps, wide)
    gamma, beta = (graph.along(v, axis, node.ndim) for v in (gamma, beta))
    out = graph.add("Add", graph.add("Mul", unit, gamma), beta)
    return tuple(graph.cast(v, node.dtype, wide) for v in (out, mean, std))


@converts("InstanceNorm")
def instance_norm(graph: Graph, node: At, data: str, gamma: str, beta: str) -> str:
    """Convert to ONNX InstanceNormalization."""
    wide = _wide(node.dtype)
    vectors = [graph.cast(v, wide, node.of(i).dtype) for i, v in ((1, gamma), (2, beta))]
    out = graph.add("InstanceNormalization", graph.cast(data, wide, node.dtype), *vectors, epsilon=node.attrs.eps)
    return graph.cast(out, node.dtype, wide)


@converts("GroupNorm")
def group_norm(graph: Graph, node: At, data: str, gamma: str, beta: str) -> Any:
    """Convert to elementary nodes on the data reshaped to (rows, groups, rest); gamma and beta have one entry per group."""
    wide, groups = _wide(node.dtype), node.attrs.num_groups
    rows: Dim = node.shape[0]
    size = int(np.prod(node.sizes(1))) // groups
    x = graph.reshape(graph.cast(data, wide, node.dtype), (rows, groups, size))
    unit, mean, std = _standardised(graph, x, [2], node.attrs.eps, wide)
    gamma, beta = (graph.along(graph.cast(v, wide, node.of(i).dtype), 1, 3) for i, v in ((1, gamma), (2, beta)))
    out = graph.reshape(graph.add("Add", graph.add("Mul", unit, gamma), beta), node.shape)
    if not node.used - {0}:
        return graph.cast(out, node.dtype, wide)
    return tuple(graph.cast(v, node.dtype, wide) for v in (out, graph.squeeze(mean, [2]), graph.squeeze(std, [2])))


@converts("L2Normalization")
def l2_normalization(graph: Graph, node: At, data: str) -> str:
    """Convert to x / √(Σ x² + ε), summed over each row (instance), the channels (channel) or the spatial axes (spatial)."""
    axes = {"instance": range(1, node.ndim), "channel": [1], "spatial": range(2, node.ndim)}[node.attrs.mode]
    wide = _wide(node.dtype)
    x = graph.cast(data, wide, node.dtype)
    total = graph.total(graph.add("Mul", x, x), list(axes)) if list(axes) else graph.add("Mul", x, x)
    length = graph.add("Sqrt", graph.binary("Add", total, node.attrs.eps, wide))
    return graph.cast(graph.add("Div", x, length), node.dtype, wide)


CONVERTERS["LRN"] = lambda graph, node, data: graph.add(  # it divides alpha by the window size as MXNet does
    "LRN", data, alpha=node.attrs.alpha, beta=node.attrs.beta, bias=node.attrs.knorm, size=node.attrs.nsize
)
