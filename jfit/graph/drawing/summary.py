"""A graph as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jfit.graph.drawing.counts import Count, count_known, total_of
from jfit.graph.drawing.parts import size, visible
from jfit.graph.infer import infer
from jfit.graph.symbol import Symbol

COLUMNS = ("node", "operator", "output shape", "parameters", "MACs", "FLOPs", "inputs")
RIGHT = ("parameters", "MACs", "FLOPs")


def summary(symbol: Symbol, shapes: Mapping[str, Sequence[int]]) -> str:
    """A table of the nodes of a graph: name, operator, output shape, parameters, what a forward pass costs, inputs.

    Args:
        symbol: the graph.
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
    known, types = infer(symbol, shapes)
    counted = count_known(symbol, known, types)
    nodes, hidden = visible(symbol)
    rows: list[tuple[str, ...]] = [COLUMNS]
    for node in nodes:
        inputs = ", ".join(dict.fromkeys(e.node.name for e in node.inputs if id(e.node) not in hidden))
        numbers = (f"{n:,}" for n in counted.get(id(node), Count(0, 0, 0)))
        rows.append((node.name, node.op.name if node.op else "-", size(known.get((id(node), 0))), *numbers, inputs))
    widths = [max(len(r[i]) for r in rows) for i in range(len(COLUMNS))]
    lines = [
        "  ".join(f"{t:>{w}}" if c in RIGHT else f"{t:<{w}}" for t, w, c in zip(r, widths, COLUMNS, strict=True)).rstrip()
        for r in rows
    ]
    whole = total_of(symbol, known, counted)
    return "\n".join([*lines, f"total parameters: {whole.parameters:,}, MACs: {whole.macs:,}, FLOPs: {whole.flops:,}"])
