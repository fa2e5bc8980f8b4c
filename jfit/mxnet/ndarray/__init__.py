"""`mx.nd`: MXNet's mutable NDArray, and every operator as a function that runs immediately.

>>> import jfit.mx as mx
>>> mx.nd.FullyConnected(mx.nd.ones((1, 2)), mx.nd.ones((3, 2)), mx.nd.zeros(3), num_hidden=3).asnumpy().tolist()
[[2.0, 2.0, 2.0]]
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from jfit.mxnet import random
from jfit.mxnet.namespaces import PAIRS, Namespace, find
from jfit.mxnet.ndarray import control, sparse
from jfit.mxnet.ndarray.array import NDArray, binary, function, invoke
from jfit.mxnet.ndarray.create import (
    arange,
    array,
    concatenate,
    empty,
    eye,
    full,
    linspace,
    load,
    load_frombuffer,
    moveaxis,
    onehot_encode,
    ones,
    save,
    split_v2,
    waitall,
    zeros,
)
from jfit.mxnet.ndarray.sparse import CSRNDArray, RowSparseNDArray

contrib = Namespace("mx.nd.contrib", ("_contrib_",), function, (control.foreach, control.while_loop, control.cond))
linalg = Namespace("mx.nd.linalg", ("_linalg_",), function)
image = Namespace("mx.nd.image", ("_image_",), function)
op = Namespace("mx.nd.op", ("",), function)
_internal = Namespace("mx.nd._internal", ("",), function)

__all__ = [
    "CSRNDArray",
    "NDArray",
    "RowSparseNDArray",
    "arange",
    "array",
    "concatenate",
    "contrib",
    "empty",
    "eye",
    "full",
    "image",
    "invoke",
    "linalg",
    "linspace",
    "load",
    "load_frombuffer",
    "moveaxis",
    "onehot_encode",
    "ones",
    "op",
    "random",
    "save",
    "sparse",
    "split_v2",
    "waitall",
    "zeros",
]


def _binary_function(array_op: str, scalar_op: str, reversed_scalar_op: str):
    def call(lhs: Any, rhs: Any) -> Any:
        result: Any = NotImplemented
        if isinstance(lhs, NDArray):
            result = binary(array_op, scalar_op, lhs, rhs)
        elif isinstance(rhs, NDArray):
            result = binary(array_op, reversed_scalar_op, rhs, lhs, swapped=True)
        if result is NotImplemented:
            found = f"{type(lhs).__name__} and {type(rhs).__name__}"
            raise TypeError(f"expected an NDArray and another array or a number, found {found}")
        return result

    return call


# Read from `random` when they are used: it imports this package, and either of the two may be imported first.
_OF_RANDOM = ("uniform", "normal", "random_uniform", "random_normal", "random_randint")
_FUNCTIONS = SimpleNamespace(**{name: _binary_function(*ops) for name, ops in PAIRS.items()})


def __getattr__(name: str) -> Any:
    if name in _OF_RANDOM:
        return getattr(random, name.removeprefix("random_"))
    if hasattr(_FUNCTIONS, name):
        return getattr(_FUNCTIONS, name)
    operator = globals()[name] = find("mx.nd", ("",), name, function)
    return operator


def __dir__() -> list[str]:
    from jfit.ops import ALIASES

    return sorted({*__all__, *PAIRS, *ALIASES})
