"""What MXNet does to a graph file of an older version while it reads it, one function for each change of the format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from jfit.graph.nodes import HIDDEN_KEYS, Graph, Node
from jfit.ops import Op


class Record(NamedTuple):
    """One node as the file has it; its fields have the types they need."""

    where: str
    op: Op | None
    name: str
    attrs: dict[str, str]
    inputs: list[list[int]]
    subgraphs: tuple[Graph, ...] = ()


def upgrade(records: Sequence[Record], version: int) -> None:
    """Brings the records of a file up to the present version, in place.

    Args:
        records: the nodes of the file.
        version: its version, 10901 for MXNet 1.9.1.

    Source: MXNet 1.9.1, legacy_json_util (facts of the format only).
    """
    for record in records:
        if record.op is None:
            continue
        try:
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
    if at >= len(record.inputs):
        return None
    number = record.inputs[at][0]
    return records[number] if 0 <= number < len(records) and records[number].op is None else None
