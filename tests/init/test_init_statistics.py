"""Distributions of the initializers against MXNet's draws, and reproducibility on any number of devices."""

import json
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import jfit
from jfit import init, sym
from jfit.formats import FormatError, save_arrays, save_tensors
from jfit.init import InitDesc, draw_all
from jfit.init.fused import parts_of

RECORDED = json.loads((Path(__file__).parents[1] / "golden" / "initializer_draws.json").read_text())
KEY = jax.random.key(7)


def many(start, shape, count=20_000, key=KEY):
    """At least `count` values of a weight of this shape, each array from its own key."""
    keys = jax.random.split(key, -(-count // math.prod(shape)))
    return np.asarray(jax.jit(jax.vmap(lambda k: start(k, InitDesc("x_weight"), shape)))(keys), np.float64)


# ------------------------------------------------------------------------------------------------ distributions


def some(items, few):
    """Parameters of which a few are fast tests, the others slow ones."""
    return [item if few(item) else pytest.param(item, marks=pytest.mark.slow) for item in items]


@pytest.mark.repetitions(2)
@pytest.mark.parametrize(
    ("shape", "kind"), [((5, 2), "normal"), ((2, 3, 1, 4), "uniform"), ((1, 4), "normal"), ((6,), "uniform")]
)
def test_orthogonal_has_orthonormal_rows_or_columns_for_any_shape(shape, kind):
    q = np.asarray(init.Orthogonal(2.0, kind)(KEY, "x_weight", shape), np.float64).reshape(shape[0], -1) / 2
    small = q @ q.T if q.shape[0] <= q.shape[1] else q.T @ q
    np.testing.assert_allclose(small, np.eye(len(small)), atol=2e-6)


@pytest.mark.repetitions(4, slow=24)
@pytest.mark.parametrize(
    "case",
    some(RECORDED["random"], lambda case: case["shape"] == [3, 2, 1, 5]),
    ids=lambda c: f"{c['init']}{list(c['kwargs'].values())}{c['shape']}",
)
def test_random_values_are_distributed_as_mxnets(case):
    v = many(init.get(case["init"], **case["kwargs"]), tuple(case["shape"]), 6000).ravel()
    # the difference of two samples: their errors add
    error = case["std"] * math.sqrt(1 / v.size + 1 / case["count"])
    assert abs(v.mean() - case["mean"]) < 4.5 * error
    assert abs(v.std() - case["std"]) < 4.5 * error
    if case["init"] == "uniform" or (case["init"] == "xavier" and case["kwargs"].get("rnd_type") != "gaussian"):
        assert np.abs(v).max() == pytest.approx(max(-case["low"], case["high"]), rel=0.02)
    shares = [(v <= q).mean() for q in case["quantiles"]]
    for share, want in zip(shares, RECORDED["quantiles"], strict=True):
        # values that repeat (an orthogonal column of one row is +-scale) have all of a jump in one quantile
        spread = math.sqrt(want * (1 - want) * (1 / v.size + 1 / case["count"]))
        ties = np.isclose(v, case["quantiles"][RECORDED["quantiles"].index(want)], rtol=1e-4).mean()
        assert abs(share - want) < 5 * spread + ties


@pytest.mark.parametrize("case", RECORDED["fixed"], ids=lambda c: f"{c['init']}{c['shape']}")
def test_fixed_values_are_mxnets(case):
    value = init.get(case["init"], **case["kwargs"]).draw(KEY, "x", tuple(case["shape"]))
    np.testing.assert_allclose(np.ravel(value), case["value"], rtol=1e-6, atol=1e-7)


# ------------------------------------------------------------------------------------------------ fused networks
@pytest.mark.parametrize("case", RECORDED["fused"], ids=lambda c: c["kwargs"]["mode"])
def test_a_fused_rnn_has_mxnets_biases_at_mxnets_offsets(case):
    start = init.FusedRNN("one", **case["kwargs"])
    desc = InitDesc("rnn_parameters", {"__init__": start.dumps()})
    np.testing.assert_array_equal(init.Uniform()(KEY, desc, (len(case["value"]),)), case["value"])


@pytest.mark.slow
def test_a_fused_rnn_draws_each_gate_with_its_own_fan():
    start, size = init.FusedRNN(init.Xavier(), 6, 2, "gru", bidirectional=True), 6 * 3 * 2 * (4 + 8) + 6 * 3 * 2 * (12 + 8)
    at = 0
    draws = np.asarray(jax.jit(jax.vmap(lambda k: start.draw(k, "p", (size,))))(jax.random.split(KEY, 60)))
    for name, shape in parts_of(size, 6, 2, "gru", True):
        part, at = draws[:, at : at + math.prod(shape)], at + math.prod(shape)
        if name.endswith("bias"):
            assert not part.any()
        else:
            edge = math.sqrt(3 / (sum(shape) / 2))
            assert stats.kstest(part.ravel(), stats.uniform(-edge, 2 * edge).cdf).pvalue > 1e-4
    assert at == size


def test_a_fused_rnn_without_an_initializer_uses_that_of_the_model():
    desc = InitDesc("l_parameters", {"__init__": init.FusedRNN(None, 2, 1, "lstm", forget_bias=2.0).dumps()})
    half = init.Constant(0.5)
    for outer in (half, init.Mixed([".*parameters"], [half]), init.Load({}, half)):
        value = outer(KEY, desc, (2 * 4 * (3 + 2 + 2),)).tolist()
        assert value[:40] == [0.5] * 40 and value[40:] == [0, 0, 2, 2, 0, 0, 0, 0] * 2
    with pytest.raises(ValueError, match=r"parameter 'p': FusedRNN\(None, ...\) needs the initializer of the model"):
        init.FusedRNN(None, 2, 1, "lstm").draw(KEY, "p", (56,))


# ------------------------------------------------------------------------------------------------ the same everywhere
EVERY = {
    "a_weight": ((5, 3), init.Xavier()),
    "b_weight": ((4, 2, 3, 3), init.MSRAPrelu()),
    "c_weight": ((3, 4), init.Orthogonal()),
    "d_weight": ((7,), init.Normal(0.3)),
    "e_weight": ((6, 1), init.Uniform(0.3)),
    "f_parameters": ((56,), init.FusedRNN("normal", 2, 1, "lstm")),
}


def descriptions(names):
    names = list(names)
    spec = {n: jax.ShapeDtypeStruct(EVERY[n][0], jnp.float32) for n in names}
    return {n: (InitDesc(n, {"__init__": EVERY[n][1].dumps()}), spec[n]) for n in names}


@pytest.mark.parametrize("names", [["a_weight", "d_weight"], pytest.param(list(EVERY), marks=pytest.mark.slow)], ids=len)
def test_values_depend_only_on_key_and_name(names):
    all_at_once = draw_all(init.Uniform(), KEY, descriptions(names))
    turned = draw_all(init.Uniform(), KEY, descriptions(reversed(names)))
    for name, value in all_at_once.items():
        np.testing.assert_array_equal(value, turned[name])
    for name in {*names} & {"b_weight", "d_weight", "f_parameters"}:
        np.testing.assert_array_equal(all_at_once[name], draw_all(init.Uniform(), KEY, descriptions([name]))[name])
    other = draw_all(init.Uniform(), jax.random.key(8), descriptions(["a_weight"]))
    assert (other["a_weight"] != all_at_once["a_weight"]).all()


@pytest.mark.parametrize("name", some(EVERY, lambda name: name in ("a_weight", "d_weight")))
def test_values_are_the_same_bits_in_and_outside_jit(name):
    shape, start = EVERY[name]
    plain = start.draw(KEY, name, shape)
    np.testing.assert_array_equal(plain, jax.jit(lambda k: start.draw(k, name, shape))(KEY))


def net():
    hidden = sym.Activation(sym.FullyConnected(sym.Variable("data"), num_hidden=5, name="fc1"), act_type="relu")
    weight = sym.Variable("fc2_weight", init=init.Orthogonal(0.5).dumps())
    return sym.SoftmaxOutput(sym.FullyConnected(hidden, weight=weight, num_hidden=3, name="fc2"), name="softmax")


@pytest.mark.parametrize("devices", some([1, 2, 8], lambda devices: devices == 8))
def test_a_run_starts_with_the_same_bits_on_any_number_of_devices(devices):
    x, y = np.ones((16, 4), "float32"), np.zeros(16, "float32")
    state = jfit.init_state(jfit.lower(net()), "sgd", {"data": x}, seed=5, initializer="xavier")
    seen = {}
    look = jfit.callbacks.lambda_callback(fit_start=lambda e: seen.update(e.run.snapshot().params))
    given = {"initializer": "xavier", "seed": 5, "optimizer_params": {"learning_rate": 0.0}}
    jfit.fit(net(), (x, y), devices=devices, num_epoch=1, batch_size=16, callbacks=[look], progress=False, **given)
    for name, value in state.params.items():
        np.testing.assert_array_equal(seen[name], value)


def test_the_initializer_of_a_variable_overrides_that_of_fit():
    own = sym.Variable("w", init=init.Constant(0.25).dumps(), shape=(2, 4))
    graph = sym.SoftmaxOutput(sym.FullyConnected(sym.Variable("data"), weight=own, num_hidden=2, name="fc"), name="softmax")
    for start in ("normal", init.One(), {".*": "zero"}):
        params, _ = jfit.lower(graph).init(KEY, {"data": jax.ShapeDtypeStruct((1, 4), "float32")}, start)
        assert np.unique(params["w"]).tolist() == [0.25]


# ------------------------------------------------------------------------------------------------ text and files
TEXTS = st.one_of(
    st.builds(init.Uniform, st.sampled_from([0.07, 0.5, 3.0])),
    st.builds(init.Normal, st.sampled_from([0.07, 0.5, 3.0])),
    st.builds(init.Constant, st.one_of(st.integers(-3, 3), st.lists(st.integers(0, 3), min_size=6, max_size=6))),
    st.builds(init.Orthogonal, st.sampled_from([1.0, 1.414]), st.sampled_from(["uniform", "normal"])),
    st.builds(init.Xavier, st.sampled_from(["uniform", "gaussian"]), st.sampled_from(["avg", "in", "out"]), st.integers(1, 4)),
    st.builds(init.MSRAPrelu, st.sampled_from(["avg", "in", "out"]), st.sampled_from([0.0, 0.25])),
    st.builds(init.LSTMBias, st.sampled_from([0.5, 1.0])),
    st.sampled_from([init.Zero(), init.One(), init.Bilinear(), init.Default()]),
)
NESTED = st.one_of(
    TEXTS,
    st.builds(lambda part, mode: init.FusedRNN(part, 2, 1, mode), TEXTS, st.sampled_from(["lstm", "gru"])),
    st.builds(lambda one, other: init.Mixed(["a.*", ".*"], [one, other]), TEXTS, TEXTS),
)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(NESTED)
def test_an_initializer_round_trips_through_its_json(start):
    again = init.get(start.dumps())
    assert type(again) is type(start) and again.dumps() == start.dumps()
    assert json.loads(start.dumps())[0] == type(start).__name__.lower()


def test_an_initializer_without_json_raises():
    with pytest.raises(TypeError, match=r"Mixed cannot be written as JSON text because of its parameter <function"):
        init.Mixed([".*"], [lambda key, desc, shape, dtype: jnp.zeros(shape)]).dumps()


@pytest.mark.parametrize("suffix", ["params", "safetensors"])
def test_load_reads_files_of_both_kinds(suffix, tmp_path):
    arrays = {"arg:fc_weight": np.full((2, 3), 2, "float32"), "aux:bn_moving_mean": np.ones(2, "float32")}
    (save_arrays if suffix == "params" else save_tensors)(tmp_path / f"old.{suffix}", arrays)
    start = init.Load(tmp_path / f"old.{suffix}", "one")
    assert start(KEY, "fc_weight", (2, 3)).tolist() == [[2, 2, 2]] * 2
    assert start(KEY, "bn_moving_mean", (2,)).tolist() == [1, 1]
    assert start(KEY, "other_weight", (1,)).tolist() == [1]
    graph = sym.SoftmaxOutput(sym.FullyConnected(sym.Variable("data"), num_hidden=2, name="fc"), name="softmax")
    params, _ = jfit.lower(graph).init(KEY, {"data": jax.ShapeDtypeStruct((1, 3), "float32")}, start)
    assert params["fc_weight"].tolist() == [[2, 2, 2]] * 2 and params["fc_bias"].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda path: init.Load(path / "none.params"), FileNotFoundError, "none.params"),
        (lambda path: init.Load(path / "list.params"), FormatError, "the 1 arrays have no names"),
        (lambda path: init.Load(path / "bad.safetensors"), FormatError, "bad.safetensors"),
        (lambda path: init.Load({"w": np.ones(2)})(KEY, "v", (2,)), ValueError, "'v' is not among the 1 loaded arrays"),
        (lambda path: init.FusedRNN("one", 2, 1, "lstn"), ValueError, "mode is 'lstn'; expected one of 'rnn_relu'"),
        (
            lambda path: init.FusedRNN("one", 2, 1, "lstm").draw(KEY, "p", (55,)),
            ValueError,
            r"p has 55 values, which no input size has with num_layers=1, num_hidden=2, mode lstm and 1 direction",
        ),
    ],
)
def test_errors_name_the_invalid_value(make, error, message, tmp_path):
    save_arrays(tmp_path / "list.params", [np.ones(2, "float32")])
    (tmp_path / "bad.safetensors").write_bytes(b"nothing")
    with pytest.raises(error, match=message):
        make(tmp_path)
