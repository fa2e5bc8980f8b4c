"""`mx.np`: arrays and functions with NumPy's semantics, thin over jax.numpy.

>>> from jfit.mx import np
>>> x = np.arange(6).reshape(2, 3)
>>> np.where(x > 2, x, 0).sum(axis=1)
array([ 0., 12.])
"""

from __future__ import annotations

from typing import Any

import numpy as _np

from jfit.mxnet.numpy import extension as _extension  # noqa: F401  mx.npx
from jfit.mxnet.numpy import functions as _functions
from jfit.mxnet.numpy import linalg as linalg
from jfit.mxnet.numpy import random as random
from jfit.mxnet.numpy.arrays import ndarray as ndarray

_OF_NUMPY = "bool bool_ e finfo float16 float32 float64 inf int8 int32 int64 nan newaxis pi set_printoptions uint8"
NAN = NaN = _np.nan
PINF, NINF, PZERO, NZERO = _np.inf, -_np.inf, 0.0, -0.0
__all__ = ["NAN", "NINF", "NZERO", "PINF", "PZERO", "NaN", "linalg", "ndarray", "random"]  # and those of `dir`, made on demand


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    globals()[name] = made = getattr(_np, name) if name in _OF_NUMPY.split() else _functions.function(name)
    return made


def __dir__() -> list[str]:
    own = (name for name in globals() if not name.startswith("_") and name != "annotations")
    return sorted({*own, *_OF_NUMPY.split(), *_functions.names()})
