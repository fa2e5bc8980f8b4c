"""A graph as a graphviz drawing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jfit.graph.drawing.parts import caption, edges, size
from jfit.graph.infer import infer
from jfit.graph.symbol import Symbol

COLORS = {"nn": "#fb8072", "conv": "#fb8072", "norm": "#bebada", "pooling": "#80b1d3", "loss": "#fccde5"}


def graphviz(symbol: Symbol, shapes: Mapping[str, Sequence[int]] | None = None) -> Any:
    """The graph as a `graphviz.Digraph`; rendering it needs graphviz's `dot` program.

    Raises:
        ImportError: the graphviz package is missing; the message says how to install it.
    """
    gv = package()
    known = infer(symbol, shapes)[0] if shapes else {}
    nodes, between = edges(symbol)
    number = {id(n): f"n{i}" for i, n in enumerate(nodes)}
    dot = gv.Digraph(symbol.name or "symbol", node_attr={"style": "filled", "shape": "box", "fontname": "Helvetica"})
    for node in nodes:
        text = "\n".join(filter(None, (node.name, node.op.name if node.op else "", caption(node))))
        color = COLORS.get(node.op.family, "#b3de69") if node.op else "#8dd3c7"
        dot.node(number[id(node)], gv.escape(text), fillcolor=color, shape="box" if node.op else "oval")
    for entry, node in between:
        shape = known.get((id(entry.node), entry.index))
        dot.edge(number[id(entry.node)], number[id(node)], label=size(shape) if shape else "")
    return dot


def package() -> Any:
    """The graphviz package.

    Raises:
        ImportError: it is missing; the message says how to install it.
    """
    try:
        import graphviz as gv
    except ImportError as error:
        raise ImportError("drawing graphs needs the graphviz package: pip install 'jfit[demo]'") from error
    return gv
