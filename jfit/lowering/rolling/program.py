"""Run the operators of a graph with repeated blocks: these run as loops, and their outputs stay stacked where possible."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp

from jfit.graph.nodes import Entry, Node
from jfit.lowering.rolling.blocks import Block, Sliced
from jfit.lowering.rolling.find import Item, entries_read_outside, schedule
from jfit.lowering.rolling.run import Key, NotRollable, Stack, is_saved, run_block
from jfit.lowering.values import Value
from jfit.ops.rules import normalize_axis

JOINS = {"Concat": "dim", "stack": "axis"}  # operators that join the outputs of many steps -> their axis attribute
# Errors of an operator function.  The nodes are then run one by one, so that the message names the node.
OPERATOR_ERRORS = (NotRollable, TypeError, ValueError, LookupError, ArithmeticError, AttributeError)
Run = Callable[..., list[Any]]  # (node, inputs, crc32 of a node name, or None for the node's own) -> outputs


class Program(NamedTuple):
    """The operators of a graph in the order in which they run.

    Attributes:
        items: nodes and blocks.
        outside: for each block, by position in `items`, the outputs that other nodes read.
        nodes: for each block, by position in `items`, its nodes in topological order.
        deferred: ids of the nodes that slice a sequence into the steps of a block, which run only if another node reads them.
    """

    items: list[Item]
    outside: dict[int, set[Key]]
    nodes: dict[int, list[Node]]
    deferred: Collection[int]


def plan_program(
    order: Sequence[Node],
    heads: Sequence[Entry],
    inputs: Collection[str],
    excluded: Collection[int],
    convolutions: bool = False,
) -> Program | None:
    """Find the repeated blocks of a graph (arguments: see `find.schedule`); None if it has none."""
    items = schedule(order, inputs, excluded, convolutions=convolutions, heads=heads)
    blocks = {i: item for i, item in enumerate(items) if isinstance(item, Block)}
    if not blocks:
        return None
    position = {id(n): i for i, n in enumerate(order)}
    nodes = {i: sorted((n for p in b.packs for n in p), key=lambda n: position[id(n)]) for i, b in blocks.items()}
    sliced = {r.entries for b in blocks.values() for reads in b.reads for r in reads if isinstance(r, Sliced)}
    deferred = {id(e.node) for entries in sliced if _source(entries) is not None for e in entries} - set(excluded)
    return Program(items, entries_read_outside(order, items, heads), nodes, deferred)


def run_program(program: Program, values: dict[Key, Value | None], run: Run, policy: Any = is_saved) -> Store:
    """Run all operators; `values` are those of the variables.  Returns the values of all entries.

    `policy`: policy of `jax.checkpoint` for a step of a loop.
    """
    store = Store(values, run, program.deferred, policy)
    for i, item in enumerate(program.items):
        if isinstance(item, Block):
            store.run_block(item, program.outside[i], program.nodes[i])
        elif id(item) not in program.deferred:
            store.run(item)
    return store


class Store:
    """The values of a graph while it runs, by (id(node), output index)."""

    def __init__(self, values: dict[Key, Value | None], run: Run, deferred: Collection[int], policy: Any = is_saved) -> None:
        self.values = values
        self.deferred = deferred
        self._run, self._policy = run, policy
        self._stacked: dict[Key, tuple[Stack, int]] = {}

    def get(self, entry: Entry) -> Value | None:
        """Return the value of an entry; None for a label that was not passed, and what is computed from it."""
        key = (id(entry.node), entry.index)
        if key not in self.values:
            if id(entry.node) in self.deferred:
                self._put(entry.node, self._run(entry.node, [self.get(e) for e in entry.node.inputs]))
            else:
                self._unstack(self._stacked[key][0])
        return self.values[key]

    def run(self, node: Node) -> None:
        """Run one operator."""
        joined = self._joined(node)
        self._put(node, self._run(node, [self.get(e) for e in node.inputs]) if joined is None else [joined])

    def run_block(self, block: Block, outside: set[Key], nodes: Iterable[Node]) -> None:
        """Run a block as a loop; if its steps differ, or an operator raises an error, run its nodes one by one."""
        try:
            rolled = run_block(block, outside, self._known, self._stack, self._run, self._policy)
        except OPERATOR_ERRORS:
            for node in nodes:
                self.run(node)
            return
        self.values.update(rolled.values)
        self._stacked.update({k: v for k, v in rolled.stacked.items() if k in outside})

    def _put(self, node: Node, outs: Sequence[Value | None]) -> None:
        self.values.update({(id(node), i): v for i, v in enumerate(outs)})

    def _known(self, entry: Entry) -> Value:
        value = self.get(entry)
        if value is None:
            raise NotRollable
        return value

    def _unstack(self, stack: Stack) -> None:
        """Store the single steps of a stack that are read."""
        places = {key: t for key, (other, t) in self._stacked.items() if other is stack}
        if len(places) == 1:
            parts = {t: stack.array[t] for t in places.values()}
        else:  # one split, whose gradient is one concatenation; the gradient of each index would be as large as the stack
            split = jnp.split(stack.array, stack.array.shape[0])
            parts = {t: jnp.squeeze(split[t], 0) for t in places.values()}
        self.values.update({key: Value(parts[t], stack.rows) for key, t in places.items()})

    # -------------------------------------------------------------------------------- several steps at once
    def _stack(self, entries: Sequence[Entry]) -> Stack:
        """Stack the arrays of several entries along a new first axis, if possible without separating them before."""
        stack = self._part(entries)
        if stack is not None:
            return stack
        source = _source(entries)
        if source is not None and (value := self._known(source)) is not None:
            stack = _slices(entries, value.to_channels_first())
            if stack is not None:
                return stack
        values = [self._known(e).to_channels_first() for e in entries]
        first = values[0]
        if any((v.array.shape, v.array.dtype, v.rows) != (first.array.shape, first.array.dtype, first.rows) for v in values):
            raise NotRollable
        return Stack(jnp.stack([v.array for v in values]), first.rows)

    def _part(self, entries: Sequence[Entry]) -> Stack | None:
        """Return the entries, stacked, if they are consecutive steps of one block, forward or backward."""
        places = [self._stacked.get((id(e.node), e.index)) for e in entries]
        first = places[0]
        if first is None or any(p is None or p[0] is not first[0] for p in places):
            return None
        array = _consecutive(first[0].array, [p[1] for p in places if p is not None])
        return None if array is None else Stack(array, first[0].rows)

    def _origin(self, entry: Entry) -> Any:
        """Return a value that is equal for the outputs of one stack."""
        key = (id(entry.node), entry.index)
        return id(self._stacked[key][0]) if key in self._stacked else key

    def _joined(self, node: Node) -> Value | None:
        """Return the output of a `Concat` or `stack` of outputs of a block, without separating its steps; None: run it."""
        op = node.op
        if op is None or op.name not in JOINS or sum((id(e.node), e.index) in self._stacked for e in node.inputs) < 2:
            return None
        pieces: list[tuple[Value, bool]] = []  # (array, whether it has a first axis of steps)
        for _, group in itertools.groupby(node.inputs, self._origin):
            entries = list(group)
            part = self._part(entries) if len(entries) > 1 else None
            if part is None and len(entries) > 1:
                return None
            pieces.append((self._known(entries[0]).to_channels_first(), False) if part is None else (Value(*part), True))
        if len(pieces) == len(node.inputs) or len({v.array.dtype for v, _ in pieces}) > 1:
            return None
        layouts = [v.rows for v, _ in pieces]
        ndim = pieces[0][0].array.ndim - pieces[0][1]
        try:
            axis = normalize_axis(node.params[JOINS[op.name]], ndim + (op.name == "stack"), "dim")
            out = jnp.concatenate([_as_piece(op.name, v.array, many, axis) for v, many in pieces], axis)
        except (TypeError, ValueError):
            return None  # running the operator raises the error
        shapes = [v.array.shape[1:] if many else v.array.shape for v, many in pieces]
        return Value(out, op.rows(node.params, layouts, shapes, [out.shape])[0])


def _as_piece(name: str, array: Any, many: bool, axis: int) -> Any:
    """Return the part of the result of a `Concat` or `stack` along `axis` that an array, or one of many steps, makes up."""
    if name == "stack":
        return jnp.moveaxis(array, 0, axis) if many else jnp.expand_dims(array, axis)
    if not many:
        return array
    moved = jnp.moveaxis(array, 0, axis)
    return moved.reshape((*moved.shape[:axis], moved.shape[axis] * moved.shape[axis + 1], *moved.shape[axis + 2 :]))


def _consecutive(array: Any, positions: Sequence[int]) -> Any:
    """Return array[positions] if the positions are consecutive, forward or backward; else None."""
    if not _are_consecutive(positions):
        return None
    low, high = min(positions), max(positions) + 1
    part = array if high - low == array.shape[0] else array[low:high]
    return part if positions[0] <= positions[-1] else jnp.flip(part, 0)


def _are_consecutive(positions: Sequence[int]) -> bool:
    first, count = positions[0], len(positions)
    return list(positions) in (list(range(first, first + count)), list(range(first, first - count, -1)))


def _source(entries: Sequence[Entry]) -> Entry | None:
    """Return the array whose consecutive parts, one per step, the entries are; None if they are something else."""
    first = entries[0].node
    if first.op is None or any(e.node.op is not first.op for e in entries):
        return None
    if first.op.name == "SliceChannel" and all(e.node is first for e in entries):
        return first.inputs[0] if _are_consecutive([e.index for e in entries]) else None
    if first.op.name != "slice_axis" or any(e.node.inputs != first.inputs for e in entries):
        return None
    params = [e.node.params for e in entries]
    begins = [p.begin for p in params]
    unit = all(p.axis == params[0].axis and p.begin >= 0 and p.end == p.begin + 1 for p in params)
    return first.inputs[0] if unit and _are_consecutive(begins) else None


def _slices(entries: Sequence[Entry], source: Value) -> Stack | None:
    """Return the outputs of a `SliceChannel`, or of `slice_axis` nodes, stacked: a transpose of the array they slice."""
    node = entries[0].node
    array, params, op = source.array, node.params, node.op
    assert op is not None
    axis = normalize_axis(params.axis, array.ndim)
    if op.name == "SliceChannel":
        positions, count, squeeze = [e.index for e in entries], params.num_outputs, params.squeeze_axis
    else:
        positions, count, squeeze = [e.node.params.begin for e in entries], array.shape[axis], False
    if array.shape[axis] % count or max(positions) >= count or (squeeze and array.shape[axis] != count):
        return None  # running the node raises the error
    parts = array.reshape((*array.shape[:axis], count, array.shape[axis] // count, *array.shape[axis + 1 :]))
    parts = _consecutive(jnp.moveaxis(parts, axis, 0), positions)
    parts = jnp.squeeze(parts, axis + 1) if squeeze else parts
    outs = [parts.shape[1:]] * (count if op.name == "SliceChannel" else 1)
    return Stack(parts, op.rows(params, [source.rows], [array.shape], outs)[0])
