"""ONNX converters: reductions over axes, softmax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from jfit.export.nodes.core import CONVERTERS, At, Graph, converts
from jfit.ops.reduce import reduced_axes


def _shaped(graph: Graph, node: At, data: str, keepdims: bool, axes: Any) -> str:
    """Reshape a reduction over all axes from () to (1,), the shape it has in jfit; return other reductions unchanged."""
    return graph.add("Reshape", data, graph.ints([1])) if len(axes) == node.ndim and not keepdims else data


def _reduction(kind: str, nan: float | None = None) -> Callable[..., str]:
    def convert(graph: Graph, node: At, data: str) -> str:
        axes, keep = reduced_axes(node.attrs, node.ndim), node.attrs.keepdims
        if nan is not None:
            data = graph.add("Where", graph.add("IsNaN", data), graph.const(nan, node.dtype), data)
        if not axes:
            return data
        if kind == "ReduceSum":
            data = graph.total(data, axes, keep)
        else:
            data = graph.add(kind, data, axes=list(axes), keepdims=int(keep))
        return _shaped(graph, node, data, keep, axes)

    return convert


for kind in ("Sum", "Mean", "Prod", "Max", "Min"):
    CONVERTERS[kind.lower()] = _reduction(f"Reduce{kind}")
CONVERTERS.update({
    "_square_sum": lambda g, n, x: CONVERTERS["sum"](g, n, g.add("Mul", x, x)),
    "nansum": _reduction("ReduceSum", nan=0.0),
    "nanprod": _reduction("ReduceProd", nan=1.0),
    "argmax_channel": lambda g, n, x: g.cast(g.add("ArgMax", x, axis=1, keepdims=0), n.outs[0].dtype),
    "SoftmaxActivation": lambda g, n, x: g.add("Softmax", x, axis=1 if n.attrs.mode == "channel" else n.ndim - 1),
})  # fmt: skip


@converts("norm")
def norm(graph: Graph, node: At, data: str) -> str:
    """Convert to a sum of magnitudes (ord 1) or the root of a sum of squares (ord 2)."""
    axes, keep = reduced_axes(node.attrs, node.ndim), node.attrs.keepdims
    result = graph.add(f"ReduceL{node.attrs.ord}", data, axes=list(axes), keepdims=int(keep))
    return graph.cast(_shaped(graph, node, result, keep, axes), node.outs[0].dtype, node.dtype)


def _arg(kind: str) -> Callable[..., str]:
    def convert(graph: Graph, node: At, data: str) -> str:
        axis, keep = node.attrs.axis, int(node.attrs.keepdims)
        if axis is None:
            data = graph.add("Reshape", data, graph.ints([-1]))
            result = graph.add(kind, data, axis=0, keepdims=1)
            result = graph.reshape(result, node.outs[0].shape)
        else:
            result = graph.add(kind, data, axis=node.axis(axis), keepdims=keep)
            result = _shaped(graph, node, result, bool(keep), [axis])
        return graph.cast(result, node.outs[0].dtype)

    return convert


CONVERTERS |= {"argmax": _arg("ArgMax"), "argmin": _arg("ArgMin")}


@converts("cumsum")
def cumsum(graph: Graph, node: At, data: str) -> str:
    """Convert to ONNX CumSum; without an axis, over the flattened array."""
    out, axis = node.outs[0], node.attrs.axis
    # ONNX sums no 8- or 16-bit integers: sum in int32; casting back overflows in the same way
    work = out.dtype if out.dtype.kind == "f" or out.dtype.itemsize > 2 else np.dtype(np.int32)
    data = graph.cast(data, work, node.dtype)
    if axis is None:
        data = graph.add("Reshape", data, graph.ints([-1]))
    total = graph.add("CumSum", data, graph.const(0 if axis is None else node.axis(axis), np.int64))
    return graph.cast(total, out.dtype, work)


# ------------------------------------------------------------------------------------------ softmax
def _softmax(kind: str, sign: int = 1) -> Callable[..., str]:
    def convert(graph: Graph, node: At, data: str, length: str = "") -> str:
        axis, out = node.axis(node.attrs.axis), node.outs[0].dtype
        factor = sign / (node.attrs.temperature or 1.0)
        data = data if factor == 1 else graph.binary("Mul", data, factor, node.dtype)
        if not length:
            return graph.cast(graph.add(kind, data, axis=axis), out, node.dtype)
        size = node.sizes(axis, axis + 1)[0]
        ids = graph.cast(length, np.int32, node.of(1).dtype)
        positions = graph.along(graph.const(np.arange(size), np.int32), axis, node.ndim)
        inside = graph.add("Less", positions, graph.unsqueeze(ids, [axis]))
        low = graph.const(np.finfo(node.dtype).min / 2, node.dtype)
        result = graph.add(kind, graph.add("Where", inside, data, low), axis=axis)
        return graph.cast(graph.add("Where", inside, result, graph.const(0, node.dtype)), out, node.dtype)

    return convert


CONVERTERS |= {"softmax": _softmax("Softmax"), "log_softmax": _softmax("LogSoftmax"), "softmin": _softmax("Softmax", sign=-1)}
