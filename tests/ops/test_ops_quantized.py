"""Eight-bit operators: recorded MXNet cases (through oneDNN), rows, errors, and models quantized by MXNet.

tests/golden/quantized contains an MLP and a LeNet after mx.contrib.quantization.quantize_model of MXNet 1.9.1, for each
`quantized_dtype` and `calib_mode` (the middle and the end of the file names), saved by mx.model.save_checkpoint; further
the data, the outputs of the float model and, where MXNet's CPU build can run it, of the quantized one.
"""

from __future__ import annotations

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from golden_ops import case_id, load_cases, run_case, spread_out

import jfit.mx as mx
from jfit.ops import LOST, Ctx, RowLayout, lookup, quantized

MODELS = Path(__file__).parents[1] / "golden" / "quantized"


@pytest.mark.parametrize(("case", "arrays"), spread_out(load_cases("quantized"), each=1), ids=case_id)
def test_recorded_case(case, arrays):
    run_case(case, arrays)


def _run(name, *arrays, weight=None, rows=None, **attrs):
    op = lookup(f"_contrib_{name}")
    ctx = Ctx(rows=rows or (None,) * len(arrays), weight=weight, node="q")
    return op.fn(ctx, op.parse(attrs), *map(jnp.asarray, arrays))


# ------------------------------------------------------------------------------------------ models of MXNet
@pytest.mark.parametrize("name", ["mlp-int8-none", "lenet-auto-naive", "lenet-int8-naive"])
def test_a_model_quantized_by_mxnet_gives_its_outputs(name):
    symbol, params, aux = mx.model.load_checkpoint(str(MODELS / name), 0)
    recorded = np.load(MODELS / f"{name}.npz")
    shape = recorded["data"].shape
    assert symbol.infer_shape(data=shape)[1] == [(8, 3)]
    module = mx.mod.Module(symbol, context=mx.cpu())
    module.bind([("data", shape)], [("softmax_label", (8,))], for_training=False)
    module.set_params(params, aux)
    module.forward(mx.io.DataBatch([mx.nd.array(recorded["data"])], [mx.nd.zeros(8)]), is_train=False)
    found = module.get_outputs()[0].asnumpy()
    if "quantized" in recorded:
        np.testing.assert_allclose(found, recorded["quantized"], atol=1e-6)
    # uint8 convolutions are as far from the float model as MXNet's own; everything else is near it
    np.testing.assert_allclose(found, recorded["floats"], atol=0.09 if name == "lenet-auto-naive" else 0.005)


# ------------------------------------------------------------------------------------------ what MXNet's CPU build does not run
def test_int8_convolution_equals_a_float_convolution():
    draw = np.random.default_rng(0)
    data, weight = draw.integers(-127, 128, (2, 3, 5, 5)).astype("int8"), draw.integers(-127, 128, (4, 3, 3, 3)).astype("int8")
    bias = draw.integers(-127, 128, 4).astype("int8")
    ends = [np.float32([v]) for v in (-1, 2, -0.5, 0.3, -3, 1)]
    sums, low, high = _run("quantized_conv", data, weight, bias, *ends, kernel=(3, 3), num_filter=4)
    plain = lookup("Convolution")
    floats = [jnp.asarray(x, jnp.float32) * s / 127 for x, s in ((data, 2), (weight, 0.5), (bias, 3))]
    want = plain.fn(Ctx(rows=(None,) * 3), plain.parse({"kernel": (3, 3), "num_filter": 4}), *floats)
    assert sums.dtype == jnp.int32 and float(high[0]) == -float(low[0])
    np.testing.assert_allclose(np.asarray(sums) * (float(high[0]) / (2**31 - 1)), want, atol=2e-4)


def test_uint8_batch_norm_is_within_one_step():
    data = np.arange(0, 250, 5, dtype=np.uint8).reshape(1, 2, 5, 5)
    parameters = [np.float32(v) for v in ([1.5, 0.7], [0.2, -0.1], [-1], [2], [0.5, 1], [1.2, 0.8])]
    (q, low, high), aux = _run("quantized_batch_norm", data, *parameters, min_calib_range=-4.0, max_calib_range=3.0)
    gamma, beta, _, _, mean, var = (p.reshape(1, -1, 1, 1) for p in parameters)
    want = (data * (2 / 255.5) - mean) / np.sqrt(var + 1e-3) * gamma + beta
    np.testing.assert_allclose(np.asarray(q) * (4 / 127.5), np.clip(want, -4.016, 4), atol=4 / 127 + 2 / 127)
    assert (float(low[0]), float(high[0])) == (-4, 3) and len(aux) == 2


def test_asymmetric_quantization():
    data = np.linspace(-2, 3, 11, dtype=np.float32).reshape(1, 11)
    q, scale, shift = _run("quantize_asym", data)
    assert q.dtype == jnp.uint8 and (q[0, 0], q[0, -1]) == (0, 255)
    np.testing.assert_allclose((np.asarray(q) - float(shift[0])) / float(scale[0]), data, atol=0.5 * 5 / 255 + 1e-6)
    q, scale, shift = _run("quantize_asym", data, min_calib_range=-1.0, max_calib_range=1.0)
    assert (q[0, 0], q[0, -1]) == (0, 255) and float(scale[0]) == 127.5


def test_relu_of_uint8_stays_uint8():
    q, _, _ = _run("quantized_act", np.uint8([[0, 200]]), np.float32([0]), np.float32([1]), act_type="relu")
    assert q.dtype == jnp.uint8 and q.tolist() == [[0, 200]]


def test_int8_convolution_computed_in_floats_is_exact():
    draw = np.random.default_rng(1)
    data, weight = draw.integers(0, 256, (2, 40, 6, 6)).astype("int32"), draw.integers(-128, 128, (3, 40, 3, 3)).astype("int8")
    attrs, ctx = lookup("_contrib_quantized_conv").parse({"kernel": (3, 3), "num_filter": 3}), Ctx(rows=(None, None))
    both = [
        f(ctx, attrs, jnp.asarray(data), jnp.asarray(weight)) for f in (quantized.float_convolution, quantized.int_convolution)
    ]
    assert both[0].dtype == both[1].dtype == jnp.int32
    np.testing.assert_array_equal(*both)


def test_the_quantized_recurrent_operator_is_close_to_the_float_one():
    draw = np.random.default_rng(2)
    data = draw.uniform(-1, 1, (5, 2, 3)).astype("f")
    count = 4 * 4 * (3 + 4 + 2)
    weights, states = draw.uniform(-1, 1, count).astype("f"), [np.zeros((1, 2, 4), "f")] * 2
    q, scale, shift = _run("quantize_asym", data)
    how = {"state_size": 4, "num_layers": 1, "mode": "lstm"}
    plain = lookup("RNN")
    want = plain.fn(Ctx(rows=(None,) * 4), plain.parse(how), *map(jnp.asarray, (data, weights, *states)))
    np.testing.assert_allclose(_run("quantized_rnn", q, weights, *states, scale, shift, **how), want, atol=0.02)
    net = mx.sym.contrib.quantized_rnn(mx.sym.Variable("data"), name="r", **how)
    assert net.infer_shape(data=(5, 2, 3))[1] == [(5, 2, 4)]


# ------------------------------------------------------------------------------------------ rows
def test_zero_weight_rows_do_not_affect_the_range():
    rows, data = RowLayout(0, 1, 3, 1), np.float32([[1, -2], [0.5, 1], [100, -100]])
    q, low, high = _run("quantize_v2", data, rows=(rows,), weight=jnp.array([1.0, 1.0, 0.0]))
    assert (float(low[0]), float(high[0])) == (-2, 2)
    alone = _run("quantize_v2", data[:2])[0]
    np.testing.assert_array_equal(q[:2], alone)
    sums = np.int32([[1000, -2000], [500, 7], [2**30, 0]])
    ends = np.float32([-1e6]), np.float32([1e6])
    q, low, high = _run("requantize", sums, *ends, rows=(rows, None, None), weight=jnp.array([1.0, 2.0, 0.0]))
    np.testing.assert_array_equal(q[:2], _run("requantize", sums[:2], *ends)[0])


def test_rows_are_tracked():
    op, rows = lookup("_contrib_quantize_v2"), RowLayout(0, 1, 4, 1)
    shapes, outs = [(4, 3)], [(4, 3), (1,), (1,)]
    assert op.rows(op.parse({}), [rows], shapes, outs) == [rows, LOST, LOST]
    fixed = op.parse({"min_calib_range": 0, "max_calib_range": 1})
    assert op.rows(fixed, [rows], shapes, outs) == [rows, None, None]
    back = lookup("_contrib_dequantize")
    assert back.rows(back.parse({}), [rows, LOST, LOST], [(4, 3), (1,), (1,)], [(4, 3)]) == [rows]
    both = lookup("_contrib_quantized_concat")
    attrs = both.parse({"num_args": 2, "dim": 0})
    assert both.rows(attrs, [rows, rows, *[None] * 4], [(4, 3)] * 2 + [(1,)] * 4, [(8, 3), (1,), (1,)]) == [LOST, None, None]


# ------------------------------------------------------------------------------------------ errors
ONE = np.float32([1])


@pytest.mark.parametrize(
    ("name", "arrays", "attrs", "sentence"),
    [
        (
            "quantized_fully_connected",
            [np.ones((1, 2), "f"), np.ones((1, 2), "i1"), *[ONE] * 4],
            {"num_hidden": 1, "no_bias": True},
            "quantize it first",
        ),
        (
            "quantized_pooling",
            [np.ones((1, 1, 2, 2), "i1"), -ONE, ONE],
            {"kernel": (2, 2), "pool_type": "sum"},
            "pool_type is 'sum', expected one of avg, max",
        ),
        ("quantized_act", [np.ones((1, 2), "i1"), -ONE, ONE], {"act_type": "tanh"}, "act_type is 'tanh'"),
    ],
)
def test_errors(name, arrays, attrs, sentence):
    with pytest.raises(ValueError, match=sentence):
        _run(name, *arrays, **attrs)
