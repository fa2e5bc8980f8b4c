"""`mx.name`: context managers that generate the names of nodes created without one."""

from jfit.graph.scopes import NameManager, Prefix

__all__ = ["NameManager", "Prefix"]
