"""mx.sym: symbols that can be bound, and MXNet's error classes."""

import copy
import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from cases.created_variables import INITIALIZERS, facts, networks, values

import jfit.mx as mx
from jfit.graph import Symbol
from jfit.graph.compose import apply_op
from jfit.ops.registry import ALIASES, REGISTRY

CREATED = json.loads((Path(__file__).parents[1] / "golden" / "created_variables.json").read_text())


def net():
    return mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=3, name="fc")


def test_every_function_that_creates_a_symbol_returns_one_that_can_be_bound(tmp_path):
    net().save(str(tmp_path / "n.json"))
    made = [
        mx.sym.Variable("x"),
        net(),
        net() + 1,
        net().get_internals()["fc_output"],
        net()(data=mx.sym.Variable("d")),
        mx.sym.Group([net(), net()]),
        mx.sym.load_json(net().tojson()),
        mx.sym.load(str(tmp_path / "n.json")),
        pickle.loads(pickle.dumps(net())),
        copy.deepcopy(net()),
        net().relu(),
        mx.sym.zeros((2,)),
        mx.sym.maximum(net(), 0),
        mx.sym.pow(2, net()),
    ]
    assert all(type(s) is mx.sym.Symbol for s in made)


def test_namespaces_find_operators_by_their_short_names():
    assert mx.sym.op.relu(mx.sym.Variable("x"), name="r").list_outputs() == ["r_output"]
    assert mx.sym._internal._plus_scalar(mx.sym.Variable("x"), scalar=1, name="p").list_outputs() == ["p_output"]
    with pytest.raises(AttributeError, match=r"mx\.sym\.contrib has no operator 'nothing_like_it'"):
        mx.sym.contrib.nothing_like_it  # noqa: B018


def test_an_initializer_of_a_variable_becomes_its_attribute():
    assert mx.sym.Variable("w", init=mx.init.One()).attr("__init__") == '["one", {}]'


def test_contradictory_shapes_raise_mxnet_errors():
    with pytest.raises(mx.MXNetError, match="fc"):
        net().infer_shape(data=(2, 4), fc_weight=(3, 5))
    with pytest.raises(mx.MXNetError, match="'dat'"):
        net().infer_shape(dat=(2, 4))
    with pytest.raises(mx.MXNetError):
        mx.sym.load_json("{}")


def test_types_are_numpy_scalar_types():
    assert net().infer_type(data="float16")[0] == [np.float16] * 3


def test_simple_bind_allocates_arrays_of_the_inferred_shapes():
    ex = net().simple_bind(mx.cpu(), data=(2, 4), grad_req={"fc_weight": "write"}, type_dict={"data": "float16"})
    assert {n: a.shape for n, a in ex.arg_dict.items()} == {"data": (2, 4), "fc_weight": (3, 4), "fc_bias": (3,)}
    assert ex.grad_dict["data"] is None and ex.grad_dict["fc_weight"].shape == (3, 4)
    assert ex.arg_dict["fc_weight"].dtype is np.float16


def test_simple_bind_shares_the_requested_arrays():
    first = net().simple_bind(mx.cpu(), data=(2, 4))
    second = net().simple_bind(mx.cpu(), data=(5, 4), shared_exec=first, shared_arg_names=["fc_weight", "fc_bias"])
    assert second.arg_dict["fc_weight"] is first.arg_dict["fc_weight"]
    assert second.grad_dict["fc_bias"] is first.grad_dict["fc_bias"]
    assert second.arg_dict["data"] is not first.arg_dict["data"]


def test_simple_bind_raises_with_the_unknown_shapes():
    with pytest.raises(mx.MXNetError, match=r"fc_weight .* cannot be inferred from \{\}"):
        net().simple_bind(mx.cpu())


def test_bind_raises_with_the_missing_array():
    one = mx.nd.ones((1, 2))
    with pytest.raises(ValueError, match="'fc_weight' is missing in args"):
        net().bind(mx.cpu(), {"data": one})
    with pytest.raises(ValueError, match="args has 1 arrays, expected 3"):
        net().bind(mx.cpu(), [one])
    with pytest.raises(TypeError, match="not iterable"):
        net().bind(mx.cpu(), 3)
    with pytest.raises(ValueError, match="grad_req of 'data' is 'wrte'"):
        net().bind(mx.cpu(), [one, mx.nd.ones((3, 2)), mx.nd.ones(3)], grad_req="wrte")


def test_eval_runs_once():
    out = net().eval(data=mx.nd.ones((1, 2)), fc_weight=mx.nd.ones((3, 2)), fc_bias=mx.nd.zeros(3))
    assert out[0].asnumpy().tolist() == [[2, 2, 2]]


# ------------------------------------------------------------------------------------------------ variables of operators
def test_exactly_the_operators_of_mxnet_give_their_variables_initializers():
    for case in CREATED["operators"]:
        *variables, node = json.loads(apply_op(case["op"], (), case["attrs"], node_name="n", cls=Symbol).tojson())["nodes"]
        added = {v["name"]: dict(v.get("attrs", {}).items() - node.get("attrs", {}).items()) for v in variables}
        assert {k: v for k, v in added.items() if v} == case["added"], case["op"]
    assert {op.name for op in REGISTRY.values() if op.init} == {ALIASES[case["op"]] for case in CREATED["operators"]}


@pytest.mark.parametrize("name", CREATED["networks"])
def test_the_variables_of_a_network_have_mxnets_attributes(name):
    recorded = CREATED["networks"][name]
    found = facts(networks(mx)[name])
    assert found == {"attr_dict": recorded["attr_dict"], "nodes": recorded["nodes"]}
    file = {"nodes": [{"op": o, "name": n, "attrs": a, "inputs": i} for o, n, a, i in recorded["nodes"]]}
    file |= {"arg_nodes": [], "heads": [[len(recorded["nodes"]) - 1, 0]], "attrs": {"mxnet_version": ["int", 10901]}}
    assert facts(mx.sym.load_json(json.dumps(file))) == found


@pytest.mark.parametrize("kind", INITIALIZERS)
def test_initial_values_are_those_of_the_operators_whatever_the_initializer(kind):
    for name, recorded in CREATED["networks"].items():
        if "values" in recorded:
            found = values(mx, networks(mx)[name], getattr(mx.init, kind)(**INITIALIZERS[kind]))
            assert found.keys() == recorded["values"].keys()
            for key, value in recorded["values"].items():
                np.testing.assert_array_equal(found[key], np.float32(value), f"{name}: {key}")
