"""Grow a block from its anchors: follow the graph in all steps at once, as long as the steps are equal."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from jfit.graph.nodes import Entry, Node
from jfit.lowering.rolling.blocks import Block, Carried, Fixed, Local, Read, Sliced

Edge = tuple[int, int]  # (position of a node in the topological order, output index)
# Operators of these families call Python, have a gradient of their own kind, or run other graphs: they stay outside of blocks.
OUTSIDE = ("custom", "control")


class Irregular(Exception):
    """Raised if the steps of a block differ; `step` is the first step that differs from the one before."""

    def __init__(self, step: int) -> None:
        self.step = step


class Wiring:
    """A graph by positions in its topological order, and which nodes are part of a block already."""

    def __init__(self, order: Sequence[Node], inputs: Collection[str], excluded: Collection[int], convolutions: bool) -> None:
        self.nodes = order
        self.at = {id(n): i for i, n in enumerate(order)}
        named: dict[str, int] = {}  # variables with equal names have the same value
        same = {id(n): named.setdefault(n.name, i) if n.op is None else i for i, n in enumerate(order)}
        self.inputs: list[list[Edge]] = [[(same[id(e.node)], e.index) for e in n.inputs] for n in order]
        self.users: list[list[int]] = [[] for _ in order]
        self.constant: list[bool] = []  # whether a node depends on variables that the batch does not provide, and only on them
        self.own = [n.op is None and n.name not in inputs for n in order]  # parameters and auxiliary states
        self.claimed: set[int] = set()
        self.labels: list[int] = []  # equal for nodes with equal operators and attributes; -1: never part of a block
        self._states: dict[int, int] = {}  # node with auxiliary states -> the one that updates them before
        batch = {i for i, n in enumerate(order) if n.op is None and n.name in inputs}
        numbers: dict[object, int] = {}
        latest: dict[int, int] = {}
        for i, node in enumerate(order):
            for j in dict.fromkeys(j for j, _ in self.inputs[i]):
                self.users[j].append(i)
            op = node.op
            if op is None:
                self.constant.append(True)
                self.labels.append(-1)
                continue
            self.constant.append(bool(node.inputs) and all(self.constant[j] and j not in batch for j, _ in self.inputs[i]))
            inside = not (op.aux or node.subgraphs or op.kind != "plain" or op.label or op.family in OUTSIDE or not node.inputs)
            if id(node) in excluded or not inside or (op.family == "conv" and not convolutions):
                self.labels.append(-1)
            else:
                self.labels.append(numbers.setdefault((id(op), repr(node.params), len(node.inputs)), len(numbers)))
            for j, _ in self.inputs[i][node.num_inputs :]:
                if j in latest:
                    self._states[i] = latest[j]
                latest[j] = i

    def before(self, n: int) -> list[int]:
        """Return the nodes that run before node `n`: its inputs, and the last one that updates its auxiliary states."""
        states = [self._states[n]] if n in self._states else []
        return [j for j, _ in self.inputs[n]] + states


class Growth:
    """A block in the making."""

    def __init__(self, wiring: Wiring, anchors: Sequence[int], depth: dict[int, int]) -> None:
        self.wiring = wiring
        self.depth = depth
        self.base = depth[anchors[0]]
        self.steps = len(anchors)
        self.packs: list[list[int]] = []
        self.reads: list[list[Read]] = []
        self.where: dict[int, tuple[int, int]] = {}  # node -> (pack, step)
        self.core = 0  # number of packs of the recurrence, without the neighbours
        self._core_reads: list[list[Read]] = []
        self._below: set[int] = set()  # nodes that depend on the recurrence
        self._add(list(anchors))

    # -------------------------------------------------------------------------------- packs
    def _add(self, nodes: list[int]) -> int:
        self.where.update({n: (len(self.packs), t) for t, n in enumerate(nodes)})
        self.packs.append(nodes)
        self.reads.append([])
        return len(self.packs) - 1

    def _column(self, pack: int, slot: int) -> list[Edge]:
        return [self.wiring.inputs[n][slot] for n in self.packs[pack]]

    def _slots(self, pack: int) -> range:
        return range(len(self.wiring.inputs[self.packs[pack][0]]))

    def _equal(self, column: Sequence[Edge]) -> bool:
        """Return whether the edges come from distinct nodes that are alike enough to form a pack."""
        kinds = {(self.wiring.labels[n], index) for n, index in column}
        nodes = {n for n, _ in column}
        return len(kinds) == 1 and len(nodes) == len(column) and all(map(self._is_free, nodes))

    def _is_free(self, n: int) -> bool:
        """Return whether a node can be part of a block and is in none."""
        return self.wiring.labels[n] >= 0 and n not in self.where and n not in self.wiring.claimed

    def _entry(self, edge: Edge) -> Entry:
        return Entry(self.wiring.nodes[edge[0]], edge[1])

    def _sliced(self, column: Sequence[Edge]) -> Sliced:
        return Sliced(tuple(map(self._entry, column)))

    # -------------------------------------------------------------------------------- recurrence
    def follow_recurrence(self) -> None:
        """Add the packs on the paths from each anchor to the next; raise `Irregular` where the steps differ."""
        pending = [0]
        while pending:
            pack = pending.pop()
            before = len(self.packs)
            longer: list[int] = []
            self.reads[pack] = [self._recurrent(self._column(pack, slot), longer) for slot in self._slots(pack)]
            pending += [*range(before, len(self.packs)), *longer]

    def _depends(self, n: int) -> bool:
        return self.depth.get(n, 0) >= self.base

    def _recurrent(self, column: list[Edge], longer: list[int]) -> Read:
        """Return how the steps read the inputs in `column`; packs with new nodes are appended to `longer`."""
        first, last = column[0], column[-1]
        if all(e == first for e in column):
            if self._depends(first[0]):
                raise Irregular(1)
            return Fixed(self._entry(first))
        for edge in (last, column[-2], column[1]):
            if edge[0] in self.where:
                return self._from_member(column, column.index(edge), longer)
        if not any(self._depends(n) for n, _ in column):
            if any(self.wiring.own[n] for n, _ in column):
                raise Irregular(_first_change(column))
            return self._sliced(column)
        if self._equal(column):
            return Local(self._add([n for n, _ in column]), last[1])
        if self._equal(column[1:]) and first[0] not in self.where and not self._depends(first[0]):
            return Carried(self._add([n for n, _ in column[1:]]), last[1], self._entry(first))
        raise Irregular(_first_change([(self.wiring.labels[n], i) for n, i in column]))

    def _from_member(self, column: list[Edge], at: int, longer: list[int]) -> Read:
        """Return the read of a pack of this or the previous step; `column[at]` is a node of that pack."""
        pack, step = self.where[column[at][0]]
        lag, index = at - step, column[at][1]
        if lag not in (0, 1):
            raise Irregular(max(at, 1))
        nodes = self.packs[pack]
        for t in range(lag, len(column)):
            n, i = column[t]
            if t - lag == len(nodes) and n not in self.where and self.wiring.labels[n] == self.wiring.labels[nodes[0]]:
                self.where[n] = (pack, t - lag)
                nodes.append(n)
                longer.append(pack)
            if i != index or self.where.get(n) != (pack, t - lag):
                raise Irregular(max(t, 1))
        if not lag:
            return Local(pack, index)
        if column[0][0] in self.where or self._depends(column[0][0]):
            raise Irregular(1)
        return Carried(pack, index, self._entry(column[0]))

    def finish_recurrence(self) -> None:
        """Find the nodes of the last step, which no anchor depends on; if one is missing, the last step stays unrolled."""
        for pack in self._in_order():
            while len(self.packs[pack]) < self.steps and self._extend(pack):
                pass
        self.steps = min(map(len, self.packs))
        for nodes in self.packs:
            for n in nodes[self.steps :]:
                del self.where[n]
            del nodes[self.steps :]
        for pack, reads in enumerate(self.reads):
            columns = [self._column(pack, slot) for slot in self._slots(pack)]
            self.reads[pack] = [self._sliced(c) if isinstance(r, Sliced) else r for r, c in zip(reads, columns, strict=True)]
        self.core = len(self.packs)
        self._core_reads = [list(r) for r in self.reads]
        pending = list(self.where)
        while pending:
            for user in self.wiring.users[pending.pop()]:
                if user not in self._below:
                    self._below.add(user)
                    pending.append(user)

    def _extend(self, pack: int) -> bool:
        """Append the node of the next step to a pack, if there is one; returns whether there is."""
        nodes, step = self.packs[pack], len(self.packs[pack])
        known: dict[int, Edge] = {}
        for slot, read in enumerate(self.reads[pack]):
            if isinstance(read, Fixed):
                known[slot] = (self.wiring.at[id(read.entry.node)], read.entry.index)
            elif isinstance(read, Local | Carried):
                source, when = self.packs[read.pack], step - isinstance(read, Carried)
                if when >= len(source):
                    return False
                known[slot] = (source[when], read.index)
        sources = [known[s][0] for s, r in enumerate(self.reads[pack]) if isinstance(r, Local | Carried)]
        for n in self.wiring.users[sources[0]] if sources else ():
            ins = self.wiring.inputs[n]
            if (
                self._is_free(n)
                and self.wiring.labels[n] == self.wiring.labels[nodes[0]]
                and all(ins[slot] == e for slot, e in known.items())
                and not any(self._depends(j) or self.wiring.own[j] for s, (j, _) in enumerate(ins) if s not in known)
            ):
                self.where[n] = (pack, step)
                nodes.append(n)
                return True
        return False

    # -------------------------------------------------------------------------------- neighbours
    def add_neighbours(self) -> None:
        """Add packs that the recurrence reads (projections of the inputs) and packs that read it (outputs of the steps)."""
        for pack in range(self.core):
            for slot, read in enumerate(self.reads[pack]):
                column = self._column(pack, slot)
                if isinstance(read, Sliced) and self._equal(column):
                    self._try([n for n, _ in column], absorb=True)
        pack = 0
        while pack < len(self.packs):
            for nodes in self._readers(pack):
                if self._try(nodes, absorb=True) is None:
                    self._try(nodes, absorb=False)
            pack += 1
        if not self._consistent():
            for nodes in self.packs[self.core :]:
                for n in nodes:
                    del self.where[n]
            del self.packs[self.core :]
            self.reads = self._core_reads

    def _consistent(self) -> bool:
        """Update reads of arrays that have become part of the block; returns whether a loop over the steps can read them."""
        for pack, reads in enumerate(self.reads):
            for slot, read in enumerate(reads):
                column = self._column(pack, slot)
                if isinstance(read, Sliced) and any(n in self.where for n, _ in column):
                    new = self._neighbour(column, absorb=False)
                    if new is None:
                        return False
                    reads[slot] = new
                elif isinstance(read, Fixed | Carried) and column[0][0] in self.where:
                    return False
        return True

    def _try(self, nodes: list[int], absorb: bool) -> int | None:
        """Add a pack, and with `absorb` all packs that it reads, or nothing if a step would depend on a later one."""
        before = len(self.packs)
        if any(n in self.where for n in nodes):
            return None
        pending = [self._add(nodes)]
        while pending:
            pack, start = pending.pop(), len(self.packs)
            reads = [self._neighbour(self._column(pack, slot), absorb) for slot in self._slots(pack)]
            if any(r is None for r in reads):
                for dropped in self.packs[before:]:
                    for n in dropped:
                        del self.where[n]
                del self.packs[before:], self.reads[before:]
                return None
            self.reads[pack] = reads  # type: ignore[assignment]
            pending += range(start, len(self.packs))
        return before

    def _neighbour(self, column: list[Edge], absorb: bool) -> Read | None:
        """Return how the steps read the inputs in `column`; None if that is impossible in a loop over the steps."""
        first, last = column[0], column[-1]
        members = [self.where.get(n) for n, _ in column]
        if not any(members):
            if any(n in self._below for n, _ in column):
                return None
            if all(e == first for e in column):
                return Fixed(self._entry(first))
            if any(self.wiring.own[n] for n, _ in column):
                return None
            if absorb and self._equal(column):
                return Local(self._add([n for n, _ in column]), last[1])
            return self._sliced(column)
        if members[-1] is None or any(i != last[1] for _, i in column[1:]):
            return None
        pack = members[-1][0]
        lag = len(column) - 1 - members[-1][1]
        if lag not in (0, 1) or any(m != (pack, t) for t, m in enumerate(members[lag:])):
            return None
        if not lag:
            return Local(pack, last[1]) if first[1] == last[1] else None
        return None if members[0] or first[0] in self._below else Carried(pack, last[1], self._entry(first))

    def _readers(self, pack: int) -> list[list[int]]:
        """Return the groups of equal nodes, one per step, that read the nodes of a pack and are not in the block."""
        by_step = [self._free_users(source) for source in self.packs[pack]]
        groups: list[tuple[int, ...]] = []
        for kind, nodes in by_step[0].items():
            if all(len(users.get(kind, ())) == len(nodes) for users in by_step):
                groups += zip(*(users[kind] for users in by_step), strict=True)
        return [list(group) for group in groups if len(set(group)) == len(group)]

    def _free_users(self, source: int) -> dict[object, list[int]]:
        """Return the users of a node that are in no block; equal keys: equal operators that read it and variables equally."""
        users: dict[object, list[int]] = {}
        for n in filter(self._is_free, self.wiring.users[source]):
            inputs = (
                (j if self.wiring.nodes[j].op is None else -1, i if j == source else -1) for j, i in self.wiring.inputs[n]
            )
            users.setdefault((self.wiring.labels[n], *inputs), []).append(n)
        return users

    # -------------------------------------------------------------------------------- result
    def claim(self) -> None:
        """Reserve the nodes of the block."""
        self.wiring.claimed.update(self.where)

    def _in_order(self, reads: Sequence[Sequence[Read]] | None = None) -> list[int]:
        """Return the packs in the order in which a step computes them."""
        reads = self.reads if reads is None else reads
        order: list[int] = []
        done: set[int] = set()
        for start in range(len(reads)):
            stack = [start]
            while stack:
                pack = stack[-1]
                missing = [r.pack for r in reads[pack] if isinstance(r, Local) and r.pack not in done]
                if pack in done:
                    stack.pop()
                elif missing:
                    stack.append(missing[0])
                else:
                    done.add(stack.pop())
                    order.append(pack)
        return order

    def block(self) -> Block:
        """Return the block."""
        return self._block(self.reads)

    def recurrence(self) -> Block:
        """Return the block without neighbours."""
        return self._block(self._core_reads)

    def _block(self, all_reads: list[list[Read]]) -> Block:
        order = self._in_order(all_reads)
        number = {pack: i for i, pack in enumerate(order)}
        packs = tuple(tuple(self.wiring.nodes[n] for n in self.packs[pack]) for pack in order)
        reads = tuple(
            tuple(r._replace(pack=number[r.pack]) if isinstance(r, Local | Carried) else r for r in all_reads[pack])
            for pack in order
        )
        return Block(packs, reads)


def _first_change(keys: Sequence[object]) -> int:
    """Return the first position from 2 on whose key differs from the one before; 1 if there is none."""
    return next((t for t in range(2, len(keys)) if keys[t] != keys[t - 1]), 1)
