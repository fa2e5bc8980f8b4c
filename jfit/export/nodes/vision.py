"""ONNX converters: pooling of regions of interest, anchor boxes."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from jfit.export.nodes.core import At, Graph, Unsupported, converts
from jfit.ops import Ctx, lookup


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


@converts("_contrib_MultiBoxPrior")
def multibox_prior(graph: Graph, node: At, data: str) -> str:
    """Convert to a constant: the boxes depend only on the height and width of the feature map."""
    blank = jnp.zeros((1, 1, *node.sizes(2)), node.dtype)
    return graph.const(np.asarray(lookup("_contrib_MultiBoxPrior").fn(Ctx(), node.attrs, blank)))
