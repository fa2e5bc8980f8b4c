"""Looking at a graph: a summary table, counts of parameters and FLOPs, mermaid text, a graphviz drawing, MXNet's listing.

>>> import jfit
>>> net = jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=3, name="fc")
>>> net.counts(data=(2, 5))["fc"]
Count(parameters=18, macs=30, flops=66)
"""

from jfit.graph.drawing.counts import Count, counts, parameter_counts, total
from jfit.graph.drawing.dot import graphviz
from jfit.graph.drawing.flowchart import mermaid
from jfit.graph.drawing.listing import listing
from jfit.graph.drawing.summary import summary

__all__ = ["Count", "counts", "graphviz", "listing", "mermaid", "parameter_counts", "summary", "total"]
