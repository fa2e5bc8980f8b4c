"""ONNX converters: image sampling, pooling of regions of interest, boxes."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from jfit.export.nodes.core import At, Graph, Unsupported, converts, fixed
from jfit.ops import Ctx, lookup


# ------------------------------------------------------------------------------------------ sampling
def _affine(graph: Graph, node: At, theta: str, which: int) -> str:
    """Return the affine sampling grid (rows, height * width, 2) of theta (rows, 6), whose shape is that of input `which`.

    It holds the source position (x, y) of each of height x width evenly spaced target positions in [-1, 1].
    """
    height, width = node.attrs.target_shape
    y, x = (np.linspace(-1, 1, n) if n > 1 else np.array([-1.0]) for n in (height, width))
    grid = np.stack([np.tile(x, height), np.repeat(y, width), np.ones(height * width)])  # (3, places)
    rows = node.of(which).shape[0]
    moved = graph.add("MatMul", graph.reshape(theta, (rows, 2, 3)), graph.const(grid, node.of(which).dtype))
    return graph.transpose(moved, [0, 2, 1])


@converts("GridGenerator")
def grid_generator(graph: Graph, node: At, data: str) -> str:
    """Convert GridGenerator to a product of affine matrices with a constant grid, or to scaled flow.

    transform_type "affine": the matrices times (x, y, 1) of each target.  "warp": the flow plus the pixel coordinates,
    scaled to [-1, 1].
    """
    if node.attrs.transform_type == "affine":
        return graph.reshape(graph.transpose(_affine(graph, node, data, 0), [0, 2, 1]), node.outs[0].shape)
    height, width = node.sizes(2)
    if min(height, width) < 2:
        raise Unsupported("its flow has a single row or column, so the scaling divides by zero")
    places = np.stack(np.meshgrid(np.arange(width), np.arange(height)))[None]
    scale = np.array([2 / (width - 1), 2 / (height - 1)]).reshape(1, 2, 1, 1)
    moved = graph.binary("Mul", graph.binary("Add", data, places, node.dtype), scale, node.dtype)
    return graph.binary("Sub", moved, 1, node.dtype)


def _sampled(graph: Graph, data: str, grid: str) -> str:
    """Add a GridSample node in which -1 and 1 are the centres of the corner pixels."""
    return graph.add("GridSample", data, grid, mode="bilinear", padding_mode="zeros", align_corners=1)


@converts("BilinearSampler")
def bilinear_sampler(graph: Graph, node: At, data: str, grid: str) -> str:
    """Convert to ONNX GridSample, which expects (x, y) along the last axis of the grid instead of axis 1."""
    return _sampled(graph, data, graph.transpose(grid, [0, 2, 3, 1]))


@converts("SpatialTransformer")
def spatial_transformer(graph: Graph, node: At, data: str, loc: str) -> str:
    """Convert to ONNX GridSample on an affine grid."""
    grid = graph.reshape(_affine(graph, node, loc, 1), (node.of(1).shape[0], *node.attrs.target_shape, 2))
    return _sampled(graph, data, grid)


# ------------------------------------------------------------------------------------------ regions
@converts("_contrib_ROIAlign")
def roi_align(graph: Graph, node: At, data: str, rois: str) -> str:
    """Convert to ONNX RoiAlign, which takes the image index as a separate input; regions with a negative index give 0."""
    attrs = node.attrs
    if attrs.position_sensitive:
        raise Unsupported("position_sensitive=True has no ONNX form")
    number = graph.slice(rois, 1, 0, 1)
    image = graph.cast(graph.squeeze(number, [1]), np.int64)
    boxes, image = graph.slice(rois, 1, 1, 5), graph.add("Max", image, graph.const(0, np.int64))
    height, width = attrs.pooled_size
    sizes: dict[str, Any] = {"output_height": height, "output_width": width, "sampling_ratio": max(attrs.sample_ratio, 0)}
    sizes["coordinate_transformation_mode"] = "half_pixel" if attrs.aligned else "output_half_pixel"
    out = graph.add("RoiAlign", data, boxes, image, mode="avg", **sizes, spatial_scale=attrs.spatial_scale)
    valid = graph.binary("GreaterOrEqual", number, 0, node.of(1).dtype)
    return graph.add("Where", graph.unsqueeze(valid, [2, 3]), out, graph.const(0, node.dtype))


@converts("ROIPooling")
def roi_pooling(graph: Graph, node: At, data: str, rois: str) -> str:
    """Convert to ONNX MaxRoiPool; regions whose image index is out of range give 0."""
    dtype = node.of(1).dtype
    number, rows = graph.slice(rois, 1, 0, 1), graph.cast(graph.dims(node.shape[:1]), dtype)
    number = graph.add("Mul", graph.add("Sign", number), graph.add("Floor", graph.add("Abs", number)))
    valid = graph.add("And", graph.binary("GreaterOrEqual", number, 0, dtype), graph.add("Less", number, rows))
    safe = graph.add("Where", valid, number, graph.const(0, dtype))
    regions = graph.add("Concat", safe, graph.slice(rois, 1, 1, 5), axis=1)
    size = list(node.attrs.pooled_size)
    out = graph.add("MaxRoiPool", data, regions, pooled_shape=size, spatial_scale=node.attrs.spatial_scale)
    return graph.add("Where", graph.unsqueeze(valid, [2, 3]), out, graph.const(0, node.dtype))


# ------------------------------------------------------------------------------------------ boxes
@converts("_contrib_MultiBoxPrior")
def multibox_prior(graph: Graph, node: At, data: str) -> str:
    """Convert to a constant: the boxes depend only on the height and width of the feature map."""
    blank = jnp.zeros((1, 1, *node.sizes(2)), node.dtype)
    return graph.const(np.asarray(lookup("_contrib_MultiBoxPrior").fn(Ctx(), node.attrs, blank)))


@converts("_contrib_box_iou")
def box_iou(graph: Graph, node: At, lhs: str, rhs: str) -> str:
    """Convert to elementary nodes: intersection over union of each pair of boxes, 0 if they do not intersect."""
    dtype, sides = node.dtype, []
    for which, boxes in enumerate((lhs, rhs)):
        count = int(np.prod([fixed(d) for d in node.of(which).shape[:-1]]))
        flat = graph.reshape(boxes, (count, 1, 4) if which == 0 else (1, count, 4))
        first, second = graph.slice(flat, 2, 0, 2), graph.slice(flat, 2, 2, 4)
        if node.attrs.format == "center":
            half = graph.binary("Mul", second, 0.5, dtype)
            first, second = graph.add("Sub", first, half), graph.add("Add", first, half)
        sides.append((first, second))
    (a, b), (c, d) = sides
    size = graph.add("Sub", graph.add("Min", b, d), graph.add("Max", a, c))
    shared = _area(graph, graph.binary("Max", size, 0, dtype))
    areas = [_area(graph, graph.binary("Max", graph.add("Sub", end, begin), 0, dtype)) for begin, end in sides]
    union = graph.add("Sub", graph.add("Add", *areas), shared)
    overlaps = graph.binary("Greater", shared, 0, dtype)
    ratio = graph.add("Div", shared, graph.add("Where", overlaps, union, graph.const(1, dtype)))
    return graph.reshape(ratio, node.outs[0].shape)


def _area(graph: Graph, size: str) -> str:
    return graph.add("ReduceProd", size, axes=[2], keepdims=0)
