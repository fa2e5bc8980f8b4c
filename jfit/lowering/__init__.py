"""Stage 2: a graph becomes pure functions.

`lower(symbol)` walks the graph once and returns a `Model` whose `apply` runs the nodes in order on plain arrays.
"""

from jfit.lowering.build import lower

__all__ = ["lower"]
