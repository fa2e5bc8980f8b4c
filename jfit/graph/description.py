"""Descriptions of graphs: equal for graphs that compute the same with the same names, however often they were built."""

from __future__ import annotations

from typing import Any

from jfit.graph.nodes import Graph
from jfit.ops import Op
from jfit.programs.keys import ByIdentity, is_trusted


def description_of(symbol: Graph) -> Any:
    """Describe a graph completely: graphs with equal descriptions compute the same, and their variables have the same names.

    Args:
        symbol: the graph.

    Returns:
        Hashable value; None for a graph with an operator that the user defined, whose code may depend on other values.

    Example:
        >>> import jfit
        >>> net = lambda size: jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=size, name="fc")
        >>> description_of(net(3)) == description_of(net(3)), description_of(net(3)) == description_of(net(4))
        (True, False)
    """
    try:
        description = type(symbol), _describe(symbol)
        hash(description)
    except TypeError:  # an attribute that is no text
        return None
    return description if _is_own_graph(symbol) else None


def _describe(graph: Graph) -> Any:
    order, numbers, nodes = graph.nodes(), {}, []
    for node in order:
        numbers[id(node)] = len(numbers)
        wiring = tuple([(numbers[id(e.node)], e.index) for e in node.inputs])
        op = None if node.op is None else ByIdentity(node.op)
        nodes.append((op, node.name, tuple(node.attrs.items()), wiring, tuple(map(_describe, node.subgraphs))))
    return tuple(nodes), tuple([(numbers[id(h.node)], h.index) for h in graph.heads])


def _is_own_graph(graph: Graph) -> bool:
    return all((n.op is None or is_own(n.op)) and all(map(_is_own_graph, n.subgraphs)) for n in graph.nodes())


def is_own(op: Op) -> bool:
    """Whether an operator is jfit's own; the code of a user, also in a Custom operator, may depend on values that change."""
    return op.name != "Custom" and is_trusted(getattr(op.fn, "__globals__", {}).get("__name__"))
