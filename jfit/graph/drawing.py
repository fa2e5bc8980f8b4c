"""Looking at a graph: a summary table, mermaid text, a graphviz drawing, MXNet's listing.

>>> import jfit
>>> net = jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=3, name="fc")
>>> net.summary(data=(2, 5)).splitlines()[-1]
'total parameters: 18, MACs: 30, FLOPs: 66'
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jfit.graph.costs import Count, count_known, hidden, total_of
from jfit.graph.infer import infer
from jfit.graph.nodes import Entry, Graph, Node, aux_nodes

CAPTIONS = ("kernel", "stride", "num_filter", "num_hidden", "act_type", "pool_type", "p")
COLUMNS = ("node", "operator", "output shape", "parameters", "MACs", "FLOPs", "inputs")
RIGHT = ("parameters", "MACs", "FLOPs")
COLORS = {"nn": "#fb8072", "conv": "#fb8072", "norm": "#bebada", "pooling": "#80b1d3", "loss": "#fccde5"}


def summary(graph: Graph, shapes: Mapping[str, Sequence[int]]) -> str:
    """A table of the nodes of a graph: name, operator, output shape, parameters, what a forward pass costs, inputs.

    Args:
        graph: the graph.
        shapes: shapes by variable name.

    Returns:
        The table as text; MACs and FLOPs as `counts` defines them.

    Example:
        >>> import jfit
        >>> fc = jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=3, name="fc")
        >>> print(fc.summary(data=(2, 5)))
        node  operator        output shape  parameters  MACs  FLOPs  inputs
        data  -               2x5                    0     0      0
        fc    FullyConnected  2x3                   18    30     66  data
        total parameters: 18, MACs: 30, FLOPs: 66
    """
    known, types = infer(graph, shapes)
    counted = count_known(graph, known, types)
    nodes, unseen = visible(graph)
    rows: list[tuple[str, ...]] = [COLUMNS]
    for node in nodes:
        inputs = ", ".join(dict.fromkeys(e.node.name for e in node.inputs if id(e.node) not in unseen))
        numbers = (f"{n:,}" for n in counted.get(id(node), Count(0, 0, 0)))
        rows.append((node.name, node.op.name if node.op else "-", size(known.get((id(node), 0))), *numbers, inputs))
    widths = [max(len(r[i]) for r in rows) for i in range(len(COLUMNS))]
    lines = [
        "  ".join(f"{t:>{w}}" if c in RIGHT else f"{t:<{w}}" for t, w, c in zip(r, widths, COLUMNS, strict=True)).rstrip()
        for r in rows
    ]
    whole = total_of(graph, known, counted)
    return "\n".join([*lines, f"total parameters: {whole.parameters:,}, MACs: {whole.macs:,}, FLOPs: {whole.flops:,}"])


def mermaid(graph: Graph, shapes: Mapping[str, Sequence[int]] | None = None) -> str:
    """The graph as mermaid flowchart text; edges carry shapes where shapes are given.

    Example:
        >>> import jfit
        >>> print(jfit.sym.relu(jfit.sym.Variable("x"), name="r").mermaid())
        flowchart TD
          n0(["x"])
          n1["r<br/>relu"]
          n0 --> n1
    """
    known = infer(graph, shapes)[0] if shapes else {}
    nodes, between = edges(graph)
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


def graphviz(graph: Graph, shapes: Mapping[str, Sequence[int]] | None = None) -> Any:
    """The graph as a `graphviz.Digraph`; rendering it needs graphviz's `dot` program.

    Raises:
        ImportError: the graphviz package is missing; the message says how to install it.
    """
    gv = package()
    known = infer(graph, shapes)[0] if shapes else {}
    nodes, between = edges(graph)
    number = {id(n): f"n{i}" for i, n in enumerate(nodes)}
    dot = gv.Digraph(graph.name or "symbol", node_attr={"style": "filled", "shape": "box", "fontname": "Helvetica"})
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


def listing(graph: Graph) -> str:
    """Every node in order, with inputs and attributes, in MXNet's words.

    Example:
        >>> import jfit
        >>> print(listing(jfit.sym.relu(jfit.sym.Variable("x"), name="r")), end="")
        Symbol Outputs:
                output[0]=r(0)
        Variable:x
        --------------------
        Op:relu, Name=r
        Inputs:
                arg[0]=x(0) version=0
    """
    order = graph.nodes()
    if len(graph.heads) == 1 and graph.heads[0].node.op is None:
        return f"Variable:{graph.heads[0].node.name}\n"
    aux = aux_nodes(order)

    def source(entry: Entry) -> str:
        # how often the variable was written before it is read: auxiliary states once, by the operator itself
        version = f" version={int(id(entry.node) in aux)}" if entry.node.op is None else ""
        return f"{entry.node.name}({entry.index}){version}"

    lines = ["Symbol Outputs:", *(f"\toutput[{i}]={h.node.name}({h.index})" for i, h in enumerate(graph.heads))]
    for node in order:
        if node.op is None:
            lines.append(f"Variable:{node.name}")
            continue
        lines += ["-" * 20, f"Op:{node.op.name}, Name={node.name}"]
        if node.inputs:
            lines += ["Inputs:", *(f"\targ[{i}]={source(e)}" for i, e in enumerate(node.inputs))]
        if node.attrs:
            lines += ["Attrs:", *(f"\t{k}={v}" for k, v in sorted(node.attrs.items()))]
    return "\n".join(lines) + "\n"


# ------------------------------------------------------------------------------------------------ what is shown
def visible(graph: Graph) -> tuple[list[Node], set[int]]:
    """The nodes that are shown, and the ids of those that are not."""
    order = graph.nodes()
    unseen = hidden(order)
    return [n for n in order if id(n) not in unseen], unseen


def edges(graph: Graph) -> tuple[list[Node], list[tuple[Entry, Node]]]:
    """The nodes that are shown, and (output, node that takes it) between them."""
    nodes, unseen = visible(graph)
    return nodes, [(e, n) for n in nodes for e in n.inputs if id(e.node) not in unseen]


def size(shape: Sequence[int] | None) -> str:
    """A shape as `2x5`, `?` where it is unknown."""
    return "x".join(str(s) if s else "?" for s in shape) if shape else "?"


def caption(node: Node) -> str:
    """The attributes that say most about a node."""
    return ", ".join(f"{k} {node.attrs[k]}" for k in CAPTIONS if k in node.attrs)
