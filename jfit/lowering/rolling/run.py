"""Run a repeated block as one `lax.scan` over its steps."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jfit.graph.nodes import Entry, Node
from jfit.lowering.rolling.blocks import Block, Carried, Fixed, Local, Sliced
from jfit.lowering.values import Value
from jfit.ops.rows import MaybeLayout

# (node, inputs, crc32 of the name of the node that draws random numbers) -> outputs
RunNode = Callable[[Node, Sequence[Value], Any], list[Value]]
Key = tuple[int, int]  # (id(node), output index)
Place = tuple[int, int]  # (pack, output index)
ROW_FAMILIES = ("norm", "quantized", "image", "ctc")  # families of operators that read the `RowLayout`s of their inputs

RECOMPUTED = frozenset({"add", "sub", "mul", "neg"})  # primitives that the backward pass runs again instead of reading results


class NotRollable(Exception):
    """Raised if the steps of a block differ in shape, dtype or row layout, so that no loop can run them."""


class Stack(NamedTuple):
    """The outputs of one pack in all steps."""

    array: Array  # (steps, ...): the arrays of all steps, each with channels before the spatial axes
    rows: MaybeLayout  # where the batch rows are in the array of one step


class Rolled(NamedTuple):
    """The outputs of a block that others read: single values, and positions in stacks, by (id(node), output index)."""

    values: dict[Key, Value]
    stacked: dict[Key, tuple[Stack, int]]


class _State(NamedTuple):
    """An array that one step passes to the next: output `index` of `pack`; `first` is its value before the first step."""

    pack: int
    index: int
    first: Entry


def run_block(
    block: Block,
    outside: Collection[Key],
    get: Callable[[Entry], Value],
    stack: Callable[[Sequence[Entry]], Stack],
    run: RunNode,
    policy: Any,
) -> Rolled:
    """Run all steps of a block.

    Args:
        block: the block.
        outside: the outputs that others read.
        get: returns the value of an entry outside of the block.
        stack: returns the arrays of several entries outside of the block, stacked.
        run: runs one node.
        policy: policy of `jax.checkpoint` for a step, such as `is_saved`.

    Returns:
        The outputs that others read.

    Raises:
        NotRollable: the steps differ in shape, dtype or row layout.
    """
    values: dict[Key, Value] = {}
    loop = _Loop(block, outside, get, stack, run, policy)
    if not loop.first_step_is_regular():
        for pack, reads in zip(block.packs, block.reads, strict=True):
            ins = [values.get((id(e.node), e.index)) or get(e) for e in (_first_entry(block, r) for r in reads)]
            outs = run(pack[0], ins, zlib.crc32(pack[0].name.encode()))
            values.update({(id(pack[0]), i): v for i, v in enumerate(outs)})
        known = lambda e: values.get((id(e.node), e.index)) or get(e)  # noqa: E731
        loop = _Loop(block.without_first_step(), outside, known, stack, run, policy)
        if not loop.first_step_is_regular():
            raise NotRollable
    rolled = loop.run()
    return Rolled({**{k: v for k, v in values.items() if k in outside}, **rolled.values}, rolled.stacked)


def is_saved(primitive: Any, *_: Any, **__: Any) -> bool:
    """Policy of `jax.checkpoint`: whether the forward pass saves the results of a primitive for the backward pass."""
    return primitive.name not in RECOMPUTED


def _first_entry(block: Block, read: Any) -> Entry:
    """Return the entry that a read is in step 0."""
    if isinstance(read, Local):
        return Entry(block.packs[read.pack][0], read.index)
    if isinstance(read, Sliced):
        return read.entries[0]
    return read.first if isinstance(read, Carried) else read.entry


class _Loop:
    """The arrays that the steps of a block read, and the body of the loop.

    Only the packs between the states of one step and those of the next run in the loop.  Packs before them (`before`: they read
    no state) and after them (`after`: no state depends on them) run for all steps at once, by `jax.vmap`: one large matrix
    product instead of many small ones, and one product for the gradient of the weights.
    """

    def __init__(self, block, outside, get, stack, run, policy) -> None:
        self.block, self.run_node, self.policy = block, run, policy
        reads = [r for rs in block.reads for r in rs]
        self.fixed = {r: get(r.entry).to_channels_first() for r in reads if isinstance(r, Fixed)}
        self.sliced = {r: stack(r.entries) for r in reads if isinstance(r, Sliced)}
        carried = {_State(*r): get(r.first).to_channels_first() for r in reads if isinstance(r, Carried)}
        self.states = list(carried)
        self.start = list(carried.values())
        self.rows = [v.rows for v in self.start]
        names = [[zlib.crc32(n.name.encode()) for n in pack] for pack in block.packs]
        self.hashes = [np.array(n, np.uint32) if p[0].op.needs_rng else None for n, p in zip(names, block.packs, strict=True)]
        self.before, self.loop, self.after = self._phases()
        self.finals, self.stacks = self._outputs(outside)
        self.layouts: dict[Place, MaybeLayout] = {}
        ops = [pack[0].op for pack in block.packs]
        self.reads_rows = any(op.needs_rng or op.family in ROW_FAMILIES for op in ops)

    def _phases(self) -> tuple[list[int], list[int], list[int]]:
        """Divide the packs into those before, in and after the loop."""
        reads = self.block.reads
        count = range(len(reads))
        late: set[int] = set()  # packs that depend on a state
        for p in count:
            if any(isinstance(r, Carried) or (isinstance(r, Local) and r.pack in late) for r in reads[p]):
                late.add(p)
        looped = {s.pack for s in self.states} | {p for p in count if any(isinstance(r, Carried) for r in reads[p])}
        for p in reversed(count):
            if p in looped:
                looped |= {r.pack for r in reads[p] if isinstance(r, Local) and r.pack in late}
        return (
            [p for p in count if p not in late and p not in looped],
            [p for p in count if p in looped],
            [p for p in count if p in late and p not in looped],
        )

    def _outputs(self, outside: Collection[Key]) -> tuple[list[Place], list[Place]]:
        """Return (states that others read after the last step only, outputs that others read in other steps)."""
        last, others, states = [], [], {(s.pack, s.index) for s in self.states}
        for p, pack in enumerate(self.block.packs):
            for i in range(len(pack[0].op.output_names(pack[0].params))):  # type: ignore[union-attr]
                steps = [t for t, n in enumerate(pack) if (id(n), i) in outside]
                if steps:
                    (last if steps == [len(pack) - 1] and (p, i) in states else others).append((p, i))
        return last, others

    # -------------------------------------------------------------------------------- one step
    def _step(self, packs: Sequence[int], states: dict[_State, Value], xs: dict[Any, Any]) -> dict[Place, Value]:
        """Run some packs of one step; returns all values of the step by (pack, output index).

        `xs` has the arrays of the step: of reads, of outputs (by (pack, index)) and hashes of names (by pack).
        """
        values = {k: Value(x, self.layouts[k]) for k, x in xs.items() if k in self.layouts}
        for p in packs:
            pack, ins = self.block.packs[p], []
            for read in self.block.reads[p]:
                if isinstance(read, Fixed):
                    ins.append(self.fixed[read])
                elif isinstance(read, Sliced):
                    ins.append(Value(xs[read], self.sliced[read].rows))
                else:
                    ins.append(values[read.pack, read.index] if isinstance(read, Local) else states[_State(*read)])
            outs = self.run_node(pack[0], ins, xs.get(p))
            values.update({(p, i): v for i, v in enumerate(outs)})
        return values

    def _xs(self, packs: Sequence[int], results: dict[Place, Array]) -> dict[Any, Any]:
        """Return the arrays of all steps that some packs read, as `_step` needs them."""
        reads = [r for p in packs for r in self.block.reads[p]]
        xs: dict[Any, Any] = {r: self.sliced[r].array for r in reads if isinstance(r, Sliced)}
        places = [(r.pack, r.index) for r in reads if isinstance(r, Local)]
        xs.update({place: results[place] for place in places if place in results})
        return xs | {p: self.hashes[p] for p in packs if self.hashes[p] is not None}

    def _abstract(self) -> tuple[list[Any], list[MaybeLayout]]:
        """Trace one step; returns (shapes and dtypes of new states, their `RowLayout`s)."""
        layouts: list[MaybeLayout] = []
        packs = range(len(self.block.packs))
        keys = self._xs(packs, {})

        def trace(carry, arrays):
            states = {s: Value(a, r) for s, a, r in zip(self.states, carry, self.rows, strict=True)}
            values = self._step(packs, states, dict(zip(keys, arrays, strict=True)))
            new = [values[s.pack, s.index].to_channels_first() for s in self.states]
            layouts.extend(v.rows for v in new)
            return [v.array for v in new]

        arrays = [jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for x in keys.values()]
        return jax.eval_shape(trace, [v.array for v in self.start], arrays), layouts

    def first_step_is_regular(self) -> bool:
        """Find row layouts of the states that hold in every step; returns whether the first step can be part of the loop.

        Initial states are often constants, whose layout is None, and later states depend on the batch.  The first step is not
        part of the loop if that may change what its operators compute, or if an initial state has another shape or dtype.
        """
        shapes, layouts = self._abstract()
        if any(s.shape != v.array.shape or s.dtype != v.array.dtype for s, v in zip(shapes, self.start, strict=True)):
            return False
        for _ in range(len(self.states) + 2):
            if layouts == self.rows:
                break
            if self.reads_rows or any(old is not None and old != new for old, new in zip(self.rows, layouts, strict=True)):
                return False
            self.rows = layouts
            _, layouts = self._abstract()
        return layouts == self.rows

    # -------------------------------------------------------------------------------- all steps
    def run(self) -> Rolled:
        """Run all steps."""
        results: dict[Place, Array] = {}
        self._at_once(self.before, results)
        last = self._scan(results)
        self._at_once(self.after, results)
        packs = self.block.packs
        positions: dict[Key, tuple[Stack, int]] = {}
        for p, i in self.stacks:
            stack = Stack(results[p, i], self.layouts[p, i])
            positions.update({(id(n), i): (stack, t) for t, n in enumerate(packs[p])})
        return Rolled({(id(packs[p][-1]), i): v for (p, i), v in last.items()}, positions)

    def _results_of(self, packs: Sequence[int]) -> list[Place]:
        """Return the outputs of some packs that other phases or nodes outside of the block read."""
        inside = set(packs)
        read: set[Place] = {
            (r.pack, r.index)
            for p, reads in enumerate(self.block.reads)
            if p not in inside
            for r in reads
            if isinstance(r, Local)
        }
        return [place for place in dict.fromkeys([*sorted(read), *self.stacks]) if place[0] in inside]

    def _at_once(self, packs: Sequence[int], results: dict[Place, Array]) -> None:
        """Run packs that read no state, for all steps at once, and add what others read to `results`."""
        places, xs = self._results_of(packs), self._xs(packs, results)
        if not places:
            return

        def step(arrays):
            values = self._step(packs, {}, dict(zip(xs, arrays, strict=True)))
            outs = [values[place].to_channels_first() for place in places]
            self.layouts.update({place: v.rows for place, v in zip(places, outs, strict=True)})
            return [v.array for v in outs]

        out = jax.vmap(step, axis_size=self.block.steps)(list(xs.values()))
        results.update(dict(zip(places, out, strict=True)))

    def _scan(self, results: dict[Place, Array]) -> dict[Place, Value]:
        """Run the loop and add what others read to `results`; returns the states that are read after the last step only."""
        places, xs = self._results_of(self.loop), self._xs(self.loop, results)

        def step(carry, arrays):
            states = {s: Value(a, r) for s, a, r in zip(self.states, carry, self.rows, strict=True)}
            values = self._step(self.loop, states, dict(zip(xs, arrays, strict=True)))
            new = [values[s.pack, s.index].to_channels_first().array for s in self.states]
            each = [values[place].to_channels_first() for place in places]
            self.layouts.update({place: v.rows for place, v in zip(places, each, strict=True)})
            return new, [v.array for v in each]

        # An array made of Python numbers has a weak dtype, which the array of a later step has not.
        start = [lax.convert_element_type(v.array, v.array.dtype) for v in self.start]
        arrays = [jnp.asarray(x) for x in xs.values()]
        # Saving fewer arrays per step compiles and runs faster: s and 1 - s give the derivative of a sigmoid.
        body = jax.checkpoint(step, policy=self.policy, prevent_cse=False)  # a loop needs no protection against CSE
        last, each = lax.scan(body, start, arrays, length=self.block.steps)
        results.update(dict(zip(places, each, strict=True)))
        ends = {(s.pack, s.index): Value(a, r) for s, a, r in zip(self.states, last, self.rows, strict=True)}
        return {place: ends[place] for place in self.finals}
