"""symbol.json: MXNet's graph files, written as 1.9 writes them and read from files of 0.7 to 1.9.

Old files are brought up to date on the way in: operator attributes under `param` and user attributes under `attr` are
merged, two-element inputs are accepted, hidden keys get their underscores, and `upgrade` does the rest.
"""

from __future__ import annotations

import json
import os
import reprlib
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from jfit.formats.atomic import FormatError, atomic_write
from jfit.graph.nodes import MOST_OUTPUTS, OUTPUT_COUNTS, Entry, G, Graph, GraphError, Node, stored, topological
from jfit.graph.upgrade import Record, upgrade
from jfit.ops import Op, UnknownOperator, record_for

VERSION = 10901  # MXNet 1.9.1
OLDEST = 800  # files without a version
LISTED = 900  # since then a file lists every input of a node
AMP = ("amp_cast", "amp_multicast")
# Names in files of the years before 0.9.3 that MXNet 1.9.1 no longer reads: operators that moved into `contrib`, and one that
# became an engine of another.
RENAMED = {name: f"_contrib_{name}" for name in ("MultiBoxPrior", "MultiBoxTarget", "MultiBoxDetection", "Proposal")}
RENAMED |= {"CuDNNBatchNorm": "BatchNorm"}
DEEPEST = 20  # loops within loops
_INSIDE = " >> "  # between the place of a node and a place in its body
LONGEST = 4096  # characters of a name
MOST_TEXT = 10_000_000  # characters of the names of all outputs
MOST_COPIES = 500_000  # attributes that the variables made for an old file get from their nodes
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
        >>> from jfit.graph.serial import GraphFileError
        >>> try:
        ...     jfit.sym.load_json("{")
        ... except GraphFileError as error:
        ...     print(error.where)
        line 1, column 2
    """


def to_json(graph: Graph, remove_amp_cast: bool = True) -> str:
    """The graph as text in the layout of MXNet 1.9.1.

    Args:
        graph: the graph.
        remove_amp_cast: leave out the casts that mixed precision put between the nodes, as MXNet does.

    Example:
        >>> import jfit, json
        >>> json.loads(jfit.sym.Variable("x").tojson())["nodes"]
        [{'op': 'null', 'name': 'x', 'inputs': []}]
    """
    heads = _without_amp_casts(graph.heads) if remove_amp_cast else graph.heads
    return json.dumps({**_written(heads), "attrs": {"mxnet_version": ["int", VERSION]}}, indent=2)


def _written(heads: Sequence[Entry]) -> dict[str, Any]:
    order = topological(heads)
    number = {id(n): i for i, n in enumerate(order)}
    nodes, rows = [], [0]
    for node in order:
        record: dict[str, Any] = {"op": node.op.name if node.op else "null", "name": node.name}
        if node.attrs:
            record["attrs"] = dict(sorted(node.attrs.items()))
        first_aux, states = node.num_inputs, {n for g in node.subgraphs for n in g.list_auxiliary_states()}
        # the third number counts how often an auxiliary state was written before; within one graph it is 1 for aux slots
        listed = [
            [number[id(e.node)], e.index, int(i >= first_aux or e.node.name in states)] for i, e in enumerate(node.inputs)
        ]
        at = node.op.aux_at if node.op and node.op.aux_at is not None else first_aux
        record["inputs"] = [*listed[:at], *listed[first_aux:], *listed[at:first_aux]]
        if node.subgraphs:
            record["subgraphs"] = [_written(g.heads) for g in node.subgraphs]
        nodes.append(record)
        rows.append(rows[-1] + (1 if node.op is None else len(node.op.output_names(node.params))))
    return {
        "nodes": nodes,
        "arg_nodes": [i for i, n in enumerate(order) if n.op is None],
        "node_row_ptr": rows,
        "heads": [[number[id(h.node)], h.index, 0] for h in heads],
    }


def _without_amp_casts(heads: Sequence[Entry]) -> tuple[Entry, ...]:
    """The graph with what mixed precision put between its nodes left out; a cast that is itself an output stays.

    Example:
        >>> import jfit
        >>> net = jfit.sym.relu(jfit.sym.amp_cast(jfit.sym.Variable("x"), dtype="float16"), name="r")
        >>> topological(_without_amp_casts(net.heads))
        [<Variable x>, <relu r>]
    """
    order = topological(heads)
    if not any(node.op and node.op.name in AMP for node in order):
        return tuple(heads)
    made: dict[int, Node] = {}
    around: dict[int, tuple[Entry, ...]] = {}  # inputs of a cast, themselves led around earlier casts
    for node in order:
        inputs = tuple(
            around[id(e.node)][e.index] if id(e.node) in around else Entry(made[id(e.node)], e.index) for e in node.inputs
        )
        made[id(node)] = node.rebuilt(inputs)
        if node.op and node.op.name in AMP:
            around[id(node)] = inputs
    return tuple(Entry(made[id(head.node)], head.index) for head in heads)


def save(graph: Graph, path: str | os.PathLike[str], remove_amp_cast: bool = True) -> None:
    """Write symbol.json; the file is complete or untouched.

    Args:
        graph: the graph.
        path: the file.
        remove_amp_cast: as in `to_json`.

    Example:
        >>> import jfit
        >>> from jfit.graph.serial import save
        >>> save(jfit.sym.Variable("x"), "x-symbol.json")
        >>> jfit.sym.load("x-symbol.json").name
        'x'
    """
    atomic_write(path, to_json(graph, remove_amp_cast))


def load(path: str | os.PathLike[str], cls: type[G]) -> G:
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
        return _read(Path(path).read_bytes().decode("utf-8"), cls)
    except UnicodeDecodeError as error:
        raise GraphFileError(path, f"byte {error.start}", "this is no UTF-8 text", _REMEDY) from None
    except GraphFileError as error:
        raise GraphFileError(path, error.where, error.problem, error.remedy) from None


def load_json(text: str, cls: type[G]) -> G:
    """A graph from symbol.json text.

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
    return _read(text, cls)


def _read(text: str, cls: type[G]) -> G:
    graph = _json(text)
    ignored: Counter[tuple[str, str]] = Counter()
    read = _graph(graph, _version_of(graph) if isinstance(graph, dict) else 0, ignored, cls)
    if ignored:
        named = ", ".join(f"{key[:40]!r} of {op} ({count} nodes)" for (op, key), count in list(ignored.items())[:10])
        warnings.warn(
            f"the graph has attributes that jfit's operators do not have, which are kept but do nothing: {named}; if they "
            "change what the operator computes, results will differ",
            stacklevel=4,  # the caller of the public load or load_json
        )
    return read


def _version_of(graph: dict[str, Any]) -> int:
    """Version of a graph file; 0.8 where it says none.

    Example:
        >>> _version_of({"attrs": {"mxnet_version": ["int", 10500]}}), _version_of({})
        (10500, 800)
    """
    top = graph.get("attrs")
    found = top.get("mxnet_version") if isinstance(top, dict) else None
    value = found[1] if isinstance(found, list) and len(found) == 2 else found
    return value if type(value) is int and value > 0 else OLDEST


def _graph(graph: Any, version: int, ignored: Counter[tuple[str, str]], cls: type[G], at: str = "") -> G:
    """A graph, or (`at` says where) the body of a loop or branch in it."""
    for field in ("nodes", "heads"):
        if not isinstance(graph, dict) or not isinstance(graph.get(field), list):
            _fail(f"{at}top level", "needed an object with the lists 'nodes' and 'heads'")
    if at.count(_INSIDE) > DEEPEST:
        _fail(at[:80], f"graphs lie in each other more than {DEEPEST} deep")
    reader = _Reader(version, ignored)
    records = [_record(number, item, at) for number, item in enumerate(graph["nodes"])]
    records = [r._replace(subgraphs=_bodies(i, r, version, ignored)) for i, r in zip(graph["nodes"], records, strict=True)]
    if version < VERSION:
        upgrade(records, version)
    for record in records:
        reader.add(record)
    if not graph["heads"]:
        _fail(f"{at}field 'heads'", "it is empty: the graph has no output")
    for head in graph["heads"]:
        _check_reference(head, f"{at}field 'heads'")
    heads = [reader.entry(head, f"{at}field 'heads'") for head in graph["heads"]]
    if sum(len(head.node.name) for head in heads) > MOST_TEXT:
        _fail(f"{at}field 'heads'", f"the names of its {len(heads)} outputs have more than {MOST_TEXT} characters")
    return cls(heads)


def _bodies(item: dict[str, Any], record: Record, version: int, ignored: Counter[tuple[str, str]]) -> tuple[Graph, ...]:
    """The graphs inside a node of control flow."""
    given, names = item.get("subgraphs") or [], record.op.graphs if record.op else ()
    if not isinstance(given, list) or len(given) != len(names):
        found = len(given) if isinstance(given, list) else _short(given)
        _fail(f"{record.where}, field 'subgraphs'", f"needs a list of {len(names)} graphs, found {found}")
    return tuple(
        [_graph(g, version, ignored, Graph, f"{record.where} {n}{_INSIDE}") for g, n in zip(given, names, strict=True)]
    )


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


def _record(number: int, item: Any, at: str) -> Record:
    if not isinstance(item, dict) or not isinstance(item.get("op"), str) or not isinstance(item.get("name"), str):
        _fail(f"{at}node {number}", f"needs an object with the strings 'op' and 'name', found {_short(item)}")
    where = f"{at}node {number} ({item['name'][:80]!r})"
    if len(item["name"]) > LONGEST:
        _fail(where, f"the name has {len(item['name'])} characters, the most is {LONGEST}")
    attrs: dict[str, str] = {}
    for field in ("param", "attr", "attrs"):  # 0.8 to 0.11 split them
        part = item.get(field) or {}
        if not isinstance(part, dict) or not all(isinstance(v, str) for v in part.values()):
            _fail(f"{where}, field {field!r}", f"needs an object of strings, found {_short(part)}")
        attrs.update(part)
    given = item.get("inputs", [])
    if not isinstance(given, list):
        _fail(f"{where}, field 'inputs'", f"needs a list, found {_short(given)}")
    for reference in given:
        _check_reference(reference, where)
    for text in (item["name"], *attrs, *attrs.values()):
        if not text.isascii() and any("\ud800" <= c <= "\udfff" for c in text):
            _fail(where, f"{_short(text)} holds half a character (a lone surrogate)")
    op = _operator(item["op"], attrs, where)
    for key in OUTPUT_COUNTS if op else ():
        _check_count(op, key, attrs, where)
    return Record(where, op, item["name"], stored(attrs), given)


def _check_reference(item: Any, where: str) -> None:
    if not isinstance(item, list) or not 2 <= len(item) <= 3 or not all(type(v) is int for v in item):
        _fail(where, f"an input is {_short(item)}, needed [node, output] or [node, output, version]")


def _check_count(op: Any, key: str, attrs: dict[str, str], where: str) -> None:
    """Refuses an attribute that would make a list of a billion names, before anything asks for the names."""
    if key not in op.attrs or key not in attrs or key == op.variadic:
        return
    try:
        value = op.attrs[key].read(op.name, key, attrs[key])
    except ValueError:
        return  # whoever makes the node says so
    if isinstance(value, int) and value > MOST_OUTPUTS:
        _fail(where, f"{op.name} has {key}={value}, the most is {MOST_OUTPUTS}")


def _operator(name: str, attrs: dict[str, str], where: str) -> Op | None:
    try:
        return None if name == "null" else record_for(RENAMED.get(name, name[:200]), attrs)
    except UnknownOperator as error:
        return _fail(f"{where}, field 'op'", str(error).rstrip("."), "jfit.ops lists what there is.")
    except ValueError as error:
        return _fail(where, str(error).rstrip("."))


def _short(value: Any) -> str:
    try:
        text = reprlib.repr(value)
    except (RecursionError, ValueError):  # nested too deep, or a number of too many digits
        text = type(value).__name__
    return text if len(text) <= 80 else text[:80] + "..."


class _Reader:
    """Makes nodes of records, one after another: an input is an earlier node, so no file can describe a cycle."""

    def __init__(self, version: int, ignored: Counter[tuple[str, str]]) -> None:
        self.version = version
        self.ignored = ignored  # (operator, attribute) -> nodes
        self.nodes: list[Node] = []
        self.counts: list[int] = []  # outputs of each node
        self.outputs = self.copies = 0

    def add(self, record: Record) -> None:
        """The next node of the file."""
        where, op, attrs = record.where, record.op, record.attrs
        inputs = tuple([self.entry(item, where) for item in record.inputs])
        if op is None:
            self.nodes.append(Node(None, record.name, attrs))
            self.counts.append(1)
            return
        if op.aux_at is not None:
            at, end = op.aux_at, op.aux_at + len(op.aux)
            inputs = (*inputs[:at], *inputs[end:], *inputs[at:end])
        if op.variadic is not None:  # files may leave the count out, and must not decide how many names are made
            total = len(inputs) + len(op.graphs)
            count = attrs.setdefault(op.variadic, str(total))
            if not count.isdigit() or int(count[:9]) != total:
                _fail(where, f"{op.name} has {op.variadic}={count[:20]}, but the file gives it {total} inputs")
        try:
            node = Node(op, record.name, attrs, inputs, record.subgraphs)
        except GraphError as error:
            _fail(where, str(error).removeprefix(f"node {record.name!r}: ").rstrip("."))
        self._count_outputs(node, where)
        self.nodes.append(self._completed(node, where))
        self._note_unknown(op, attrs)

    def _count_outputs(self, node: Node, where: str) -> None:
        assert node.op is not None
        try:
            count = len(node.op.output_names(node.params))
            node.input_names()
        except (ValueError, TypeError, IndexError, ZeroDivisionError) as error:
            _fail(where, f"{node.op.name}: its attributes do not say its inputs and outputs ({str(error)[:200]})")
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
            self.copies += len(missing) * len(node.attrs)
            if self.copies > MOST_COPIES:
                _fail(where, f"variables that the file leaves out would repeat more than {MOST_COPIES} attributes")
            starts = dict(zip(op.aux, op.aux_init, strict=True))
            init = {name: {"__init__": f'["{starts[name]}", {{}}]'} if name in starts else {} for name in missing}
            made = [Entry(Node(None, f"{node.name}_{name}", {**node.attrs, **init[name]}), 0) for name in missing]
            node = node.rebuilt((*node.inputs, *made))
        if len(node.inputs) != len(needed):
            names = _short(", ".join(needed))[1:-1]
            _fail(where, f"{op.name} needs {len(needed)} inputs ({names}), the file has {len(node.inputs)}")
        return node

    def _note_unknown(self, op: Op, attrs: dict[str, str]) -> None:
        if op.attrs:  # MXNet, too, lets an operator without attributes have any
            for key in attrs.keys() - op.attrs.keys():
                if not (key.startswith("__") or key.endswith("_mult")):
                    self.ignored[op.name, key] += 1

    def entry(self, item: list[int], where: str) -> Entry:
        """The output of an earlier node that a reference of the file means."""
        at, index = item[0], item[1]
        if not 0 <= at < len(self.nodes):
            _fail(where, f"refers to node {_short(at)}, but only the {len(self.nodes)} earlier nodes may be used")
        if not 0 <= index < self.counts[at]:
            node = self.nodes[at]
            _fail(where, f"refers to output {_short(index)} of {node.name[:80]!r}, which has {self.counts[at]}")
        return Entry(self.nodes[at], index)
