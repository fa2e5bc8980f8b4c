"""`mx.initializer`: see `jfit.mxnet.initializer`."""

from typing import Any

from jfit.mxnet import initializer as _home
from jfit.mxnet.initializer import *  # noqa: F403


def __getattr__(name: str) -> Any:
    return getattr(_home, name)
