"""Normalization, resizing, sampling, CTC and margin losses against MXNet 1.9.1's recorded values; rows, shapes, errors."""

from __future__ import annotations

import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden_ops import case_id, load_cases, run_case, spread_out

from jfit.ops import LOST, RowLayout, lookup
from jfit.ops.context import Ctx

FIXTURES = load_cases("norms", "heads", "spatial", "resized", "moments")
RECORDED = spread_out(load_cases("normalising", "resizing", "sampling", "unaligned", "first_version", "windows"), each=1)


@pytest.mark.repetitions(12)
@pytest.mark.parametrize(("case", "arrays"), FIXTURES, ids=case_id)
def test_fixture_case(case, arrays):
    run_case(case, arrays)


@pytest.mark.parametrize(("case", "arrays"), RECORDED, ids=case_id)
def test_recorded_case(case, arrays):
    run_case(case, arrays)


def normal(*shape, seed=0):
    return jnp.asarray(np.random.RandomState(seed).standard_normal(shape), "float32")


def run(op, *arrays, weight=None, rows=None, **attrs):
    """The outputs of one operator; with weights, rows lie where `rows` says (axis 0 of every input by default)."""
    record = lookup(op)
    where = (None if weight is None else RowLayout(0, 1, len(weight), 1),) * len(arrays) if rows is None else rows

    @jax.jit
    def program(weight, *arrays):
        ctx = Ctx(train=True, key=jax.random.key(1), rows=where, weight=weight, node="op0")
        return record.fn(ctx, record.parse(attrs), *arrays)

    return program(weight, *arrays)


def rows_of(op, rows, shapes, outs, **attrs):
    record = lookup(op)
    return record.rows(record.parse(attrs), rows, shapes, outs)


def first(out):
    return out[0] if isinstance(out, tuple) else out


# ------------------------------------------------------------------------------------------ rows
AFFINE = {"target_shape": (2, 2), "transform_type": "affine"}
WITHIN_ROWS = [
    ("InstanceNorm", [(5, 3, 4), (3,), (3,)], {}),
    ("GroupNorm", [(5, 4, 3), (2,), (2,)], {"num_groups": 2}),
    ("L2Normalization", [(5, 3, 4)], {}),
    ("LRN", [(5, 3, 2, 2)], {"nsize": 3}),
    ("SVMOutput", [(5, 3), (5,)], {}),
    ("UpSampling", [(5, 2, 2, 2)], {"scale": 2, "sample_type": "nearest", "num_args": 1}),
    ("_contrib_BilinearResize2D", [(5, 2, 3, 3)], {"height": 4, "width": 2}),
    ("_contrib_AdaptiveAvgPooling2D", [(5, 2, 3, 3)], {"output_size": 2}),
    ("GridGenerator", [(5, 6)], AFFINE),
    ("BilinearSampler", [(5, 2, 3, 3), (5, 2, 2, 2)], {}),
    ("im2col", [(5, 2, 3, 3)], {"kernel": (2, 2)}),
]


@pytest.mark.parametrize(("op", "shapes", "attrs"), WITHIN_ROWS, ids=[w[0] for w in WITHIN_ROWS])
def test_a_row_does_not_depend_on_the_others(op, shapes, attrs):
    arrays = [normal(*s) for s in shapes]
    short = [a[:3] if len(a) == 5 else a for a in arrays]
    whole, part = first(run(op, *arrays, **attrs)), first(run(op, *short, **attrs))
    np.testing.assert_allclose(whole[:3], part, rtol=1e-5, atol=1e-6)
    rows = [RowLayout(0, 1, 5, 1) if s[0] == 5 else None for s in shapes]
    assert rows_of(op, rows, shapes, [whole.shape], **attrs)[0] == RowLayout(0, 1, 5, 1)


def test_rows_are_tracked_through_axis_permutations():
    batch, second = RowLayout(0, 1, 5, 1), RowLayout(1, 1, 5, 1)
    assert rows_of("CTCLoss", [second, batch], [(4, 5, 3), (5, 2)], [(5,)]) == [batch]
    assert rows_of("CTCLoss", [batch, None], [(4, 5, 3), (5, 2)], [(5,)]) == [LOST]
    assert rows_of("moments", [second], [(2, 5)], [(5,), (5,)], axes=(0,)) == [batch, batch]
    assert rows_of("moments", [batch], [(5, 2)], [(2,), (2,)], axes=(0,)) == [LOST, LOST]
    assert rows_of("L2Normalization", [second], [(2, 5)], [(2, 5)]) == [LOST]
    assert rows_of("L2Normalization", [batch], [(5, 2, 3)], [(5, 2, 3)], mode="channel") == [batch]
    shapes, outs = [(5, 1, 4, 4), (3, 5)], [(3, 1, 2, 2)] * 2
    assert rows_of("ROIPooling", [batch, None], shapes, outs, pooled_size=(2, 2), spatial_scale=1)[0] is LOST


def test_zero_weight_rows_have_zero_gradient():
    weight, data = jnp.array([1.0, 1.0, 1.0, 0.0, 0.0]), jax.nn.sigmoid(normal(5, 3))
    for op, other in (("SVMOutput", jnp.array([0.0, 1.0, 2.0, 0.0, 1.0])), ("IdentityAttachKLSparseReg", jnp.full(3, 0.4))):

        def pushed(x, other, weight=None, op=op):
            out, pull = jax.vjp(lambda x: first(run(op, x, other, weight=weight)), x)
            return pull(jnp.zeros(out.shape))[0]

        full, short = pushed(data, other, weight), pushed(data[:3], other[:3])
        np.testing.assert_allclose(full[:3], short, rtol=1e-5)
        assert not np.any(full[3:])


def test_zero_weight_rows_do_not_change_statistics():
    weight = jnp.array([1.0, 1.0, 1.0, 0.0, 0.0])
    data, *others = normal(5, 3), normal(3), normal(3), jnp.zeros(3), jnp.ones(3)
    for op, attrs in (("BatchNorm_v1", {}), ("_contrib_SyncBatchNorm", {"key": "k"}), ("_contrib_BatchNormWithReLU", {})):
        (out, *_), moved = run(op, data, *others, weight=weight, fix_gamma=False, **attrs)
        (short, *_), moved_short = run(op, data[:3], *others, fix_gamma=False, **attrs)
        np.testing.assert_allclose(out[:3], short, rtol=1e-5, atol=1e-6)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), moved, moved_short)


@pytest.mark.optimized
def test_batch_norm_with_relu_equals_batch_norm_then_relu():
    arrays = [normal(4, 3, 2, 2), normal(3), normal(3), jnp.zeros(3), jnp.ones(3)]
    (both, *_), moved = run("_contrib_BatchNormWithReLU", *arrays, fix_gamma=False)
    (plain, *_), moved_plain = run("BatchNorm", *arrays, fix_gamma=False)
    np.testing.assert_array_equal(both, np.maximum(plain, 0))
    jax.tree.map(np.testing.assert_array_equal, moved, moved_plain)


# ------------------------------------------------------------------------------------------ CTC
def by_enumeration(scores, label):
    """-log of the summed probabilities of all alignments of one sequence, blank 0."""
    prob = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    total = 0.0
    for path in itertools.product(range(scores.shape[1]), repeat=len(scores)):
        merged = [c for c, before in zip(path, (None, *path), strict=False) if c != before]
        if [c for c in merged if c] == list(label):
            total += np.prod([prob[t, c] for t, c in enumerate(path)])
    return -np.log(total)


@pytest.mark.parametrize("label", [(1,), (1, 2), (2, 2), ()], ids=str)
def test_ctc_sums_over_all_alignments(label):
    scores = normal(4, 1, 3)
    padded = jnp.array([[*label, *(0,) * (3 - len(label))]], jnp.float32)
    np.testing.assert_allclose(run("CTCLoss", scores, padded), [by_enumeration(np.asarray(scores[:, 0]), label)], rtol=1e-5)


def test_label_lengths_truncate_the_labels():
    scores, labels = normal(5, 2, 4), jnp.array([[1.0, 2.0, 3.0], [2.0, 2.0, 1.0]])
    got = run("CTCLoss", scores, labels, jnp.array([1.0, 2.0]), use_label_lengths=True)
    np.testing.assert_allclose(got, run("CTCLoss", scores, jnp.array([[1.0, 0, 0], [2.0, 2.0, 0]])), rtol=1e-6)


@pytest.mark.slow
def test_warp_ctc_is_a_head_over_the_same_loss():
    steps, batch, classes = 5, 3, 4
    scores, labels = normal(steps, batch, classes), jnp.array([[1.0, 2.0], [3.0, 0.0], [2.0, 2.0]])
    attrs = {"input_length": steps, "label_length": 2}

    def warp(x, weight=None):
        where = (RowLayout(0, steps, batch, 1), None)
        return run("WarpCTC", x.reshape(-1, classes), labels.reshape(-1), weight=weight, rows=where, **attrs)

    out, pull = jax.vjp(warp, scores)
    np.testing.assert_allclose(out, jax.nn.softmax(scores.reshape(-1, classes)), rtol=1e-6)
    want = jax.grad(lambda x: jnp.sum(run("CTCLoss", x, labels)))(scores)
    np.testing.assert_allclose(pull(jnp.zeros(out.shape))[0], want, rtol=1e-4, atol=1e-6)
    weight = jnp.array([1.0, 0.0, 2.0])
    weighted = jax.vjp(lambda x: warp(x, weight), scores)[1](out)[0]
    np.testing.assert_allclose(weighted, want * weight.reshape(1, 3, 1), rtol=1e-4, atol=1e-6)
    record = lookup("WarpCTC")
    losses, _ = record.loss(record.parse(attrs), out, labels.reshape(-1))
    np.testing.assert_allclose(losses, run("CTCLoss", scores, labels), rtol=1e-5)
    assert record.fill(record.parse(attrs), [(steps * batch, classes), None], [None]) == [(15, 4), (6,)]


def test_warp_ctc_predicts_without_labels_and_skips_zeros_between_labels():
    scores, attrs = normal(8, 3), {"input_length": 4, "label_length": 3}
    np.testing.assert_allclose(run("WarpCTC", scores, None, **attrs), jax.nn.softmax(scores), rtol=1e-6)
    labels = (jnp.array([1, 0, 2, 2, 0, 0]), jnp.array([1, 2, 0, 2, 0, 0]))
    np.testing.assert_array_equal(*(jax.grad(lambda x, y=y: jnp.sum(run("WarpCTC", x, y, **attrs)))(scores) for y in labels))


# ------------------------------------------------------------------------------------------ errors
NEAREST = {"sample_type": "nearest"}
FAULTS = [
    ("L2Normalization", [(2, 3)], {"mode": "channel"}, "at least 3 axes"),
    ("SoftmaxActivation", [(2, 3)], {"mode": "channel"}, "at least 3 axes"),
    ("GridGenerator", [(2, 6)], {"transform_type": "affine"}, "target_shape"),
    ("Correlation", [(1, 1, 3, 3)] * 2, {"kernel_size": 2}, "an odd kernel_size"),
    ("Correlation", [(1, 1, 3, 3)] * 2, {"max_displacement": 4}, "larger than max_displacement"),
    ("Correlation", [(1, 1, 3, 3), (1, 1, 3, 4)], {}, "equal shapes"),
    ("ROIPooling", [(1, 1, 3, 3), (2, 4)], {"pooled_size": (2, 2), "spatial_scale": 1}, "(regions, 5)"),
    ("SVMOutput", [(3, 2), (2,)], {}, "one class id per row"),
    ("WarpCTC", [(7, 3), (4,)], {"input_length": 2, "label_length": 2}, "input_length * batch rows"),
    ("WarpCTC", [(8, 3), (3,)], {"input_length": 4, "label_length": 2}, "2 * 2 labels"),
    ("Pooling", [(1, 1, 3, 3)], {"kernel": (4, 4)}, "does not fit"),
    ("Pooling_v1", [(1, 1, 3, 3)], {"kernel": (2,)}, "kernel is (2,), expected 2 entries"),
    ("im2col", [(1, 1, 3, 3)], {"kernel": (2, 2), "stride": 2}, "stride is (2,), expected 2 entries"),
]


@pytest.mark.parametrize(("op", "shapes", "attrs", "words"), FAULTS, ids=[f"{f[0]}-{f[3]}" for f in FAULTS])
def test_errors_name_the_expected_value(op, shapes, attrs, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        run(op, *(normal(*s) for s in shapes), **attrs)


PARAMETERS = [
    ("InstanceNorm", {}, (2, 3, 4), [(3,), (3,)]),
    ("GroupNorm", {"num_groups": 2}, (2, 4, 4), [(2,), (2,)]),
    ("UpSampling", {"scale": 3, "sample_type": "bilinear", "num_args": 2}, (1, 5, 2, 2), [(5, 1, 5, 5)]),
    ("SpatialTransformer", {"transform_type": "affine", "sampler_type": "bilinear"}, (2, 1, 4, 4), [(2, 6)]),
    ("SVMOutput", {}, (4, 3), [(4,)]),
    ("CTCLoss", {"use_data_lengths": True}, (7, 4, 3), [(4, 0), (4,)]),
    ("BatchNorm_v1", {}, (2, 3), [(3,)] * 4),
    ("IdentityAttachKLSparseReg", {}, (2, 3), [(3,)]),
]


@pytest.mark.parametrize(("op", "attrs", "data", "want"), PARAMETERS, ids=[p[0] for p in PARAMETERS])
def test_parameter_shapes_are_inferred_from_data(op, attrs, data, want):
    record = lookup(op)
    params = record.parse(attrs)
    assert record.fill(params, [data, *(None,) * len(want)], [None])[1:] == want
    assert record.fill(params, [None] * (1 + len(want)), [None]) == [None] * (1 + len(want))


@pytest.mark.parametrize(("op", "attrs", "data"), [("GroupNorm", {"num_groups": 2}, (2, 3, 4)), ("InstanceNorm", {}, (2, 3))])
def test_inference_raises_for_invalid_group_and_spatial_sizes(op, attrs, data):
    with pytest.raises(ValueError, match=op):
        lookup(op).fill(lookup(op).parse(attrs), [data, None, None], [None])
