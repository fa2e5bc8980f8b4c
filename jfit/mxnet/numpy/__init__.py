"""`mx.np`: arrays and functions with NumPy's semantics, thin over jax.numpy.

>>> from jfit.mx import np
>>> x = np.arange(6).reshape(2, 3)
>>> np.where(x > 2, x, 0).sum(axis=1)
array([ 0., 12.])
"""

from __future__ import annotations

from typing import Any

import numpy as _np

from jfit.mxnet.numpy import create as _create
from jfit.mxnet.numpy import functions as _functions
from jfit.mxnet.numpy import linalg as linalg
from jfit.mxnet.numpy import random as random
from jfit.mxnet.numpy.arrays import ndarray as ndarray

_OF_NUMPY = "bool bool_ e finfo float16 float32 float64 inf int8 int32 int64 nan newaxis pi set_printoptions uint8"
_CREATE = (
    "arange array blackman empty empty_like eye full full_like genfromtxt hamming hanning identity indices linspace logspace "
    "ones ones_like zeros zeros_like"
)
NAN = NaN = _np.nan
PINF, NINF, PZERO, NZERO = _np.inf, -_np.inf, 0.0, -0.0
__all__ = ["NAN", "NINF", "NZERO", "PINF", "PZERO", "NaN", "linalg", "ndarray", "random"]  # and those of `dir`, made on demand


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    source = _create if name in _CREATE.split() else _np if name in _OF_NUMPY.split() else None
    globals()[name] = made = getattr(source, name) if source else _functions.function(name)
    return made


def __dir__() -> list[str]:
    own = (name for name in globals() if not name.startswith("_") and name != "annotations")
    return sorted({*own, *_OF_NUMPY.split(), *_CREATE.split(), *_functions.names()})
