"""Graph files of older versions, and how MXNet 1.9.1 reads them; recorded with MXNET_ENGINE_TYPE=NaiveEngine.

The files are written by hand in the format of 0.7 (param, attr, backward_source_id, two-element inputs and heads), 0.8, 0.9.x,
0.11, 1.x and later ones.  Of each there is the graph that MXNet reads, or its error.
"""

from __future__ import annotations

import json
from typing import Any

from cases import apart

VERSIONS = (None, 900, 903, 904, 905, 1100, 10000, 10500, 10901, 20000)


def v(name: str, **more: Any) -> dict[str, Any]:
    return {"op": "null", "name": name, "inputs": [], **more}


def n(op: str, inputs: Any, name: str = "n", **more: Any) -> dict[str, Any]:
    return {"op": op, "name": name, "inputs": inputs, **more}


def old(op: str, inputs: Any, name: str, param: Any = None, attr: Any = None) -> dict[str, Any]:
    """A node as 0.7 wrote it."""
    made = {"op": op, "param": param or {}, "name": name, "inputs": inputs, "backward_source_id": -1}
    return {**made, "attr": attr} if attr else made


def files() -> dict[str, list[Any]]:
    """Name -> [nodes, heads]."""
    zero = [[0, 0]]
    lenet = [
        old("null", [], "data"),
        old("null", [], "c_weight"),
        old("null", [], "c_bias"),
        old("Convolution", [[0, 0], [1, 0], [2, 0]], "c", {"kernel": "(3,3)", "num_filter": "4", "workspace": "512"}),
        old("Activation", [[3, 0]], "a", {"act_type": "tanh"}, {"ctx_group": "g", "mirror_stage": "True"}),
        old("Pooling", [[4, 0]], "p", {"kernel": "(2,2)", "pool_type": "max", "stride": "(2,2)"}),
        old("Flatten", [[5, 0]], "f"),
        old("null", [], "w", None, {"lr_mult": "2", "wd_mult": "0.5"}),
        old("null", [], "b"),
        old("FullyConnected", [[6, 0], [7, 0], [8, 0]], "fc", {"no_bias": "False", "num_hidden": "3"}, {"bias_lr_mult": "4"}),
        old("null", [], "softmax_label"),
        old("Softmax", [[9, 0], [10, 0]], "softmax", {"grad_scale": "1", "multi_output": "False"}),
    ]
    split = [v("x"), n("SliceChannel", zero, "s", param={"num_outputs": "2", "squeeze_axis": "False"})]
    found: dict[str, list[Any]] = {
        "lenet07": [lenet, [[11, 0]]],
        "fc_data_only": [[v("x"), n("FullyConnected", zero, param={"num_hidden": "3"}, attr={"lr_mult": "2"})], [[1, 0]]],
        "fc_nothing": [[n("FullyConnected", [], param={"num_hidden": "3"})], zero],
        "bn_data_only": [[v("x"), n("BatchNorm", zero, param={"eps": "0.1"}, attr={"ctx_group": "a"})], [[1, 0]]],
        "softmax_no_label": [[v("x"), old("Softmax", zero, "softmax")], [[1, 0]]],
        "sum07": [[*split, n("ElementWiseSum", [[1, 0], [1, 1]], "e", param={"num_args": "2"})], [[2, 0]]],
        "arithmetic07": [
            [v("x"), v("y"), old("_Plus", [[0, 0], [1, 0]], "p"), old("_MulScalar", [[2, 0]], "m", {"scalar": "2"})],
            [[3, 0], [2, 0]],
        ],
        "fields_together": [
            [
                v("x", attr={"lr_mult": "3"}, attrs={"lr_mult": "4"}),
                n("FullyConnected", zero * 3, param={"num_hidden": "3"}, attr={"num_hidden": "4"}, attrs={"num_hidden": "5"}),
            ],
            [[1, 0]],
        ],
        "argmin_keepdims": [[v("x"), n("argmin", zero, attrs={"axis": "-1", "keepdims": "1"})], [[1, 0]]],
        "argmax_minus_two": [[v("x"), n("argmax", zero, attrs={"axis": "-2"})], [[1, 0]]],
        "mirror": [
            [v("x", attrs={"force_mirroring": "1", "mirror_stage": "True"}), n("relu", zero, attrs={"x_mirror_stage": "1"})],
            [[1, 0]],
        ],
        "hidden_already": [[v("x", attrs={"__lr_mult__": "3", "__shape__": "(2, 3)"}), n("relu", zero)], [[1, 0]]],
        "control_deps": [[v("x"), n("relu", zero, control_deps=[0])], [[1, 0]]],
        "null_attr": [[v("x"), n("relu", [[0, 0, 0]], attrs={})], [[1, 0, 0]]],
        "bn_all_listed": [
            [*map(v, "xgbms"), n("BatchNorm", [[i, 0] for i in range(5)], attrs={"eps": "0.1"})],
            [[5, 0]],
        ],
        "prelu": [[v("x"), v("g"), n("LeakyReLU", [[0, 0], [1, 0]], attrs={"act_type": "prelu"})], [[2, 0]]],
        "up": [
            [v("x"), v("w"), n("UpSampling", [[0, 0], [1, 0]], attrs={
                "scale": "2", "sample_type": "bilinear", "num_args": "2"})],
            [[2, 0]],
        ],
        "unknown_attribute": [[v("x"), n("Activation", zero, attrs={"act_type": "relu", "later": "1"})], [[1, 0]]],
        "unknown_without_attributes": [[v("x"), n("relu", zero, attrs={"later": "1"})], [[1, 0]]],
        "later_engine_attributes": [
            [v("x"), v("w"), n("Convolution", [[0, 0], [1, 0]], attrs={
                "kernel": "(1, 1)", "num_filter": "2", "no_bias": "1",
                "cudnn_off": "0", "cudnn_tune": "off", "workspace": "256",
                "layout": "None"})],
            [[2, 0]],
        ],
    }  # fmt: skip
    return found


def read(mx: Any, nodes: Any, heads: Any, version: int | None) -> dict[str, Any]:
    """A file, and what MXNet reads."""
    graph = {"nodes": nodes, "arg_nodes": [], "heads": heads}
    graph |= {"attrs": {"mxnet_version": ["int", version]}} if version else {}
    case: dict[str, Any] = {"file": graph}
    try:
        net = mx.sym.load_json(json.dumps(graph))
        case |= {k: getattr(net, k)() for k in ("list_arguments", "list_auxiliary_states", "list_outputs", "attr_dict")}
        found = json.loads(net.tojson())["nodes"]
        case["nodes"] = [[i["op"], i["name"], i.get("attrs", {}), [e[:2] for e in i["inputs"]]] for i in found]
    except mx.base.MXNetError as error:
        case["refused"] = str(error).split("Stack trace")[0].strip().splitlines()[-1][:80]
    return case


def recorded(mx: Any) -> dict[str, Any]:
    """All files in all versions; equal results of neighbouring versions are kept once."""
    cases: list[dict[str, Any]] = []
    for name, (nodes, heads) in files().items():
        last = None
        for version in VERSIONS:  # each in a process of its own: MXNet crashes on some files
            case = apart(lambda: read(mx, nodes, heads, version)) or {"refused": "it crashes"}  # noqa: B023
            result = {k: v for k, v in case.items() if k != "file"}
            if result != last and "refused" not in result:
                cases.append({"name": f"{name}_{version}", **case})
            last = result
    source = "Graph files in the style of several versions as MXNet 1.9.1 reads them (tests/golden/cases/symbol_files.py)."
    return {"symbol_files.json": {"source": source, "cases": cases}}
