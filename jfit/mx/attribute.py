"""`mx.attribute`: `AttrScope`, a context manager that sets attributes of every node created inside it."""

from jfit.graph.scopes import AttrScope

__all__ = ["AttrScope"]
