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
    """A block in the making: packs of equal nodes, one node per step."""

    def __init__(self, wiring: Wiring, anchors: Sequence[int], depth: dict[int, int]) -> None:
        self.wiring = wiring
        self.depth = depth
        self.base = depth[anchors[0]]
        self.steps = len(anchors)
        self.packs: list[list[int]] = []
        self.where: dict[int, tuple[int, int]] = {}  # node -> (pack, step)
        self.core = 0  # number of packs of the recurrence, without the neighbours
        self._below: set[int] = set()  # nodes that depend on the recurrence
        self._add(anchors)

    # -------------------------------------------------------------------------------- packs
    def _add(self, nodes: Sequence[int]) -> int:
        self.where.update({n: (len(self.packs), t) for t, n in enumerate(nodes)})
        self.packs.append(list(nodes))
        return len(self.packs) - 1

    def _drop(self, count: int) -> None:
        """Drop all packs but the first `count`."""
        for n in (n for pack in self.packs[count:] for n in pack):
            del self.where[n]
        del self.packs[count:]

    def _columns(self, pack: int) -> list[tuple[Edge, ...]]:
        """Return for each input of the nodes of a pack what they read, one edge per step."""
        return list(zip(*(self.wiring.inputs[n] for n in self.packs[pack]), strict=True))

    def _equal(self, column: Sequence[Edge]) -> bool:
        """Return whether the edges come from distinct nodes that are alike enough to form a pack."""
        kinds = {(self.wiring.labels[n], index) for n, index in column}
        nodes = {n for n, _ in column}
        return len(kinds) == 1 and len(nodes) == len(column) and all(map(self._is_free, nodes))

    def _is_free(self, n: int) -> bool:
        """Return whether a node can be part of a block and is in none."""
        return self.wiring.labels[n] >= 0 and n not in self.where and n not in self.wiring.claimed

    # -------------------------------------------------------------------------------- recurrence
    def follow_recurrence(self) -> None:
        """Add the packs on the paths from each anchor to the next; raise `Irregular` where the steps differ."""
        pending = [0]
        while pending:
            for column in self._columns(pending.pop()):
                pending += self._follow(column)

    def _depends(self, n: int) -> bool:
        return self.depth.get(n, 0) >= self.base

    def _follow(self, column: Sequence[Edge]) -> list[int]:
        """Add the nodes of the recurrence that the steps read; returns their pack, if it is new or longer than before."""
        first = column[0]
        if all(e == first for e in column):
            if self._depends(first[0]):
                raise Irregular(1)
            return []
        if not any(self._depends(n) for n, _ in column):
            if any(self.wiring.own[n] for n, _ in column):  # different parameters
                raise Irregular(_first_change(column))
            return []
        pack, step = self.where.get(column[-2][0], (-1, 0))
        if pack >= 0:
            lag = len(column) - 2 - step  # 0: the steps read nodes of their own, 1: of the step before
        else:
            lag = int(not self._equal(column))
            if not self._equal(column[lag:]):
                raise Irregular(_first_change([(self.wiring.labels[n], i) for n, i in column]))
        if lag not in (0, 1) or (lag and (first[0] in self.where or self._depends(first[0]))):
            raise Irregular(1)
        if pack < 0:
            return [self._add([n for n, _ in column[lag:]])]
        nodes, before = self.packs[pack], len(self.packs[pack])
        for t, (n, index) in enumerate(column[lag:]):
            if t == len(nodes) and self._is_free(n) and self.wiring.labels[n] == self.wiring.labels[nodes[0]]:
                self.where[n] = (pack, t)
                nodes.append(n)
            if index != column[-2][1] or self.where.get(n) != (pack, t):
                raise Irregular(max(t + lag, 1))
        return [pack] if len(nodes) > before else []

    def finish_recurrence(self) -> None:
        """Find the nodes of the last step, which no anchor depends on; if one is missing, the last step stays unrolled."""
        while any(len(nodes) < self.steps and self._extend(pack) for pack, nodes in enumerate(self.packs)):
            pass
        self.steps = min(map(len, self.packs))
        for nodes in self.packs:
            for n in nodes[self.steps :]:
                del self.where[n]
            del nodes[self.steps :]
        self.core = len(self.packs)
        pending = list(self.where)
        while pending:
            new = [n for n in self.wiring.users[pending.pop()] if n not in self._below]
            self._below.update(new)
            pending += new

    def _extend(self, pack: int) -> bool:
        """Append the node of the next step to a pack, if there is one; returns whether there is."""
        nodes = self.packs[pack]
        expected: list[Edge | None] = []  # what that node reads; None: an array of its own
        for before, edge in zip(*(self.wiring.inputs[n] for n in nodes[-2:]), strict=True):
            source, step = self.where.get(edge[0], (-1, 0))
            if source >= 0 and step + 1 >= len(self.packs[source]):
                return False
            same = edge if edge == before else None
            expected.append(same if source < 0 else (self.packs[source][step + 1], edge[1]))
        first = next((e[0] for e in expected if e is not None and e[0] in self.where), None)
        for n in () if first is None else self.wiring.users[first]:
            if self._is_free(n) and self.wiring.labels[n] == self.wiring.labels[nodes[0]]:
                pairs = zip(self.wiring.inputs[n], expected, strict=True)
                if all(e == x if x else not self._depends(e[0]) and not self.wiring.own[e[0]] for e, x in pairs):
                    self.where[n] = (pack, len(nodes))
                    nodes.append(n)
                    return True
        return False

    # -------------------------------------------------------------------------------- neighbours
    def add_neighbours(self) -> None:
        """Add packs that the recurrence reads (projections of the inputs) and packs that read it (outputs of the steps)."""
        for column in [c for pack in range(self.core) for c in self._columns(pack)]:
            if isinstance(self._read(column), Sliced) and self._equal(column):
                self._try([n for n, _ in column], absorb=True)
        pack = 0
        while pack < len(self.packs):
            for nodes in self._readers(pack):
                if not self._try(nodes, absorb=True):
                    self._try(nodes, absorb=False)
            pack += 1
        if self.reads() is None:
            self.drop_neighbours()

    def drop_neighbours(self) -> bool:
        """Drop all packs but those of the recurrence; returns whether there were others."""
        before = len(self.packs)
        self._drop(self.core)
        return len(self.packs) < before

    def _try(self, nodes: Sequence[int], absorb: bool) -> bool:
        """Add a pack, and with `absorb` all packs that it reads, or nothing if a step would depend on a later one."""
        before = len(self.packs)
        if any(n in self.where for n in nodes):
            return False
        pending = [self._add(nodes)]
        while pending:
            for column in self._columns(pending.pop()):
                read = self._read(column)
                if read is None:
                    self._drop(before)
                    return False
                if absorb and isinstance(read, Sliced) and self._equal(column):
                    pending.append(self._add([n for n, _ in column]))
        return True

    def _readers(self, pack: int) -> list[tuple[int, ...]]:
        """Return the groups of equal nodes, one per step, that read the nodes of a pack and are not in the block."""
        by_step = [self._free_users(source) for source in self.packs[pack]]
        groups: list[tuple[int, ...]] = []
        for kind, nodes in by_step[0].items():
            if all(len(users.get(kind, ())) == len(nodes) for users in by_step):
                groups += zip(*(users[kind] for users in by_step), strict=True)
        return [group for group in groups if len(set(group)) == len(group)]

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
    def _read(self, column: Sequence[Edge]) -> Read | None:
        """Return how the steps read the inputs in `column`; None if that is impossible in a loop over the steps."""
        first, (_, index) = column[0], column[-1]
        members = [self.where.get(n) for n, _ in column]
        entries = tuple([Entry(self.wiring.nodes[n], i) for n, i in column])
        if not any(members):
            if any(n in self._below for n, _ in column):
                return None
            if all(e == first for e in column):
                return Fixed(entries[0])
            return None if any(self.wiring.own[n] for n, _ in column) else Sliced(entries)
        if members[-1] is None or any(i != index for _, i in column[1:]):
            return None
        pack, step = members[-1]
        lag = len(column) - 1 - step
        if lag not in (0, 1) or any(m != (pack, t) for t, m in enumerate(members[lag:])):
            return None
        if not lag:
            return Local(pack, index) if first[1] == index else None
        return None if members[0] or first[0] in self._below else Carried(pack, index, entries[0])

    def reads(self) -> list[list[Read]] | None:
        """Return for each pack how its nodes read their inputs; None if no loop over the steps can read them so."""
        found = [[self._read(column) for column in self._columns(pack)] for pack in range(len(self.packs))]
        return None if any(r is None for reads in found for r in reads) else found  # type: ignore[return-value]

    def block(self) -> Block:
        """Return the block, with the packs in the order of the nodes of the first step."""
        reads = self.reads()
        assert reads is not None
        order = sorted(range(len(reads)), key=lambda pack: self.packs[pack][0])
        number = {pack: i for i, pack in enumerate(order)}
        packs = tuple(tuple(self.wiring.nodes[n] for n in self.packs[pack]) for pack in order)
        renumbered = (
            tuple(r._replace(pack=number[r.pack]) if isinstance(r, Local | Carried) else r for r in reads[pack])
            for pack in order
        )
        return Block(packs, tuple(renumbered))


def _first_change(keys: Sequence[object]) -> int:
    """Return the first position from 2 on whose key differs from the one before; 1 if there is none."""
    return next((t for t in range(2, len(keys)) if keys[t] != keys[t - 1]), 1)
