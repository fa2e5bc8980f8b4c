"""Graphs: names, attributes, composition, outputs, Python operators, depth; compared with results recorded from MXNet 1.9.1."""

import copy
import inspect
import json
import pickle
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusals import refused

import jfit
from jfit import sym
from jfit.graph import GraphError

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "symbol_api.json").read_text())
V = sym.Variable


def graph_of(text, loose=False):
    """What a symbol.json text says: nodes, heads, arguments; `loose` ignores the counters in names."""
    graph = json.loads(text)
    name = (lambda n: re.sub(r"\d+$", "#", n)) if loose else (lambda n: n)
    nodes = [(n["op"], name(n["name"]), n.get("attrs", {}), [i[:2] for i in n["inputs"]]) for n in graph["nodes"]]
    return nodes, [h[:2] for h in graph["heads"]], graph["arg_nodes"]


def chain(length):
    x = V("data")
    with sym.NameManager():
        for _ in range(length):
            x = sym.relu(x)
    return x


# ------------------------------------------------------------------------------------------ golden
def test_automatic_names_are_those_of_mxnet():
    with sym.NameManager():
        a = sym.FullyConnected(V("data"), num_hidden=4)
        b = sym.Activation(a, act_type="relu")
        x = sym.FullyConnected(b, num_hidden=3)
        f = (x + 1) * x
        g = sym.SliceChannel(f, num_outputs=3)
        group = sym.Group([g[0], g[2], b])
    assert GOLDEN["auto_names"] == {
        "args": f.list_arguments(),
        "internals": f.get_internals().list_outputs(),
        "slice": g.list_outputs(),
        "group": group.list_outputs(),
        "children": f.get_children().list_outputs(),
    }


def test_a_prefix_goes_before_every_name_made_inside_it():
    with sym.Prefix("pre_"):
        assert sym.FullyConnected(V("x"), num_hidden=2).list_arguments() == GOLDEN["prefix"]


def test_attributes_are_stored_and_shown_as_mxnet_does():
    with sym.AttrScope(ctx_group="dev1", lr_mult="2"):
        data = V(
            "data",
            attr={"mood": "x"},
            lr_mult=3,
            wd_mult=0.5,
            init='["one", {}]',
            shape=(2, 3),
            dtype="float32",
            stype="default",
        )
        net = sym.FullyConnected(data, num_hidden=2, name="fcx")
    assert net.attr_dict() == GOLDEN["attrs"]["attr_dict"]
    assert net.list_attr() == GOLDEN["attrs"]["list_attr"]
    assert graph_of(net.tojson()) == graph_of(GOLDEN["attrs"]["json"])


def test_an_attribute_of_the_node_wins_over_that_of_the_scope():
    with sym.AttrScope(mood="scope", place="scope"):
        assert sym.relu(V("x"), attr={"mood": "own"}).list_attr() == {"mood": "own", "place": "scope"}


def test_composition_orders_arguments_as_mxnet_does():
    f = sym.FullyConnected(V("data"), name="c2", num_hidden=3)
    assert f(data=sym.FullyConnected(V("d"), num_hidden=2, name="c1")).list_arguments() == GOLDEN["compose"]


def test_python_operators_create_mxnets_nodes():
    got = (((2 - V("a")) / (V("b") ** 2 + 1)) * (-V("a"))).tojson()
    assert graph_of(got, loose=True) == graph_of(GOLDEN["scalar_ops_json"], loose=True)
    assert graph_of((V("a") > V("b")).tojson(), loose=True) == graph_of(GOLDEN["compare_json"], loose=True)


@pytest.mark.parametrize("key", ["infer_partial", "infer_full", "infer_type"])
def test_inference_gives_mxnets_results(key):
    x = sym.FullyConnected(sym.Flatten(V("data")), num_hidden=5, name="f1")
    if key == "infer_partial":
        got = sym.broadcast_add(x, V("other")).infer_shape_partial()
    elif key == "infer_full":
        got = x.infer_shape(data=(2, 3, 4))
    else:
        got = x.infer_type(data="float64")
        got = [[str(t) for t in part] for part in got]
    assert json.loads(json.dumps(got)) == GOLDEN[key]


# ------------------------------------------------------------------------------------------ variables and scopes
def test_a_variable_stores_its_arguments_as_attributes():
    w = V("w", shape=(3, 0), dtype=np.float16, lr_mult=0.5, wd_mult=2, layout="NC", __note__="n", attr={"k": "v"})
    assert w.attr_dict() == {
        "w": {
            "__shape__": "(3, 0)", "__dtype__": "2", "__lr_mult__": "0.5", "lr_mult": "0.5", "__wd_mult__": "2", "wd_mult": "2",
            "__layout__": "NC", "__note__": "n", "k": "v",
        }
    }  # fmt: skip
    assert (w.attr("lr_mult"), w.attr("nothing"), w.name) == ("0.5", None, "w")


F = sym.FullyConnected(V("data"), num_hidden=3, name="f")
test_invalid_arguments_raise = refused(
    (lambda: V("x", color="red"), ValueError, "no argument 'color'.*__color__"),
    (lambda: V(3), TypeError, "name is a string, got 3"),
    (lambda: sym.Group([]), TypeError, "Group needs at least one symbol"),
    (lambda: sym.SliceChannel(V("x"), num_outputs=0), GraphError, "num_outputs=0, expected at least 1"),
    (lambda: sym.Concat(), GraphError, "num_args=0, expected at least 1"),
    (lambda: V("x", dtype="float17"), ValueError, "'float17' is not in list"),
    (lambda: sym.AttrScope(lr_mult=2), ValueError, "'lr_mult' is 2; .* pass '2'"),
    (lambda: sym.Convolutoin, AttributeError, "no operator 'Convolutoin'.*'Convolution'"),
    (lambda: V("x").reshap, AttributeError, "no attribute 'reshap'"),
    (lambda: sym.FullyConnected(V("x")), GraphError, "FullyConnected needs the attribute 'num_hidden'"),
    (lambda: sym.FullyConnected(V("x"), num_hiden=3), GraphError, "'num_hiden'; did you mean 'num_hidden'"),
    (lambda: sym.FullyConnected(V("x"), num_hidden="three"), GraphError, "num_hidden is 'three', expected an int"),
    (lambda: sym.FullyConnected(V("x"), wieght=V("w"), num_hidden=3), GraphError, "'wieght'; did you mean 'weight'"),
    (lambda: sym.FullyConnected(V("x"), data=V("y"), num_hidden=3), GraphError, "'data' is passed by position and by name"),
    (lambda: sym.relu(V("x"), V("y")), GraphError, "got 2 inputs, but relu takes 1: data"),
    (lambda: sym.relu(V("x"), 3), GraphError, "relu got 1 attributes by position"),
    (lambda: sym.relu(sym.SliceChannel(V("x"), num_outputs=2, name="s")), GraphError, "with 2 outputs"),
    (lambda: sym.relu(V("x"), name="r")["q"], ValueError, "no output is named 'q'"),
    (lambda: bool(V("x") > 1), TypeError, "truth value of .* is unknown"),
    (lambda: V("x") + np.ones(3), TypeError, "array of shape \\(3,\\); use a Variable"),
    (lambda: np.ones(2) != V("x"), TypeError, "array of shape \\(2,\\); use a Variable"),
    (lambda: V("x") + "1", TypeError, "unsupported operand"),
    (lambda: sym.Group([V("a"), V("b")]).attr("k"), ValueError, "has outputs of 2 nodes.*select an output first"),
    (lambda: F(dta=V("z")), r"no variable is named 'dta'.*'data'"),
    (lambda: F(V("z"), f_bias=V("b")), TypeError, "not both at once"),
    (lambda: F(*[V(c) for c in "abcd"]), TypeError, r"got 4 symbols.*3 variables"),
    (lambda: F(data=sym.SliceChannel(V("x"), num_outputs=2)), TypeError, "one output"),
)


def test_scopes_nest_and_end():
    with sym.AttrScope(a="1", b="1"):
        with sym.AttrScope(b="2"):
            assert V("x").list_attr() == {"a": "1", "b": "2"}
        assert V("x", attr={"a": "own"}).list_attr() == {"a": "own", "b": "1"}
    assert V("x").list_attr() == {}
    with sym.Prefix("p_"), sym.NameManager():
        assert sym.relu(V("x")).name == "relu0"
    with sym.Prefix("p_"):
        assert sym.relu(V("x"), name="own").name == "p_own"


# ------------------------------------------------------------------------------------------ parts
def test_outputs_are_found_by_position_name_and_slice():
    s = sym.SliceChannel(V("x"), num_outputs=4, name="s")
    assert len(s) == 4
    assert [p.list_outputs()[0] for p in s] == s.list_outputs() == [f"s_output{i}" for i in range(4)]
    assert s[1].list_outputs() == s["s_output1"].list_outputs() == ["s_output1"]
    assert s[-1].list_outputs() == ["s_output3"]
    assert s[1:3].list_outputs() == ["s_output1", "s_output2"]
    net = sym.relu(V("x"), name="r")
    assert net["r"].list_outputs() == net["r_output"].list_outputs() == ["r_output"]
    assert net.get_internals()["x"].list_outputs() == ["x"]


def test_internals_children_and_lists_are_in_graph_order():
    bn = sym.BatchNorm(sym.Convolution(V("data"), kernel=(3, 3), num_filter=2, name="c"), name="b")
    net = sym.FullyConnected(bn, num_hidden=2, name="f")
    assert net.list_arguments() == ["data", "c_weight", "c_bias", "b_gamma", "b_beta", "f_weight", "f_bias"]
    assert net.list_auxiliary_states() == ["b_moving_mean", "b_moving_var"]
    assert net.list_inputs() == [*net.list_arguments()[:5], *net.list_auxiliary_states(), "f_weight", "f_bias"]
    assert net.get_internals().list_outputs() == [
        "data", "c_weight", "c_bias", "c_output", "b_gamma", "b_beta", "b_moving_mean", "b_moving_var", "b_output", "f_weight",
        "f_bias", "f_output",
    ]  # fmt: skip
    assert net.get_children().list_outputs() == ["b_output", "f_weight", "f_bias"]
    assert V("x").get_children() is None
    assert bn.attr_dict()["b_moving_var"]["__init__"] == '["one", {}]'


def test_a_group_has_the_outputs_of_its_members():
    a, b = sym.relu(V("x"), name="a"), sym.SliceChannel(V("y"), num_outputs=2, name="b")
    group = sym.Group([a, b])
    assert group.list_outputs() == ["a_output", "b_output0", "b_output1"]
    assert (group.name, a.name, repr(group)) == (None, "a", "<Symbol group [a, b, b]>")


# ------------------------------------------------------------------------------------------ composition
def test_composing_does_not_change_the_parts():
    f = sym.FullyConnected(V("data"), num_hidden=3, name="f")
    before = f.tojson()
    by_name = f(data=sym.relu(V("z"), name="r"), name="g")
    by_position = f(V("z"))
    assert by_name.list_arguments() == ["z", "f_weight", "f_bias"] == by_position.list_arguments()
    assert (by_name.name, by_position.name) == ("g", "f")
    assert f.tojson() == before


def test_graphs_cannot_be_changed_in_place():
    net = sym.relu(V("x"))
    for part, name in ((net, "heads"), (net, "numbered"), (net.heads[0].node, "name")):
        with pytest.raises(AttributeError, match=f"'{name}' cannot be set: symbols and nodes are immutable"):
            setattr(part, name, None)


# ------------------------------------------------------------------------------------------ Python operators, fluent form
@pytest.mark.parametrize(
    ("make", "want"),
    [
        (lambda a, b: a + b, 5.0), (lambda a, b: a - b, -1.0), (lambda a, b: a * b, 6.0), (lambda a, b: a / b, 2 / 3),
        (lambda a, b: b % a, 1.0), (lambda a, b: a**b, 8.0), (lambda a, b: a == b, 0.0), (lambda a, b: a != b, 1.0),
        (lambda a, b: a > b, 0.0), (lambda a, b: a >= 2, 1.0), (lambda a, b: a < b, 1.0), (lambda a, b: a <= 1, 0.0),
        (lambda a, b: 3 + a, 5.0), (lambda a, b: 3 - a, 1.0), (lambda a, b: 3 * a, 6.0), (lambda a, b: 3 / a, 1.5),
        (lambda a, b: 5 % a, 1.0), (lambda a, b: 3**a, 9.0), (lambda a, b: -a, -2.0), (lambda a, b: abs(-a), 2.0),
        (lambda a, b: np.float32(3) * a, 6.0), (lambda a, b: a - np.int64(1), 1.0), (lambda a, b: a == 2, 1.0),
    ],
)  # fmt: skip
def test_python_operators_compute(make, want):
    model = jfit.lower(make(V("a"), V("b")) + 0, inputs=[n for n in ("a", "b") if n in make(V("a"), V("b")).list_arguments()])
    (out,), _ = model.apply({}, {}, {"a": jnp.full((1,), 2.0), "b": jnp.full((1,), 3.0)})
    np.testing.assert_allclose(out, [want], rtol=1e-6)


def test_comparing_with_none_is_plain_python():
    x = V("x")
    assert (x == None, x != None) == (False, True)  # noqa: E711
    assert len({x, V("x")}) == 2


def test_every_operator_is_a_method_too():
    x = V("x")
    out = x.reshape(shape=(0, -1)).sum(axis=1)
    assert out.infer_shape(x=(2, 3, 4))[1] == [(2,)]
    assert x.clip(0, 1).list_attr() == {"a_min": "0", "a_max": "1"}
    assert {"Convolution", "relu", "Variable"} <= set(dir(sym))
    assert "num_hidden: an int" in sym.FullyConnected.__doc__


# ------------------------------------------------------------------------------------------ copies and depth
@pytest.mark.parametrize("way", [lambda s: pickle.loads(pickle.dumps(s)), copy.deepcopy, copy.copy])
def test_copies_are_the_same_graph(way):
    net = sym.Group([sym.BatchNorm(V("x", lr_mult=2), name="b"), sym.SliceChannel(V("y"), num_outputs=2, name="s")[1]])
    assert way(net).tojson() == net.tojson()


@pytest.mark.slow
def test_ten_thousand_nodes_in_a_row_need_no_recursion():
    deep = chain(10_000)
    assert deep.list_arguments() == ["data"]
    assert len(deep.get_internals().list_outputs()) == 10_001
    assert deep.infer_shape(data=(2, 3))[1] == [(2, 3)]
    assert [str(t) for t in deep.infer_type(data="float16")[1]] == ["float16"]
    again = sym.load_json(deep.tojson())
    assert again.list_outputs() == deep.list_outputs()
    assert pickle.loads(pickle.dumps(again)).list_outputs() == deep.list_outputs()
    assert len(copy.deepcopy(deep)(data=V("z")).attr_dict()) == 0


@pytest.mark.slow
def test_two_thousand_nodes_are_lowered_and_run():
    model = jfit.lower(chain(2_000))
    (out,), _ = jax.jit(lambda x: model.apply({}, {}, {"data": x}))(jnp.arange(-2.0, 2.0))
    np.testing.assert_array_equal(out, [0, 0, 0, 1])


def test_help_of_operator_functions_shows_the_callers_arguments():
    for function in (jfit.sym.Variable, jfit.sym.Group, jfit.sym.load, jfit.sym.load_json):
        assert "cls" not in inspect.signature(function).parameters
