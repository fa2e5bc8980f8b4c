"""A graph as mermaid text, which Markdown pages and notebooks draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jfit.graph.drawing.parts import caption, edges, size
from jfit.graph.infer import infer
from jfit.graph.symbol import Symbol


def mermaid(symbol: Symbol, shapes: Mapping[str, Sequence[int]] | None = None) -> str:
    """The graph as mermaid flowchart text; edges carry shapes where shapes are given.

    Example:
        >>> import jfit
        >>> print(jfit.sym.relu(jfit.sym.Variable("x"), name="r").mermaid())
        flowchart TD
          n0(["x"])
          n1["r<br/>relu"]
          n0 --> n1
    """
    known = infer(symbol, shapes)[0] if shapes else {}
    nodes, between = edges(symbol)
    number = {id(n): i for i, n in enumerate(nodes)}
    lines = ["flowchart TD"]
    for node in nodes:
        name = node.name.replace('"', "'")
        if node.op is None:
            lines.append(f'  n{number[id(node)]}(["{name}"])')
        else:
            details = caption(node)
            lines.append(f'  n{number[id(node)]}["{name}<br/>{node.op.name}{" " + details if details else ""}"]')
    for entry, node in between:
        shape = known.get((id(entry.node), entry.index))
        label = f"|{size(shape)}|" if shape else ""
        lines.append(f"  n{number[id(entry.node)]} -->{label} n{number[id(node)]}")
    return "\n".join(lines)
