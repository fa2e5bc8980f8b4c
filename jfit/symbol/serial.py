"""symbol.json: MXNet's graph files, written as 1.9 writes them and read from any 0.8 to 1.9 file of plain graphs.

Old files are brought up to date on the way in: operator attributes under `param` and user attributes under `attr` are
merged, two-element inputs are accepted, hidden keys get their underscores, and `upgrade` does the rest.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from jfit.formats.atomic import atomic_write
from jfit.ops import UnknownOperator, lookup
from jfit.symbol.graph import Entry, GraphError, Node, Symbol, topological
from jfit.symbol.scopes import stored
from jfit.symbol.upgrade import VERSION, Record, is_reference, upgrade, version_of, without_amp_casts

COUNTS = ("num_outputs", "sections")  # attributes that say how many outputs an operator has
MOST_OUTPUTS = 100_000


def to_json(symbol: Symbol, remove_amp_cast: bool = True) -> str:
    """The graph as text in the layout of MXNet 1.9.1.

    Args:
        symbol: the graph.
        remove_amp_cast: leave out the casts that mixed precision put between the nodes, as MXNet does.

    Example:
        >>> import jfit, json
        >>> json.loads(jfit.sym.Variable("x").tojson())["nodes"]
        [{'op': 'null', 'name': 'x', 'inputs': []}]
    """
    heads = without_amp_casts(symbol.heads) if remove_amp_cast else symbol.heads
    order = topological(heads)
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
            "heads": [[number[id(h.node)], h.index, 0] for h in heads],
            "attrs": {"mxnet_version": ["int", VERSION]},
        },
        indent=2,
    )


def save(symbol: Symbol, path: str | os.PathLike[str], remove_amp_cast: bool = True) -> None:
    """Write symbol.json; the file is complete or untouched.

    Args:
        symbol: the graph.
        path: the file.
        remove_amp_cast: as in `to_json`.

    Example:
        >>> import jfit
        >>> from jfit.symbol.serial import load, save
        >>> save(jfit.sym.Variable("x"), "x-symbol.json")
        >>> load("x-symbol.json").name
        'x'
    """
    atomic_write(path, to_json(symbol, remove_amp_cast))


def load(path: str | os.PathLike[str], cls: type[Symbol] = Symbol) -> Symbol:
    """Read a symbol.json file.

    Args:
        path: the file.
        cls: the class of the result.

    Raises:
        GraphError: the file is no graph; the message names file, node and field.

    Example:
        >>> import jfit
        >>> jfit.sym.relu(jfit.sym.Variable("x"), name="r").save("relu-symbol.json")
        >>> jfit.sym.load("relu-symbol.json").list_outputs()
        ['r_output']
    """
    try:
        return from_json(Path(path).read_text(encoding="utf-8"), cls)
    except UnicodeDecodeError as error:
        raise GraphError(f"{path}: not a symbol.json file: byte {error.start} is no UTF-8 text") from None
    except GraphError as error:
        raise GraphError(f"{path}: {error}") from None


def from_json(text: str, cls: type[Symbol] = Symbol) -> Symbol:
    """A Symbol from symbol.json text.

    Args:
        text: the text.
        cls: the class of the result.

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
    except (ValueError, RecursionError, TypeError) as error:  # ValueError: also numbers of more digits than Python reads
        raise GraphError(f"symbol.json is not valid JSON: {error}") from None
    if not isinstance(graph, dict) or not isinstance(graph.get("nodes"), list) or not isinstance(graph.get("heads"), list):
        raise GraphError("symbol.json needs an object with the lists 'nodes' and 'heads'")
    records = [_record(number, item) for number, item in enumerate(graph["nodes"])]
    upgrade(records, version_of(graph))
    nodes: list[Node] = []
    for number, record in enumerate(records):
        nodes.append(_node(number, record, nodes))
    if not graph["heads"]:
        raise GraphError("symbol.json has no heads: the graph has no output")
    return cls([_entry(head, nodes, "heads", len(nodes)) for head in graph["heads"]])


def _record(number: int, item: Any) -> Record:
    if not isinstance(item, dict) or not isinstance(item.get("op"), str) or not isinstance(item.get("name"), str):
        raise GraphError(f"node {number}: needs an object with the strings 'op' and 'name', found {_short(item)}")
    where = f"node {number} ({item['name'][:80]!r})"
    attrs: dict[str, str] = {}
    for field in ("param", "attr", "attrs"):  # 0.8 to 0.11 split them
        part = item.get(field) or {}
        if not isinstance(part, dict) or not all(isinstance(v, str) for v in part.values()):
            raise GraphError(f"{where}: field {field!r} needs an object of strings, found {_short(part)}")
        attrs.update(part)
    given = item.get("inputs", [])
    if not isinstance(given, list):
        raise GraphError(f"{where}: field 'inputs' needs a list, found {_short(given)}")
    try:
        op = None if item["op"] == "null" else lookup(item["op"])
    except UnknownOperator as error:
        raise GraphError(f"{where}: {error}") from None
    return Record(where, op, item["name"], stored(attrs), given)


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # nested too deep, or a number of too many digits
        text = type(value).__name__
    return text if len(text) <= 80 else text[:80] + "..."


def _node(number: int, record: Record, nodes: list[Node]) -> Node:
    where, op, attrs = record.where, record.op, record.attrs
    inputs = tuple(_entry(item, nodes, where, number) for item in record.inputs)
    if op is None:
        return Node(None, record.name, attrs)
    if op.variadic is not None:  # files may leave the count out, and must not decide how many names are made
        count = attrs.setdefault(op.variadic, str(len(inputs)))
        if not count.isdigit() or int(count[:9]) != len(inputs):
            raise GraphError(f"{where}: {op.name} has {op.variadic}={count[:20]}, but the file gives it {len(inputs)} inputs")
    node = Node(op, record.name, attrs, inputs)
    big = [k for k, v in node.params.items() if k in COUNTS and isinstance(v, int) and v > MOST_OUTPUTS]
    if big:
        raise GraphError(f"{where}: {op.name} has {big[0]}={node.params[big[0]]}, the most is {MOST_OUTPUTS}")
    needed = node.input_names()
    missing = len(needed) - len(inputs)
    if 0 < missing <= len(op.aux):  # files before 0.9 do not list auxiliary states
        starts = list(zip(op.aux, op.aux_init, strict=True))[-missing:]
        made = [Entry(Node(None, f"{node.name}_{a}", attrs | {"__init__": f'["{s}", {{}}]'}), 0) for a, s in starts]
        node = Node(op, node.name, attrs, (*inputs, *made))
    if len(node.inputs) != len(needed):
        raise GraphError(f"{where}: {op.name} needs {len(needed)} inputs ({', '.join(needed)}), the file has {len(inputs)}")
    return node


def _entry(item: Any, nodes: list[Node], where: str, before: int) -> Entry:
    if not is_reference(item):
        raise GraphError(f"{where}: an input is {_short(item)}, needed [node, output] or [node, output, version]")
    at, index = item[0], item[1]
    if not 0 <= at < before:
        raise GraphError(f"{where}: refers to node {_short(at)}, but only the {before} earlier nodes may be used")
    node = nodes[at]
    count = 1 if node.op is None else len(node.op.output_names(node.params))
    if not 0 <= index < count:
        raise GraphError(f"{where}: refers to output {_short(index)} of {node.name!r}, which has {count}")
    return Entry(node, index)
