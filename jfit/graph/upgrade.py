"""Upgrade symbol.json records of older MXNet versions as MXNet 1.9.1 does, one function per change of the format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from jfit.graph.nodes import HIDDEN_KEYS, Graph, Node
from jfit.ops import Op


class Record(NamedTuple):
    """One node of a file after validation: `where` is its place for error messages, `inputs` are [node, output] indices."""

    where: str
    op: Op | None
    name: str
    attrs: dict[str, str]
    inputs: list[list[int]]
    subgraphs: tuple[Graph, ...] = ()


def upgrade(records: Sequence[Record], version: int) -> None:
    """Upgrade the records of an old file to the format of MXNet 1.9.1, in place.

    Args:
        records: the nodes of the file.
        version: version of the file, such as 10901 for MXNet 1.9.1.

    Source: MXNet 1.9.1, legacy_json_util (facts of the format only).
    """
    for record in records:
        if record.op is None:
            continue
        try:
            _move_multipliers(record, records)
            if version < 904:
                _add_initializers(record, records)
        except ValueError:
            continue  # invalid attributes: creating the node raises the error, with the place in the file
        if version < 905 and record.op.name in ("argmax", "argmin") and record.attrs.get("axis") == "-1":
            del record.attrs["axis"]  # before 0.9.5, -1 meant all axes


def _move_multipliers(record: Record, records: Sequence[Record]) -> None:
    """Move the attribute `weight_lr_mult` to the variable that is the input `weight`, as `__lr_mult__`; others likewise."""
    moving = [(k, h) for k in record.attrs for h in HIDDEN_KEYS if k.endswith(f"_{h}")]
    slots = _slots(record) if moving else ()
    for key, hidden in moving:
        slot = key[: -len(hidden) - 1]
        target = _variable(record, slots.index(slot), records) if slot in slots else None
        if target is not None:  # else the input is computed: the attribute has no effect but is kept, as in the file
            target.attrs[f"__{hidden}__"] = record.attrs.pop(key)


def _add_initializers(record: Record, records: Sequence[Record]) -> None:
    """Set `__init__` on the variables for which the operator has an initializer, unless they have one."""
    assert record.op is not None
    for at, slot in enumerate(_slots(record) if record.op.init else ()):
        target = _variable(record, at, records) if slot in record.op.init else None
        if target is not None:
            target.attrs.setdefault("__init__", record.op.init[slot])


def _slots(record: Record) -> tuple[str, ...]:
    assert record.op is not None
    # Use the number of inputs in the file, not the attribute, which could demand a list of a billion names.
    count = {record.op.variadic: str(len(record.inputs))} if record.op.variadic else {}
    return Node(record.op, record.name, record.attrs | count).input_names()


def _variable(record: Record, at: int, records: Sequence[Record]) -> Record | None:
    """Return the record of the variable that is input number `at`; None: the file has no such input, or it is computed."""
    if at >= len(record.inputs):
        return None
    number = record.inputs[at][0]
    return records[number] if 0 <= number < len(records) and records[number].op is None else None
