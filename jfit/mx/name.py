"""`mx.name`: automatic names."""

from jfit.graph.scopes import NameManager, Prefix

__all__ = ["NameManager", "Prefix"]
