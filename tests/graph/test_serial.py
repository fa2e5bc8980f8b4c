"""symbol.json: round trips, every recorded model file, old files, malformed files."""

import json
import linecache
from pathlib import Path

import pytest

import jfit
from jfit import sym
from jfit.graph import GraphError

MODELS = Path(__file__).parents[1] / "golden" / "models"
MANIFEST = json.loads((MODELS / "manifest.json").read_text())
V = sym.Variable


def nodes_of(text):
    return [(n["op"], n["name"], n.get("attrs", {}), [i[:2] for i in n["inputs"]]) for n in json.loads(text)["nodes"]]


def small_net():
    net = sym.BatchNorm(sym.Convolution(V("data"), kernel=(3, 3), num_filter=2, name="c"), name="b")
    parts = sym.SliceChannel(sym.Flatten(net, name="f"), num_outputs=2, name="s")
    return sym.SoftmaxOutput(sym.Concat(parts[0], parts[1], name="j"), name="softmax")


# ------------------------------------------------------------------------------------------ files of MXNet
@pytest.mark.parametrize("model", MANIFEST, ids=lambda m: m["name"])
def test_a_recorded_model_file_reads_as_mxnet_reads_it(model):
    text = (MODELS / f"{model['name']}.json").read_text()
    unknown = {n["op"] for n in json.loads(text)["nodes"]} - {"null"} - set(jfit.ops.ALIASES)
    if unknown:
        with pytest.raises(GraphError, match="unknown operator"):
            sym.load_json(text)
        pytest.skip(f"operators that do not exist yet: {unknown}")
    net = sym.load_json(text)
    assert net.list_arguments() == model["list_arguments"]
    assert net.list_auxiliary_states() == model["list_auxiliary_states"]
    assert net.list_outputs() == model["list_outputs"]
    assert nodes_of(net.tojson()) == nodes_of(text)
    internals = net.get_internals()
    _, shapes, _ = internals.infer_shape(**{k: tuple(v) for k, v in model["data_shapes"].items()})
    assert [[n, list(s)] for n, s in zip(internals.list_outputs(), shapes, strict=True)] == model["internals"]


# ------------------------------------------------------------------------------------------ round trips
def test_a_graph_round_trips_through_text_and_file(tmp_path):
    net = small_net()
    again = sym.load_json(net.tojson())
    assert again.tojson() == net.tojson()
    net.save(tmp_path / "net-symbol.json")
    assert sym.load(tmp_path / "net-symbol.json").tojson() == net.tojson()
    assert [p.name for p in tmp_path.iterdir()] == ["net-symbol.json"]


def test_auxiliary_states_are_written_between_the_inputs_where_mxnet_lists_them():
    net = sym._contrib_quantized_batch_norm(V("x"), name="n", min_calib_range=-1.0, max_calib_range=1.0)
    nodes = json.loads(net.tojson())["nodes"]
    listed = [nodes[i]["name"] for i, *_ in nodes[-1]["inputs"]]
    assert listed == ["x", "n_gamma", "n_beta", "n_moving_mean", "n_moving_var", "n_min_data", "n_max_data"]
    assert sym.load_json(net.tojson()).tojson() == net.tojson()


def test_two_variables_of_one_name_stay_separate():
    net = V("a") * V("a")
    assert sym.load_json(net.tojson()).list_arguments() == ["a", "a"]


# ------------------------------------------------------------------------------------------ hostile files
def broken(change):
    graph = json.loads(small_net().tojson())
    change(graph)
    return json.dumps(graph)


def put(path, value):
    def change(graph):
        for key in path[:-1]:
            graph = graph[key]
        graph[path[-1]] = value

    return change


DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not valid JSON"),
        ("{", "not valid JSON"),
        (DEEP, "not valid JSON"),
        ("[" + "9" * 5000 + "]", "not valid JSON"),
        ("[]", "top level: expected an object with the lists 'nodes' and 'heads'"),
        ('{"nodes": {}, "heads": []}', "expected an object with the lists"),
        ('{"nodes": [], "heads": []}', "field 'heads': it is empty"),
        ('{"nodes": [], "heads": [[0, 0]]}', "refers to node 0, but only the 0 earlier"),
        ('{"nodes": [3], "heads": [[0, 0]]}', "node 0: expected an object with the strings 'op' and 'name', found 3"),
        (
            broken(put(["nodes", 3, "op"], "Convolutoin")),
            r"node 3 \('c'\), field 'op': unknown operator 'Convolutoin'.*'Convolution'",
        ),
        (broken(put(["nodes", 3, "inputs"], [[9, 0, 0]])), r"node 3 \('c'\): refers to node 9, but only the 3 earlier"),
        (broken(put(["nodes", 3, "inputs"], [[3, 0, 0]])), "refers to node 3, but only the 3 earlier"),
        (broken(put(["nodes", 3, "inputs"], [[-1, 0, 0]])), "refers to node -1"),
        (broken(put(["nodes", 3, "inputs"], [[0, 1, 0]])), "refers to output 1 of 'data', which has 1"),
        (broken(put(["nodes", 3, "inputs"], [[True, 0]])), r"an input is \[True, 0\]"),
        (broken(put(["nodes", 3, "inputs"], "0")), r"node 3 \('c'\), field 'inputs': expected a list"),
        (
            broken(put(["nodes", 3, "inputs"], [[0, 0, 0]])),
            r"Convolution needs 3 inputs \(data, weight, bias\), the file has 1",
        ),
        (broken(put(["nodes", 3, "attrs"], {"kernel": 3})), r"node 3 \('c'\), field 'attrs': expected an object of strings"),
        (broken(put(["nodes", 3, "attrs"], [1])), r"node 3 \('c'\), field 'attrs': expected an object of strings"),
        (broken(put(["nodes", 3, "attrs", "kernel"], "(3")), r"attribute kernel is '\(3', expected a tuple of ints"),
        (broken(put(["nodes", 3, "attrs", "num_filter"], "(" * 3000)), "attribute num_filter is"),
        (broken(put(["heads"], [["0", 0]])), "field 'heads': an input is"),
        (broken(put(["nodes", 3, "attrz"], {})), r"node 3 \('c'\), field 'attrz': a node has no such field"),
    ],
)
def test_a_broken_file_raises(text, message):
    with pytest.raises(GraphError, match=message):
        sym.load_json(text)


def test_declared_counts_in_a_file_do_not_allocate_memory():
    graph = json.loads(small_net().tojson())
    for node in graph["nodes"]:
        if node["op"] == "SliceChannel":
            node["attrs"]["num_outputs"] = "1000000000000"
    with pytest.raises(GraphError, match="num_outputs=1000000000000, the maximum is"):
        sym.load_json(json.dumps(graph))
    graph = json.loads(small_net().tojson())
    next(n for n in graph["nodes"] if n["op"] == "Concat")["attrs"]["num_args"] = "1000000000000"
    with pytest.raises(GraphError, match="num_args=1000000000000, but the node has 2 inputs"):
        sym.load_json(json.dumps(graph))


def test_the_message_names_the_file(tmp_path):
    bad = tmp_path / "bad-symbol.json"
    bad.write_bytes(b"\xff\xfe")
    with pytest.raises(GraphError, match=r"bad-symbol\.json: top level: not valid JSON \(.*utf-8"):
        sym.load(bad)
    bad.write_text("{}")
    with pytest.raises(GraphError, match=r"bad-symbol\.json: top level: expected an object"):
        sym.load(bad)
    with pytest.raises(FileNotFoundError):
        sym.load(tmp_path / "none.json")


def test_a_warning_about_a_file_points_at_the_callers_line(tmp_path):
    graph = json.loads(sym.Activation(V("x"), act_type="relu", name="r").tojson())
    graph["nodes"][1]["attrs"]["odd"] = "1"
    (tmp_path / "odd.json").write_text(json.dumps(graph))
    for read_by, source in ((sym.load_json, json.dumps(graph)), (sym.load, tmp_path / "odd.json")):
        with pytest.warns(UserWarning, match="kept but have no effect") as seen:
            read_by(source)
        assert [linecache.getline(w.filename, w.lineno).count("read_by") for w in seen] == [1]
