"""symbol.json, MXNet's graph files: write the format of MXNet 1.9, read the formats of 0.7 to 1.9.

Old files are upgraded while they are read: operator attributes in the field `param` and user attributes in `attr` are merged,
inputs of two elements instead of three are accepted, `lr_mult` and similar keys become `__lr_mult__`, and `upgrade` applies
the other changes of MXNet 1.9.1.
"""

from __future__ import annotations

import json
import os
import reprlib
import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any, NoReturn

from jfit.formats.atomic import FormatError, atomic_write, read_file
from jfit.graph.nodes import Entry, G, Graph, GraphError, Node, topological, underscored
from jfit.graph.upgrade import Record, upgrade
from jfit.ops import Op, UnknownOperator, record_for

VERSION = 10901  # MXNet 1.9.1
DEFAULT_VERSION = 800  # of files without a version
ALL_INPUTS_LISTED = 900  # from this version on, a file lists every input of a node
AMP = ("amp_cast", "amp_multicast")
# Operator names in files from before 0.9.3 that MXNet 1.9.1 no longer reads: four operators were moved to `contrib`, and
# CuDNNBatchNorm became an implementation of BatchNorm.
RENAMED = {name: f"_contrib_{name}" for name in ("MultiBoxPrior", "MultiBoxTarget", "MultiBoxDetection", "Proposal")}
RENAMED |= {"CuDNNBatchNorm": "BatchNorm"}
# Limits, so that a damaged or malicious file cannot exhaust the memory
MAX_NESTING = 20  # loops within loops
MAX_NAME = 4096  # characters of a name
# The fields that MXNet's versions 0.7 to 1.9 write and accept; another one is a damaged name, whose value would be lost.
NODE_FIELDS = frozenset(["op", "name", "inputs", "attrs", "attr", "param", "control_deps", "subgraphs", "backward_source_id"])
# attributes that set the number of outputs of an operator; they are checked before lists of that length are created
OUTPUT_COUNTS = ("num_outputs", "sections", "num_out_data", "num_weights", "num_arrays", "num_tensors")
MAX_OUTPUTS = 100_000
MAX_OUTPUT_NAMES = 10_000_000  # characters of the names of all outputs
MAX_COPIED_ATTRS = 500_000  # attributes copied from nodes of an old file to the variables created for their missing inputs
_INSIDE = " >> "  # in error messages, separates a node from a place in its subgraph
_TEXT = "symbol.json"  # path in error messages if the graph was read from text
_REMEDY = "the file is damaged or not a symbol.json: restore it from another copy, or save the graph again."


class GraphFileError(FormatError, GraphError):
    """Raised if a file or text is not a valid graph; the message has the file, the place in it and the problem.

    Args:
        path: the file, or `symbol.json` if the graph was read from text.
        where: line and column, or node and field.
        problem: what is wrong there.
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
    """Serialize a graph to symbol.json text in the format of MXNet 1.9.1.

    Args:
        graph: the graph.
        remove_amp_cast: remove `amp_cast` and `amp_multicast` nodes, which MXNet's mixed precision inserts; MXNet's default.

    Returns:
        The JSON text.

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
        # The third number is MXNet's version: the number of earlier writes to the variable, 1 if it is an auxiliary state.
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
    """Remove `amp_cast` and `amp_multicast` nodes, except those that are outputs of the graph.

    Example:
        >>> import jfit
        >>> net = jfit.sym.relu(jfit.sym.amp_cast(jfit.sym.Variable("x"), dtype="float16"), name="r")
        >>> topological(_without_amp_casts(net.heads))
        [<Variable x>, <relu r>]
    """
    order = topological(heads)
    if not any(node.op and node.op.name in AMP for node in order):
        return tuple(heads)
    rebuilt: dict[int, Node] = {}
    bypass: dict[int, tuple[Entry, ...]] = {}  # id of a cast -> its inputs, which replace its outputs
    for node in order:
        inputs = tuple(
            bypass[id(e.node)][e.index] if id(e.node) in bypass else Entry(rebuilt[id(e.node)], e.index) for e in node.inputs
        )
        rebuilt[id(node)] = node.rebuilt(inputs)
        if node.op and node.op.name in AMP:
            bypass[id(node)] = inputs
    return tuple(Entry(rebuilt[id(head.node)], head.index) for head in heads)


def save(graph: Graph, path: str | os.PathLike[str], remove_amp_cast: bool = True) -> None:
    """Write a graph to a symbol.json file; the file is replaced atomically.

    Args:
        graph: the graph.
        path: path of the file.
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
    """Read a graph from a symbol.json file, as written by jfit or by MXNet 0.7 to 1.9.

    Args:
        path: path of the file.
        cls: class of the result.

    Returns:
        The graph.

    Raises:
        GraphFileError: the file is not a valid graph; the message has the file, node and field.  It is both a FormatError and
            a GraphError.
        OSError: the file cannot be read.

    Example:
        >>> import jfit
        >>> jfit.sym.relu(jfit.sym.Variable("x"), name="r").save("relu-symbol.json")
        >>> jfit.sym.load("relu-symbol.json").list_outputs()
        ['r_output']
    """
    try:
        return _read(read_file(path), cls)
    except GraphFileError as error:
        raise GraphFileError(path, error.where, error.problem, error.remedy) from None


def load_json(text: str, cls: type[G]) -> G:
    """Read a graph from symbol.json text, as written by jfit or by MXNet 0.7 to 1.9.

    Args:
        text: the JSON text.
        cls: class of the result.

    Returns:
        The graph.

    Raises:
        GraphFileError: the text is not a valid graph; the message has the node and the field.

    Example:
        >>> import jfit
        >>> x = jfit.sym.relu(jfit.sym.Variable("x"), name="r")
        >>> jfit.sym.load_json(x.tojson()).list_outputs()
        ['r_output']
    """
    return _read(text, cls)


def _read(text: str | bytes, cls: type[G]) -> G:
    data = _json(text)
    ignored: Counter[tuple[str, str]] = Counter()
    graph = _graph(data, _version_of(data) if isinstance(data, dict) else 0, ignored, cls)
    if ignored:
        named = ", ".join(f"{key[:40]!r} of {op} ({count} nodes)" for (op, key), count in list(ignored.items())[:10])
        warnings.warn(
            f"attributes that jfit's operators do not have are kept but have no effect, so results may differ: {named}",
            stacklevel=4,  # the caller of the public load or load_json
        )
    return graph


def _version_of(graph: dict[str, Any]) -> int:
    """Return the MXNet version that wrote a graph, such as 10901 for 1.9.1; `DEFAULT_VERSION` if the file has none.

    Example:
        >>> _version_of({"attrs": {"mxnet_version": ["int", 10500]}}), _version_of({})
        (10500, 800)
    """
    top = graph.get("attrs")
    field = top.get("mxnet_version") if isinstance(top, dict) else None
    value = field[1] if isinstance(field, list) and len(field) == 2 else field
    return value if type(value) is int and value > 0 else DEFAULT_VERSION


def _graph(graph: Any, version: int, ignored: Counter[tuple[str, str]], cls: type[G], at: str = "") -> G:
    """Build a graph from parsed JSON.

    version: MXNet version of the file.  ignored: counts nodes by (operator, unknown attribute).  cls: class of the graph.  at:
    place of a subgraph in the file, for error messages; "" for the whole graph.
    """
    for field in ("nodes", "heads"):
        if not isinstance(graph, dict) or not isinstance(graph.get(field), list):
            _fail(f"{at}top level", "expected an object with the lists 'nodes' and 'heads'")
    if at.count(_INSIDE) > MAX_NESTING:
        _fail(at[:80], f"subgraphs are nested more than {MAX_NESTING} deep")
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
    if sum(len(head.node.name) for head in heads) > MAX_OUTPUT_NAMES:
        _fail(f"{at}field 'heads'", f"the names of its {len(heads)} outputs have more than {MAX_OUTPUT_NAMES} characters")
    return cls(heads)


def _bodies(item: dict[str, Any], record: Record, version: int, ignored: Counter[tuple[str, str]]) -> tuple[Graph, ...]:
    """Build the subgraphs of a loop or branch node from its JSON object `item`."""
    graphs, names = item.get("subgraphs") or [], record.op.graphs if record.op else ()
    if not isinstance(graphs, list) or len(graphs) != len(names):
        actual = len(graphs) if isinstance(graphs, list) else _short(graphs)
        _fail(f"{record.where}, field 'subgraphs'", f"expected a list of {len(names)} graphs, found {actual}")
    return tuple(
        [_graph(g, version, ignored, Graph, f"{record.where} {n}{_INSIDE}") for g, n in zip(graphs, names, strict=True)]
    )


def _fail(where: str, problem: str, remedy: str = _REMEDY) -> NoReturn:
    raise GraphFileError(_TEXT, where, problem, remedy) from None


def _json(text: str | bytes) -> Any:
    try:
        return json.loads(text.decode() if isinstance(text, bytes) else text)
    except json.JSONDecodeError as error:
        return _fail(f"line {error.lineno}, column {error.colno}", f"not valid JSON ({error.msg})")
    except RecursionError:
        return _fail("top level", "not valid JSON for a graph (nested too deep)")
    except (ValueError, TypeError) as error:  # a number with more digits than Python parses, or an argument that is not text
        return _fail("top level", f"not valid JSON ({_short(str(error))})")


def _record(number: int, item: Any, at: str) -> Record:
    if not isinstance(item, dict) or not isinstance(item.get("op"), str) or not isinstance(item.get("name"), str):
        _fail(f"{at}node {number}", f"expected an object with the strings 'op' and 'name', found {_short(item)}")
    where = f"{at}node {number} ({item['name'][:80]!r})"
    for field in sorted(item.keys() - NODE_FIELDS):
        _fail(f"{where}, field {_short(field)}", "a node has no such field, neither in jfit nor in MXNet")
    if len(item["name"]) > MAX_NAME:
        _fail(where, f"the name has {len(item['name'])} characters, the maximum is {MAX_NAME}")
    attrs: dict[str, str] = {}
    for field in ("param", "attr", "attrs"):  # versions 0.8 to 0.11 have operator and user attributes in two fields
        part = item.get(field) or {}
        if not isinstance(part, dict) or not all(isinstance(v, str) for v in part.values()):
            _fail(f"{where}, field {field!r}", f"expected an object of strings, found {_short(part)}")
        attrs.update(part)
    inputs = item.get("inputs", [])
    if not isinstance(inputs, list):
        _fail(f"{where}, field 'inputs'", f"expected a list, found {_short(inputs)}")
    for reference in inputs:
        _check_reference(reference, where)
    for text in (item["name"], *attrs, *attrs.values()):
        if not text.isascii() and any("\ud800" <= c <= "\udfff" for c in text):
            _fail(where, f"{_short(text)} contains a lone surrogate, which is not a character")
    op = _operator(item["op"], attrs, where)
    for key in OUTPUT_COUNTS if op else ():
        _check_count(op, key, attrs, where)
    return Record(where, op, item["name"], underscored(attrs), inputs)


def _check_reference(item: Any, where: str) -> None:
    if not isinstance(item, list) or not 2 <= len(item) <= 3 or not all(type(v) is int for v in item):
        _fail(where, f"an input is {_short(item)}, expected [node, output] or [node, output, version]")


def _check_count(op: Any, key: str, attrs: dict[str, str], where: str) -> None:
    """Raise if the attribute `key` demands more than MAX_OUTPUTS outputs, before a list of their names is created."""
    if key not in op.attrs or key not in attrs or key == op.variadic:
        return
    try:
        value = op.attrs[key].read(op.name, key, attrs[key])
    except ValueError:
        return  # an invalid value: creating the node raises the error
    if isinstance(value, int) and value > MAX_OUTPUTS:
        _fail(where, f"{op.name} has {key}={value}, the maximum is {MAX_OUTPUTS}")


def _operator(name: str, attrs: dict[str, str], where: str) -> Op | None:
    try:
        return None if name == "null" else record_for(RENAMED.get(name, name[:200]), attrs)
    except UnknownOperator as error:
        return _fail(f"{where}, field 'op'", str(error).rstrip("."), "docs/operators.md lists the supported operators.")
    except ValueError as error:
        return _fail(where, str(error).rstrip("."))


def _short(value: Any) -> str:
    try:
        text = reprlib.repr(value)
    except (RecursionError, ValueError):  # nested too deep, or a number of too many digits
        text = type(value).__name__
    return text if len(text) <= 80 else text[:80] + "..."


class _Reader:
    """Create the nodes of a graph from the records of a file, in file order; inputs must be earlier nodes (no cycles)."""

    def __init__(self, version: int, ignored: Counter[tuple[str, str]]) -> None:
        self.version = version
        self.ignored = ignored  # (operator, attribute) -> nodes
        self.nodes: list[Node] = []
        self.counts: list[int] = []  # outputs of each node
        self.outputs = self.copies = 0

    def add(self, record: Record) -> None:
        """Create the next node of the file."""
        where, op, attrs = record.where, record.op, record.attrs
        inputs = tuple([self.entry(item, where) for item in record.inputs])
        if op is None:
            self.nodes.append(Node(None, record.name, attrs))
            self.counts.append(1)
            return
        if op.aux_at is not None:
            at, end = op.aux_at, op.aux_at + len(op.aux)
            inputs = (*inputs[:at], *inputs[end:], *inputs[at:end])
        if op.variadic is not None:  # the number of inputs may be missing; a wrong one could demand a billion names
            total = len(inputs) + len(op.graphs)
            count = attrs.setdefault(op.variadic, str(total))
            if not count.isdigit() or int(count[:9]) != total or not total:
                _fail(where, f"{op.name} has {op.variadic}={count[:20]}, but the node has {total or 'no'} inputs")
        try:
            node = Node(op, record.name, attrs, inputs, record.subgraphs)
        except GraphError as error:
            _fail(where, str(error).removeprefix(f"node {record.name!r}: ").rstrip("."))
        self._count_outputs(node, where)
        self.nodes.append(self._completed(node, where))
        self._count_unknown(op, attrs)

    def _count_outputs(self, node: Node, where: str) -> None:
        assert node.op is not None
        try:
            count = len(node.op.output_names(node.params))
            node.input_names()
        except (ValueError, TypeError, IndexError, ZeroDivisionError) as error:
            _fail(where, f"{node.op.name}: its attributes do not determine its inputs and outputs ({str(error)[:200]})")
        self.outputs += count
        if self.outputs > MAX_OUTPUTS + len(self.nodes):
            _fail(where, f"the graph has more than {MAX_OUTPUTS} outputs")
        self.counts.append(count)

    def _completed(self, node: Node, where: str) -> Node:
        """Add variables for the last inputs of a node that the file does not list.

        These are auxiliary states and, in files from before MXNet 0.9, any other inputs.  `where` is the node's place in the
        file, for the error message.
        """
        op = node.op
        assert op is not None
        needed = node.input_names()
        missing = needed[len(node.inputs) :]
        if missing and (len(missing) <= len(op.aux) or self.version < ALL_INPUTS_LISTED):
            self.copies += len(missing) * len(node.attrs)
            if self.copies > MAX_COPIED_ATTRS:
                _fail(where, f"variables for inputs that the file does not list need more than {MAX_COPIED_ATTRS} attributes")
            variables = [Node(None, f"{node.name}_{name}", node.attrs) for name in missing]
            for name, variable in zip(missing, variables, strict=True):
                variable.set_init(op.init.get(name))
            node = node.rebuilt((*node.inputs, *[Entry(variable, 0) for variable in variables]))
        if len(node.inputs) != len(needed):
            names = _short(", ".join(needed))[1:-1]
            _fail(where, f"{op.name} needs {len(needed)} inputs ({names}), the file has {len(node.inputs)}")
        return node

    def _count_unknown(self, op: Op, attrs: dict[str, str]) -> None:
        if op.attrs:  # as in MXNet, an operator that declares no attributes accepts all
            for key in attrs.keys() - op.attrs.keys():
                if not (key.startswith("__") or key.endswith("_mult")):
                    self.ignored[op.name, key] += 1

    def entry(self, item: list[int], where: str) -> Entry:
        """Return the output of an earlier node for a reference [node, output(, version)] in the file; `where` is its place."""
        at, index = item[0], item[1]
        if not 0 <= at < len(self.nodes):
            _fail(where, f"refers to node {_short(at)}, but only the {len(self.nodes)} earlier nodes may be used")
        if not 0 <= index < self.counts[at]:
            node = self.nodes[at]
            _fail(where, f"refers to output {_short(index)} of {node.name[:80]!r}, which has {self.counts[at]} outputs")
        return Entry(self.nodes[at], index)
