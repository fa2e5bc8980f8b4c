"""`mx.operator`: see `jfit.mxnet.operator`."""

from typing import Any

from jfit.mxnet import operator as _home
from jfit.mxnet.operator import *  # noqa: F403


def __getattr__(name: str) -> Any:
    return getattr(_home, name)
