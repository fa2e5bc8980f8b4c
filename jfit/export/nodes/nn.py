"""ONNX converters: dense layers, activations, dropout, embedding, heads."""

from __future__ import annotations

import math

import numpy as np

from jfit.export.nodes.core import CONVERTERS, At, Graph, Unsupported, converts

ACTIVATIONS = {"relu": "Relu", "sigmoid": "Sigmoid", "tanh": "Tanh", "softrelu": "Softplus", "softsign": "Softsign"}
CONVERTERS["Activation"] = lambda graph, node, data: graph.add(ACTIVATIONS[node.attrs.act_type], data)


@converts("FullyConnected")
def fully_connected(graph: Graph, node: At, data: str, weight: str, bias: str = "") -> str:
    """Convert to ONNX Gemm on the data flattened to two axes; with flatten=False the leading axes are restored afterwards."""
    weight = graph.cast(weight, node.dtype, node.of(1).dtype)
    bias = graph.cast(bias, node.dtype, node.of(2).dtype) if bias else ""
    if node.ndim != 2:
        data = graph.add("Flatten", data, axis=1 if node.attrs.flatten else node.ndim - 1)
    out = graph.add("Gemm", data, weight, bias, transB=1)
    return out if len(node.outs[0].shape) == 2 else graph.reshape(out, node.outs[0].shape)


@converts("LeakyReLU")
def leaky_relu(graph: Graph, node: At, data: str, gamma: str = "") -> str:
    """Convert to one ONNX node, or several for gelu; rrelu uses the mean of its slope bounds, as in evaluation."""
    kind, attrs = node.attrs.act_type, node.attrs
    if kind == "gelu":
        half = graph.binary("Mul", data, 0.5, node.dtype)
        erf = graph.add("Erf", graph.binary("Mul", data, 1 / math.sqrt(2), node.dtype))
        return graph.add("Mul", half, graph.binary("Add", erf, 1, node.dtype))
    if kind == "selu":
        return graph.add("Selu", data)
    if kind == "elu":
        return graph.add("Elu", data, alpha=attrs.slope)
    if kind == "prelu":
        slope, size = graph.cast(gamma, node.dtype, node.of(1).dtype), node.of(1).shape
        if math.prod(int(s) for s in size if isinstance(s, int)) != 1:
            slope = graph.unsqueeze(slope, range(1, node.ndim - 1))
        return graph.add("PRelu", data, slope)
    return graph.add("LeakyRelu", data, alpha=(attrs.lower_bound + attrs.upper_bound) / 2 if kind == "rrelu" else attrs.slope)


@converts("Dropout")
def dropout(graph: Graph, node: At, data: str) -> str:
    """Convert dropout, the identity in evaluation: add no ONNX node and return the name of the data."""
    if node.attrs.mode == "always" and node.attrs.p > 0:
        raise Unsupported("mode='always' draws random numbers in evaluation too")
    return data


@converts("Embedding", "_contrib_SparseEmbedding")
def embedding(graph: Graph, node: At, data: str, weight: str) -> str:
    """Convert to ONNX Gather with clipped indices."""
    return graph.add("Gather", weight, graph.clipped(graph.cast(data, np.int64, node.dtype), node.attrs.input_dim), axis=0)


# ------------------------------------------------------------------------------------------ heads, in evaluation
@converts("SoftmaxOutput")
def softmax_output(graph: Graph, node: At, data: str, label: str = "") -> str:
    """Convert to ONNX Softmax over axis 1 (multi_output), the last axis (preserve_shape), or all axes but the batch axis.

    The label is ignored.
    """
    if node.attrs.multi_output:
        return graph.add("Softmax", data, axis=1)
    if node.attrs.preserve_shape or node.ndim <= 2:
        return graph.add("Softmax", data, axis=node.ndim - 1)
    return graph.reshape(graph.add("Softmax", graph.add("Flatten", data, axis=1), axis=1), node.shape)
