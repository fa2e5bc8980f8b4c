"""`mx.context`: see `jfit.mxnet.context`."""

from typing import Any

from jfit.mxnet import context as _home
from jfit.mxnet.context import *  # noqa: F403


def __getattr__(name: str) -> Any:
    return getattr(_home, name)
