"""The namespaces of `mx.sym`: functions of the operators whose names begin alike, by the rest of their names."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from numbers import Number
from types import SimpleNamespace
from typing import Any

import numpy

from jfit.graph.control import cond, foreach, while_loop
from jfit.graph.symbol import Symbol as Graph
from jfit.mxnet.namespaces import Namespace, find, named_power
from jfit.mxnet.ndarray.contrib import zipfian
from jfit.mxnet.numpy.arrays import operator_shape
from jfit.mxnet.numpy.extension import OPERATORS
from jfit.mxnet.symbol.symbol import operator
from jfit.ops import ALIASES


def _reshape(a: Any, newshape: Any, reverse: bool = False, order: str = "C") -> Any:
    """`mx.npx.reshape` of a symbol."""
    return operator("Reshape")(a, shape=operator_shape(newshape), reverse=reverse)


npx = SimpleNamespace(**{name: operator(op) for name, op in OPERATORS.items()}, reshape=_reshape)
contrib = Namespace("mx.sym.contrib", ("_contrib_",), operator, (foreach, while_loop, cond, zipfian(operator)))
linalg = Namespace("mx.sym.linalg", ("_linalg_",), operator)
image = Namespace("mx.sym.image", ("_image_",), operator)
sparse = Namespace("mx.sym.sparse", ("_sparse_",), operator)
op = Namespace("mx.sym.op", ("",), operator)
_internal = Namespace("mx.sym._internal", ("",), operator)

# Unlike their mx.nd counterparts, MXNet's symbolic functions of these names do not broadcast.
_EQUAL_SHAPES = {"pow": "_Power", "power": "_Power", "maximum": "_Maximum", "minimum": "_Minimum", "hypot": "_Hypot"}


def made(name: str) -> Any:
    """Return the function of an operator, or of Symbols of equal shapes and numbers."""
    if name == "_internal":
        return _internal
    if name in _EQUAL_SHAPES:
        op = _EQUAL_SHAPES[name]
        call = _binary_function(name, op, f"{op}Scalar", "_RPowerScalar" if op == "_Power" else f"{op}Scalar")
        return named_power(call) if name == "power" else call
    return find("mx.sym", ("",), name, operator)


def _binary_function(name: str, symbol_op: str, scalar_op: str, reversed_scalar_op: str) -> Callable[[Any, Any], Any]:
    def call(left: Any, right: Any) -> Any:
        if isinstance(left, Graph):
            return operator(symbol_op)(left, right) if isinstance(right, Graph) else operator(scalar_op)(left, scalar=right)
        if isinstance(right, Graph):
            return operator(reversed_scalar_op)(right, scalar=left)
        if isinstance(left, Number) and isinstance(right, Number):
            return getattr(numpy, "power" if name == "pow" else name)(left, right).item()
        raise TypeError(f"expected Symbols or numbers, found {type(left).__name__} and {type(right).__name__}")

    return call


def names() -> Iterable[str]:
    """Names of the functions that `made` returns."""
    return (*_EQUAL_SHAPES, *ALIASES)
