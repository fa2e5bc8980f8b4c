"""Neural-network operators and loss heads against MXNet 1.9.1's recorded values; row weights, shapes."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden_ops import case_id, load_cases, run_case, spread_out

import jfit.ops.conv
import jfit.ops.loss
import jfit.ops.nn
import jfit.ops.norm
import jfit.ops.pooling
import jfit.ops.softmax  # noqa: F401  (registers the records)
from jfit.ops.context import Ctx
from jfit.ops.registry import lookup
from jfit.ops.rows import RowLayout


@pytest.mark.parametrize(("case", "arrays"), spread_out(load_cases("nn", "loss", "dtype_nn"), each=2), ids=case_id)
def test_recorded_case(case, arrays):
    run_case(case, arrays)


def node(op, train=True, weight=None, **attrs):
    """(record, attributes, a function of the inputs) of one operator; with weights, rows lie on axis 0 of the data."""
    record = lookup(op)
    parsed = record.parse(attrs)
    rows = (None if weight is None else RowLayout(0, 1, len(weight), 1),)
    ctx = Ctx(train=train, key=jax.random.key(1), rows=rows * 5, weight=weight, node="op0")
    return record, parsed, lambda *args, **changes: record.fn(replace(ctx, **changes), parsed, *args)


def draw(*shape, seed=0):
    return jnp.asarray(np.random.RandomState(seed).standard_normal(shape).astype(np.float32))


HEADS = [
    ("SoftmaxOutput", {}),
    ("SoftmaxOutput", {"normalization": "batch"}),
    ("SoftmaxOutput", {"normalization": "valid", "use_ignore": True, "ignore_label": 1}),
    ("SoftmaxOutput", {"smooth_alpha": 0.1}),
    ("LinearRegressionOutput", {}),
    ("LogisticRegressionOutput", {"grad_scale": 0.5}),
    ("MAERegressionOutput", {}),
    ("MakeLoss", {"normalization": "valid"}),
    ("MakeLoss", {"normalization": "batch"}),
    ("make_loss", {}),
]


@pytest.mark.repetitions(2)
@pytest.mark.parametrize(("op", "attrs"), HEADS)
def test_zero_weight_rows_do_not_change_head_gradients(op, attrs):
    record, _, full = node(op, weight=jnp.array([1.0, 1.0, 1.0, 0.0, 0.0]), **attrs)
    _, _, short = node(op, **attrs)
    data = draw(5, 4)
    label = jnp.array([0.0, 1, 3, 2, 1]) if op == "SoftmaxOutput" else draw(5, 4, seed=1)
    rest = [label] if record.label else []
    want = jax.jit(jax.grad(lambda x: short(x, *[v[:3] for v in rest]).sum()))(data[:3])
    got = jax.jit(jax.grad(lambda x: full(x, *rest).sum()))(data)
    np.testing.assert_allclose(got, jnp.concatenate([want, jnp.zeros((2, 4))]), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("shape", "rows"), [((4,), 1), ((4, 3), 4), ((4, 3, 2), 12), ((5, 4, 1), 20), ((), 1)])
def test_make_loss_normalizes_by_rows_as_mxnet(shape, rows):
    _, _, head = node("MakeLoss", normalization="batch", grad_scale=120)
    got = jax.grad(lambda x: head(x, weight=None).sum())(draw(*shape))
    np.testing.assert_allclose(got, np.full(shape, 120 / rows), rtol=1e-6)


@pytest.mark.slow
def test_multi_output_and_preserve_shape_exclude_padding_from_the_denominator():
    cases = [({"multi_output": True}, (4, 3, 5), (4, 5)), ({"preserve_shape": True}, (4, 5, 3), (4, 5)), ({}, (4, 5, 3), (4,))]
    for attrs, size, labels in cases:
        for rule in ("batch", "valid"):
            _, _, full = node("SoftmaxOutput", weight=jnp.array([1.0, 1, 0, 0]), normalization=rule, **attrs)
            _, _, short = node("SoftmaxOutput", normalization=rule, **attrs)
            data, label = draw(*size), jnp.ones(labels)
            got = jax.grad(lambda x: full(x, label).sum())(data)  # noqa: B023
            want = jax.grad(lambda x: short(x, label[:2]).sum())(data[:2])  # noqa: B023
            np.testing.assert_allclose(got[:2], want, rtol=1e-6)
            assert not np.any(got[2:])


def test_labels_out_of_range_and_absent_labels_do_not_crash():
    record, parsed, head = node("SoftmaxOutput")
    data = draw(3, 4)
    out = jax.jit(lambda x: head(x, jnp.array([-5, 99, 1])))(data)
    loss, count = record.loss(parsed, out, jnp.array([-5, 99, 1]))
    assert np.isfinite(loss).all() and count.tolist() == [1, 1, 1]
    np.testing.assert_allclose(head(data, None, train=False), out)


def test_head_losses_are_the_loss_of_each_row():
    record, parsed, _ = node("SoftmaxOutput", use_ignore=True, ignore_label=2)
    out = jnp.array([[0.5, 0.25, 0.25], [0.1, 0.2, 0.7]])
    loss, count = record.loss(parsed, out, jnp.array([0.0, 2.0]))
    np.testing.assert_allclose(loss, [np.log(2), 0], rtol=1e-6)
    assert count.tolist() == [1, 0]
    record, parsed, _ = node("LinearRegressionOutput")
    np.testing.assert_allclose(record.loss(parsed, jnp.array([[1.0], [3.0]]), jnp.array([0.0, 1.0]))[0], [0.5, 2.0])


BN = (jnp.array([1.0, 2.0, 0.5]), jnp.array([0.0, 1.0, -1.0]), jnp.zeros(3), jnp.ones(3))


def test_batch_norm_of_zero_weight_rows_keeps_its_state_and_is_finite():
    _, _, bn = node("BatchNorm", weight=jnp.zeros(4))
    (out, _, _), aux = bn(draw(4, 3), *BN)
    assert np.isfinite(out).all()
    np.testing.assert_array_equal(jnp.stack(aux), jnp.stack(BN[2:]))


def test_batch_norm_over_all_devices_equals_one_device():
    _, _, bn = node("BatchNorm", fix_gamma=False)
    data, pull = draw(4, 3, 2, 2), draw(4, 3, 2, 2, seed=1)

    def gradient(x, g, **changes):
        return jax.grad(lambda x, gamma: (bn(x, gamma, *BN[1:], **changes)[0][0] * g).sum(), (0, 1))(x, BN[0])

    want, want_gamma = jax.jit(gradient)(data, pull)
    split = jax.vmap(lambda x, g: gradient(x, g, axis_name="d", sync_batch_stats=True), axis_name="d")
    got, got_gamma = jax.jit(split)(data.reshape(2, 2, 3, 2, 2), pull.reshape(2, 2, 3, 2, 2))
    np.testing.assert_allclose(got.reshape(data.shape), want, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(got_gamma.sum(0), want_gamma, rtol=1e-4, atol=1e-5)


FILLS = [  # others are recorded: tests/golden/cases/infer_nets.py
    (
        "Convolution",
        {"kernel": (3, 3), "num_filter": 8, "num_group": 2},
        [(0, 4, 0, 0), None, None],
        [(0, 4, 0, 0), (8, 2, 3, 3), (8,)],
    ),
    (
        "Convolution",
        {"kernel": (3, 3), "num_filter": 8, "layout": "NHWC"},
        [(2, 9, 9, 4), None, None],
        [(2, 9, 9, 4), (8, 3, 3, 4), (8,)],
    ),
    ("Deconvolution", {"kernel": (3, 3), "num_filter": 8, "num_group": 2}, [(0, 4, 5, 5), None], [(0, 4, 5, 5), (4, 4, 3, 3)]),
    ("SoftmaxOutput", {"preserve_shape": True}, [(2, 4, 10), None], [(2, 4, 10), (2, 4)]),
]


@pytest.mark.parametrize(("op", "attrs", "known", "filled"), FILLS)
def test_parameter_shapes_are_inferred_from_partly_known_data(op, attrs, known, filled):
    record, parsed, _ = node(op, **attrs)
    assert record.fill(parsed, known, [None] * 3) == filled
    assert len(record.fill(parsed, [None] * len(known), [None] * 3)) == len(known)


def test_invalid_shapes_raise():
    record, parsed, _ = node("Convolution", kernel=(3, 3), num_filter=4)
    with pytest.raises(ValueError, match=r"data has shape \(2, 784\), expected 4 axes NCHW because kernel is \(3, 3\)"):
        record.fill(parsed, [(2, 784), None, None], [None])
    with pytest.raises(ValueError, match=r"label has shape \(3,\), expected \(4,\)"):
        node("SoftmaxOutput")[2](draw(4, 5), jnp.zeros(3))


@pytest.mark.repetitions(1)
@pytest.mark.parametrize("kernel", [(2, 2), (3, 3)])
def test_max_pooling_sends_the_gradient_of_ties_to_the_first_maximum(kernel):
    _, _, pool = node("Pooling", kernel=kernel, stride=(2, 2) if kernel == (2, 2) else (3, 3))
    grad = jax.grad(lambda x: pool(x).sum())(jnp.zeros((1, 1, 6, 6)))
    step = kernel[0]
    assert np.array_equal(np.argwhere(np.asarray(grad[0, 0])), [(i, j) for i in range(0, 6, step) for j in range(0, 6, step)])


def test_dropout_keeps_the_mean_and_is_the_identity_in_evaluation():
    _, _, drop = node("Dropout", p=0.25)
    data = jnp.ones((100, 40))
    out = drop(data)
    assert abs(float(out.mean()) - 1) < 0.05
    np.testing.assert_allclose(np.unique(out), [0, 4 / 3], rtol=1e-6)
    assert drop(data, train=False) is data
    _, _, shared = node("Dropout", p=0.5, axes=(0,))
    assert np.unique(shared(data), axis=0).shape[0] == 1


@pytest.mark.slow
def test_make_loss_reports_the_loss_times_grad_scale():
    op = lookup("MakeLoss")
    losses, counts = op.loss(op.parse({"grad_scale": 3.0}), jnp.array([[1.0, 3.0]]), None)
    assert (losses.tolist(), counts.tolist()) == ([6], [1])
