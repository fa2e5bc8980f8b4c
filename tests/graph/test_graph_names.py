"""Automatic names: numbered per graph, equal for networks that the same code builds, and MXNet's for the first one."""

import contextlib
import pickle
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jfit
import jfit.mx as mx
from jfit import sym
from jfit.graph import GraphError, nodes

# One step of building a network: (operator, name or None, indices of inputs, whether the names are read after it).
GIVEN = st.sampled_from([None, None, None, None, "mine", "relu1", "fullyconnected0", "_plus0"])
STEP = st.tuples(
    st.sampled_from(["dense", "relu", "dropout", "norm", "add", "scale", "shared", "loop"]),
    GIVEN,
    st.tuples(st.integers(0, 50), st.integers(0, 50)),
    st.booleans(),
)


def build(steps, reads=False):
    """Build the network; all of its nodes are in the result.  `reads`: read names where the steps say so."""
    ends = [sym.Variable("data")]
    shared = sym.Variable("shared_weight")
    for at, (kind, name, (i, j), read) in enumerate(steps):
        name = name and f"{name}" + (str(at) if name == "mine" else "")
        if any(name == s[1] for s in steps[:at]):
            name = None
        x, y = ends[i % len(ends)], ends[j % len(ends)]
        made = {
            "dense": lambda x=x, name=name: sym.FullyConnected(x, num_hidden=3, name=name),
            "shared": lambda x=x, name=name: sym.FullyConnected(x, weight=shared, num_hidden=3, no_bias=True, name=name),
            "relu": lambda x=x, name=name: sym.relu(x, name=name),
            "dropout": lambda x=x, name=name: sym.Dropout(x, name=name),
            "norm": lambda x=x, name=name: sym.BatchNorm(x, name=name)[0],
            "add": lambda x=x, y=y: x + y,
            "scale": lambda x=x: 2 * x,
            "loop": lambda x=x: sym.contrib.foreach(
                lambda row, state: (sym.FullyConnected(sym.relu(row + state), num_hidden=3), state * 2), x, shared
            )[0],
        }[kind]()
        ends.append(made)
        if reads and read:
            assert made.name and made.list_outputs()
    return sym.Group(ends)


def structure(net):
    """The graph without names."""
    order = net.nodes()
    number = {id(n): i for i, n in enumerate(order)}
    return [
        (n.op and n.op.name, [(number[id(e.node)], e.index) for e in n.inputs], [structure(g) for g in n.subgraphs])
        for n in order
    ]


@settings(max_examples=60, deadline=None)
@given(st.lists(STEP, min_size=1, max_size=12), st.lists(STEP, max_size=6), st.booleans())
def test_a_network_built_again_by_the_same_code_has_the_same_names(steps, other, reads):
    """Whatever is built in between, and wherever names are read while it is built."""
    first = build(steps, reads)
    text = first.tojson()
    between = build(other, reads)
    between.list_arguments()
    unread = build(other)
    again = build(steps, reads)
    unread.list_arguments()
    assert again.tojson() == text == first.tojson()
    assert pickle.loads(pickle.dumps(again)).tojson() == text
    names = [n.name for n in again.nodes()]
    assert len(set(names)) == len(names)
    read = build(steps, True)
    assert structure(read) == structure(build(steps))
    with mock.patch.object(nodes.Numbering, "can_add", lambda self, raw_names: False):
        assert read.tojson() == build(steps, True).tojson()


def test_reading_a_name_after_each_layer_visits_each_node_once(monkeypatch):
    visited, number = [], nodes.number

    def counted(raw_names, numbering):
        visited.extend(raw_names)
        return number(raw_names, numbering)

    monkeypatch.setattr(nodes, "number", counted)
    x = sym.Variable("x")
    for _ in range(50):
        x = sym.relu(x)
        assert x.name
    assert x.name == "relu49"
    assert len(visited) == 51


@settings(max_examples=60, deadline=None)
@given(st.lists(STEP, min_size=1, max_size=12))
def test_the_numbers_are_those_that_a_name_manager_counts(steps):
    """A new NameManager counts as MXNet does; the numbers are equal if no name is taken and no name was read before the end."""
    steps = [(kind, None, inputs, False) for kind, _, inputs, _ in steps]
    with sym.NameManager():
        expected = build(steps)
    assert [n.name for n in build(steps).nodes()] == [n.name for n in expected.nodes()]


@settings(max_examples=60, deadline=None)
@given(st.lists(STEP, min_size=1, max_size=8), st.lists(STEP, min_size=1, max_size=8), st.booleans(), st.booleans())
def test_joined_networks_share_only_variables_that_they_share(first, second, read_first, read_second):
    """Names read before joining stay in the parts; in the joined network all names differ, and those of the first part stay."""
    a, b = build(first), build(second)
    before = a.tojson() if read_first else None
    after = b.tojson() if read_second else None
    joined = sym.Group([a, b])
    own = [n for n in joined.nodes() if n.name not in ("data", "shared_weight")]
    automatic = [n.name for n in own if not isinstance(n.raw_name, str)]
    assert len(set(automatic)) == len(automatic)
    assert not set(automatic) & {n.name for n in own if isinstance(n.raw_name, str)}
    assert before is None or a.tojson() == before
    assert after is None or b.tojson() == after
    if read_first and all(name is None for _, name, _, _ in second):  # else a given name may be that of a node of the first
        assert [n.name for n in joined.nodes()][: len(a.nodes())] == [n.name for n in a.nodes()]


def dropout_net():
    hidden = sym.Dropout(sym.relu(sym.FullyConnected(sym.Variable("data"), num_hidden=8)), p=0.3)
    return sym.SoftmaxOutput(sym.FullyConnected(hidden, num_hidden=3), name="softmax")


def test_joining_networks_after_models_were_made_of_them_warns():
    def layer():
        return sym.FullyConnected(sym.Variable("data"), num_hidden=2)

    a, b, c = layer(), layer(), layer()
    jfit.lower(a)
    jfit.lower(b)
    c.list_arguments()
    assert sym.Group([a, c]).list_outputs() == ["fullyconnected0_output", "fullyconnected1_output"]
    with pytest.warns(UserWarning, match="in the joined network, 'fullyconnected0' is 'fullyconnected1'.*pass name="):
        joined = (a + b).list_arguments()
    assert joined[1:3] + joined[4:] == [f"fullyconnected{i}_{end}" for i in (0, 1) for end in ("weight", "bias")]
    assert b.list_arguments()[1:] == ["fullyconnected0_weight", "fullyconnected0_bias"]


@pytest.mark.parametrize("loaded", [False, True])
def test_a_new_last_layer_does_not_take_the_name_of_the_one_that_it_replaces(loaded):
    base = dropout_net()
    base = sym.load_json(base.tojson()) if loaded else base
    for _ in range(2):
        cut = sym.Dropout(base.get_internals()["relu0_output"], name="between")
        assert cut.list_outputs() == ["between_output"]
        with_head = sym.FullyConnected(cut, num_hidden=4)
        assert with_head.list_arguments()[1:] == [f"fullyconnected{i}_{end}" for i in (0, 2) for end in ("weight", "bias")]


def test_names_in_scopes_and_of_mx_count_as_in_mxnet():
    for manager, end in ((sym.NameManager(), ""), (sym.Prefix("p_"), "p_")):
        with manager:
            made = [sym.relu(sym.Variable("x")).name for _ in range(2)]
        assert made == [f"{end}relu0", f"{end}relu1"]
    numbers = [int(mx.sym.relu(mx.sym.Variable("x")).name.removeprefix("relu")) for _ in range(2)]
    assert numbers[1] == numbers[0] + 1


def test_threads_that_build_at_the_same_time_get_the_same_names():
    def run(_):
        net = dropout_net()
        return net.tojson()

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(run, range(24))) == {dropout_net().tojson()}


def test_an_error_has_the_number_that_the_node_would_have():
    first = sym.Convolution(sym.Variable("data"), kernel=(3, 3), num_filter=2)
    with pytest.raises(GraphError, match="'convolution1'"):
        sym.Convolution(first, num_filter=2)  # type: ignore[call-overload]
    with contextlib.suppress(GraphError):
        sym.Convolution(first, first, first, first, kernel=(1, 1), num_filter=2)  # type: ignore[call-overload]
    assert sym.Convolution(first, kernel=(1, 1), num_filter=1).name == "convolution1"


@settings(max_examples=30, deadline=None)
@given(st.lists(STEP, min_size=1, max_size=10))
def test_a_displayed_network_has_the_names_that_it_then_gets(steps):
    network, unseen = build(steps), build(steps)
    text = repr(network)
    assert [repr(part) for part in network] and repr(network) == text
    assert network.tojson() == unseen.tojson() and repr(network) == text == repr(unseen)


def dense(x=None, **options):
    return sym.FullyConnected(sym.Variable("data") if x is None else x, num_hidden=2, no_bias=True, **options)


def test_a_layer_that_gets_a_given_name_of_another_layer_below_renames_that_one():
    below = dense()
    assert below.name == "fullyconnected0"
    assert dense(below, name="fullyconnected0").list_arguments() == ["data", "fullyconnected1_weight", "fullyconnected0_weight"]
    assert below.name == "fullyconnected0"


def test_layers_numbered_in_several_graphs_get_different_names_in_a_joined_one():
    a, b, c = dense(), dense(), dense()
    assert sym.Group([a, b]).list_outputs() == ["fullyconnected0_output", "fullyconnected1_output"]
    assert c.name == "fullyconnected0"
    joined = sym.Group([c + a + b]).list_arguments()
    assert sorted(name for name in joined if name != "data") == [f"fullyconnected{i}_weight" for i in range(3)]


def test_loops_that_are_joined_have_different_names_in_their_bodies():
    """Random numbers depend on the names: two loops must not draw the same dropout masks."""

    def loop():
        body = lambda x, s: (sym.Dropout(x), x + s)  # noqa: E731
        return sym.contrib.foreach(body, sym.Variable("data"), sym.Variable("state"))[0]

    parts = [loop(), loop()]
    for part in parts:
        part.list_arguments()
    bodies = [graph for node in sym.Group(parts).nodes() for graph in node.subgraphs]
    dropouts = [node.name for graph in bodies for node in graph.nodes() if node.op and node.op.name == "Dropout"]
    assert sorted(dropouts) == ["dropout0", "dropout1"]


def test_composition_keeps_names_open_until_they_are_read():
    net = sym.relu(sym.FullyConnected(sym.Variable("data"), num_hidden=2))
    joined = net(data=sym.relu(sym.FullyConnected(sym.Variable("x"), num_hidden=2)))
    assert [n for n in joined.get_internals().list_outputs() if n.endswith("_output")] == [
        "fullyconnected1_output",
        "relu1_output",
        "fullyconnected0_output",
        "relu0_output",
    ]
    one = sym.FullyConnected(sym.Variable("data"), num_hidden=2)
    assert one(fullyconnected0_weight=sym.Variable("w")).list_arguments() == ["data", "w", "fullyconnected0_bias"]
