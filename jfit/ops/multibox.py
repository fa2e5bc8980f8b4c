"""Operators of the single-shot detector SSD (Liu et al., 2016): prior boxes, training targets, detections."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax.numpy as jnp
from jax import Array, lax

from jfit.ops.attributes import Attrs, flag, integer, number, numbers, several
from jfit.ops.boxes import Corners, corners, gathered, intersection, matched, survivors
from jfit.ops.context import Ctx
from jfit.ops.registry import operator
from jfit.ops.rows import no_rows
from jfit.ops.rules import accumulating, shared_batch_rows

VARIANCES = numbers((0.1, 0.1, 0.2, 0.2))
NEARLY_NOTHING = 1e-6  # an object is matched to its best anchor only if their IoU exceeds this


# ------------------------------------------------------------------------------------------ MultiBoxPrior
@operator(
    "_contrib_MultiBoxPrior",
    attrs=several(numbers, sizes=(1.0,), ratios=(1.0,))
    | {"clip": flag(False)}
    | several(numbers, steps=(-1.0, -1.0), offsets=(0.5, 0.5)),
    rows=no_rows,
)
def multibox_prior(ctx: Ctx, attrs: Attrs, data: Array) -> Array:
    """y = boxes (k + offset) · step ± (s √r · height / width, s / √r) / 2 around each pixel k of a feature map; gradient 0.

    The boxes of a pixel are all sizes s with the first ratio r, then the first size with the other ratios. The output is
    (1, height * width * boxes, 4): left, top, right, bottom.
    """
    if not attrs.sizes:
        raise ValueError("sizes is empty, expected at least one size")
    (y_offset, x_offset), (height, width) = attrs.offsets, data.shape[2:]
    wide = accumulating(data.dtype)
    ratios = attrs.ratios or (1.0,)
    shapes = [(size, ratios[0]) for size in attrs.sizes] + [(attrs.sizes[0], ratio) for ratio in ratios[1:]]
    half_x = jnp.asarray([size * height / width * math.sqrt(ratio) / 2 for size, ratio in shapes], wide)
    half_y = jnp.asarray([size / math.sqrt(ratio) / 2 for size, ratio in shapes], wide)
    step_y, step_x = (step if step > 0 else 1.0 / n for step, n in zip(attrs.steps, (height, width), strict=True))
    y = (jnp.arange(height, dtype=wide) + y_offset) * step_y
    x = (jnp.arange(width, dtype=wide) + x_offset) * step_x
    x, y, half_x, half_y = jnp.broadcast_arrays(x[None, :, None], y[:, None, None], half_x[None, None], half_y[None, None])
    boxes = jnp.stack([x - half_x, y - half_y, x + half_x, y + half_y], axis=-1).reshape(1, -1, 4)
    return (jnp.clip(boxes, 0, 1) if attrs.clip else boxes).astype(data.dtype)


# ------------------------------------------------------------------------------------------ MultiBoxTarget
def _overlaps(one: Corners, two: Corners) -> Array:
    """Return the intersection over union, 0 where both boxes are empty; if right < left, areas are signed, as in MXNet."""
    shared = intersection(one, two)
    first, second = ((box.right - box.left) * (box.bottom - box.top) for box in (one, two))
    union = first + second - shared
    return jnp.where(union == 0, 0, shared / jnp.where(union == 0, 1, union))


def _hard_negatives(attrs: Attrs, positive: Array, best: Array, logits: Array) -> Array:
    """Return the hard negatives, bool (batch, anchors): the unmatched anchors with the lowest background probability.

    Their number is negative_mining_ratio times the number of positive anchors of the image.  `best` is the highest IoU of each
    anchor with an object, `logits` are class scores (batch, classes, anchors).
    """
    top = jnp.max(logits, axis=1, keepdims=True)
    background = jnp.exp(logits[:, 0] - top[:, 0]) / jnp.sum(jnp.exp(logits - top), axis=1)
    eligible = ~positive & (best < attrs.negative_mining_thresh)
    order = jnp.argsort(jnp.where(eligible, background, jnp.inf), axis=1)  # stable: ties keep the order of the anchors
    batch = jnp.broadcast_to(jnp.arange(order.shape[0], dtype=jnp.int32)[:, None], order.shape)
    rank = jnp.zeros_like(order).at[batch, order].set(jnp.broadcast_to(jnp.arange(order.shape[1]), order.shape))
    positives = jnp.sum(positive, axis=1, keepdims=True)
    quota = (positives.astype(jnp.float32) * attrs.negative_mining_ratio).astype(jnp.int32)
    return eligible & (rank < jnp.minimum(quota, positive.shape[1] - positives))


def _offsets(anchors: Corners, goals: Corners, variances: tuple[float, ...]) -> Array:
    """Regression targets (batch, anchors, 4): shift and log scale from anchors to matched boxes (goals), over the variances."""
    width, height = anchors.right - anchors.left, anchors.bottom - anchors.top
    goal_width, goal_height = goals.right - goals.left, goals.bottom - goals.top
    parts = (
        ((goals.left + goals.right) - (anchors.left + anchors.right)) / 2 / width,
        ((goals.top + goals.bottom) - (anchors.top + anchors.bottom)) / 2 / height,
        jnp.log(goal_width / width),
        jnp.log(goal_height / height),
    )
    return jnp.stack([part / variance for part, variance in zip(parts, variances, strict=True)], axis=2)


@operator(
    "_contrib_MultiBoxTarget",
    outputs=("loc_target", "loc_mask", "cls_target"),
    attrs=several(number, overlap_threshold=0.5, ignore_label=-1.0, negative_mining_ratio=-1.0, negative_mining_thresh=0.5)
    | {"minimum_negative_samples": integer(0), "variances": VARIANCES},
    rows=shared_batch_rows,
)
def multibox_target(ctx: Ctx, attrs: Attrs, anchor: Array, label: Array, cls_pred: Array) -> tuple[Array, Array, Array]:
    """Targets per anchor: box offsets / variances, their mask (1 for matched anchors), class + 1 (0: background); gradient 0.

    Each object is matched to the free anchor of highest IoU; each remaining anchor to the object of highest IoU, if that
    exceeds overlap_threshold. The unmatched anchors are background, or only the hardest of them if
    negative_mining_ratio > 0. All others, and every anchor of an image without objects, get the class ignore_label.
    """
    (one, count, sides), (batch, objects, entries), (_, _, columns) = anchor.shape, label.shape, cls_pred.shape
    if (one, sides, columns) != (1, 4, count) or objects < 1 or entries < 5:
        shapes = "anchor (1, anchors, 4), label (batch, objects, 5 or more) and cls_pred (batch, classes, anchors)"
        raise ValueError(f"expected {shapes}; reshape them")
    dtype, wide = anchor.dtype, accumulating(anchor.dtype)
    anchor, label, cls_pred = (lax.stop_gradient(x).astype(wide) for x in (anchor, label, cls_pred))
    real = jnp.cumprod(label[:, :, 0] != -1, axis=1) > 0  # (batch, objects): the first class -1 ends the list
    any_real = jnp.any(real, axis=1)[:, None]
    prior, goals = corners(anchor), corners(label[:, :, 1:5])
    overlap = _overlaps(Corners(*(side[:, :, None] for side in prior)), Corners(*(side[:, None, :] for side in goals)))
    overlap = jnp.where(real[:, None, :], overlap, -1.0)  # (batch, anchors, objects)
    matches = matched(overlap, real, NEARLY_NOTHING, objects)  # (batch, anchors): index of an object, or -1
    best = jnp.max(overlap, axis=2)
    near = (matches < 0) & (best > attrs.overlap_threshold) & any_real & (attrs.overlap_threshold > 0)
    positive = (matches >= 0) | near
    if attrs.negative_mining_ratio > 0:
        negative = _hard_negatives(attrs, positive, best, cls_pred) & any_real
    else:
        negative = ~positive & any_real
    partner = jnp.where(matches >= 0, matches, jnp.argmax(overlap, axis=2).astype(jnp.int32))
    goal = jnp.take_along_axis(label[:, :, :5], partner[:, :, None], axis=1)  # (batch, anchors, 5)
    mask = jnp.broadcast_to(positive[:, :, None], (batch, count, 4))
    offsets = _offsets(prior, corners(goal[:, :, 1:]), attrs.variances)
    location = jnp.where(mask, offsets, 0).reshape(batch, -1)
    classes = jnp.where(positive, goal[:, :, 0] + 1, jnp.where(negative, 0.0, attrs.ignore_label))
    return location.astype(dtype), mask.reshape(batch, -1).astype(dtype), classes.astype(dtype)


# ------------------------------------------------------------------------------------------ MultiBoxDetection
def _decode_boxes(attrs: Attrs, loc_pred: Array, anchor: Array) -> Array:
    """Return the predicted boxes (batch, anchors, 4): the anchors shifted and scaled by loc_pred."""
    prior = corners(anchor)
    width, height = prior.right - prior.left, prior.bottom - prior.top
    v = attrs.variances
    moves = loc_pred.reshape(loc_pred.shape[0], -1, 4)
    x = moves[:, :, 0] * v[0] * width + (prior.left + prior.right) / 2
    y = moves[:, :, 1] * v[1] * height + (prior.top + prior.bottom) / 2
    half_x, half_y = jnp.exp(moves[:, :, 2] * v[2]) * width / 2, jnp.exp(moves[:, :, 3] * v[3]) * height / 2
    boxes = jnp.stack([x - half_x, y - half_y, x + half_x, y + half_y], axis=2)
    return jnp.clip(boxes, 0, 1) if attrs.clip else boxes


def _non_maximum_suppression(attrs: Attrs, ids: Array, boxes: Array, alive: Array) -> Array:
    """Return which detections survive non-maximum suppression, bool (batch, anchors); all inputs are sorted by score.

    ids: classes (batch, anchors).  boxes: (batch, anchors, 4).  alive: detections to choose from, bool (batch, anchors).
    """
    sides = corners(boxes)

    def suppresses(pick: Callable[[Array], Array]) -> Array:
        overlap = _overlaps(Corners(*map(pick, sides)), sides)
        hit = overlap >= attrs.nms_threshold
        return hit if attrs.force_suppress else hit & (pick(ids) == ids)

    return survivors(suppresses, alive, ids.shape[1])


@operator(
    "_contrib_MultiBoxDetection",
    attrs={
        "clip": flag(True),
        "threshold": number(0.00999999978),
        "background_id": integer(0),
        "nms_threshold": number(0.5),
        "force_suppress": flag(False),
        "variances": VARIANCES,
        "nms_topk": integer(-1),
    },
    rows=shared_batch_rows,
)
def multibox_detection(ctx: Ctx, attrs: Attrs, cls_prob: Array, loc_pred: Array, anchor: Array) -> Array:
    """y = (class, score, left, top, right, bottom) of each anchor, highest score first; class -1 if suppressed; gradient 0.

    The background is class 0 whatever background_id is, as in MXNet. Unused entries at the end are filled with -1.
    """
    batch, classes, count = cls_prob.shape
    if (loc_pred.shape, anchor.shape) != ((batch, 4 * count), (1, count, 4)):
        raise ValueError(
            "expected cls_prob (batch, classes, anchors), loc_pred (batch, 4 * anchors) and anchor (1, anchors, 4)"
        )
    dtype, wide = cls_prob.dtype, accumulating(cls_prob.dtype)
    cls_prob, loc_pred, anchor = (lax.stop_gradient(x).astype(wide) for x in (cls_prob, loc_pred, anchor))
    if classes < 2:
        return jnp.full((batch, count, 6), -1, dtype)
    score = jnp.max(cls_prob[:, 1:], axis=1)
    ids = jnp.argmax(cls_prob[:, 1:], axis=1)
    valid = (score > -1) & ~(score < attrs.threshold)
    detections = jnp.concatenate(
        [ids.astype(wide)[:, :, None], score[:, :, None], _decode_boxes(attrs, loc_pred, anchor)], axis=2
    )  # (batch, anchors, 6)

    present = jnp.arange(count)[None] < jnp.sum(valid, axis=1, keepdims=True)
    positions = jnp.broadcast_to(jnp.arange(count, dtype=jnp.int32)[None], valid.shape)
    unranked = gathered(valid, positions, 0)
    if not 0 < attrs.nms_threshold <= 1:
        return jnp.where(present[:, :, None], jnp.take_along_axis(detections, unranked[:, :, None], axis=1), -1).astype(dtype)
    order = jnp.argsort(jnp.where(valid, -score, jnp.inf), axis=1)  # stable: equal scores keep the order of the anchors
    first = attrs.nms_topk if attrs.nms_topk > 0 else count
    ranked = jnp.take_along_axis(detections, order[:, :, None], axis=1)
    survives = _non_maximum_suppression(attrs, ranked[:, :, 0], ranked[:, :, 2:], present & (positions < first))
    if first < count:  # MXNet leaves the detections after the nms_topk best in the order of the anchors
        ranked = jnp.take_along_axis(detections, jnp.where(positions < first, order, unranked)[:, :, None], axis=1)
    label = jnp.where(survives[:, :, None], ranked[:, :, :1], -1)
    return jnp.where(present[:, :, None], jnp.concatenate([label, ranked[:, :, 1:]], axis=2), -1).astype(dtype)
