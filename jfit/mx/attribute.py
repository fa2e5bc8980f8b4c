"""`mx.attribute`: user attributes for every node made inside a block."""

from jfit.graph.scopes import AttrScope

__all__ = ["AttrScope"]
