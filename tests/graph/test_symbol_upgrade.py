"""Graph files of older MXNet versions are read as MXNet 1.9.1 reads them; saved graphs contain no casts of mixed precision."""

import json
import pickle
from pathlib import Path

import pytest

from jfit import sym

GOLDEN = Path(__file__).parents[1] / "golden"
CASES = json.loads((GOLDEN / "symbol_upgrades.json").read_text())["cases"]
FILES = json.loads((GOLDEN / "symbol_files.json").read_text())["cases"]
LEGACY = json.loads((GOLDEN / "checkpoint" / "manifest.json").read_text())["legacy"]


def nodes_of(text):
    return [[n["op"], n["name"], n.get("attrs", {}), [i[:2] for i in n["inputs"]]] for n in json.loads(text)["nodes"]]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_a_file_of_any_version_is_read_as_mxnets_graph(case):
    net = sym.load_json(json.dumps(case["file"]))
    for name in ("list_arguments", "list_auxiliary_states", "attr_dict"):
        assert getattr(net, name)() == case[name], name
    assert nodes_of(net.tojson(remove_amp_cast=False)) == case["nodes"]
    assert nodes_of(net.tojson()) == case.get("nodes_without_amp_casts", case["nodes"])


# MXNet makes nodes without their inputs of these, which nothing can run: jfit refuses them.
NO_GRAPH = ("fc_data_only_900", "fc_nothing_900", "bn_data_only_900", "softmax_no_label_900")
# MXNet leaves `lr_mult` without underscores alone in a file of its own version, where it then does nothing: jfit reads it as
# in all other versions.
READ_ALIKE = ("fields_together_10901", "mirror_10901")


@pytest.mark.parametrize("case", [case for case in FILES if case["name"] in NO_GRAPH], ids=lambda case: case["name"])
def test_a_node_without_its_inputs_raises_since_0_9(case):
    with pytest.raises(sym.GraphError, match=r"needs \d inputs .*, the file has [01];"):
        sym.load_json(json.dumps(case["file"]))


@pytest.mark.parametrize("case", [case for case in FILES if case["name"] in READ_ALIKE], ids=lambda case: case["name"])
def test_hidden_keys_without_underscores_are_used_in_every_version(case):
    earlier = next(c for c in FILES if c["name"] == case["name"].replace("10901", "None"))
    assert sym.load_json(json.dumps(case["file"])).attr_dict() == earlier["attr_dict"]


@pytest.mark.parametrize(
    "case", [case for case in FILES if case["name"] not in (*NO_GRAPH, *READ_ALIKE)], ids=lambda case: case["name"]
)
def test_a_file_in_an_older_format_is_read_as_mxnets_graph(case):
    net = sym.load_json(json.dumps(case["file"]))
    for name in ("list_arguments", "list_auxiliary_states", "list_outputs", "attr_dict"):
        assert getattr(net, name)() == case[name], name
    assert nodes_of(net.tojson()) == case["nodes"]


@pytest.mark.parametrize(
    ("old", "new", "inputs"),
    [("CuDNNBatchNorm", "BatchNorm", 5), ("MultiBoxPrior", "_contrib_MultiBoxPrior", 1), ("Proposal", "_contrib_Proposal", 3)],
)
def test_old_operator_names_that_mxnet_1_9_dropped_are_read(old, new, inputs):
    nodes = [{"op": "null", "name": f"x{i}", "inputs": []} for i in range(inputs)]
    nodes.append({"op": old, "name": "n", "param": {}, "inputs": [[i, 0] for i in range(inputs)]})
    net = sym.load_json(json.dumps({"nodes": nodes, "heads": [[inputs, 0]]}))
    assert net.heads[0].node.op.name == new


def test_the_recorded_file_of_version_0_8_has_the_recorded_attributes():
    net = sym.load(GOLDEN / "checkpoint" / "save_000800.json")
    upgraded = json.loads((GOLDEN / "checkpoint" / "save_000800_upgraded.json").read_text())
    for name in ("list_arguments", "list_auxiliary_states", "attr_dict"):
        assert getattr(net, name)() == LEGACY[name], name
    written = json.loads(net.tojson())
    assert nodes_of(net.tojson()) == nodes_of(json.dumps(upgraded))
    for name in ("arg_nodes", "node_row_ptr", "heads", "attrs"):
        assert written[name] == upgraded[name], name


def test_a_multiplier_without_a_matching_variable_stays_on_its_node():
    graph = json.loads(sym.relu(sym.tanh(sym.Variable("x"), name="t"), name="r").tojson())
    graph["nodes"][2]["attrs"] = {"data_lr_mult": "3"}
    del graph["attrs"]
    assert sym.load_json(json.dumps(graph)).attr_dict() == {"r": {"data_lr_mult": "3"}}


@pytest.mark.parametrize("top", [None, [], {}, {"mxnet_version": []}, {"mxnet_version": ["int", "x"]}, {"mxnet_version": -1}])
def test_a_file_without_a_version_has_the_oldest_format(top):
    graph = {"nodes": [{"op": "null", "name": "x", "inputs": []}], "heads": [[0, 0]], "attrs": top}
    graph["nodes"].append({"op": "argmax", "name": "a", "attrs": {"axis": "-1"}, "inputs": [[0, 0]]})
    graph["heads"] = [[1, 0]]
    assert sym.load_json(json.dumps(graph)).attr_dict() == {}


def test_a_pickled_graph_keeps_its_casts():
    net = sym.relu(sym.amp_cast(sym.Variable("x"), dtype="float16", name="c"), name="r")
    assert pickle.loads(pickle.dumps(net)).get_internals().list_outputs() == ["x", "c_output", "r_output"]
    assert [n[1] for n in nodes_of(net.tojson())] == ["x", "r"]


def test_consecutive_casts_are_removed_together():
    x = sym.Variable("x")
    for dtype in ("float16", "float32", "float16"):
        x = sym.amp_cast(x, dtype=dtype)
    assert nodes_of(sym.relu(x, name="r").tojson()) == [["null", "x", {}, []], ["relu", "r", {}, [[0, 0]]]]
