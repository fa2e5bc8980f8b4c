"""`mx.sym`: graphs as in `jfit.sym`, with MXNet's `bind` and `simple_bind`.

>>> import jfit.mx as mx
>>> net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2, no_bias=True, name="fc")
>>> net.bind(mx.cpu(), {"data": mx.nd.ones((1, 3)), "fc_weight": mx.nd.ones((2, 3))}).forward()[0].asnumpy().tolist()
[[3.0, 3.0]]
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from jfit.graph import control
from jfit.graph.scopes import AttrScope, NameManager, Prefix
from jfit.graph.symbol import Symbol as Graph
from jfit.mxnet.namespaces import PAIRS, Namespace, find
from jfit.mxnet.symbol import random as random
from jfit.mxnet.symbol.symbol import (
    Group,
    Symbol,
    Variable,
    arange,
    full,
    load,
    load_json,
    ones,
    operator,
    var,
    zeros,
)
from jfit.mxnet.symbol.symbol import fromjson as fromjson
from jfit.mxnet.symbol.symbol import split_v2 as split_v2
from jfit.ops import ALIASES


def _pair(both: str, scalar: str, mirrored: str):
    def call(left: Any, right: Any) -> Any:
        if isinstance(left, Graph):
            return operator(both)(left, right) if isinstance(right, Graph) else operator(scalar)(left, scalar=right)
        if isinstance(right, Graph):
            return operator(mirrored)(right, scalar=left)
        raise TypeError(f"one of the two must be a Symbol, found {type(left).__name__} and {type(right).__name__}")

    return call


# between two symbols MXNet's functions of these names need equal shapes
_EQUAL_SHAPES = {"pow": "_Power", "power": "_Power", "maximum": "_Maximum", "minimum": "_Minimum", "hypot": "_Hypot"}
_FUNCTIONS = SimpleNamespace(
    **{n: _pair(_EQUAL_SHAPES[n], scalar, mirrored) for n, (_, scalar, mirrored) in PAIRS.items() if n in _EQUAL_SHAPES}
)

contrib = Namespace("mx.sym.contrib", ("_contrib_",), operator, (control.foreach, control.while_loop, control.cond))
linalg = Namespace("mx.sym.linalg", ("_linalg_",), operator)
image = Namespace("mx.sym.image", ("_image_",), operator)
sparse = Namespace("mx.sym.sparse", ("_sparse_",), operator)
op = Namespace("mx.sym.op", ("",), operator)
_internal = Namespace("mx.sym._internal", ("",), operator)

__all__ = [
    "AttrScope",
    "Group",
    "NameManager",
    "Prefix",
    "Symbol",
    "Variable",
    "arange",
    "full",
    "load",
    "load_json",
    "ones",
    "var",
    "zeros",
]


def __getattr__(name: str) -> Any:
    if hasattr(_FUNCTIONS, name):
        return getattr(_FUNCTIONS, name)
    return find("mx.sym", ("",), name, operator)


def __dir__() -> list[str]:
    return sorted({*__all__, *_EQUAL_SHAPES, *ALIASES})
