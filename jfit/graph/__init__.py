"""Symbols: networks as immutable graphs.  `jfit.sym.<operator>(...)` returns a symbol with one new node.

>>> from jfit import sym
>>> net = sym.FullyConnected(sym.Variable("data"), num_hidden=10, name="fc")
>>> net = sym.SoftmaxOutput(net, name="softmax")
>>> net.list_arguments()
['data', 'fc_weight', 'fc_bias', 'softmax_label']
"""

import sys
from typing import Any

from jfit import lazy as _lazy
from jfit.graph import compose, create, serial
from jfit.graph import control as contrib
from jfit.graph.nodes import GraphError, bind_class
from jfit.graph.scopes import AttrScope, NameManager, Prefix
from jfit.graph.symbol import Symbol
from jfit.ops import ALIASES, UnknownOperator

Variable = var = bind_class(Symbol, compose.variable)
Group = bind_class(Symbol, compose.group)
zeros, ones, full = (bind_class(Symbol, build) for build in (create.zeros, create.ones, create.full))
arange, linspace = (bind_class(Symbol, build) for build in (create.arange, create.linspace))
eye, histogram = (bind_class(Symbol, build) for build in (create.eye, create.histogram))
load = bind_class(Symbol, serial.load)
load_json = bind_class(Symbol, serial.load_json)

__all__ = [
    "AttrScope", "GraphError", "Group", "NameManager", "Prefix", "Symbol", "Variable", "arange", "contrib", "eye", "full",
    "histogram", "linspace", "load", "load_json", "ones", "var", "zeros",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    try:
        return compose.function(name, Symbol)
    except UnknownOperator as error:
        module = _lazy.module_of(sys.modules[__name__], name)
        if module is not None:
            return module
        raise AttributeError(f"jfit.sym has no operator {name!r}: {str(error).split(': ', 1)[1]}") from None


def __dir__() -> list[str]:
    return sorted({*__all__, *ALIASES})
