"""`mx.random`: see `jfit.mxnet.random`."""

from typing import Any

from jfit.mxnet import random as _home
from jfit.mxnet.random import *  # noqa: F403


def __getattr__(name: str) -> Any:
    return getattr(_home, name)
