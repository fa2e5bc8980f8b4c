"""Cases of detection operators: separated random boxes, ties, and edge cases (no detections, boxes of zero area)."""

from __future__ import annotations

from typing import Any

import numpy as np

CASES: list[dict[str, Any]] = []

GRADIENT_IS_ZERO = ("_contrib_MultiBoxTarget", "_contrib_MultiBoxDetection", "_contrib_Proposal", "_contrib_MultiProposal")


def _case(op: str, inputs: dict[str, np.ndarray], attrs: dict[str, Any] | None = None, **more: Any) -> None:
    floats = {name: np.asarray(a, np.float32) for name, a in inputs.items()}
    if op in GRADIENT_IS_ZERO and any(case["op"] == op for case in CASES):  # shown once
        more["req"] = dict.fromkeys(inputs, "null")
    CASES.append({"op": op, "inputs": floats, "attrs": attrs or {}, **more})


def _boxes(draw: np.random.RandomState, *shape: int, low: float = 0.0, high: float = 1.0) -> np.ndarray:
    """Corner boxes inside [low, high]."""
    start = draw.uniform(low, low + 0.6 * (high - low), (*shape, 2))
    size = draw.uniform(0.1, 0.4, (*shape, 2)) * (high - low)
    return np.concatenate([start, start + size], -1)


# ------------------------------------------------------------------------------------------ MultiBoxPrior
for number, attrs in enumerate(
    [
        {},
        {"sizes": (0.3,), "ratios": (2.0,)},
        {"sizes": (0.2, 0.4), "ratios": (1.0, 2.0, 0.5)},
        {"sizes": (0.9, 0.8), "ratios": (0.5, 3.0), "clip": True},
        {"sizes": (0.3,), "ratios": (1.0, 2.0), "steps": (0.1, 0.2), "offsets": (0.25, 0.75)},
    ]
):
    _case("_contrib_MultiBoxPrior", {"data": np.random.RandomState(number).rand(2, 3, 3, 4)}, attrs)


# ------------------------------------------------------------------------------------------ MultiBoxTarget
def _target(seed: int, attrs: dict[str, Any], anchors: int = 24, objects: int = 4, counts: tuple[int, ...] = (3, 1, 0)) -> None:
    draw = np.random.RandomState(seed)
    label = np.full((len(counts), objects, 6), -1.0)
    for image, count in enumerate(counts):
        label[image, :count, 0] = draw.randint(0, 3, count)
        label[image, :count, 1:5] = _boxes(draw, count)
        label[image, :count, 5] = 7.0
    inputs = {"anchor": _boxes(draw, 1, anchors), "label": label, "cls_pred": draw.randn(len(counts), 4, anchors)}
    _case("_contrib_MultiBoxTarget", inputs, attrs)


_target(1, {})
_target(2, {"overlap_threshold": 0.2, "ignore_label": -2.0, "variances": (0.2, 0.3, 0.4, 0.5)})
_target(3, {"overlap_threshold": 0.3, "negative_mining_ratio": 3.0, "negative_mining_thresh": 0.4})
_target(4, {"overlap_threshold": 0.25, "negative_mining_ratio": 1.5, "negative_mining_thresh": 0.5}, counts=(4, 2))
_target(5, {"negative_mining_ratio": 0.5, "negative_mining_thresh": 0.5, "minimum_negative_samples": 4}, counts=(1, 3))
_target(6, {"overlap_threshold": 0.0}, counts=(2, 4))
_target(7, {"overlap_threshold": 0.0, "negative_mining_ratio": 2.0, "negative_mining_thresh": 0.6}, counts=(2, 4))
_target(8, {"negative_mining_ratio": 3.0}, counts=(0, 0))
# equal overlaps: two objects on one anchor, one object over equal anchors; an object far from every anchor
_case(
    "_contrib_MultiBoxTarget",
    {
        "anchor": np.array([[[0, 0, 0.5, 0.5], [0, 0, 0.5, 0.5], [0.5, 0.5, 1, 1], [0.4, 0.4, 0.9, 0.9]]]),
        "label": np.array(
            [
                [[0, 0, 0, 0.5, 0.5], [1, 0, 0, 0.5, 0.5], [2, 0.95, 0, 1, 0.05]],
                [[1, 0.5, 0.5, 1, 1], [-1, -1, -1, -1, -1], [-1, -1, -1, -1, -1]],
            ]
        ),
        "cls_pred": np.zeros((2, 3, 4)),
    },
    {"negative_mining_ratio": 1.0},
)


# ------------------------------------------------------------------------------------------ MultiBoxDetection
def _detection(seed: int, attrs: dict[str, Any], anchors: int = 16, classes: int = 4, spread: float = 3.0) -> None:
    draw = np.random.RandomState(seed)
    logits = draw.randn(2, classes, anchors) * spread
    inputs = {
        "cls_prob": np.exp(logits) / np.exp(logits).sum(1, keepdims=True),
        "loc_pred": draw.randn(2, anchors * 4) * 0.5,
        "anchor": _boxes(draw, 1, anchors),
    }
    _case("_contrib_MultiBoxDetection", inputs, attrs)


_detection(11, {})
_detection(12, {"threshold": 0.4, "nms_threshold": 0.3})
_detection(13, {"force_suppress": True, "nms_threshold": 0.2})
_detection(14, {"nms_topk": 5, "nms_threshold": 0.3})
_detection(15, {"nms_topk": 40, "clip": False, "variances": (0.2, 0.3, 0.1, 0.4)})
_detection(16, {"nms_threshold": 0.0})
_detection(17, {"nms_threshold": 1.5, "threshold": 0.3})
_detection(18, {"background_id": 1, "threshold": 0.2})
_detection(19, {"threshold": 1.5})
_detection(20, {"nms_topk": 3, "threshold": 0.5, "force_suppress": True})
# equal scores, equal classes, boxes without area
_case(
    "_contrib_MultiBoxDetection",
    {
        "cls_prob": np.array([[[0.2] * 5, [0.4, 0.4, 0.4, 0.6, 0.4], [0.4, 0.4, 0.4, 0.2, 0.4]]]),
        "loc_pred": np.zeros((1, 20)),
        "anchor": np.array([[[0, 0, 0.5, 0.5], [0.1, 0.1, 0.1, 0.1], [0, 0, 0.5, 0.5], [0.1, 0.1, 0.1, 0.1], [0.5, 0, 1, 1]]]),
    },
    {"nms_threshold": 0.5},
)


# ------------------------------------------------------------------------------------------ box_nms
def _scored(seed: int, *shape: int, ids: bool = True) -> np.ndarray:
    draw = np.random.RandomState(seed)
    count = int(np.prod(shape))
    score = draw.permutation(np.linspace(0.05, 0.95, count)).reshape(*shape, 1)
    head = [draw.randint(0, 3, (*shape, 1)).astype(float)] if ids else []
    return np.concatenate([*head, score, _boxes(draw, *shape)], -1)


for number, (attrs, ids) in enumerate(
    [
        ({}, True),
        ({"overlap_thresh": 0.2, "id_index": 0}, True),
        ({"overlap_thresh": 0.2, "id_index": 0, "force_suppress": True, "valid_thresh": 0.3}, True),
        ({"overlap_thresh": 0.1, "id_index": 0, "background_id": 1}, True),
        ({"overlap_thresh": 0.3, "topk": 4}, True),
        ({"topk": 0}, True),
        ({"score_index": 0, "coord_start": 1, "overlap_thresh": 0.2}, False),
        ({"overlap_thresh": 0.3, "out_format": "center"}, True),
        ({"overlap_thresh": 0.3, "in_format": "center", "out_format": "corner", "id_index": 0}, True),
        ({"overlap_thresh": 0.3, "in_format": "center", "out_format": "center"}, True),
        ({"valid_thresh": 0.99}, True),
        ({"overlap_thresh": 0.3, "topk": 100, "background_id": 0}, True),
    ]
):
    shown = number % 2 == 0 or "out_format" in attrs
    _case("_contrib_box_nms", {"data": _scored(30 + number, 2, 9, ids=ids)}, attrs, req={} if shown else {"data": "null"})
_case("_contrib_box_nms", {"data": _scored(50, 8)}, {"overlap_thresh": 0.2})
_case("_contrib_box_nms", {"data": _scored(51, 2, 2, 6)}, {"overlap_thresh": 0.2, "id_index": 0})
_case(
    "_contrib_box_nms",
    {
        "data": np.array(
            [
                [0, 0.5, 0.1, 0.1, 0.5, 0.5],
                [1, 0.5, 0.1, 0.1, 0.5, 0.5],
                [0, 0.4, 0.2, 0.2, 0.2, 0.2],
                [0, 0.4, 0.2, 0.2, 0.2, 0.2],
                [0, 0.3, 0.6, 0.6, 0.5, 0.5],
                [2, 0.3, -0.3, 0.1, 0.4, 0.5],
            ]
        )
    },
    {"id_index": 0, "out_format": "center"},
)

# ------------------------------------------------------------------------------------------ box_iou, encode, decode, matching
draw = np.random.RandomState(60)
_case("_contrib_box_iou", {"lhs": _boxes(draw, 2, 3), "rhs": _boxes(draw, 4)})
_case("_contrib_box_iou", {"lhs": _boxes(draw, 3), "rhs": _boxes(draw, 2, 4)}, {"format": "center"})
_case(
    "_contrib_box_iou",
    {
        "lhs": np.array([[0, 0, 1, 1], [1, 1, 0, 0], [0.2, 0.2, 0.2, 0.2]]),
        "rhs": np.array([[0, 0, 1, 1], [0.2, 0.2, 0.2, 0.2], [0.8, 0.9, 0.1, 0.2], [1, 1, 2, 2]]),
    },
)
_case(
    "_contrib_box_encode",
    {
        "samples": np.array([[1, 0.4, 1, -1], [0, 0.6, 1, 1]]),
        "matches": np.array([[0, 1, 2, 0], [2, 1, 0, 0]]),
        "anchors": _boxes(draw, 2, 4),
        "refs": _boxes(draw, 2, 3),
        "means": np.array([0.1, 0.2, -0.3, 0.4]),
        "stds": np.array([0.5, 0.6, 0.7, 0.8]),
    },
)
for attrs in ({}, {"format": "corner", "std0": 0.1, "std1": 0.2, "std2": 0.3, "std3": 0.4}, {"clip": 0.2, "std2": 2.0}):
    _case("_contrib_box_decode", {"data": draw.randn(2, 4, 4), "anchors": _boxes(draw, 1, 4)}, attrs)
for attrs in (
    {"threshold": 0.05},
    {"threshold": 0.5, "topk": 1},
    {"threshold": 0.6, "is_ascend": True},
    {"threshold": 0.9, "is_ascend": True, "topk": 2},
):
    _case("_contrib_bipartite_matching", {"data": draw.permutation(np.linspace(0, 1, 30)).reshape(2, 3, 5)}, attrs)
_case("_contrib_bipartite_matching", {"data": np.array([[0.5, 0.5, 0.1], [0.5, 0.5, 0.5]])}, {"threshold": 0.2})


# ------------------------------------------------------------------------------------------ Proposal
def _regions(op: str, seed: int, images: int, attrs: dict[str, Any], info: list[list[float]], anchors: int = 2) -> None:
    draw = np.random.RandomState(seed)
    count = images * anchors * 20
    score = draw.permutation(np.linspace(0.02, 0.98, count)).reshape(images, anchors, 4, 5)
    inputs = {
        "cls_prob": np.concatenate([1 - score, score], 1),
        "bbox_pred": draw.randn(images, 4 * anchors, 4, 5) * (4.0 if attrs.get("iou_loss") else 0.3),
        "im_info": np.array(info),
    }
    _case(op, inputs, attrs)


SMALL = {"scales": (2.0, 4.0), "ratios": (1.0,), "rpn_pre_nms_top_n": 30, "rpn_post_nms_top_n": 6, "rpn_min_size": 4}
_regions("_contrib_Proposal", 70, 1, SMALL, [[64, 80, 1.0]])
_regions("_contrib_Proposal", 71, 1, {**SMALL, "output_score": True, "threshold": 0.3}, [[64, 80, 1.0]])
_regions("_contrib_Proposal", 72, 1, {**SMALL, "iou_loss": True, "output_score": True}, [[64, 80, 1.5]])
_regions(
    "_contrib_MultiProposal",
    73,
    2,
    {**SMALL, "ratios": (0.5, 2.0), "scales": (3.0,), "output_score": True, "threshold": 0.5},
    [[64, 80, 1.0], [50, 70, 2.0]],
)
_regions("_contrib_MultiProposal", 74, 2, {**SMALL, "rpn_post_nms_top_n": 12, "threshold": 0.1}, [[64, 80, 1.0], [64, 60, 1.0]])
_regions(
    "_contrib_MultiProposal", 75, 2, {**SMALL, "rpn_pre_nms_top_n": 0, "feature_stride": 8}, [[32, 40, 1.0], [32, 40, 1.0]]
)
_regions("_contrib_MultiProposal", 76, 1, {**SMALL, "rpn_min_size": 30, "output_score": True}, [[64, 80, 1.0]])
_regions("_contrib_MultiProposal", 77, 1, {"rpn_post_nms_top_n": 5, "output_score": True}, [[64, 80, 0.5]], anchors=12)
