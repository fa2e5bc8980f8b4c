"""Stage 2: a graph, or a plain JAX function, becomes a Model of pure functions.

`lower(symbol)` walks the graph once and returns a `Model` whose `apply` runs the nodes in order on plain arrays.
"""

from jfit.lowering.build import lower
from jfit.lowering.function import from_function

__all__ = ["from_function", "lower"]
