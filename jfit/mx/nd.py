"""`mx.nd`: see `jfit.mxnet.ndarray`."""

from typing import Any

from jfit.mxnet import ndarray as _home
from jfit.mxnet.ndarray import *  # noqa: F403


def __getattr__(name: str) -> Any:
    return getattr(_home, name)
