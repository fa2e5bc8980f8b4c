"""mx.init: recorded values and errors of MXNet, both call signatures, initializers of the user."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest

import jfit
import jfit.mx as mx

RECORDED = json.loads((Path(__file__).parents[1] / "golden" / "initializers.json").read_text())
CLASSES = {"lstmbias": "LSTMBias", "msraprelu": "MSRAPrelu"}


def from_text(text):
    name, kwargs = json.loads(text)
    return getattr(mx.init, CLASSES.get(name, name.capitalize()))(**kwargs)


@pytest.mark.parametrize("case", RECORDED["deterministic"], ids=lambda c: f"{c['init']}-{c['name']}")
def test_a_recorded_value_or_error(case):
    start = mx.init.Uniform() if case["init"] == "uniform_global" else from_text(case["init"])
    if case["init"] != "uniform_global":
        assert json.loads(start.dumps()) == json.loads(case["init"])
    a = mx.nd.ones(tuple(case.get("shape", (8,)))) * 9
    desc = mx.init.InitDesc(case["name"], case.get("attrs"))
    if "error" in case:
        with pytest.raises(ValueError, match="Unknown initialization pattern"):
            start(desc, a)
    else:
        start(desc, a)
        np.testing.assert_allclose(a.asnumpy().ravel(), np.array(case["value"], "float32"), rtol=1e-6)


def test_both_call_signatures_draw_the_same_bits_for_a_seed():
    draw, desc = mx.init.Xavier(), mx.init.InitDesc("w_weight")
    found = []
    for _ in range(2):
        mx.random.seed(3)
        a = mx.nd.zeros((4, 4))
        draw(desc, a)
        found.append(a.asnumpy())
    np.testing.assert_array_equal(*found)
    key = jax.random.key(1)
    pure = jfit.init.Xavier()(key, "w_weight", (4, 4))
    np.testing.assert_array_equal(draw(key, jfit.init.InitDesc("w_weight"), (4, 4), "float32"), pure)
    np.testing.assert_array_equal(jax.jit(lambda k: draw(k, desc, (4, 4)))(key), pure)


def test_an_mxnet_initializer_is_accepted_everywhere():
    net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2, name="fc")
    params, _ = jfit.lower(net).init(jax.random.key(0), {"data": jax.ShapeDtypeStruct((1, 3), "float32")}, mx.init.Constant(4))
    assert params["fc_weight"].tolist() == [[4, 4, 4], [4, 4, 4]] and params["fc_bias"].tolist() == [0, 0]


def test_a_user_initializer_class_may_write_numpy_values():
    @mx.init.register
    class Counting(mx.init.Initializer):
        def __init__(self, start=1):
            super().__init__(start=start)
            self.start = start

        def _init_weight(self, name, arr):
            arr[:] = np.arange(arr.size).reshape(arr.shape) + self.start

        def _init_bias(self, name, arr):
            arr[:] = arr.asnumpy() - 1

    a, b = mx.nd.zeros((2, 2)), mx.nd.zeros(1)
    Counting()(mx.init.InitDesc("w_weight"), a)
    Counting()(mx.init.InitDesc("w_bias"), b)
    mx.init.Zero()(mx.init.InitDesc("w", {"__init__": Counting(5).dumps()}), c := mx.nd.zeros(2))
    assert (a.asnumpy().tolist(), b.asscalar(), c.asnumpy().tolist()) == ([[1, 2], [3, 4]], -1, [5, 6])


def test_calling_with_a_plain_name_uses_the_old_rules_and_warns():
    for name, want in (("x_moving_var", 1), ("x_moving_mean", 0), ("stn_loc_weight", 0)):
        a = mx.nd.ones(2) * 9
        with pytest.warns(DeprecationWarning, match="InitDesc"):
            mx.init.Uniform()(name, a)
        assert a.asnumpy().tolist() == [want, want]


def test_mixed_uses_the_first_matching_pattern_and_load_the_loaded_values():
    mixed = mx.init.Mixed([".*bias", ".*"], [mx.init.Zero(), mx.init.One()])
    load = mx.init.Load({"arg:fc_weight": mx.nd.ones((2, 2)) * 4}, default_init=mixed)
    a, b = mx.nd.zeros((2, 2)), mx.nd.zeros(2)
    load("fc_weight", a)
    load(mx.init.InitDesc("other_weight"), b)
    assert a.asnumpy().max() == 4 and b.asnumpy().tolist() == [1, 1]
    with pytest.raises(AssertionError, match=r"shape \(2, 2\), expected \(3,\)"):
        load("fc_weight", mx.nd.zeros(3))
    with pytest.raises(ValueError, match="matches no pattern"):
        mx.init.Mixed(["b"], ["zero"])(mx.init.InitDesc("w"), a)
    with pytest.raises(AssertionError, match="2 patterns but 1 initializers"):
        mx.init.Mixed(["a", "b"], ["zero"])
    with pytest.raises(AssertionError, match="'nope' is not registered"):
        mx.init.create("nope")


def test_a_fused_rnn_of_other_sizes_raises_and_one_of_mx_rnn_is_initialized():
    with pytest.raises(
        ValueError, match=r"p has 55 values, which no input size has with num_layers=1, num_hidden=2, mode lstm"
    ):
        mx.init.FusedRNN(mx.init.One(), 2, 1, "lstm")._init_weight("p", mx.nd.zeros(55))
    out, _ = mx.rnn.FusedRNNCell(2, mode="gru", prefix="r_").unroll(
        2, mx.sym.Variable("data"), layout="NTC", merge_outputs=True
    )
    net = jfit.sym.load_json(out.tojson())
    params, _ = jfit.lower(net).init(jax.random.key(0), {"data": jax.ShapeDtypeStruct((3, 2, 4), "float32")}, "normal")
    flat = np.asarray(params["r_parameters"])
    assert flat.shape == (6 * (4 + 2 + 2),) and flat[:36].all() and not flat[36:].any()
