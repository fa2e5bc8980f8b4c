"""HTML for notebooks: tables of text, and the picture of a graph."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any

from jfit.graph.drawing import graphviz, visible
from jfit.graph.nodes import Graph

MOST_DRAWN = 300  # nodes; graphviz takes minutes for graphs of thousands of nodes
MOST_LISTED = 100  # rows of the table


def table(rows: Iterable[Sequence[Any]], header: Sequence[Any] = (), strong: Iterable[int] = ()) -> str:
    """Return an HTML table; the texts are escaped.

    Args:
        rows: the cells of each row; converted with `str`.
        header: titles of the columns.
        strong: indices of rows in bold.

    Returns:
        The HTML text.

    Example:
        >>> table([["a<b", 1]], ["name", "value"])
        '<table><thead><tr><th>name</th><th>value</th></tr></thead><tbody><tr><td>a&lt;b</td><td>1</td></tr></tbody></table>'
    """
    bold = set(strong)
    head = f"<thead>{_row(header, 'th')}</thead>" if header else ""
    body = "".join(_row(row, "td", ' style="font-weight: bold"' if i in bold else "") for i, row in enumerate(rows))
    return f"<table>{head}<tbody>{body}</tbody></table>"


def _row(cells: Sequence[Any], tag: str, style: str = "") -> str:
    return f"<tr{style}>" + "".join(f"<{tag}>{html.escape(str(cell))}</{tag}>" for cell in cells) + "</tr>"


def title(text: str) -> str:
    """Return a line of bold text as HTML; the text is escaped."""
    return f"<p><b>{html.escape(text)}</b></p>"


def graph_html(graph: Graph) -> str:
    """Return a graph as HTML: the drawing of graphviz, or a table of the nodes where graphviz cannot draw it.  Never raises.

    It cannot if the graphviz package or its program `dot` is missing, and graphs of more than `MOST_DRAWN` nodes are not drawn.

    Example:
        >>> import jfit
        >>> "fc" in graph_html(jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=3, name="fc"))
        True
    """
    try:
        return title(repr(graph)) + (_drawing(graph) or _node_table(graph))
    except Exception:
        # An exception here would replace the result of a notebook cell.
        return f"<pre>{html.escape(object.__repr__(graph))}</pre>"


def _drawing(graph: Graph) -> str:
    """Return the graph as SVG, "" if graphviz cannot draw it."""
    if len(visible(graph)[0]) > MOST_DRAWN:
        return ""
    try:
        svg = graphviz(graph).pipe(format="svg", encoding="utf-8")
    except Exception:
        return ""  # the package is missing, the program is missing, or it failed: the table needs neither
    return svg[svg.index("<svg") :] if "<svg" in svg else ""


def _node_table(graph: Graph) -> str:
    nodes, params = visible(graph)
    rows: list[Sequence[str]] = []
    for node in nodes[:MOST_LISTED]:
        attrs = {} if node.op is None else {k: v for k, v in node.attrs.items() if k in node.op.attrs}
        text = ", ".join(f"{key}={value}" for key, value in attrs.items())
        inputs = ", ".join(dict.fromkeys(e.node.name for e in node.inputs if id(e.node) not in params))
        rows.append((node.name, node.op.name if node.op else "variable", text, inputs))
    more = f"<p>{len(nodes) - MOST_LISTED:,} more nodes</p>" if len(nodes) > MOST_LISTED else ""
    return table(rows, ("node", "operator", "attributes", "inputs")) + more
