"""Symbols: networks as immutable graphs.  `jfit.sym.<operator>(...)` adds a node.

>>> from jfit import sym
>>> net = sym.FullyConnected(sym.Variable("data"), num_hidden=10, name="fc")
>>> net = sym.SoftmaxOutput(net, name="softmax")
>>> net.list_arguments()
['data', 'fc_weight', 'fc_bias', 'softmax_label']
"""

from typing import Any

from jfit.ops import ALIASES, UnknownOperator
from jfit.ops.scope import why_not
from jfit.symbol import control as contrib
from jfit.symbol.compose import function, group, known_functions, variable
from jfit.symbol.graph import GraphError, Symbol
from jfit.symbol.scopes import AttrScope, NameManager, Prefix
from jfit.symbol.serial import from_json as load_json
from jfit.symbol.serial import load

Variable = var = variable
Group = group

__all__ = [
    "AttrScope",
    "GraphError",
    "Group",
    "NameManager",
    "Prefix",
    "Symbol",
    "Variable",
    "contrib",
    "load",
    "load_json",
    "var",
]


def __getattr__(name: str) -> Any:
    if name.startswith("__") or (name.startswith("_") and name not in ALIASES and why_not(name) is None):
        raise AttributeError(f"module 'jfit.symbol' has no attribute {name!r}")
    try:
        return function(name)
    except UnknownOperator as error:
        raise AttributeError(f"jfit.sym has no operator {name!r}: {str(error).split(': ', 1)[1]}") from None


def __dir__() -> list[str]:
    return sorted({*__all__, *known_functions()})
