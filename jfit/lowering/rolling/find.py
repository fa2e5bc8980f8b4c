"""Find the repeated blocks of a graph, such as the time steps of an unrolled recurrent network.

Nodes that apply one operator with one set of attributes to one set of shared variables, and that depend on each other in a
chain (the products h U of all time steps), are anchors.  From the anchors the graph is followed in all steps at once, towards
the inputs: nodes that are equal in all steps form a pack, and what a step reads from an earlier pack of the step before is
carried.  Where the steps differ, the chain is split.  Then packs before and after the recurrence are added.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from jfit.graph.nodes import Entry, Node
from jfit.lowering.rolling.blocks import Block
from jfit.lowering.rolling.growth import Growth, Irregular, Wiring

MIN_STEPS = 4  # shorter runs stay unrolled
MIN_PACKS = 3  # smaller blocks stay unrolled
MAX_TRIES = 64  # chains that are followed at most, so that the search takes linear time in graphs without repeated blocks
Item = Node | Block


def schedule(
    order: Sequence[Node], inputs: Collection[str], excluded: Collection[int], convolutions: bool, heads: Sequence[Entry] = ()
) -> list[Item]:
    """Replace the repeated blocks of a graph.

    Args:
        order: the nodes of the graph in topological order.
        inputs: names of the variables that each batch provides; all others are parameters or auxiliary states.
        excluded: ids of nodes that are not part of any block.
        convolutions: whether blocks may contain convolutions.
        heads: the outputs of the graph; blocks most of whose nodes are outputs (as in `get_internals`) stay unrolled.

    Returns:
        The operators of the graph in topological order; each node of a block is replaced by its block.
    """
    wiring = Wiring(order, inputs, excluded, convolutions)
    growths: list[Growth] = []
    for members in itertools.islice(_anchor_classes(wiring), MAX_TRIES):
        depth, chains = _chains(wiring, [m for m in members if m not in wiring.claimed])
        for chain in chains:
            growths += _grown(wiring, depth, chain)
    outputs = {wiring.at[id(h.node)] for h in heads}
    return _ordered(wiring, [g for g in growths if 2 * sum(n in outputs for n in g.where) <= len(g.where)])


def _anchor_classes(wiring: Wiring) -> Iterator[list[int]]:
    """Yield groups of equal nodes that may be anchors, in the order in which they are tried.

    Groups that share a variable come first.  Lower layers come before those that read them, so that each layer is a loop of its
    own: then the products of its inputs with its weights are computed for all steps at once.
    """
    shared = Counter((slot, wiring.labels[n], e) for n, ins in enumerate(wiring.inputs) for slot, e in enumerate(ins))
    with_variables: dict[object, list[int]] = {}
    without: dict[object, list[int]] = {}
    for n, label in enumerate(wiring.labels):
        if label < 0:
            continue
        same = [
            (slot, e)
            for slot, e in enumerate(wiring.inputs[n])
            if wiring.constant[e[0]] and shared[slot, label, e] >= MIN_STEPS
        ]
        (with_variables if same else without).setdefault((label, *same), []).append(n)
    for group in (with_variables, without):
        yield from sorted((m for m in group.values() if len(m) >= MIN_STEPS), key=lambda m: m[0])


def _chains(wiring: Wiring, members: Sequence[int]) -> tuple[dict[int, int], list[list[int]]]:
    """Return (node -> largest number of members on a path to it, chains of members in which each depends on the one before)."""
    depth: dict[int, int] = {}
    if len(members) < MIN_STEPS:
        return depth, []
    nearest: dict[int, int] = {}  # node -> the last member on the path with the most members
    following: dict[int, list[int]] = {}
    anchors = set(members)
    for n in range(members[0], members[-1] + 1):
        most, last = 0, -1
        for j, _ in wiring.inputs[n]:
            if depth.get(j, 0) > most:
                most, last = depth[j], nearest[j]
        if n in anchors:
            following.setdefault(last, []).append(n)
            most, last = most + 1, n
        if most:
            depth[n], nearest[n] = most, last
    starts = [n for before, after in following.items() for n in after if before < 0 or len(after) > 1]
    chains = []
    for n in starts:
        chain = [n]
        while len(after := following.get(chain[-1], [])) == 1:
            chain.append(after[0])
        if len(chain) >= MIN_STEPS:
            chains.append(chain)
    return depth, chains


def _grown(wiring: Wiring, depth: dict[int, int], chain: list[int]) -> Iterator[Growth]:
    """Yield the blocks around the anchors of one chain; where the steps differ, the chain is split."""
    pending, tries = [chain], 0
    while pending and tries < 8:
        anchors = pending.pop()
        if len(anchors) < MIN_STEPS:
            continue
        tries += 1
        growth = Growth(wiring, anchors, depth)
        try:
            growth.follow_recurrence()
        except Irregular as error:
            pending += [anchors[error.step :], anchors[: error.step]]
            continue
        growth.finish_recurrence()
        growth.add_neighbours()
        if growth.steps >= MIN_STEPS and len(growth.packs) >= MIN_PACKS and growth.reads() is not None:
            wiring.claimed.update(growth.where)
            yield growth


# ------------------------------------------------------------------------------------------------ order
def _ordered(wiring: Wiring, growths: list[Growth]) -> list[Item]:
    """Return nodes and blocks in topological order; blocks that depend on themselves through other nodes are reduced."""
    while True:
        items, stuck = _sorted(wiring, [g.block() for g in growths])
        if stuck is None:
            return items
        if not growths[stuck].drop_neighbours() or len(growths[stuck].packs) < MIN_PACKS:
            del growths[stuck]


def _sorted(wiring: Wiring, blocks: Sequence[Block]) -> tuple[list[Item], int | None]:
    """Sort nodes and blocks by their dependencies, else by position; returns (sorted, a block that depends on itself)."""
    group = {wiring.at[id(n)]: i for i, b in enumerate(blocks) for pack in b.packs for n in pack}
    count = len(wiring.nodes)
    unit = [count + group[n] if n in group else n for n in range(count)]
    needs: dict[int, set[int]] = {u: set() for u in unit}
    users: dict[int, set[int]] = {u: set() for u in unit}
    place = {u: n for n, u in reversed(list(enumerate(unit)))}
    for n, u in enumerate(unit):
        for j in wiring.before(n):
            if unit[j] != u:
                needs[u].add(unit[j])
                users[unit[j]].add(u)
    ready = [(place[u], u) for u in place if not needs[u]]
    heapq.heapify(ready)
    items: list[Item] = []
    while ready:
        _, u = heapq.heappop(ready)
        if u >= count:
            items.append(blocks[u - count])
        elif wiring.nodes[u].op is not None:
            items.append(wiring.nodes[u])
        for v in users[u]:
            needs[v].discard(u)
            if not needs[v]:
                heapq.heappush(ready, (place[v], v))
    return items, min((u - count for u in place if u >= count and needs[u]), default=None)


def entries_read_outside(
    order: Sequence[Node], items: Sequence[Item], heads: Sequence[Entry]
) -> dict[int, set[tuple[int, int]]]:
    """Return for each block, by its position in `items`, the outputs of its nodes (id, index) that others or `heads` read."""
    owner = {id(n): i for i, b in enumerate(items) if isinstance(b, Block) for pack in b.packs for n in pack}
    outside: dict[int, set[tuple[int, int]]] = {i: set() for i in owner.values()}
    reads = [*((head, None) for head in heads), *((entry, owner.get(id(n))) for n in order for entry in n.inputs)]
    for entry, reader in reads:
        block = owner.get(id(entry.node))
        if block is not None and block != reader:
            outside[block].add((id(entry.node), entry.index))
    return outside
