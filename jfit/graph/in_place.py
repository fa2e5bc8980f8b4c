"""Reproduce a bug of MXNet: it overwrites a gradient in place that it reads again afterwards.

The backward pass of LeakyReLU(act_type=prelu) has an incoming gradient (of its output) and two results: the gradients with
respect to data and slope.  If MXNet's memory planner allows it, the data gradient is written into the buffer of the incoming
gradient; the slope gradient is computed next, from the overwritten buffer, and becomes slope times its correct value.
Training curves recorded in MXNet depend on it.  The planner allows it if the data is not a variable (whose gradient has a
separate buffer) and no later step reads the incoming gradient.  Additions and reshapes pass a gradient on without a copy, so
their readers are readers of the same buffer.  `in_place` finds these nodes and gives them MXNet's gradients.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from dataclasses import replace

from jfit.graph.nodes import Entry, Node, replace_nodes, topological
from jfit.ops import Op

RESHAPES = {"Flatten", "Reshape", "_copy", "expand_dims"}
ADDITIONS = {"elemwise_add", "_grad_add", "add_n"}
BACKWARD = -1
Step = tuple[int, int]  # (node id, output index): sum the gradients of an output; (node id, BACKWARD): backward pass of a node


def in_place(heads: Sequence[Entry], inputs: Collection[str]) -> tuple[Entry, ...]:
    """Rebuild the graph with the function `Op.overwritten` in the nodes whose incoming gradient MXNet overwrites.

    Args:
        heads: the outputs of the graph.
        inputs: names of the input variables; all others are parameters.

    Returns:
        The outputs of the new graph.
    """
    ids = overwritten(topological(heads), heads, inputs)

    def swap(node: Node, inputs: tuple[Entry, ...]) -> Node | None:
        if id(node) not in ids or node.op is None:
            return None
        return Node(_overwriting(node.op), node.name, node.attrs, inputs)

    return replace_nodes(heads, swap) if ids else tuple(heads)


@functools.cache
def _overwriting(op: Op) -> Op:
    return replace(op, fn=op.overwritten, overwritten=None)


def overwritten(order: Sequence[Node], heads: Sequence[Entry], inputs: Collection[str]) -> set[int]:
    """Return the ids of the nodes whose incoming gradient MXNet overwrites before it computes the gradient of their parameter.

    `order`: the nodes of the graph; `heads`: its outputs; `inputs`: names of the variables that are not parameters.
    """
    candidates = [n for n in order if n.op and n.op.overwritten and len(n.inputs) > 1 and n.inputs[0].node.op]
    if not candidates:
        return set()
    plan = _BackwardPlan(order, heads)
    readers = {id(n): plan.readers(n) for n in candidates}
    if all(len(steps) == 1 for steps in readers.values()):
        return set(readers)
    times = plan.times([n for n in order if n.op is None and n.name not in inputs])
    is_last = {n: max(times.get(s, -1) for s in steps) == times.get((n, BACKWARD), -1) for n, steps in readers.items()}
    return {node for node, last in is_last.items() if last}


class _BackwardPlan:
    """The steps of MXNet's backward pass: which steps read a gradient buffer, and in which order the steps run."""

    def __init__(self, order: Sequence[Node], heads: Sequence[Entry]) -> None:
        self.nodes = {id(n): n for n in order}
        self.users: dict[Step, list[Node]] = {}
        for node in order:
            for entry in node.inputs:
                self.users.setdefault((id(entry.node), entry.index), []).append(node)
        self.heads = {(id(h.node), h.index) for h in heads}

    def _shares(self, step: Step) -> Node | None:
        """Return the only node that reads an output, if it passes its gradient on without a copy (addition, reshape)."""
        users = self.users.get(step, [])
        if step in self.heads or len(users) != 1 or users[0].op is None:
            return None
        return users[0] if users[0].op.name in RESHAPES | ADDITIONS else None

    def readers(self, node: Node) -> set[Step]:
        """Return all steps that read the buffer with the gradient of the node's output, the node's backward pass included."""
        root: Step = (id(node), 0)
        while (user := self._shares(root)) is not None:
            root = (id(user), 0)
        steps, pending = set(), [root]
        while pending:
            step = pending.pop()
            producer = self.nodes[step[0]]
            if step != root and self._shares(step) is None:
                steps.add(step)  # the buffer is one term of a sum of several gradients
            elif producer.op is None or producer.op.name not in RESHAPES | ADDITIONS:
                steps.add((step[0], BACKWARD))
            else:
                count = 1 if producer.op.name in RESHAPES else len(producer.inputs)
                pending += [(id(e.node), e.index) for e in producer.inputs[:count]]
        return steps

    def times(self, variables: Sequence[Node]) -> dict[Step, int]:
        """Return the position of each step in MXNet's order: gradients of `variables` in turn, each after its dependencies."""
        done: dict[Step, int] = {}
        for variable in variables:
            stack = [(id(variable), 0)]
            while stack:
                step = stack[-1]
                missing = [] if step in done else [s for s in self._dependencies(step) if s not in done]
                if missing:
                    stack.append(missing[0])
                else:
                    done.setdefault(stack.pop(), len(done))
        return done

    def _dependencies(self, step: Step) -> list[Step]:
        node = self.nodes[step[0]]
        if step[1] != BACKWARD:
            return [(id(user), BACKWARD) for user in reversed(self.users.get(step, []))]
        count = len(node.op.output_names(node.params)) if node.op else 1
        return [(step[0], i) for i in range(count)]
