"""Ways to look at a symbol; `jfit.graph.drawing` does the work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Views:
    """What a symbol shows of itself: counts, a table, drawings.

    Example:
        >>> import jfit
        >>> net = jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=3, name="fc")
        >>> net.counts(data=(2, 5))["fc"].parameters
        18
    """

    __slots__ = ()

    def counts(self: Any, **shapes: Sequence[int]):
        """Parameters, MACs and FLOPs of a forward pass, of each operator by node name; see `jfit.graph.drawing.counts`."""
        from jfit.graph.drawing import counts

        return counts(self, shapes)

    def summary(self: Any, **shapes: Sequence[int]) -> str:
        """A table of the nodes: name, operator, output shape, parameters, MACs, FLOPs."""
        from jfit.graph.drawing import summary

        return summary(self, shapes)

    def mermaid(self: Any, **shapes: Sequence[int]) -> str:
        """The graph as mermaid flowchart text."""
        from jfit.graph.drawing import mermaid

        return mermaid(self, shapes)

    def graphviz(self: Any, **shapes: Sequence[int]):
        """The graph as a `graphviz.Digraph` (needs the graphviz package)."""
        from jfit.graph.drawing import graphviz

        return graphviz(self, shapes)

    def debug_str(self: Any) -> str:
        """Every node with its inputs and attributes, as MXNet lists them."""
        from jfit.graph.drawing import listing

        return listing(self)
