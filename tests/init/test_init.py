"""Initializers: values and the choice by parameter name, as in MXNet 1.9.1."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusals import refused

from jfit import init
from jfit.init import InitDesc

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "initializers.json").read_text())
KEY = jax.random.key(0)
RANDOM = {
    "uniform": init.Uniform(0.2),
    "normal": init.Normal(0.3),
    "xavier_default": init.Xavier(),
    "xavier_in_gauss": init.Xavier("gaussian", "in", 2),
    "xavier_out": init.Xavier("uniform", "out", 2.34),
    "msra": init.MSRAPrelu(),
}


@pytest.mark.parametrize("case", [c for c in GOLDEN["deterministic"] if "value" in c], ids=lambda c: f"{c['init']}-{c['name']}")
def test_fixed_values_and_dispatch_are_mxnets(case):
    start = init.get(case["init"] if case["init"].startswith("[") else "uniform")
    value = start(KEY, InitDesc(case["name"], case.get("attrs") or {}), case["shape"])
    np.testing.assert_allclose(np.ravel(value), case["value"], rtol=1e-6)


def test_random_initializers_have_mxnets_json():
    for case in GOLDEN["random"]:
        if case["init"] in RANDOM:
            assert json.loads(RANDOM[case["init"]].dumps()) == json.loads(case["dumps"])


def test_mixed_and_load_choose_by_name():
    mixed = init.get({".*gate.*": init.Constant(2.0), ".*": "one"})
    assert np.asarray(mixed(KEY, InitDesc("my_gate_weight"), (3,))).tolist() == GOLDEN["mixed"]["my_gate_weight"]
    assert np.asarray(mixed(KEY, InitDesc("fc_bias"), (3,))).tolist() == GOLDEN["mixed"]["fc_bias"]
    load = init.Load({"arg:fc_weight": np.full((2, 2), 4.0)}, "uniform")
    assert float(load(KEY, InitDesc("fc_weight"), (2, 2))[0, 0]) == GOLDEN["load"]["fc_weight"]
    assert load(KEY, InitDesc("other_bias"), (2,)).tolist() == GOLDEN["load"]["other_bias"]


def test_the_default_initializer_handles_vectors_and_fused_rnn_parameters():
    start = init.get(None)
    for name, shape in [("conv_weight", (8, 4, 3, 3)), ("a_weight", (100,)), ("lstm_parameters", (100,))]:
        value = np.asarray(start(KEY, InitDesc(name), shape))
        assert 0 < value.std() < 0.5
    assert start(KEY, InitDesc("x_weight"), (4, 4), jnp.bfloat16).dtype == jnp.bfloat16


test_errors_name_the_parameter_and_the_solution = refused(
    (lambda: init.Uniform()(KEY, "foo", (2,)), "parameter 'foo': no initialization rule matches the name"),
    (lambda: init.Xavier()(KEY, "x_weight", (2,)), r"'x_weight': Xavier needs at least 2 dimensions .* \(2,\)"),
    (lambda: init.get("xavir"), "unknown initializer 'xavir'; did you mean 'xavier'"),
    (lambda: init.get("normal", sigm=1), TypeError, "unexpected keyword argument 'sigm'"),
    (lambda: init.get("[nonsense"), "cannot be parsed"),
    (lambda: init.Xavier(rnd_type="odd"), "rnd_type is 'odd'"),
    (lambda: init.Bilinear()(KEY, "x_weight", (2, 2)), "Bilinear needs 4 dimensions"),
    (lambda: init.Load({})(KEY, "x_weight", (2,)), "not among the 0 loaded arrays"),
    (lambda: init.Load({"x": np.ones(3)})(KEY, "x", (2,)), r"'x' in the file has shape \(3,\), expected \(2,\)"),
    (lambda: init.Mixed(["a"], ["one"])(KEY, "x_weight", (2,)), "matches none of the patterns 'a'"),
)


# ------------------------------------------------------------------------------------------ texts of hostile files
DEEP = 100_000
RNN = '["fusedrnn", {"num_hidden": 1, "num_layers": 1, "mode": "gru", "init": '
TEXTS = {
    "[" * DEEP: "nested too deep",
    "[" * DEEP + "]" * DEEP: "nested too deep",
    '["constant", {"value": ' + "[" * 900 + "1" + "]" * 900 + "}]": "maximum number of dimension",
    RNN + '{".*": ' * 900 + "1" + "}" * 901 + "]": "too deep",
    '["zero", ["a"]]': "not a list of a name and a dict",
    '["zero", {}, 1]': "not a list of a name and a dict",
    "[null, {}]": "not a list of a name and a dict",
    '["' + "a" * DEEP + '", {}]': "unknown initializer 'aaa",
    '["uniform", {"scale": "x"}]': "bad operand type",
    '["mixed", {"patterns": ["("], "initializers": ["zero"]}]': "no rule for weights",
}


@pytest.mark.parametrize(("text", "problem"), TEXTS.items(), ids=[t[:24] for t in TEXTS])
def test_an_invalid_initializer_string_raises_with_the_variable(text, problem):
    desc = init.InitDesc("fc_weight", {"__init__": text})
    with pytest.raises((ValueError, NotImplementedError), match=r"^variable 'fc_weight': its __init__ attribute") as caught:
        init.get("uniform")(jax.random.key(0), desc, (12,))
    assert problem in str(caught.value) and len(str(caught.value)) < 1000
