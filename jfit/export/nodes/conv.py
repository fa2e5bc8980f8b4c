"""ONNX converters: convolution, transposed convolution, pooling, resizing."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from jfit.export.nodes.core import At, Entry, Graph, Unsupported, converts, fixed
from jfit.ops import Attrs
from jfit.ops.conv import deconv_pads, window_of
from jfit.ops.pooling import window_counts, windows_of
from jfit.ops.resize import averages, linear_weights


def _channels_first(layout: str | None, ndim: int) -> tuple[list[int], list[int]] | None:
    """Return (permutation to channels-first, inverse permutation) for a channels-last layout, None for a channels-first one."""
    if not layout or layout[-1] != "C":
        return None
    return [0, ndim - 1, *range(1, ndim - 1)], [0, *range(2, ndim), 1]


def _in_channels_first(graph: Graph, node: At, data: str, call: Callable[[str, list[int]], str]) -> str:
    """Return call(data, spatial sizes), with the data transposed to channels-first and the result transposed back."""
    turn = _channels_first(node.attrs.get("layout"), node.ndim)
    if turn is None:
        return call(data, node.sizes(2))
    return graph.transpose(call(graph.transpose(data, turn[0]), node.sizes(1, -1)), turn[1])


def _parameters(graph: Graph, node: At, weight: str, bias: str) -> tuple[str, str]:
    """Return the weight, with the channels first, and the bias in the dtype of the data."""
    turn = _channels_first(node.attrs.get("layout"), node.ndim)
    weight = graph.cast(weight, node.dtype, node.of(1).dtype)
    bias = graph.cast(bias, node.dtype, node.of(2).dtype) if bias else ""
    return weight if turn is None else graph.transpose(weight, turn[0]), bias


def _window(attrs: Attrs) -> dict[str, Any]:
    """Return the ONNX attributes of a convolution but for the padding."""
    window = window_of(attrs)
    each = {"kernel_shape": attrs.kernel, "strides": window.stride, "dilations": window.dilate}
    return {name: list(sizes) for name, sizes in each.items()} | {"group": attrs.num_group}


@converts("Convolution", "Convolution_v1")
def convolution(graph: Graph, node: At, data: str, weight: str, bias: str = "") -> str:
    """Convert to ONNX Conv; the weight has the layout of the data."""
    parameters = _parameters(graph, node, weight, bias)

    def call(data: str, sizes: list[int]) -> str:
        pads = [pad for pad, _ in window_of(node.attrs).pads]
        return graph.add("Conv", data, *parameters, **_window(node.attrs), pads=pads * 2)

    return _in_channels_first(graph, node, data, call)


@converts("Deconvolution")
def deconvolution(graph: Graph, node: At, data: str, weight: str, bias: str = "") -> str:
    """Convert to ONNX ConvTranspose; target_shape overrides pad and adj."""
    parameters = _parameters(graph, node, weight, bias)

    def call(data: str, sizes: list[int]) -> str:
        pairs = deconv_pads(node.attrs, tuple(sizes))
        # adj adds rows at the end and the end padding removes them: ONNX gets only the difference
        pads = [pad for pad, _ in pairs] + [max(pad - adj, 0) for pad, adj in pairs]
        extra = [max(adj - pad, 0) for pad, adj in pairs]
        padding = {"pads": pads, "output_padding": extra if any(extra) else None}
        return graph.add("ConvTranspose", data, *parameters, **_window(node.attrs), **padding)

    return _in_channels_first(graph, node, data, call)


# ------------------------------------------------------------------------------------------ pooling
@converts("Pooling")
def pooling(graph: Graph, node: At, data: str) -> str:
    """Convert to ONNX MaxPool or AveragePool; means are rescaled where MXNet divides by another number of entries than ONNX."""
    attrs, kind = node.attrs, node.attrs.pool_type

    def call(data: str, sizes: list[int]) -> str:
        axes = list(range(2, 2 + len(sizes)))
        if attrs.global_pool:
            return _global_pool(graph, node, data, axes)
        kernel, stride, pads = windows_of(attrs, tuple(sizes))
        if any(max(p) >= k for p, k in zip(pads, kernel, strict=True)):
            raise Unsupported(f"its padding {pads} is not smaller than its kernel, which ONNX forbids; use Pad before it")
        shape: dict[str, Any] = {"kernel_shape": list(kernel), "strides": list(stride)}
        shape["pads"] = [p[0] for p in pads] + [p[1] for p in pads]
        if kind == "max":
            return graph.add("MaxPool", data, **shape)
        if kind == "lp":
            data = _power(graph, node, data)
        mean = graph.add("AveragePool", data, count_include_pad=1, **shape)
        size = math.prod(kernel)
        if kind != "avg":
            return _root(graph, node, graph.binary("Mul", mean, size, node.dtype))
        divisors = functools.reduce(np.multiply.outer, window_counts(attrs, tuple(sizes), kernel, stride, pads))
        return mean if (divisors == size).all() else graph.binary("Mul", mean, (size / divisors)[None, None], node.dtype)

    return _in_channels_first(graph, node, data, call)


def _global_pool(graph: Graph, node: At, data: str, axes: list[int]) -> str:
    kind = node.attrs.pool_type
    if kind in ("max", "avg"):
        return graph.add("GlobalMaxPool" if kind == "max" else "GlobalAveragePool", data)
    return _root(graph, node, graph.total(_power(graph, node, data) if kind == "lp" else data, axes))


def _power(graph: Graph, node: At, data: str) -> str:
    p = node.attrs.p_value
    return data if p == 1 else graph.binary("Pow", data, p, node.dtype)


def _root(graph: Graph, node: At, data: str) -> str:
    """Return the p-th root of the data if pool_type is lp, else the data itself."""
    p: Any = node.attrs.get("p_value") if node.attrs.pool_type == "lp" else 1
    if p == 1:
        return data
    root = graph.binary("Pow", graph.add("Abs", data), 1 / p, node.dtype)
    return root if p == 2 else graph.add("Mul", graph.add("Sign", data), root)


# ------------------------------------------------------------------------------------------ resizing
def _resampled(graph: Graph, node: At, data: str, weights: Callable[[int, int], np.ndarray]) -> str:
    """Return rows · image · columnsᵀ for every image of (N, C, H, W), both matrices `weights(size, size of the result)`."""
    (h, w), (a, b) = _sizes(node.of(0)), _sizes(node.outs[0])
    left, right = graph.const(weights(h, a), node.dtype), graph.const(weights(w, b).T, node.dtype)
    return graph.add("MatMul", graph.add("MatMul", left, data), right)


def _sizes(entry: Entry) -> list[int]:
    return [fixed(d) for d in entry.shape[2:]]


@converts("_contrib_AdaptiveAvgPooling2D")
def adaptive_pooling(graph: Graph, node: At, data: str) -> str:
    """Convert to two matrix products with constant averaging matrices."""
    return _resampled(graph, node, data, averages)


@converts("_contrib_BilinearResize2D")
def bilinear_resize(graph: Graph, node: At, data: str, like: str = "") -> str:
    """Convert to two matrix products with constant interpolation matrices."""
    corners = node.attrs.get("align_corners", True)
    return _resampled(graph, node, data, lambda size, target: linear_weights(size, target, corners))


@converts("UpSampling")
def up_sampling(graph: Graph, node: At, *arrays: str) -> str:
    """Convert to ONNX Resize (sample_type nearest) or a grouped ConvTranspose (bilinear)."""
    attrs, scale = node.attrs, node.attrs.scale
    if attrs.sample_type == "bilinear":
        size, pad = 2 * scale - scale % 2, -(-(scale - 1) // 2)
        data, weight = arrays
        weight = graph.cast(weight, node.dtype, node.of(1).dtype)
        window: dict[str, Any] = {"kernel_shape": [size] * 2, "strides": [scale] * 2, "pads": [pad] * 4}
        return graph.add("ConvTranspose", data, weight, **window, group=node.sizes(1, 2)[0])
    target, parts = _sizes(node.outs[0]), []
    for data, entry in zip(arrays, (node.of(i) for i in range(len(arrays))), strict=True):
        factors = [1.0, 1.0, *(t / s for t, s in zip(target, _sizes(entry), strict=True))]
        nearest: dict[str, Any] = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        parts.append(graph.add("Resize", data, "", graph.const(factors, np.float32), **nearest))
    if len(parts) == 1:
        return parts[0]
    return graph.add("Sum", *parts) if attrs.multi_input_mode == "sum" else graph.add("Concat", *parts, axis=1)


@converts("Crop")
def crop(graph: Graph, node: At, data: str, like: str = "") -> str:
    """Convert to ONNX Slice of the last two axes, centred or from `offset`."""
    sizes, target = _sizes(node.of(0)), _sizes(node.outs[0])
    offset = node.attrs.offset or (0, 0)
    starts = [(n - t) // 2 for n, t in zip(sizes, target, strict=True)] if node.attrs.center_crop else list(offset)
    ends = [start + size for start, size in zip(starts, target, strict=True)]
    return graph.add("Slice", data, graph.ints(starts), graph.ints(ends), graph.ints([2, 3]))
