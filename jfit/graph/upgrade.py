"""What MXNet does to a graph file of an older version while it reads it, one function for each change of the format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from jfit.graph.nodes import HIDDEN_KEYS, Entry, Graph, Node, topological
from jfit.ops import Op

VERSION = 10901  # MXNet 1.9.1
OLDEST = 800  # files without a version
LISTED = 900  # since then a file lists every input of a node
AMP = ("amp_cast", "amp_multicast")
# Names in files of the years before 0.9.3 that MXNet 1.9.1 no longer reads: operators that moved into `contrib`, and one that
# became an engine of another.
RENAMED = {name: f"_contrib_{name}" for name in ("MultiBoxPrior", "MultiBoxTarget", "MultiBoxDetection", "Proposal")}
RENAMED |= {"CuDNNBatchNorm": "BatchNorm"}


class Record(NamedTuple):
    """One node as the file has it, checked for its types."""

    where: str
    op: Op | None
    name: str
    attrs: dict[str, str]
    inputs: list[Any]
    subgraphs: tuple[Graph, ...] = ()


def version_of(graph: dict[str, Any]) -> int:
    """Version of a graph file; 0.8 where it says none.

    Example:
        >>> version_of({"attrs": {"mxnet_version": ["int", 10500]}}), version_of({})
        (10500, 800)
    """
    top = graph.get("attrs")
    found = top.get("mxnet_version") if isinstance(top, dict) else None
    value = found[1] if isinstance(found, list) and len(found) == 2 else found
    return value if type(value) is int and value > 0 else OLDEST


def upgrade(records: Sequence[Record], version: int) -> None:
    """Brings the records of a file up to the present version, in place.

    Args:
        records: the nodes of the file.
        version: its version, as `version_of` gives it.

    Source: MXNet 1.9.1, legacy_json_util (facts of the format only).
    """
    for record in records:
        if record.op is None:
            continue
        try:
            if version < VERSION:
                _spread_multipliers(record, records)
            if version < 904:
                _stamp_aux(record, records)
        except ValueError:
            continue  # its attributes cannot be read: whoever makes the node of it says where and why
        if version < 905 and record.op.name in ("argmax", "argmin") and record.attrs.get("axis") == "-1":
            del record.attrs["axis"]  # -1 meant "no axis" then


def _spread_multipliers(record: Record, records: Sequence[Record]) -> None:
    """`weight_lr_mult` on an operator moves to the variable in that slot, as `__lr_mult__`."""
    moving = [(k, h) for k in record.attrs for h in HIDDEN_KEYS if k.endswith(f"_{h}")]
    slots = _slots(record) if moving else ()
    for key, hidden in moving:
        slot = key[: -len(hidden) - 1]
        target = _variable(record, slots.index(slot), records) if slot in slots else None
        if target is not None:  # else it stays: a computed input has no multiplier, but the file said it
            target.attrs[f"__{hidden}__"] = record.attrs.pop(key)


def _stamp_aux(record: Record, records: Sequence[Record]) -> None:
    """Variables of auxiliary states say how they start."""
    assert record.op is not None
    slots = _slots(record) if record.op.aux else ()
    for name, start in zip(record.op.aux, record.op.aux_init, strict=False):
        target = _variable(record, slots.index(name), records)
        if target is not None:
            target.attrs.setdefault("__init__", f'["{start}", {{}}]')


def _slots(record: Record) -> tuple[str, ...]:
    assert record.op is not None
    # The number of inputs in the file decides, not an attribute: it must not make a list of a billion names.
    count = {record.op.variadic: str(len(record.inputs))} if record.op.variadic else {}
    return Node(record.op, record.name, record.attrs | count).input_names()


def _variable(record: Record, at: int, records: Sequence[Record]) -> Record | None:
    """The variable in one slot of a node, None where something else or nothing is there."""
    if at >= len(record.inputs) or not is_reference(record.inputs[at]):
        return None
    number = record.inputs[at][0]
    return records[number] if 0 <= number < len(records) and records[number].op is None else None


def is_reference(item: Any) -> bool:
    """Whether an item of a file is [node, output] or [node, output, version].

    Example:
        >>> is_reference([0, 0]), is_reference(["0", 0])
        (True, False)
    """
    return isinstance(item, list) and 2 <= len(item) <= 3 and all(type(v) is int for v in item)


def without_amp_casts(heads: Sequence[Entry]) -> tuple[Entry, ...]:
    """The graph with what mixed precision put between its nodes left out; a cast that is itself an output stays.

    Example:
        >>> import jfit
        >>> net = jfit.sym.relu(jfit.sym.amp_cast(jfit.sym.Variable("x"), dtype="float16"), name="r")
        >>> topological(without_amp_casts(net.heads))
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
