"""`mx.initializer`: weight initializers; a re-export of `jfit.mxnet.initializer`."""

from typing import Any

from jfit.mxnet import initializer as _source
from jfit.mxnet.initializer import *  # noqa: F403


def __getattr__(name: str) -> Any:
    return getattr(_source, name)
