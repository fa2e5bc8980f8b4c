"""Looking at a graph: a summary table, mermaid text, a graphviz drawing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from jfit.symbol.graph import Entry, Node, Symbol, aux_nodes
from jfit.symbol.infer import infer

COLORS = {"nn": "#fb8072", "conv": "#fb8072", "norm": "#bebada", "pooling": "#80b1d3", "loss": "#fccde5"}


def _hidden(order: Sequence[Node]) -> set[int]:
    """Ids of parameters and auxiliary states: variables that fill a slot other than data and label of some operator."""
    hidden = aux_nodes(order)
    for node in order:
        if node.op is not None and not node.op.variadic:
            for name, entry in zip(node.input_names(), node.inputs, strict=True):
                if entry.node.op is None and name in ("weight", "bias", "gamma", "beta", "parameters"):
                    hidden.add(id(entry.node))
    return hidden


def _visible(symbol: Symbol) -> tuple[list[Node], set[int]]:
    order = symbol.nodes()
    hidden = _hidden(order)
    return [n for n in order if id(n) not in hidden], hidden


def _size(shape: Sequence[int] | None) -> str:
    return "x".join(str(s) if s else "?" for s in shape) if shape else "?"


def parameter_counts(symbol: Symbol, shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Number of parameter and auxiliary values of each operator node, by node name.

    Example:
        >>> import jfit
        >>> from jfit.symbol.draw import parameter_counts
        >>> parameter_counts(jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=3, name="fc"), {"data": (2, 5)})
        {'fc': 18}
    """
    known, _ = infer(symbol, shapes)
    order = symbol.nodes()
    hidden = _hidden(order)
    counts: dict[str, int] = {}
    for node in order:
        if node.op is not None:
            own = [known.get((id(e.node), e.index)) for e in node.inputs if id(e.node) in hidden]
            counts[node.name] = sum(math.prod(s) for s in own if s)
    return counts


def summary(symbol: Symbol, shapes: Mapping[str, Sequence[int]]) -> str:
    """A table of the nodes of a graph: name, operator, output shape, number of parameters, inputs.

    Example:
        >>> import jfit
        >>> fc = jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=3, name="fc")
        >>> print(fc.summary(data=(2, 5)))
        node  operator        output shape  parameters  inputs
        data  -               2x5                    0
        fc    FullyConnected  2x3                   18  data
        total parameters: 18
    """
    known, _ = infer(symbol, shapes)
    counts = parameter_counts(symbol, shapes)
    nodes, hidden = _visible(symbol)
    rows = [("node", "operator", "output shape", "parameters", "inputs")]
    for node in nodes:
        inputs = ", ".join(dict.fromkeys(e.node.name for e in node.inputs if id(e.node) not in hidden))
        kind = node.op.name if node.op else "-"
        rows.append((node.name, kind, _size(known.get((id(node), 0))), f"{counts.get(node.name, 0):,}", inputs))
    widths = [max(len(r[i]) for r in rows) for i in range(4)]
    lines = [
        "  ".join((r[0].ljust(widths[0]), r[1].ljust(widths[1]), r[2].ljust(widths[2]), r[3].rjust(widths[3]), r[4])).rstrip()
        for r in rows
    ]
    total = sum(math.prod(known.get((i, 0)) or (0,)) for i in hidden)
    return "\n".join([*lines, f"total parameters: {total:,}"])


def _edges(symbol: Symbol) -> tuple[list[Node], list[tuple[Entry, Node]]]:
    nodes, hidden = _visible(symbol)
    return nodes, [(e, n) for n in nodes for e in n.inputs if id(e.node) not in hidden]


def _caption(node: Node) -> str:
    shown = ("kernel", "stride", "num_filter", "num_hidden", "act_type", "pool_type", "p")
    details = [f"{k} {node.attrs[k]}" for k in shown if k in node.attrs]
    return ", ".join(details)


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
    nodes, edges = _edges(symbol)
    number = {id(n): i for i, n in enumerate(nodes)}
    lines = ["flowchart TD"]
    for node in nodes:
        name = node.name.replace('"', "'")
        if node.op is None:
            lines.append(f'  n{number[id(node)]}(["{name}"])')
        else:
            caption = _caption(node)
            lines.append(f'  n{number[id(node)]}["{name}<br/>{node.op.name}{" " + caption if caption else ""}"]')
    for entry, node in edges:
        shape = known.get((id(entry.node), entry.index))
        label = f"|{_size(shape)}|" if shape else ""
        lines.append(f"  n{number[id(entry.node)]} -->{label} n{number[id(node)]}")
    return "\n".join(lines)


def graphviz(symbol: Symbol, shapes: Mapping[str, Sequence[int]] | None = None) -> Any:
    """The graph as a `graphviz.Digraph`; rendering it needs graphviz's `dot` program.

    Raises:
        ImportError: the graphviz package is missing; the message says how to install it.
    """
    try:
        import graphviz as gv
    except ImportError as error:
        raise ImportError("drawing graphs needs the graphviz package: pip install 'jfit[demo]'") from error
    known = infer(symbol, shapes)[0] if shapes else {}
    nodes, edges = _edges(symbol)
    number = {id(n): f"n{i}" for i, n in enumerate(nodes)}
    dot = gv.Digraph(symbol.name or "symbol", node_attr={"style": "filled", "shape": "box", "fontname": "Helvetica"})
    for node in nodes:
        caption = "\n".join(filter(None, (node.name, node.op.name if node.op else "", _caption(node))))
        color = COLORS.get(node.op.family, "#b3de69") if node.op else "#8dd3c7"
        dot.node(number[id(node)], gv.escape(caption), fillcolor=color, shape="box" if node.op else "oval")
    for entry, node in edges:
        shape = known.get((id(entry.node), entry.index))
        dot.edge(number[id(entry.node)], number[id(node)], label=_size(shape) if shape else "")
    return dot
