"""Symbolic graphs and the functions that add operators to them; a short name for `jfit.graph`."""

from typing import Any

from jfit import graph
from jfit.graph import *  # noqa: F403
from jfit.graph import __all__, __dir__  # noqa: F401


def __getattr__(name: str) -> Any:
    return getattr(graph, name)
