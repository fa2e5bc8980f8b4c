"""`mx.sym`: symbolic graphs as in `jfit.sym`, with MXNet's `bind`, `simple_bind` and `eval`.

>>> import jfit.mx as mx
>>> net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2, no_bias=True, name="fc")
>>> net.bind(mx.cpu(), {"data": mx.nd.ones((1, 3)), "fc_weight": mx.nd.ones((2, 3))}).forward()[0].asnumpy().tolist()
[[3.0, 3.0]]
"""

from __future__ import annotations

from numbers import Number
from types import SimpleNamespace
from typing import Any

import numpy

from jfit.graph import control
from jfit.graph.scopes import AttrScope, NameManager, Prefix
from jfit.graph.symbol import Symbol as Graph
from jfit.mxnet import numpy as np
from jfit.mxnet.namespaces import PAIRS, Namespace, find
from jfit.mxnet.ndarray.contrib import zipfian
from jfit.mxnet.numpy.extension import OPERATORS
from jfit.mxnet.symbol import random as random
from jfit.mxnet.symbol.symbol import (
    Group,
    Symbol,
    Variable,
    arange,
    eye,
    full,
    histogram,
    linspace,
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


def _binary_function(name: str, symbol_op: str, scalar_op: str, reversed_scalar_op: str):
    def call(left: Any, right: Any) -> Any:
        if isinstance(left, Graph):
            return operator(symbol_op)(left, right) if isinstance(right, Graph) else operator(scalar_op)(left, scalar=right)
        if isinstance(right, Graph):
            return operator(reversed_scalar_op)(right, scalar=left)
        if isinstance(left, Number) and isinstance(right, Number):
            return getattr(numpy, "power" if name == "pow" else name)(left, right).item()
        raise TypeError(f"expected Symbols or numbers, found {type(left).__name__} and {type(right).__name__}")

    return call


# Unlike their mx.nd counterparts, MXNet's symbolic functions of these names do not broadcast.
_EQUAL_SHAPES = {"pow": "_Power", "power": "_Power", "maximum": "_Maximum", "minimum": "_Minimum", "hypot": "_Hypot"}
_FUNCTIONS = SimpleNamespace(
    **{name: _binary_function(name, _EQUAL_SHAPES[name], *ops[1:]) for name, ops in PAIRS.items() if name in _EQUAL_SHAPES}
)

npx = SimpleNamespace(**{name: operator(op) for name, op in OPERATORS.items()})
contrib = Namespace(
    "mx.sym.contrib", ("_contrib_",), operator, (control.foreach, control.while_loop, control.cond, zipfian(operator))
)
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
    "eye",
    "full",
    "histogram",
    "linspace",
    "load",
    "load_json",
    "np",
    "npx",
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
