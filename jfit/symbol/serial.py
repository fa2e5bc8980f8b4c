"""symbol.json: MXNet's graph files, written as 1.9 writes them and read from files of 0.7 to 1.9.

Old files are brought up to date on the way in: operator attributes under `param` and user attributes under `attr` are
merged, two-element inputs are accepted, hidden keys get their underscores, and `upgrade` does the rest.
"""

from __future__ import annotations

import json
import os
import reprlib
import warnings
from pathlib import Path
from typing import Any, NoReturn

from jfit.formats.atomic import FormatError, atomic_write
from jfit.ops import Op, UnknownOperator, lookup
from jfit.symbol.graph import Entry, GraphError, Node, Symbol, topological
from jfit.symbol.scopes import stored
from jfit.symbol.upgrade import LISTED, RENAMED, VERSION, Record, is_reference, upgrade, version_of, without_amp_casts

# Attributes that say how many outputs an operator has: read before anything is made of them.
COUNTS = ("num_outputs", "sections", "num_out_data", "num_weights", "num_arrays", "num_tensors")
MOST_OUTPUTS = 100_000  # of all nodes together
_TEXT = "symbol.json"  # what a graph that comes as text is called
_REMEDY = "the file is damaged or no symbol.json: restore it from another copy, or save the graph again."


class GraphFileError(FormatError, GraphError):
    """A file that is no graph: names the file, the place in it, and what was found and needed there.

    Args:
        path: the file, or `symbol.json` where the graph came as text.
        where: line and column, or node and field.
        problem: found and needed.
        remedy: what to do about it.

    Example:
        >>> import jfit
        >>> from jfit.symbol.serial import GraphFileError
        >>> try:
        ...     jfit.sym.load_json("{")
        ... except GraphFileError as error:
        ...     print(error.where)
        line 1, column 2
    """


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
        GraphFileError: the file is no graph; the message names file, node and field.  (A FormatError and a GraphError.)

    Example:
        >>> import jfit
        >>> jfit.sym.relu(jfit.sym.Variable("x"), name="r").save("relu-symbol.json")
        >>> jfit.sym.load("relu-symbol.json").list_outputs()
        ['r_output']
    """
    try:
        return from_json(Path(path).read_bytes().decode("utf-8"), cls)
    except UnicodeDecodeError as error:
        raise GraphFileError(path, f"byte {error.start}", "this is no UTF-8 text", _REMEDY) from None
    except GraphFileError as error:
        raise GraphFileError(path, error.where, error.problem, error.remedy) from None


def from_json(text: str, cls: type[Symbol] = Symbol) -> Symbol:
    """A Symbol from symbol.json text.

    Args:
        text: the text.
        cls: the class of the result.

    Raises:
        GraphFileError: the text is no graph; the message names the node and the field.

    Example:
        >>> import jfit
        >>> x = jfit.sym.relu(jfit.sym.Variable("x"), name="r")
        >>> jfit.sym.load_json(x.tojson()).list_outputs()
        ['r_output']
    """
    graph = _json(text)
    for field in ("nodes", "heads"):
        if not isinstance(graph, dict) or not isinstance(graph.get(field), list):
            _fail("top level", "needed an object with the lists 'nodes' and 'heads'")
    records = [_record(number, item) for number, item in enumerate(graph["nodes"])]
    version = version_of(graph)
    upgrade(records, version)
    reader = _Reader(version)
    for record in records:
        reader.add(record)
    if not graph["heads"]:
        _fail("field 'heads'", "it is empty: the graph has no output")
    heads = [reader.entry(head, "field 'heads'") for head in graph["heads"]]
    reader.warn()
    return cls(heads)


def _fail(where: str, problem: str, remedy: str = _REMEDY) -> NoReturn:
    raise GraphFileError(_TEXT, where, problem, remedy) from None


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        return _fail(f"line {error.lineno}, column {error.colno}", f"not valid JSON ({error.msg})")
    except RecursionError:
        return _fail("top level", "not valid JSON for a graph (nested too deep)")
    except (ValueError, TypeError) as error:  # numbers of more digits than Python reads, or no text at all
        return _fail("top level", f"not valid JSON ({_short(str(error))})")


def _record(number: int, item: Any) -> Record:
    if not isinstance(item, dict) or not isinstance(item.get("op"), str) or not isinstance(item.get("name"), str):
        _fail(f"node {number}", f"needs an object with the strings 'op' and 'name', found {_short(item)}")
    where = f"node {number} ({item['name'][:80]!r})"
    attrs: dict[str, str] = {}
    for field in ("param", "attr", "attrs"):  # 0.8 to 0.11 split them
        part = item.get(field) or {}
        if not isinstance(part, dict) or not all(isinstance(v, str) for v in part.values()):
            _fail(f"{where}, field {field!r}", f"needs an object of strings, found {_short(part)}")
        attrs.update(part)
    given = item.get("inputs", [])
    if not isinstance(given, list):
        _fail(f"{where}, field 'inputs'", f"needs a list, found {_short(given)}")
    for text in (item["name"], *attrs, *attrs.values()):
        if not text.isascii() and any("\ud800" <= c <= "\udfff" for c in text):
            _fail(where, f"{_short(text)} holds half a character (a lone surrogate)")
    return Record(where, _operator(item["op"], where), item["name"], stored(attrs), given)


def _operator(name: str, where: str) -> Op | None:
    try:
        return None if name == "null" else lookup(RENAMED.get(name, name[:200]))
    except UnknownOperator as error:
        return _fail(f"{where}, field 'op'", str(error).rstrip("."), "jfit.ops lists what there is.")


def _short(value: Any) -> str:
    try:
        text = reprlib.repr(value)
    except (RecursionError, ValueError):  # nested too deep, or a number of too many digits
        text = type(value).__name__
    return text if len(text) <= 80 else text[:80] + "..."


class _Reader:
    """Makes nodes of records, one after another: an input is an earlier node, so no file can describe a cycle."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.nodes: list[Node] = []
        self.counts: list[int] = []  # outputs of each node
        self.outputs = 0
        self.ignored: dict[tuple[str, str], int] = {}  # (operator, attribute) -> nodes

    def add(self, record: Record) -> None:
        """The next node of the file."""
        where, op, attrs = record.where, record.op, record.attrs
        inputs = tuple([self.entry(item, where) for item in record.inputs])
        if op is None:
            self.nodes.append(Node(None, record.name, attrs))
            self.counts.append(1)
            return
        if op.variadic is not None:  # files may leave the count out, and must not decide how many names are made
            count = attrs.setdefault(op.variadic, str(len(inputs)))
            if not count.isdigit() or int(count[:9]) != len(inputs):
                _fail(where, f"{op.name} has {op.variadic}={count[:20]}, but the file gives it {len(inputs)} inputs")
        try:
            node = Node(op, record.name, attrs, inputs)
        except GraphError as error:
            _fail(where, str(error).removeprefix(f"node {record.name!r}: ").rstrip("."))
        self._check_count(node, where)
        self.nodes.append(self._completed(node, where))
        self._note_unknown(op, attrs)

    def _check_count(self, node: Node, where: str) -> None:
        """The number of outputs, which a few bytes of a file can make huge."""
        assert node.op is not None
        for key in COUNTS:
            value = node.params.get(key, 0)
            if isinstance(value, int) and value > MOST_OUTPUTS:
                _fail(where, f"{node.op.name} has {key}={value}, the most is {MOST_OUTPUTS}")
        try:
            count = len(node.op.output_names(node.params))
        except (ValueError, TypeError, IndexError, ZeroDivisionError) as error:
            _fail(where, f"{node.op.name}: its attributes do not say its outputs ({_short(str(error))})")
        self.outputs += count
        if self.outputs > MOST_OUTPUTS + len(self.nodes):
            _fail(where, f"the graph has more than {MOST_OUTPUTS} outputs")
        self.counts.append(count)

    def _completed(self, node: Node, where: str) -> Node:
        """The node with the variables that the file does not list: auxiliary states, and before 0.9 any last inputs."""
        op = node.op
        assert op is not None
        needed = node.input_names()
        missing = needed[len(node.inputs) :]
        if missing and (len(missing) <= len(op.aux) or self.version < LISTED):
            starts = dict(zip(op.aux, op.aux_init, strict=True))
            init = {name: {"__init__": f'["{starts[name]}", {{}}]'} if name in starts else {} for name in missing}
            made = [Entry(Node(None, f"{node.name}_{name}", {**node.attrs, **init[name]}), 0) for name in missing]
            node = Node(op, node.name, node.attrs, (*node.inputs, *made))
        if len(node.inputs) != len(needed):
            names = _short(", ".join(needed))[1:-1]
            _fail(where, f"{op.name} needs {len(needed)} inputs ({names}), the file has {len(node.inputs)}")
        return node

    def _note_unknown(self, op: Op, attrs: dict[str, str]) -> None:
        if op.attrs:  # MXNet, too, lets an operator without attributes have any
            for key in attrs.keys() - op.attrs.keys():
                if not (key.startswith("__") or key.endswith("_mult")):
                    self.ignored[op.name, key] = self.ignored.get((op.name, key), 0) + 1

    def warn(self) -> None:
        """Says once what of the file was not understood."""
        if self.ignored:
            named = ", ".join(f"{key[:40]!r} of {op} ({count} nodes)" for (op, key), count in list(self.ignored.items())[:10])
            warnings.warn(
                f"the graph has attributes that jfit's operators do not have, which are kept but do nothing: {named}; if they "
                "change what the operator computes, results will differ",
                stacklevel=4,
            )

    def entry(self, item: Any, where: str) -> Entry:
        """The output of an earlier node that a reference of the file means."""
        if not is_reference(item):
            _fail(where, f"an input is {_short(item)}, needed [node, output] or [node, output, version]")
        at, index = item[0], item[1]
        if not 0 <= at < len(self.nodes):
            _fail(where, f"refers to node {_short(at)}, but only the {len(self.nodes)} earlier nodes may be used")
        if not 0 <= index < self.counts[at]:
            node = self.nodes[at]
            _fail(where, f"refers to output {_short(index)} of {node.name[:80]!r}, which has {self.counts[at]}")
        return Entry(self.nodes[at], index)
