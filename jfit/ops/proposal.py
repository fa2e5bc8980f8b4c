"""Region proposals of Faster R-CNN (Ren et al., 2015): the highest-scoring boxes of a region proposal network."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jfit.ops.attributes import Attrs, flag, integer, number, numbers, several
from jfit.ops.boxes import Corners, corners, gathered, survivors
from jfit.ops.context import Ctx
from jfit.ops.registry import MaybeShape, Shape, operator
from jfit.ops.rows import LOST, RowLayout
from jfit.ops.rules import accumulating, common_rows, fill_unknown, from_data


def base_anchors(stride: int, scales: tuple[float, ...], ratios: tuple[float, ...]) -> np.ndarray:
    """Return the anchor boxes of the first position of the feature map, in pixels of the image.

    Args:
        stride: pixels of the image per position of the feature map.
        scales: sizes of the boxes, as multiples of the stride.
        ratios: heights of the boxes relative to their widths.

    Returns:
        (ratios * scales, 4) float32: left, top, right, bottom; right and bottom are inside the box. The scale varies fastest.

    Example:
        >>> base_anchors(16, (8.0,), (1.0,)).tolist()
        [[-56.0, -56.0, 71.0, 71.0]]
    """
    centre = (stride - 1) / 2
    boxes = []
    for ratio in ratios:
        side = math.floor(math.sqrt(math.floor(stride * stride / ratio)) + 0.5)
        for scale in scales:
            half_x, half_y = (side * scale - 1) / 2, (math.floor(side * ratio + 0.5) * scale - 1) / 2
            boxes.append((centre - half_x, centre - half_y, centre + half_x, centre + half_y))
    return np.asarray(boxes, np.float32)


def _shifted(attrs: Attrs, height: int, width: int) -> Array:
    """Return the anchors at every position of the feature map, (height * width * anchors, 4)."""
    base = jnp.asarray(base_anchors(attrs.feature_stride, attrs.scales, attrs.ratios))
    x, y = jnp.meshgrid(*(jnp.arange(n, dtype=jnp.float32) * attrs.feature_stride for n in (width, height)))  # (height, width)
    shift = jnp.stack([x, y, x, y], axis=-1).reshape(height * width, 1, 4)
    return (shift + base[None]).reshape(-1, 4)


def _moved(attrs: Attrs, anchors: Array, deltas: Array) -> Corners:
    """Return the anchors (1, n, 4) adjusted by the predictions deltas (images, n, 4).

    deltas are added to the corners if iou_loss; else they shift the centre and scale the sizes (as logarithms).
    """
    if attrs.iou_loss:
        return corners(jnp.broadcast_to(anchors, deltas.shape) + deltas)
    box = corners(anchors)
    width, height = box.right - box.left + 1, box.bottom - box.top + 1
    x = deltas[:, :, 0] * width + box.left + 0.5 * (width - 1)
    y = deltas[:, :, 1] * height + box.top + 0.5 * (height - 1)
    half_x = 0.5 * (jnp.exp(deltas[:, :, 2]) * width - 1)
    half_y = 0.5 * (jnp.exp(deltas[:, :, 3]) * height - 1)
    return Corners(x - half_x, y - half_y, x + half_x, y + half_y)


def _candidates(attrs: Attrs, cls_prob: Array, bbox_pred: Array, im_info: Array) -> tuple[Array, Array]:
    """Return all boxes (images, n, 4), clipped to their image, and their scores (images, n): -1 in padding or if too small."""
    images, double, height, width = cls_prob.shape
    anchors = double // 2

    def listed(maps: Array, entries: int) -> Array:  # (images, anchors * entries, h, w) -> (images, h * w * anchors, entries)
        split = maps.reshape(images, anchors, entries, height, width)
        return jnp.transpose(split, (0, 3, 4, 1, 2)).reshape(images, -1, entries)

    score = listed(cls_prob[:, anchors:], 1)[:, :, 0]
    box = _moved(attrs, _shifted(attrs, height, width)[None], listed(bbox_pred, 4))
    last_y, last_x = im_info[:, 0:1] - 1, im_info[:, 1:2] - 1
    ends = zip(box, (last_x, last_y, last_x, last_y), strict=True)
    box = Corners(*(jnp.maximum(jnp.minimum(side, last), 0) for side, last in ends))
    # positions of the feature map beyond real_y, real_x are padding of the image
    real_y, real_x = (jnp.floor(im_info[:, k : k + 1] / attrs.feature_stride) for k in (0, 1))
    position = np.arange(height * width * anchors)[None] // anchors
    padded = (position // width >= real_y) | (position % width >= real_x)
    min_size = attrs.rpn_min_size * im_info[:, 2:3]
    small = (box.right - box.left + 1 < min_size) | (box.bottom - box.top + 1 < min_size)
    grow = jnp.where(small, min_size / 2, 0.0)
    boxes = jnp.stack([box.left - grow, box.top - grow, box.right + grow, box.bottom + grow], axis=2)
    return boxes, jnp.where(padded | small, -1.0, score)


def _proposals(attrs: Attrs, cls_prob: Array, bbox_pred: Array, im_info: Array) -> tuple[Array, Array]:
    """Return (boxes, scores) that survive non-maximum suppression, best first; too few are repeated cyclically."""
    boxes, score = _candidates(attrs, cls_prob, bbox_pred, im_info)
    images, count = score.shape
    first = min(attrs.rpn_pre_nms_top_n, count) if attrs.rpn_pre_nms_top_n > 0 else count
    count_out = attrs.rpn_post_nms_top_n
    order = jnp.argsort(-score, axis=1)[:, :first]  # stable; MXNet does not specify the order of equal scores
    boxes = jnp.take_along_axis(boxes, order[:, :, None], axis=1)
    score = jnp.take_along_axis(score, order, axis=1)
    sides = corners(boxes)
    sizes = (sides.right - sides.left + 1) * (sides.bottom - sides.top + 1)

    def suppresses(pick: Callable[[Array], Array]) -> Array:
        one = Corners(*map(pick, sides))
        shared_x = jnp.minimum(one.right, sides.right) - jnp.maximum(one.left, sides.left) + 1
        shared_y = jnp.minimum(one.bottom, sides.bottom) - jnp.maximum(one.top, sides.top) + 1
        shared = jnp.maximum(shared_x, 0) * jnp.maximum(shared_y, 0)
        return shared / (pick(sizes) + sizes - shared) > attrs.threshold

    survives = survivors(suppresses, jnp.ones(score.shape, bool), min(count_out, first))
    indices = gathered(survives, jnp.broadcast_to(jnp.arange(first, dtype=jnp.int32)[None], survives.shape), 0)
    cycle = jnp.mod(jnp.arange(count_out, dtype=jnp.int32)[None], jnp.maximum(jnp.sum(survives, axis=1, keepdims=True), 1))
    chosen = jnp.take_along_axis(indices, cycle, axis=1)  # (images, count_out)
    picked = jnp.take_along_axis(boxes, chosen[:, :, None], axis=1)
    image = jnp.broadcast_to(jnp.arange(images, dtype=picked.dtype)[:, None, None], (images, count_out, 1))
    rois = jnp.concatenate([image, picked], axis=2).reshape(-1, 5)
    return rois, jnp.take_along_axis(score, chosen, axis=1).reshape(-1, 1)


@from_data
def _fill(attrs: Attrs, scores: Shape, boxes: MaybeShape, images: MaybeShape) -> list:
    return [scores, fill_unknown(boxes, (scores[0], 2 * scores[1], *scores[2:])), fill_unknown(images, (scores[0], 3))]


def _rows(attrs: Attrs, rows: Any, shapes: Any, outs: Any) -> list:
    """Return where the batch rows are in the outputs (`RowLayout`): on axis 0, the images.

    Each image has rpn_post_nms_top_n consecutive entries of that axis.  LOST (the rows cannot be
    distinguished any more) if they are on another axis of the inputs.
    """
    layout = common_rows(rows)
    if isinstance(layout, RowLayout):
        layout = layout._replace(after=layout.after * attrs.rpn_post_nms_top_n) if layout.axis == 0 else LOST
    return [layout] * len(outs)


RECORD: dict[str, Any] = {
    "inputs": ("cls_prob", "bbox_pred", "im_info"),
    "outputs": ("output", "score"),
    "visible": lambda attrs: 2 if attrs.output_score else 1,
    "attrs": several(integer, rpn_pre_nms_top_n=6000, rpn_post_nms_top_n=300)
    | {"threshold": number(0.699999988), "rpn_min_size": integer(16)}
    | several(numbers, scales=(4.0, 8.0, 16.0, 32.0), ratios=(0.5, 1.0, 2.0))
    | {"feature_stride": integer(16)}
    | several(flag, output_score=False, iou_loss=False),
    "fill": _fill,
    "rows": _rows,
}


@operator("_contrib_Proposal", **RECORD)  # which in MXNet takes one image only
@operator("_contrib_MultiProposal", **RECORD)
def multi_proposal(ctx: Ctx, attrs: Attrs, cls_prob: Array, bbox_pred: Array, im_info: Array) -> tuple[Array, Array]:
    """y = (image, left, top, right, bottom) of the best anchors adjusted by bbox_pred, after suppression; gradient 0.

    Non-maximum suppression removes boxes whose IoU with a better one exceeds threshold. The second output holds the scores;
    it is visible if output_score. im_info is (height, width, scale) of each image.
    """
    dtype, wide = cls_prob.dtype, accumulating(cls_prob.dtype)
    values = (lax.stop_gradient(x).astype(wide) for x in (cls_prob, bbox_pred, im_info))
    rois, score = _proposals(attrs, *values)
    return rois.astype(dtype), score.astype(dtype)
