"""`mx.name`: automatic names."""

from jfit.symbol.scopes import NameManager, Prefix

__all__ = ["NameManager", "Prefix"]
