"""Boxes, single-shot detection and region proposals against MXNet 1.9.1's recorded results."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from detection_support import call
from golden_ops import case_id, load_cases, run_case, spread_out

from jfit.ops import LOST, RowLayout, lookup


@pytest.mark.repetitions(4)
@pytest.mark.parametrize(("case", "arrays"), spread_out(load_cases("detection"), each=1), ids=case_id)
def test_recorded_case(case, arrays):
    run_case(case, arrays)


# ------------------------------------------------------------------------------------------ images, rows, precision
DRAW = np.random.default_rng(0)


def boxes(*shape):
    start = DRAW.uniform(0, 0.6, (*shape, 2))
    return np.concatenate([start, start + DRAW.uniform(0.1, 0.4, (*shape, 2))], -1).astype("float32")


def scores(*shape):
    return DRAW.permutation(np.linspace(0.05, 0.95, int(np.prod(shape)))).reshape(shape).astype("float32")


LABEL = np.concatenate([DRAW.integers(0, 2, (2, 3, 1)), boxes(2, 3)], -1).astype("float32")
REGIONS = {"scales": (2.0,), "ratios": (1.0, 2.0), "rpn_post_nms_top_n": 3, "rpn_min_size": 2, "feature_stride": 4}
PICTURES = [  # operator, attributes, inputs of two pictures; what is shared by them comes as (1, ...)
    (
        "_contrib_MultiBoxTarget",
        {"negative_mining_ratio": 2.0, "overlap_threshold": 0.3},
        (boxes(1, 12), LABEL, DRAW.normal(size=(2, 3, 12)).astype("float32")),
    ),
    (
        "_contrib_MultiBoxDetection",
        {"nms_threshold": 0.3},
        (scores(2, 3, 12), DRAW.normal(size=(2, 48)).astype("float32"), boxes(1, 12)),
    ),
    ("_contrib_box_nms", {"overlap_thresh": 0.3}, (np.concatenate([scores(2, 9, 2), boxes(2, 9)], -1),)),
    ("_contrib_bipartite_matching", {"threshold": 0.1}, (scores(2, 3, 4),)),
    (
        "_contrib_box_encode",
        {},
        (scores(2, 4), np.zeros((2, 4), "float32"), boxes(2, 4), boxes(2, 2), np.zeros(4, "float32"), np.ones(4, "float32")),
    ),
    ("_contrib_box_decode", {"format": "corner"}, (DRAW.normal(size=(2, 4, 4)).astype("float32"), boxes(1, 4))),
    (
        "_contrib_MultiProposal",
        REGIONS,
        (scores(2, 4, 4, 4), DRAW.normal(size=(2, 8, 4, 4)).astype("float32"), np.array([[16, 16, 1]] * 2, "float32")),
    ),
]
IDS = [p[0] for p in PICTURES]


def tuple_of(result):
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.repetitions(2)
@pytest.mark.parametrize(("name", "attrs", "inputs"), PICTURES, ids=IDS)
def test_detections_of_an_image_do_not_depend_on_other_images(name, attrs, inputs):
    same = 2 if name == "_contrib_MultiProposal" else -1  # the sizes of the pictures
    mixed = [np.stack([v[0], v[0] * 0.5]) if len(v) == 2 and k != same else v for k, v in enumerate(inputs)]
    for one, two in zip(tuple_of(call(name, attrs, *inputs)), tuple_of(call(name, attrs, *mixed)), strict=True):
        half = one.shape[0] // 2
        np.testing.assert_array_equal(one[:half], two[:half])


@pytest.mark.parametrize(("name", "attrs", "inputs"), PICTURES, ids=IDS)
def test_rows_are_tracked_by_image(name, attrs, inputs):
    op, batch = lookup(name), RowLayout(0, 1, 2, 1)
    parsed, shapes = op.parse(attrs), [v.shape for v in inputs]
    outs = [o.shape for o in tuple_of(jax.eval_shape(lambda *v: call(name, attrs, *v), *inputs))]
    rows = tuple(batch if s[0] == 2 and len(s) > 1 else None for s in shapes)
    found = op.rows(parsed, rows, shapes, outs)
    assert found == [RowLayout(0, 1, 2, o[0] // 2) for o in outs]
    assert op.rows(parsed, (None,) * len(shapes), shapes, outs) == [None] * len(outs)
    assert set(op.rows(parsed, (LOST, *rows[1:]), shapes, outs)) == {LOST}


def test_rows_on_the_box_axis_are_lost():
    nms, iou = lookup("_contrib_box_nms"), lookup("_contrib_box_iou")
    assert nms.rows(nms.parse({}), (RowLayout(0, 1, 9, 1),), [(9, 6)], [(9, 6)]) == [LOST]
    one, two = RowLayout(0, 1, 3, 1), RowLayout(0, 1, 5, 1)
    shapes, outs = [(3, 4), (5, 2, 4)], [(3, 5, 2)]
    assert iou.rows(None, (one, None), shapes, outs) == [one]
    assert iou.rows(None, (None, two), shapes, outs) == [RowLayout(1, 1, 5, 1)]
    assert iou.rows(None, (one, two), shapes, outs) == [LOST]
    assert iou.rows(None, (RowLayout(1, 1, 4, 1), None), shapes, outs) == [LOST]
    prior = lookup("_contrib_MultiBoxPrior")
    assert prior.rows(prior.parse({}), (RowLayout(0, 1, 2, 1),), [(2, 3, 4, 4)], [(1, 16, 4)]) == [None]


def test_a_suppressed_box_has_no_gradient():
    data = np.array([[0, 0.9, 0, 0, 1, 1], [0, 0.8, 0, 0, 1, 0.9], [0, 0.7, 2, 2, 3, 3]], "float32")
    grad = jax.grad(lambda d: jnp.sum(call("_contrib_box_nms", {"out_format": "center"}, d)))(data)
    np.testing.assert_array_equal(grad, [[1] * 6, [0] * 6, [1] * 6])


def test_all_hard_negatives_are_used_if_there_are_too_few():
    """MXNet stops here; compiled code takes what there is."""
    anchors = np.array([[[0, 0, 0.5, 0.5], [0, 0, 0.5, 0.45], [0.6, 0.6, 1, 1]]], "float32")
    label = np.array([[[1, 0, 0, 0.5, 0.5]]], "float32")
    attrs = {"negative_mining_ratio": 2.0, "overlap_threshold": 0.95, "negative_mining_thresh": 0.5}
    kinds = call("_contrib_MultiBoxTarget", attrs, anchors, label, np.zeros((1, 2, 3), "float32"))[2]
    assert kinds.tolist() == [[2, -1, 0]]


REFUSED = [
    ("_contrib_MultiBoxTarget", {}, [(2, 3, 4), (2, 1, 5), (2, 3, 3)], "expected anchor .1, anchors, 4."),
    ("_contrib_MultiBoxTarget", {}, [(1, 3, 4), (2, 1, 4), (2, 3, 3)], "label .batch, objects, 5 or more."),
    ("_contrib_MultiBoxTarget", {}, [(1, 3, 4), (2, 1, 5), (2, 3, 4)], "cls_pred .batch, classes, anchors."),
    ("_contrib_MultiBoxDetection", {}, [(2, 3, 4), (2, 16), (1, 5, 4)], "expected cls_prob .batch, classes, anchors."),
    ("_contrib_MultiBoxDetection", {}, [(2, 3, 4), (2, 15), (1, 4, 4)], "loc_pred .batch, 4 . anchors."),
    ("_contrib_box_nms", {"id_index": 0}, [(2, 5)], "different entries of the 5"),
    ("_contrib_box_nms", {"score_index": 3}, [(2, 6)], "different entries of the 6"),
]


@pytest.mark.parametrize(("name", "attrs", "shapes", "sentence"), REFUSED)
def test_invalid_inputs_raise(name, attrs, shapes, sentence):
    with pytest.raises(ValueError, match=sentence):
        call(name, attrs, *(np.ones(s, "float32") for s in shapes))


def test_input_shapes_of_proposals_are_inferred_from_the_scores():
    op = lookup("_contrib_Proposal")
    assert op.fill is not None and op.fill(op.parse(REGIONS), [(1, 4, 5, 6), None, None], [None]) == [
        (1, 4, 5, 6),
        (1, 8, 5, 6),
        (1, 3),
    ]
