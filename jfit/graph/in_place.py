"""Where MXNet writes one gradient over another that it still needs.

The gradient of LeakyReLU(act_type=prelu) by its data takes the memory of the gradient that came from above, wherever the
plan of its memory allows; the gradient by the slope is computed after that, from what was overwritten, and comes out as
slope x the true one.  Training curves depend on it.  The plan allows it where the data are no variable (their gradient lies
in a buffer of its own) and nothing reads the gradient from above later: additions and reshapes hand theirs on without a copy.
`in_place` gives these nodes a function with the gradients that MXNet has there.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from dataclasses import replace

from jfit.graph.nodes import Entry, Node, replace_nodes, topological
from jfit.ops import Op

PASSING = {"Flatten", "Reshape", "_copy", "expand_dims"}
ADDING = {"elemwise_add", "_grad_add", "add_n"}
BACKWARD = -1  # in place of an output's number: the backward pass of the whole node
Step = tuple[int, int]  # (id of a node, output whose gradient is complete, or BACKWARD)


def in_place(heads: Sequence[Entry], fed: Collection[str]) -> tuple[Entry, ...]:
    """The graph, with the function `Op.overwritten` in the nodes whose incoming gradient MXNet overwrites.

    Args:
        heads: the outputs of the graph.
        fed: names of the variables that are fed with data; all others are parameters.
    """
    found = overwritten(topological(heads), heads, fed)

    def swap(node: Node, inputs: tuple[Entry, ...]) -> Node | None:
        if id(node) not in found or node.op is None:
            return None
        return Node(_overwriting(node.op), node.name, node.attrs, inputs)

    return replace_nodes(heads, swap) if found else tuple(heads)


@functools.cache
def _overwriting(op: Op) -> Op:
    return replace(op, fn=op.overwritten, overwritten=None)


def overwritten(order: Sequence[Node], heads: Sequence[Entry], fed: Collection[str]) -> set[int]:
    """Ids of the nodes whose gradient from above is overwritten before the gradient by their parameter is computed."""
    found = [n for n in order if n.op and n.op.overwritten and len(n.inputs) > 1 and n.inputs[0].node.op]
    if not found:
        return set()
    plan = _Plan(order, heads)
    shared = {id(n): plan.readers(n) for n in found}
    if all(len(readers) == 1 for readers in shared.values()):
        return set(shared)
    times = plan.times([n for n in order if n.op is None and n.name not in fed])
    last = {node: max(times.get(r, -1) for r in readers) == times.get((node, BACKWARD), -1) for node, readers in shared.items()}
    return {node for node, alone in last.items() if alone}


class _Plan:
    """Who reads which gradient, and when."""

    def __init__(self, order: Sequence[Node], heads: Sequence[Entry]) -> None:
        self.nodes = {id(n): n for n in order}
        self.users: dict[Step, list[Node]] = {}
        for node in order:
            for entry in node.inputs:
                self.users.setdefault((id(entry.node), entry.index), []).append(node)
        self.heads = {(id(h.node), h.index) for h in heads}

    def _shares(self, step: Step) -> Node | None:
        """The only user of an output, where the gradient comes from it without a copy."""
        users = self.users.get(step, [])
        if step in self.heads or len(users) != 1 or users[0].op is None:
            return None
        return users[0] if users[0].op.name in PASSING | ADDING else None

    def readers(self, node: Node) -> set[Step]:
        """All steps that read the memory in which the gradient of the node's output lies; its own is among them."""
        root: Step = (id(node), 0)
        while (user := self._shares(root)) is not None:
            root = (id(user), 0)
        found, open_steps = set(), [root]
        while open_steps:
            step = open_steps.pop()
            producer = self.nodes[step[0]]
            if step != root and self._shares(step) is None:
                found.add(step)  # part of a sum of several gradients
            elif producer.op is None or producer.op.name not in PASSING | ADDING:
                found.add((step[0], BACKWARD))
            else:
                count = 1 if producer.op.name in PASSING else len(producer.inputs)
                open_steps += [(id(e.node), e.index) for e in producer.inputs[:count]]
        return found

    def times(self, variables: Sequence[Node]) -> dict[Step, int]:
        """When each step runs in MXNet: the gradient of one variable after another, each after all steps that it needs."""
        done: dict[Step, int] = {}
        for variable in variables:
            stack = [(id(variable), 0)]
            while stack:
                step = stack[-1]
                waits = [] if step in done else [s for s in self._needs(step) if s not in done]
                if waits:
                    stack.append(waits[0])
                else:
                    done.setdefault(stack.pop(), len(done))
        return done

    def _needs(self, step: Step) -> list[Step]:
        node = self.nodes[step[0]]
        if step[1] != BACKWARD:
            return [(id(user), BACKWARD) for user in reversed(self.users.get(step, []))]
        count = len(node.op.output_names(node.params)) if node.op else 1
        return [(step[0], i) for i in range(count)]
