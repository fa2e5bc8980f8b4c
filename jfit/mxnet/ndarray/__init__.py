"""`mx.nd`: MXNet's mutable NDArray, and every operator as a function that runs immediately.

>>> import jfit.mx as mx
>>> mx.nd.FullyConnected(mx.nd.ones((1, 2)), mx.nd.ones((3, 2)), mx.nd.zeros(3), num_hidden=3).asnumpy().tolist()
[[2.0, 2.0, 2.0]]
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from jfit.mxnet import numpy as np
from jfit.mxnet import random
from jfit.mxnet.namespaces import PAIRS, Namespace, find
from jfit.mxnet.ndarray import contrib as functions
from jfit.mxnet.ndarray import control, sparse
from jfit.mxnet.ndarray.array import NDArray, binary_function, function, invoke
from jfit.mxnet.ndarray.create import (
    arange,
    array,
    cast_storage,
    concatenate,
    empty,
    eye,
    from_dlpack,
    from_numpy,
    full,
    histogram,
    linspace,
    load,
    load_frombuffer,
    moveaxis,
    onehot_encode,
    ones,
    save,
    split_v2,
    to_dlpack_for_read,
    to_dlpack_for_write,
    waitall,
    zeros,
)
from jfit.mxnet.ndarray.sparse import CSRNDArray, RowSparseNDArray
from jfit.mxnet.numpy import extension as npx

contrib = Namespace(
    "mx.nd.contrib", ("_contrib_",), function, (*functions.FUNCTIONS, control.foreach, control.while_loop, control.cond)
)
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
    "cast_storage",
    "concatenate",
    "contrib",
    "empty",
    "eye",
    "from_dlpack",
    "from_numpy",
    "full",
    "histogram",
    "image",
    "invoke",
    "linalg",
    "linspace",
    "load",
    "load_frombuffer",
    "moveaxis",
    "np",
    "npx",
    "onehot_encode",
    "ones",
    "op",
    "random",
    "save",
    "sparse",
    "split_v2",
    "to_dlpack_for_read",
    "to_dlpack_for_write",
    "waitall",
    "zeros",
]


# Read from `random` when they are used: it imports this package, and either of the two may be imported first.
_OF_RANDOM = ("uniform", "normal", "random_uniform", "random_normal", "random_randint")
_FUNCTIONS = SimpleNamespace(**{name: binary_function(*ops) for name, ops in PAIRS.items()})


def __getattr__(name: str) -> Any:
    if name in _OF_RANDOM:
        return getattr(random, name.removeprefix("random_"))
    if hasattr(_FUNCTIONS, name):
        return getattr(_FUNCTIONS, name)
    if "_update" in name or name == "multi_lars":
        from jfit.mxnet.ndarray import updates  # it imports the optimizers

        if name in updates.NAMES:
            return updates.update(name)
    operator = globals()[name] = find("mx.nd", ("",), name, function)
    return operator


def __dir__() -> list[str]:
    from jfit.mxnet.ndarray.updates import NAMES
    from jfit.ops import ALIASES

    return sorted({*__all__, *PAIRS, *NAMES, *ALIASES})
