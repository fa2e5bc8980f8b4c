"""symbol.json: MXNet's graph files, written as 1.9 writes them and read from any 0.8 to 1.9 file of plain graphs.

Old files are brought up to date on the way in: operator attributes under `param` and user attributes under `attr` are
merged, two-element inputs are accepted, hidden keys get their underscores.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from jfit.formats.atomic import atomic_write
from jfit.ops import ALIASES, UnknownOperator, lookup
from jfit.symbol.graph import HIDDEN_KEYS, Entry, GraphError, Node, Symbol, topological

VERSION = 10901  # MXNet 1.9.1


def to_json(symbol: Symbol) -> str:
    """The graph as text in the layout of MXNet 1.9.1.

    Example:
        >>> import jfit, json
        >>> json.loads(jfit.sym.Variable("x").tojson())["nodes"]
        [{'op': 'null', 'name': 'x', 'inputs': []}]
    """
    order = topological(symbol.heads)
    number = {id(n): i for i, n in enumerate(order)}
    nodes, rows = [], [0]
    for node in order:
        record: dict[str, Any] = {"op": node.op.name if node.op else "null", "name": node.name}
        if node.attrs:
            record["attrs"] = dict(sorted(node.attrs.items()))
        first_aux = node.num_inputs
        # the third number counts how often an auxiliary state was written before; within one graph it is 1 for aux slots
        record["inputs"] = [[number[id(e.node)], e.index, int(i >= first_aux)] for i, e in enumerate(node.inputs)]
        nodes.append(record)
        rows.append(rows[-1] + (1 if node.op is None else len(node.op.output_names(node.params))))
    return json.dumps(
        {
            "nodes": nodes,
            "arg_nodes": [i for i, n in enumerate(order) if n.op is None],
            "node_row_ptr": rows,
            "heads": [[number[id(h.node)], h.index, 0] for h in symbol.heads],
            "attrs": {"mxnet_version": ["int", VERSION]},
        },
        indent=2,
    )


def save(symbol: Symbol, path: str | os.PathLike[str]) -> None:
    """Write symbol.json; the file is complete or untouched."""
    atomic_write(path, to_json(symbol))


def load(path: str | os.PathLike[str], cls: type[Symbol] = Symbol) -> Symbol:
    """Read a symbol.json file.

    Raises:
        GraphError: the file is no graph; the message names file, node and field.
    """
    try:
        return from_json(Path(path).read_text(encoding="utf-8"), cls)
    except UnicodeDecodeError as error:
        raise GraphError(f"{path}: not a symbol.json file: byte {error.start} is no UTF-8 text") from None
    except GraphError as error:
        raise GraphError(f"{path}: {error}") from None


def from_json(text: str, cls: type[Symbol] = Symbol) -> Symbol:
    """A Symbol from symbol.json text.

    Raises:
        GraphError: the text is no graph; the message names the node and the field.

    Example:
        >>> import jfit
        >>> x = jfit.sym.relu(jfit.sym.Variable("x"), name="r")
        >>> jfit.sym.load_json(x.tojson()).list_outputs()
        ['r_output']
    """
    try:
        graph = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise GraphError(f"symbol.json is not valid JSON: {error}") from None
    if not isinstance(graph, dict) or not isinstance(graph.get("nodes"), list) or not isinstance(graph.get("heads"), list):
        raise GraphError("symbol.json needs an object with the lists 'nodes' and 'heads'")
    nodes: list[Node] = []
    for number, record in enumerate(graph["nodes"]):
        nodes.append(_node(number, record, nodes))
    if not graph["heads"]:
        raise GraphError("symbol.json has no heads: the graph has no output")
    return cls(_entry(head, nodes, "heads", len(nodes)) for head in graph["heads"])


def _node(number: int, record: Any, nodes: list[Node]) -> Node:
    where = f"node {number}"
    if not isinstance(record, dict) or not isinstance(record.get("op"), str) or not isinstance(record.get("name"), str):
        raise GraphError(f"{where}: needs an object with the strings 'op' and 'name', found {str(record)[:80]!r}")
    where = f"node {number} ({record['name']!r})"
    attrs: dict[str, str] = {}
    for field in ("param", "attr", "attrs"):  # 0.8 to 0.11 split them
        part = record.get(field) or {}
        if not isinstance(part, dict) or not all(isinstance(v, str) for v in part.values()):
            raise GraphError(f"{where}: field {field!r} needs an object of strings")
        attrs.update(part)
    attrs = {(f"__{k}__" if k in HIDDEN_KEYS else k): v for k, v in attrs.items()}
    given = record.get("inputs", [])
    if not isinstance(given, list):
        raise GraphError(f"{where}: field 'inputs' needs a list")
    inputs = tuple(_entry(item, nodes, where, number) for item in given)
    if record["op"] == "null":
        return Node(None, record["name"], attrs)
    if record["op"] not in ALIASES:
        try:
            lookup(record["op"])
        except UnknownOperator as error:
            raise GraphError(f"{where}: {error}") from None
    op = lookup(record["op"])
    node = Node(op, record["name"], attrs, inputs)
    needed = node.input_names()
    if len(inputs) < len(needed) and len(needed) - len(inputs) <= len(op.aux):
        # files before 0.9 do not list auxiliary states
        made = [
            Entry(Node(None, f"{node.name}_{aux}", {"__init__": f'["{start}", {{}}]'}), 0)
            for aux, start in list(zip(op.aux, op.aux_init, strict=True))[len(inputs) - len(needed) :]
        ]
        node = Node(op, node.name, attrs, (*inputs, *made))
    if len(node.inputs) != len(needed):
        raise GraphError(f"{where}: {op.name} needs {len(needed)} inputs ({', '.join(needed)}), the file has {len(inputs)}")
    return node


def _entry(item: Any, nodes: list[Node], where: str, before: int) -> Entry:
    if not isinstance(item, list) or not 2 <= len(item) <= 3 or not all(type(v) is int for v in item):
        raise GraphError(f"{where}: an input is {str(item)[:60]!r}, needed [node, output] or [node, output, version]")
    at, index = item[0], item[1]
    if not 0 <= at < before:
        raise GraphError(f"{where}: refers to node {at}, but only the {before} earlier nodes may be used")
    node = nodes[at]
    count = 1 if node.op is None else len(node.op.output_names(node.params))
    if not 0 <= index < count:
        raise GraphError(f"{where}: refers to output {index} of {node.name!r}, which has {count}")
    return Entry(node, index)
