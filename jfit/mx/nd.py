"""`mx.nd`: NDArrays and operators on them; a re-export of `jfit.mxnet.ndarray`."""

from typing import Any

from jfit.mxnet import ndarray as _source
from jfit.mxnet.ndarray import *  # noqa: F403


def __getattr__(name: str) -> Any:
    return getattr(_source, name)
