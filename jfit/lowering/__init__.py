"""Convert a symbol graph, or a plain JAX function, to a `Model`: a NamedTuple of pure functions.

`lower(symbol)` returns a `Model` whose `apply` runs the nodes of the graph in topological order.  `from_function` wraps a JAX
function and a per-example loss.
"""

from jfit.lowering.build import lower
from jfit.lowering.frameworks.dispatch import from_module
from jfit.lowering.function import from_function
from jfit.lowering.summary import summary

__all__ = ["from_function", "from_module", "lower", "summary"]
