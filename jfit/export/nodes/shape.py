"""ONNX converters: reshape, transpose, tile, pad, ...; concatenation and slicing; constants."""

from __future__ import annotations

import numpy as np

from jfit.export.nodes.core import CONVERTERS, FARTHEST, At, Graph, Unsupported, converts, fixed
from jfit.ops import Ctx, lookup
from jfit.ops.shape import swapped, transposed

# ------------------------------------------------------------------------------------------ one ONNX node each
CONVERTERS.update({
    **dict.fromkeys(("Reshape", "reshape_like", "squeeze"), lambda g, n, x, like="": g.reshape(x, n.outs[0].shape)),
    "Flatten": lambda g, n, x: g.add("Flatten", x, axis=1),
    "transpose": lambda g, n, x: g.transpose(x, transposed(n.attrs, n.ndim)),
    "SwapAxis": lambda g, n, x: g.transpose(x, swapped(n.attrs, n.ndim)),
    "expand_dims": lambda g, n, x: g.unsqueeze(x, [n.axis(n.attrs.axis, extra=1)]),
    **dict.fromkeys(
        ("broadcast_to", "broadcast_axis", "broadcast_like"),
        lambda g, n, x, like="": g.add("Expand", x, g.dims(n.outs[0].shape)),
    ),
    # MXNet's channel axis is (block row, block column, channel), as in the mode DCR
    "depth_to_space": lambda g, n, x: g.add("DepthToSpace", x, blocksize=n.attrs.block_size, mode="DCR"),
    "space_to_depth": lambda g, n, x: g.add("SpaceToDepth", x, blocksize=n.attrs.block_size),
    **dict.fromkeys(("Concat", "_rnn_param_concat"), lambda g, n, *xs: g.add("Concat", *xs, axis=n.axis(n.attrs.dim))),
    "_zeros": lambda g, n: g.full(n.outs[0].shape, 0, n.outs[0].dtype),
    "_ones": lambda g, n: g.full(n.outs[0].shape, 1, n.outs[0].dtype),
    "_full": lambda g, n: g.full(n.outs[0].shape, n.attrs.value, n.outs[0].dtype),
})  # fmt: skip


# ------------------------------------------------------------------------------------------ reshaping
@converts("tile")
def tile(graph: Graph, node: At, data: str) -> str:
    """Convert to ONNX Tile; the shorter one of shape and reps is extended by leading ones."""
    reps = node.attrs.reps
    ndim = max(node.ndim, len(reps))
    data = graph.unsqueeze(data, range(ndim - node.ndim))
    return graph.add("Tile", data, graph.ints([1] * (ndim - len(reps)) + list(reps)))


@converts("repeat")
def repeat(graph: Graph, node: At, data: str) -> str:
    """Convert to ONNX Unsqueeze after the axis, Tile along the new axis, Reshape."""
    count, shape = node.attrs.repeats, node.shape
    axis = node.ndim - 1 if node.attrs.axis is None else node.axis(node.attrs.axis)
    data = graph.unsqueeze(data, [axis + 1])
    data = graph.add("Tile", data, graph.ints([count if a == axis + 1 else 1 for a in range(len(shape) + 1)]))
    return graph.reshape(data, node.outs[0].shape)


@converts("reverse")
def reverse(graph: Graph, node: At, data: str) -> str:
    """Convert to ONNX Slice with step -1."""
    axes = [node.axis(a) for a in node.attrs.axis]
    bounds = ([-1] * len(axes), [-FARTHEST] * len(axes), axes, [-1] * len(axes))
    return graph.add("Slice", data, *(graph.ints(b) for b in bounds))


@converts("Pad")
def pad(graph: Graph, node: At, data: str) -> str:
    """Convert to ONNX Pad, with a constant, the edge entry or a reflection."""
    width, mode = node.attrs.pad_width, node.attrs.mode
    value = graph.const(node.attrs.constant_value, node.dtype) if mode == "constant" else ""
    return graph.add("Pad", data, graph.ints([*width[::2], *width[1::2]]), value, mode=mode)


@converts("shape_array", "size_array")
def shape_array(graph: Graph, node: At, data: str) -> str:
    """Convert to ONNX Shape (shape_array), or the product of its entries as a vector of length 1 (size_array)."""
    sizes = graph.add("Shape", data)
    if node.outs[0].shape == (1,) and node.ndim != 1:
        sizes = graph.add("ReduceProd", sizes, axes=[0], keepdims=1)
    return graph.cast(sizes, node.outs[0].dtype, np.int64)


# ------------------------------------------------------------------------------------------ concatenation, slicing
@converts("stack")
def stack(graph: Graph, node: At, *arrays: str) -> str:
    """Convert to ONNX Concat along a new axis."""
    axis = node.axis(node.attrs.axis, extra=1)
    return graph.add("Concat", *(graph.unsqueeze(a, [axis]) for a in arrays), axis=axis)


@converts("SliceChannel")
def slice_channel(graph: Graph, node: At, data: str) -> tuple[str, ...]:
    """Convert to ONNX Split into equal parts."""
    axis, count = node.axis(node.attrs.axis), node.attrs.num_outputs
    if count == 1:
        return (graph.squeeze(data, [axis]) if node.attrs.squeeze_axis else data,)
    size = node.sizes(axis, axis + 1)[0] // count
    parts = graph.add("Split", data, graph.ints([size] * count), outputs=count, axis=axis)
    return tuple(graph.squeeze(p, [axis]) for p in parts) if node.attrs.squeeze_axis else parts


@converts("_split_v2")
def split_v2(graph: Graph, node: At, data: str) -> tuple[str, ...]:
    """Convert to one ONNX Slice per part."""
    axis, attrs = node.axis(node.attrs.axis), node.attrs
    if attrs.sections:
        size = node.sizes(axis, axis + 1)[0] // attrs.sections
        starts = [i * size for i in range(attrs.sections)]
    else:
        starts = list(attrs.indices)
    ends = [*starts[1:], FARTHEST]
    parts = [graph.slice(data, axis, b, e) for b, e in zip(starts, ends, strict=True)]
    return tuple(graph.squeeze(p, [axis]) if attrs.squeeze_axis else p for p in parts)


@converts("slice")
def slice_(graph: Graph, node: At, data: str) -> str:
    """Convert to ONNX Slice; a bound None becomes a number beyond the end of the axis, in the direction of the step."""
    attrs, count = node.attrs, len(node.attrs.begin)
    steps = [s or 1 for s in (*attrs.step, *(None,) * (count - len(attrs.step)))]
    begins = [(0 if s > 0 else FARTHEST) if b is None else b for b, s in zip(attrs.begin, steps, strict=True)]
    ends = [(FARTHEST if s > 0 else -FARTHEST) if e is None else e for e, s in zip(attrs.end, steps, strict=True)]
    return graph.add("Slice", data, *(graph.ints(v) for v in (begins, ends, list(range(count)), steps)))


@converts("slice_axis")
def slice_axis(graph: Graph, node: At, data: str) -> str:
    """Convert to ONNX Slice along one axis."""
    end = node.attrs.end
    return graph.slice(data, node.axis(node.attrs.axis), node.attrs.begin, FARTHEST if end is None else end)


@converts("slice_like")
def slice_like(graph: Graph, node: At, data: str, like: str) -> str:
    """Convert to ONNX Slice to the output shape."""
    axes = list(range(node.ndim))
    return graph.add("Slice", data, graph.ints([0] * node.ndim), graph.dims(node.outs[0].shape), graph.ints(axes))


# ------------------------------------------------------------------------------------------ constants
for name in ("_arange", "_linspace", "_eye", "_zeros_without_dtype"):  # constants, which jfit's operator computes
    CONVERTERS[name] = lambda graph, node, name=name: graph.const(np.asarray(lookup(name).fn(Ctx(), node.attrs)))


@converts("_contrib_arange_like")
def arange_like(graph: Graph, node: At, data: str) -> str:
    """Convert to a constant, or to ONNX Range if its length depends on the batch."""
    attrs, out = node.attrs, node.outs[0]
    if all(isinstance(d, int) for d in out.shape):
        count = int(np.prod([fixed(d) for d in out.shape]))
        whole = out.dtype.kind in "iu"  # truncate start and step to integers first, as jfit does
        start, step = (int(v) if whole else v for v in (attrs.start, attrs.step))
        values = start + step * (np.arange(count) // attrs.repeat)
        return graph.const(values.reshape([fixed(d) for d in out.shape]), out.dtype)
    if len(out.shape) != 1:
        raise Unsupported("it numbers the entries of several axes, one of dynamic batch size; export with batch=None")
    end = graph.squeeze(graph.dims(out.shape), [0])
    numbers = graph.add("Range", graph.const(0, np.int64), end, graph.const(1, np.int64))
    numbers = numbers if attrs.repeat == 1 else graph.binary("Div", numbers, attrs.repeat, np.int64)
    values = graph.binary("Mul", graph.cast(numbers, out.dtype), attrs.step, out.dtype)
    return graph.binary("Add", values, attrs.start, out.dtype)
