"""Read from the text of a compiled program (HLO) which collectives it runs, and how many bytes they send."""

from __future__ import annotations

import functools
import math
import operator
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

# bytes that one of n devices sends per byte of its operands, see `collectives`
_FACTORS: dict[str, Callable[[int], float]] = {
    "all-reduce": lambda n: 2 * (n - 1) / n,
    "all-gather": lambda n: n - 1,
    "reduce-scatter": lambda n: (n - 1) / n,
    "all-to-all": lambda n: (n - 1) / n,
    "collective-permute": lambda n: 1,
}
_INSTRUCTION = re.compile(r"\s*(?:ROOT )?%?([\w.\-]+) = (.*?) ([\w\-]+)\((.*)")
_UNSUPPORTED = ("ragged-all-to-all", "collective-broadcast", "send", "recv")


class Traffic(NamedTuple):
    """Collectives of one kind.

    Attributes:
        count: how often a collective runs in one call of the program.
        operand_bytes: bytes of their operands on one device.
        wire_bytes: bytes that one device sends, by the formulas of `collectives`.

    Example:
        >>> Traffic(1, 8, 14.0).wire_bytes
        14.0
    """

    count: int = 0
    operand_bytes: int = 0
    wire_bytes: float = 0.0


class Collectives(NamedTuple):
    """What one call of a compiled program communicates, by kind of collective.

    Attributes:
        all_reduce, all_gather, reduce_scatter, all_to_all, collective_permute: `Traffic` of each kind.

    Example:
        >>> Collectives(all_reduce=Traffic(1, 8, 14.0), all_gather=Traffic(2, 4, 28.0)).total
        Traffic(count=3, operand_bytes=12, wire_bytes=42.0)
    """

    all_reduce: Traffic = Traffic()
    all_gather: Traffic = Traffic()
    reduce_scatter: Traffic = Traffic()
    all_to_all: Traffic = Traffic()
    collective_permute: Traffic = Traffic()

    @property
    def total(self) -> Traffic:
        """`Traffic` of all kinds together."""
        return jax.tree.map(lambda *values: sum(values), *self)


def collectives(program: Any, *args: Any) -> Collectives:
    """Count the collectives of a compiled program, and the bytes that they send.

    The counts are those of the program after XLA's optimizations, which combine collectives and may change dtypes.  The bytes
    that a device sends are those of a ring of n devices for operands of b bytes: all-reduce 2 b (n - 1) / n, all-gather
    b (n - 1), reduce-scatter b (n - 1) / n; of a direct exchange for all-to-all, b (n - 1) / n; and b for collective-permute.
    A collective in a loop counts once per iteration.

    Args:
        program: `jfit.parallel.DataParallel`, a program of `compile_spmd`, a function of `jax.jit` or `jax.pmap`, or any object
            with `lower`; a `jax.stages.Lowered` or `jax.stages.Compiled`.
        *args: arguments of a call, arrays or `jax.ShapeDtypeStruct`; none for lowered and compiled programs.

    Returns:
        `Collectives`.

    Raises:
        ValueError: a collective in a loop whose number of iterations is not known to the compiler, or in a branch; or a kind of
            collective whose bytes are not known.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> collectives(jax.jit(lambda x: 2 * x), jnp.ones(3)).total
        Traffic(count=0, operand_bytes=0, wire_bytes=0.0)

    Source: Patarasuk and Yuan, Bandwidth Optimal All-reduce Algorithms for Clusters of Workstations, 2009; Thakur et al.,
    Optimization of Collective Communication Operations in MPICH, 2005.
    """
    lowered = program.lower(*args) if hasattr(program, "lower") else program
    compiled = lowered.compile() if hasattr(lowered, "compile") else lowered
    return read_hlo(compiled.as_text())


class _Instruction(NamedTuple):
    """An instruction of HLO: `name = shape opcode(operands), attributes`; `rest` is all after the bracket."""

    name: str
    shape: str
    opcode: str
    rest: str


def read_hlo(text: str) -> Collectives:
    """Count the collectives in the text of a compiled program.

    Args:
        text: HLO, from `compiled.as_text()`.

    Returns:
        `Collectives`.

    Raises:
        ValueError: as for `collectives`.

    Example:
        >>> read_hlo('''HloModule example, num_partitions=4
        ... ENTRY main (x: f32[8]) -> f32[8] {
        ...   x = f32[8]{0} parameter(0)
        ...   ROOT y = f32[8]{0} all-reduce(x), replica_groups={{0,1,2,3}}, to_apply=add
        ... }''').all_reduce
        Traffic(count=1, operand_bytes=32, wire_bytes=48.0)
    """
    text = re.sub(r"/\*.*?\*/", "", text)
    sizes = [int(n) for n in re.findall(r"(?:replica_count|num_partitions)=(\d+)", text.split("\n", 1)[0])]
    computations, entry = _computations(text)
    shapes = {i.name: i.shape for body in computations.values() for i in body}

    @functools.cache
    def of(computation: str) -> Collectives:
        total = Collectives()
        for instruction in computations.get(computation, ()):
            total = jax.tree.map(operator.add, total, _own(instruction, shapes, max(sizes, default=1)))
            called, times = [of(name) for name in _callees(instruction)], _times(instruction)
            if times is None and any(one.total.count for one in called):
                problem = f"the program has a collective in a branch, or in a loop of unknown length ({instruction.name})"
                raise ValueError(f"{problem}, so that its bytes depend on the data")
            for one in called:
                total = jax.tree.map(lambda x, more, times=times or 0: x + times * more, total, one)
        return total

    return of(entry)


def _own(instruction: _Instruction, shapes: dict[str, str], devices: int) -> Collectives:
    """Count and bytes of the collective that an instruction is; zeros if it is none, or the end of an asynchronous one."""
    kind = instruction.opcode.removesuffix("-start")
    is_unsupported = kind in _UNSUPPORTED and "is_host_transfer=true" not in instruction.rest
    if kind not in _FACTORS and not is_unsupported:
        return Collectives()
    n = _group_size(instruction, devices)
    if is_unsupported or n is None:
        problem = f"the bytes of {instruction.name} cannot be counted: it is a {kind}({instruction.rest[:200]}"
        raise ValueError(f"{problem}; supported are {', '.join(_FACTORS)} of known groups")
    operands = re.findall(r"([\w.\-]+)(?:,|$)", instruction.rest.split("), ", 1)[0].rstrip(")"))
    size = sum(_bytes_of(shapes[name]) for name in operands if name in shapes)
    return Collectives(**{kind.replace("-", "_"): Traffic(1, size, float(size * _FACTORS[kind](n)))})


def _callees(instruction: _Instruction) -> list[str]:
    """The names of the computations that an instruction calls."""
    if instruction.opcode in ("async-update", "async-done"):  # the computation was counted at its async-start
        return []
    names = re.findall(r"\b(?:calls|to_apply|body|condition|(?:true|false)_computation)=%?([\w.\-]+)", instruction.rest)
    several = re.findall(r"\b(?:branch_computations|called_computations|calls)=\{([^}]*)\}", instruction.rest)
    return names + [name.strip().lstrip("%") for group in several for name in group.split(",")]


def _times(instruction: _Instruction) -> int | None:
    """How often an instruction runs the computations that it calls; None if that depends on the data."""
    if instruction.opcode == "while":
        trips = re.search(r'"known_trip_count":\{"n":"?(\d+)', instruction.rest)
        return int(trips[1]) if trips else None
    return None if instruction.opcode == "conditional" else 1


def _computations(text: str) -> tuple[dict[str, list[_Instruction]], str]:
    """Return (computation -> its instructions, name of the entry computation)."""
    computations: dict[str, list[_Instruction]] = {}
    entry, current = "", None
    for line in text.splitlines():
        header = re.match(r"(ENTRY\s+)?%?([\w.\-]+)\s.*->.*\{\s*$", line)
        if header is not None and " = " not in line.split("->")[0]:
            current = computations.setdefault(header[2], [])
            entry = header[2] if header[1] else entry
        elif line.startswith("}"):
            current = None
        elif current is not None and (instruction := _INSTRUCTION.match(line)):
            current.append(_Instruction(*instruction.groups()))
    return computations, entry


def _bytes_of(shape: str) -> int:
    """Bytes of an array or of a tuple of arrays; elements of less than 8 bits are counted with their bits."""
    total = 0
    for dtype, sizes in re.findall(r"\b(pred|[a-z]+\d+[a-z0-9]*)\[([^\]]*)\]", shape):
        count = math.prod(int(size.strip().removeprefix("<=")) for size in sizes.split(",") if size)
        width = re.match(r"[a-z]+(\d+)", dtype)
        total += -(-count * (int(width[1]) if width else 8) // 8)  # pred has 8 bits
    return total


def _group_size(instruction: _Instruction, devices: int) -> int | None:
    """Number of devices that take part in a collective together; None if it cannot be read."""
    text = instruction.rest
    # newer versions of XLA: the axes of a mesh, mesh['data'=2,'model'=4] {'data'}, also with an order of the devices
    mesh = re.search(r"replica_groups=mesh\[([^\]]*)\](?:, *device_ids=\(.*?\))?\s*\{([^}]*)\}", text)
    if mesh is not None:
        sizes = dict(re.findall(r"'([^']*)'=(\d+)", mesh[1]))
        return math.prod(int(sizes[axis]) for axis in re.findall(r"'([^']*)'", mesh[2]))
    if "replica_groups=" not in text or "replica_groups={}" in text:
        return devices
    groups = re.search(r"replica_groups=(?:\{\{([\d,\s]*)\}|\[\d+,(\d+)\])", text)
    return groups and (int(groups[2]) if groups[2] else len(groups[1].split(",")))
