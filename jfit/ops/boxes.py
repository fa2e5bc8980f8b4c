"""Bounding boxes: overlap (IoU), encoding relative to anchors, non-maximum suppression, bipartite matching.

A box is (left, top, right, bottom) in the format "corner", and (x, y, width, height) with its centre at (x, y) in the format
"center".  In `box_nms` and `bipartite_matching` all leading axes are batch axes; comments call their product "images".
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax import Array, lax

from jfit.ops.attributes import Attrs, choice, flag, integer, number, several
from jfit.ops.context import Ctx
from jfit.ops.registry import operator
from jfit.ops.rows import LOST, RowLayout
from jfit.ops.rules import accumulating, common_rows, shared_batch_rows, unmixed

FORMAT = choice("center", "corner", default="corner")


# ------------------------------------------------------------------------------------------ shared with other families
class Corners(NamedTuple):
    """Boxes as one array for each side: the loops below are faster on four arrays than on one array (..., 4)."""

    left: Array
    top: Array
    right: Array
    bottom: Array


def corners(boxes: Array, form: str = "corner") -> Corners:
    """Convert boxes (..., 4) of format `form` to four arrays (...), one for each side."""
    first, second, third, fourth = (boxes[..., k] for k in range(4))
    if form == "corner":
        return Corners(first, second, third, fourth)
    return Corners(first - third / 2, second - fourth / 2, first + third / 2, second + fourth / 2)


def survivors(suppresses: Callable[[Callable[[Array], Array]], Array], alive: Array, limit: int) -> Array:
    """Select candidates greedily, best first: a selected candidate suppresses candidates of lower rank.

    Each iteration selects one candidate in every image; memory is linear in the number of candidates.

    Args:
        suppresses: `suppresses(pick)` returns the candidates that one candidate of each image suppresses, (images, candidates)
            bool; `pick` selects this candidate from an array, (images, candidates) -> (images, 1).
        alive: candidates to choose from, (images, candidates) bool, sorted by rank, best first.
        limit: maximum number of selected candidates in each image.

    Returns:
        The selected candidates, (images, candidates) bool.
    """
    count = alive.shape[1]
    ranks = jnp.broadcast_to(jnp.arange(count, dtype=jnp.int32)[None], alive.shape)

    def following(alive: Array, now: Array) -> Array:  # the next rank that is alive, `count` if there is none
        return jnp.min(jnp.where(alive & (ranks > now), ranks, count), axis=1, keepdims=True)

    def unfinished(carry: tuple[Array, Array, Array]) -> Array:
        now, _, steps = carry
        return (steps < limit) & jnp.any(now < count)

    def visit(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        now, alive, steps = carry
        pick = functools.partial(jnp.take_along_axis, indices=jnp.minimum(now, count - 1), axis=1)
        removed = suppresses(pick) & (ranks > now)
        alive = alive & ~removed
        return following(alive, now), alive, steps + 1

    start = jnp.full((alive.shape[0], 1), -1, jnp.int32)
    now, alive, _ = lax.while_loop(unfinished, visit, (following(alive, start), alive, jnp.int32(0)))
    return alive & (ranks < now)


def matched(scores: Array, allowed: Array, above: float, limit: int) -> Array:
    """Greedy bipartite matching: repeatedly match the unmatched pair with the highest score (the first one among equal scores).

    Args:
        scores: score of each pair, (images, first, second).
        allowed: which entries of `second` may be matched, (images, second) bool.
        above: only pairs with a score above this are matched.
        limit: maximum number of pairs in each image.

    Returns:
        Index into `second` of the partner of each entry of `first`, -1 for unmatched ones, (images, first) int32.
    """
    images, first, second = scores.shape
    places = jnp.arange(first * second, dtype=jnp.int32).reshape(1, first, second)

    def step(carry: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        partner, free, steps, _ = carry
        open_pair = (partner < 0)[:, :, None] & free[:, None, :] & (scores > above)
        best = jnp.max(jnp.where(open_pair, scores, -jnp.inf), axis=(1, 2), keepdims=True)
        place = jnp.min(jnp.where(open_pair & (scores == best), places, first * second), axis=(1, 2))[:, None]
        exists = place < first * second
        here = exists & (jnp.arange(first, dtype=jnp.int32)[None] == place // second)
        there = exists & (jnp.arange(second, dtype=jnp.int32)[None] == place % second)
        return jnp.where(here, place % second, partner), free & ~there, steps + 1, jnp.any(exists)

    start = (jnp.full((images, first), -1, jnp.int32), allowed, jnp.int32(0), jnp.any(allowed))
    return lax.while_loop(lambda carry: (carry[2] < limit) & carry[3], step, start)[0]


def gathered(chosen: Array, values: Array, fill: int) -> Array:
    """Move the values where `chosen` is True to the front of each row, in order; fill the rest.  All shapes: (rows, count)."""
    rows, count = chosen.shape
    places = jnp.where(chosen, jnp.cumsum(chosen, axis=1, dtype=jnp.int32) - 1, count)  # count: out of range, dropped
    which = jnp.broadcast_to(jnp.arange(rows, dtype=jnp.int32)[:, None], chosen.shape)  # put_along_axis needs known sizes
    return jnp.full(values.shape, fill, values.dtype).at[which, places].set(values, mode="drop")


# ------------------------------------------------------------------------------------------ overlap and encoding
def _iou_rows(attrs: Any, rows: Any, shapes: Any, outs: Any) -> list:
    lhs, rhs = rows
    if isinstance(rhs, RowLayout):
        rhs = rhs._replace(axis=rhs.axis + len(shapes[0]) - 1) if rhs.axis < len(shapes[1]) - 1 else LOST
    if isinstance(lhs, RowLayout) and lhs.axis == len(shapes[0]) - 1:
        lhs = LOST
    return [common_rows([lhs, rhs])]


@operator("_contrib_box_iou", attrs={"format": FORMAT}, rows=_iou_rows)
def box_iou(ctx: Ctx, attrs: Attrs, lhs: Array, rhs: Array) -> Array:
    """y[i, j] = |lhs[i] ∩ rhs[j]| / |lhs[i] ∪ rhs[j]|, 0 where they do not intersect; the gradient is 0."""
    wide = accumulating(lhs.dtype)
    one = corners(lax.stop_gradient(lhs).astype(wide).reshape(-1, 1, 4), attrs.format)
    two = corners(lax.stop_gradient(rhs).astype(wide).reshape(1, -1, 4), attrs.format)
    shared = intersection(one, two)
    union = _area(one) + _area(two) - shared
    ratio = jnp.where(shared > 0, shared / jnp.where(shared > 0, union, 1), 0)
    return ratio.astype(lhs.dtype).reshape(lhs.shape[:-1] + rhs.shape[:-1])


def intersection(one: Corners, two: Corners) -> Array:
    """Return the area of the intersection of boxes; the shapes of `one` and `two` broadcast."""
    width = jnp.minimum(one.right, two.right) - jnp.maximum(one.left, two.left)
    height = jnp.minimum(one.bottom, two.bottom) - jnp.maximum(one.top, two.top)
    return jnp.maximum(width, 0) * jnp.maximum(height, 0)


def _area(box: Corners) -> Array:
    """Return the area of boxes; 0 for a box with right < left or bottom < top."""
    width, height = box.right - box.left, box.bottom - box.top
    return jnp.where((width < 0) | (height < 0), 0, width * height)


def _centred(boxes: Array) -> tuple[Array, Array]:
    """Return the centre (x, y) and the size (width, height) of boxes in corner format, each (..., 2)."""
    size = boxes[..., 2:] - boxes[..., :2]
    return boxes[..., :2] + size * 0.5, size


@operator("_contrib_box_encode", outputs=("output0", "output1"), rows=shared_batch_rows)
def box_encode(ctx, attrs, samples, matches, anchors, refs, means, stds):
    """y = ([((x', y') - (x, y)) / (w, h), log((w', h') / (w, h))] - means) / stds where sample > 0.5, else 0; gradient 0.

    [a, b] concatenates.  (x, y, w, h) are the centre and size of an anchor, (x', y', w', h') those of the box that it is
    matched to, refs[n, matches[n, anchor]]; `anchors` and `refs` themselves are corners (left, top, right, bottom).  The second
    output is a mask: 1 where sample > 0.5, else 0.
    """
    dtype, wide = samples.dtype, accumulating(samples.dtype)
    anchors, refs, means, stds = (lax.stop_gradient(x).astype(wide) for x in (anchors, refs, means, stds))
    chosen = jnp.clip(matches.astype(jnp.int32), 0, refs.shape[1] - 1)[:, :, None]  # (batch, anchors, 1)
    target = jnp.take_along_axis(refs, chosen, axis=1)
    (centre, size), (goal, goal_size) = _centred(anchors), _centred(target)
    valid = jnp.broadcast_to((samples > 0.5)[:, :, None], target.shape)
    raw = jnp.concatenate([(goal - centre) / size, jnp.log(goal_size / size)], axis=2)
    code = (raw - means.reshape(1, 1, 4)) / stds.reshape(1, 1, 4)
    return jnp.where(valid, code, 0).astype(dtype), valid.astype(dtype)


@operator(
    "_contrib_box_decode",
    attrs=several(number, std0=1.0, std1=1.0, std2=1.0, std3=1.0, clip=-1.0)
    | {"format": choice("center", "corner", default="center")},
    rows=shared_batch_rows,
)
def box_decode(ctx, attrs, data, anchors):
    """y = corners of the box with centre (x, y) + d[:2] (w, h) and size (w, h) exp(min(d[2:], clip)), d = std data; gradient 0.

    (x, y, w, h) are the centre and size of the anchor, and std = (std0, std1, std2, std3); clip <= 0 means no clipping.  The
    attribute `format` is that of the input `anchors`.
    """
    wide = accumulating(data.dtype)
    code, boxes = lax.stop_gradient((data.astype(wide), anchors.astype(wide)))
    boxes = jnp.broadcast_to(boxes, data.shape)
    centre, size = _centred(boxes) if attrs.format == "corner" else (boxes[..., :2], boxes[..., 2:])
    scale = jnp.asarray([attrs.std0, attrs.std1, attrs.std2, attrs.std3], wide).reshape(1, 1, 4)
    code = code * scale
    middle = code[..., :2] * size + centre
    grown = code[..., 2:] if attrs.clip <= 0 else jnp.minimum(code[..., 2:], attrs.clip)
    half = jnp.exp(grown) * size * 0.5
    return jnp.concatenate([middle - half, middle + half], axis=-1).astype(data.dtype)


# ------------------------------------------------------------------------------------------ box_nms
_leading_rows = unmixed(lambda attrs, ndim: (ndim - 2, ndim - 1))


def _nms_order(attrs: Attrs, data: Array) -> Array:
    """Return for each output position the index of the input box, -1 where no box is left; data (images, boxes, entries)."""
    score, start = data[:, :, attrs.score_index], attrs.coord_start
    valid = score > attrs.valid_thresh
    if attrs.id_index >= 0:
        valid &= data[:, :, attrs.id_index] != attrs.background_id
    order = jnp.argsort(jnp.where(valid, -score, jnp.inf), axis=1)  # stable: equal scores keep their order
    ranked = jnp.take_along_axis(data, order[:, :, None], axis=1).astype(accumulating(data.dtype))
    boxes = corners(ranked[:, :, start : start + 4], attrs.in_format)
    sizes = _area(boxes)
    ids = ranked[:, :, attrs.id_index].astype(jnp.int32)
    by_class = attrs.id_index >= 0 and not attrs.force_suppress

    def suppresses(pick: Callable[[Array], Array]) -> Array:
        shared = intersection(Corners(*map(pick, boxes)), boxes)
        hit = shared / (pick(sizes) + sizes - shared) > attrs.overlap_thresh
        return hit & (pick(ids) == ids) if by_class else hit

    count = data.shape[1]
    first = count if attrs.topk < 0 else min(count, attrs.topk)
    alive = jnp.take_along_axis(valid, order, axis=1) & (jnp.arange(count) < first)[None]
    return gathered(survivors(suppresses, alive, count), order, -1)


def _reformed(attrs: Attrs, data: Array) -> Array:
    """Convert coordinates from in_format to out_format, except for boxes with a negative first coordinate, as in MXNet."""
    if attrs.in_format == attrs.out_format:
        return data
    start = attrs.coord_start
    box = data[:, :, start : start + 4]
    if attrs.out_format == "center":
        moved = jnp.concatenate([(box[..., :2] + box[..., 2:]) / 2, box[..., 2:] - box[..., :2]], axis=2)
    else:
        moved = jnp.stack(corners(box, "center"), axis=2)
    moved = jnp.where(box[:, :, :1] < 0, box, moved)
    return jnp.concatenate([data[:, :, :start], moved, data[:, :, start + 4 :]], axis=2)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _suppress(attrs: Attrs, data: Array) -> Array:
    """Return the remaining boxes, best first, then rows of -1; the gradient ignores the change of format, as in MXNet."""
    return _suppress_forward(attrs, data)[0]


def _suppress_forward(attrs, data):
    source = _nms_order(attrs, data)
    chosen = jnp.take_along_axis(data, jnp.maximum(source, 0)[:, :, None], axis=1)
    out = jnp.where((source >= 0)[:, :, None], chosen, jnp.asarray(-1, data.dtype))
    return _reformed(attrs, out), source


def _suppress_backward(attrs, source, grad):
    image = jnp.broadcast_to(jnp.arange(source.shape[0], dtype=jnp.int32)[:, None], source.shape)
    place = jnp.where(source >= 0, source, source.shape[1])  # out of range: dropped
    return (jnp.zeros_like(grad).at[image, place].set(grad, mode="drop"),)


_suppress.defvjp(_suppress_forward, _suppress_backward)


@operator(
    "_contrib_box_nms",
    outputs=("output0",),
    attrs=several(number, overlap_thresh=0.5, valid_thresh=0.0)
    | several(integer, topk=-1, coord_start=2, score_index=1, id_index=-1, background_id=-1)
    | {"force_suppress": flag(False), "in_format": FORMAT, "out_format": FORMAT},
    aliases=("_contrib_box_non_maximum_suppression",),
    rows=_leading_rows,
)
def box_nms(ctx: Ctx, attrs: Attrs, data: Array) -> Array:
    """y = boxes by falling score, without those that overlap a better one (of their class) by more than overlap_thresh.

    The output has the shape of data; the entries after the last selected box are -1.  Boxes of different classes (entry
    id_index) do not suppress each other unless force_suppress.  The gradient of each output box flows to the input box that it
    is a copy of.
    """
    width, start = data.shape[-1], attrs.coord_start
    places = [attrs.score_index, *([attrs.id_index] if attrs.id_index >= 0 else []), *range(start, start + 4)]
    if len(set(places)) != len(places) or not all(0 <= p < width for p in places):
        raise ValueError(f"score, id and coordinates (from {start} on) must be different entries of the {width} of each box")
    if attrs.topk == 0:
        return data
    flat = data.reshape(-1, *data.shape[-2:])
    return cast(Array, _suppress(attrs, flat)).reshape(data.shape)


# ------------------------------------------------------------------------------------------ bipartite_matching
@operator(
    "_contrib_bipartite_matching",
    outputs=("output0", "output1"),
    attrs={"is_ascend": flag(False), "threshold": number(), "topk": integer(-1)},
    rows=_leading_rows,
)
def bipartite_matching(ctx: Ctx, attrs: Attrs, data: Array) -> tuple[Array, Array]:
    """y = the column matched to each row, and the row matched to each column, greedily by score; -1 if unmatched; gradient 0.

    Only pairs with a score above threshold (below it, if is_ascend) match; topk > 0 allows topk + 1 pairs, as in MXNet.
    """
    rows, columns = data.shape[-2:]
    flat = lax.stop_gradient(data).reshape(-1, rows, columns).astype(accumulating(data.dtype))
    sign = -1 if attrs.is_ascend else 1
    limit = min(rows, columns, attrs.topk + 1 if attrs.topk > 0 else rows)
    free = jnp.ones((flat.shape[0], columns), bool)
    column = matched(flat * sign, free, attrs.threshold * sign, limit)
    pairs = column[:, :, None] == jnp.arange(columns, dtype=jnp.int32)[None, None]  # (images, rows, columns)
    row = jnp.max(jnp.where(pairs, jnp.arange(rows, dtype=jnp.int32)[None, :, None], -1), axis=1)
    head = data.shape[:-2]
    return column.astype(data.dtype).reshape((*head, rows)), row.astype(data.dtype).reshape((*head, columns))
