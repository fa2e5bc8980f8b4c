"""Views of a graph: summary table, mermaid flowchart, graphviz drawing, MXNet's text listing.

>>> import jfit
>>> net = jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=3, name="fc")
>>> net.summary(data=(2, 5)).splitlines()[-1]
'total parameters: 18, MACs: 30, FLOPs: 66'
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from jfit.graph.costs import Count, count_known, parameter_nodes, total_of
from jfit.graph.infer import infer
from jfit.graph.nodes import Entry, Graph, Node, aux_nodes
from jfit.lazy import optional

CAPTION_ATTRS = ("kernel", "stride", "num_filter", "num_hidden", "act_type", "pool_type", "p")
COLUMNS = ("node", "operator", "output shape", "parameters", "MACs", "FLOPs", "inputs")
COLORS = {"nn": "#fb8072", "conv": "#fb8072", "norm": "#bebada", "pooling": "#80b1d3", "loss": "#fccde5"}


def summary(graph: Graph, shapes: Mapping[str, Sequence[int]]) -> str:
    """Tabulate the nodes of a graph: name, operator, output shape, parameters, MACs and FLOPs of a forward pass, inputs.

    Args:
        graph: the graph.
        shapes: shapes by variable name.

    Returns:
        The table as text.  Parameters have no rows; MACs and FLOPs are those of `jfit.graph.costs.counts`.

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
    nodes, params = visible(graph)
    rows: list[tuple[str, ...]] = [COLUMNS]
    for node in nodes:
        inputs = ", ".join(dict.fromkeys(e.node.name for e in node.inputs if id(e.node) not in params))
        numbers = (f"{n:,}" for n in counted.get(id(node), Count(0, 0, 0)))
        rows.append((node.name, node.op.name if node.op else "-", size(known.get((id(node), 0))), *numbers, inputs))
    whole = total_of(graph, known, counted)
    return "\n".join(
        [*aligned(rows, (3, 4, 5)), f"total parameters: {whole.parameters:,}, MACs: {whole.macs:,}, FLOPs: {whole.flops:,}"]
    )


def aligned(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """Return the rows of a table as lines of text with columns of equal width.

    Args:
        rows: the texts of each row.
        right: indices of columns whose texts are aligned to the right.

    Example:
        >>> aligned([("a", "10"), ("bcd", "9")], right=[1])
        ['a    10', 'bcd   9']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = [
        [t.rjust(w) if i in right else t.ljust(w) for i, (t, w) in enumerate(zip(row, widths, strict=True))] for row in rows
    ]
    return ["  ".join(row).rstrip() for row in padded]


def mermaid(graph: Graph, shapes: Mapping[str, Sequence[int]] | None = None) -> str:
    """Draw the graph as the text of a mermaid flowchart, without parameters.

    Args:
        graph: the graph.
        shapes: shapes by variable name, for the labels of the edges; default: no labels.

    Returns:
        The mermaid text.

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
    """Draw the graph as a `graphviz.Digraph`, without parameters; rendering it needs the `dot` program of graphviz.

    Args:
        graph: the graph.
        shapes: shapes by variable name, for the labels of the edges; default: no labels.

    Returns:
        The `graphviz.Digraph`.

    Raises:
        ImportError: the graphviz package is not installed.
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
    """Import and return the graphviz package.

    Raises:
        ImportError: it is not installed; the message has the command that installs it.
    """
    return optional("graphviz", "drawing graphs needs the graphviz package: pip install 'jfit[demo]'")


def listing(graph: Graph) -> str:
    """Format the inputs and attributes of every node in topological order as text, as MXNet's `debug_str` does.

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
        # MXNet's version of a variable: the number of writes before this read, 1 for auxiliary states
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


# ------------------------------------------------------------------------------------------------ parts of the views
def visible(graph: Graph) -> tuple[list[Node], set[int]]:
    """Return (the nodes without parameters and auxiliary states, the ids of parameters and auxiliary states)."""
    order = graph.nodes()
    params = parameter_nodes(order)
    return [n for n in order if id(n) not in params], params


def edges(graph: Graph) -> tuple[list[Node], list[tuple[Entry, Node]]]:
    """Return (the `visible` nodes, the edges between them as (output, node that reads it))."""
    nodes, params = visible(graph)
    return nodes, [(e, n) for n in nodes for e in n.inputs if id(e.node) not in params]


def size(shape: Sequence[int] | None) -> str:
    """Format a shape as `2x5`, with `?` for an unknown size or shape."""
    return "x".join(str(s) if s else "?" for s in shape) if shape else "?"


def caption(node: Node) -> str:
    """Format the attributes of a node that a drawing shows (`CAPTION_ATTRS`)."""
    return ", ".join(f"{k} {node.attrs[k]}" for k in CAPTION_ATTRS if k in node.attrs)
