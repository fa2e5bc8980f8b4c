"""What a drawing of a graph shows: its nodes without parameters, the edges between them, captions."""

from __future__ import annotations

from collections.abc import Sequence

from jfit.graph.symbol import Entry, Node, Symbol, aux_nodes

PARAMETER_SLOTS = ("weight", "bias", "gamma", "beta", "parameters")
CAPTIONS = ("kernel", "stride", "num_filter", "num_hidden", "act_type", "pool_type", "p")


def hidden(order: Sequence[Node]) -> set[int]:
    """Ids of parameters and auxiliary states: variables that fill a slot other than data and label of some operator."""
    found = aux_nodes(order)
    for node in order:
        if node.op is not None and not node.op.variadic:
            for name, entry in zip(node.input_names(), node.inputs, strict=True):
                if entry.node.op is None and name in PARAMETER_SLOTS:
                    found.add(id(entry.node))
    return found


def visible(symbol: Symbol) -> tuple[list[Node], set[int]]:
    """The nodes that are shown, and the ids of those that are not."""
    order = symbol.nodes()
    found = hidden(order)
    return [n for n in order if id(n) not in found], found


def edges(symbol: Symbol) -> tuple[list[Node], list[tuple[Entry, Node]]]:
    """The nodes that are shown, and (output, node that takes it) between them."""
    nodes, unseen = visible(symbol)
    return nodes, [(e, n) for n in nodes for e in n.inputs if id(e.node) not in unseen]


def size(shape: Sequence[int] | None) -> str:
    """A shape as `2x5`, `?` where it is unknown."""
    return "x".join(str(s) if s else "?" for s in shape) if shape else "?"


def caption(node: Node) -> str:
    """The attributes that say most about a node."""
    return ", ".join(f"{k} {node.attrs[k]}" for k in CAPTIONS if k in node.attrs)
