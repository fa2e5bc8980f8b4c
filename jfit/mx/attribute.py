"""`mx.attribute`: user attributes for every node made inside a block."""

from jfit.symbol.scopes import AttrScope

__all__ = ["AttrScope"]
