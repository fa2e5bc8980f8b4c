"""`mx.symbol`: see `jfit.mxnet.symbol`."""

from typing import Any

from jfit.mxnet import symbol as _home
from jfit.mxnet.symbol import *  # noqa: F403


def __getattr__(name: str) -> Any:
    return getattr(_home, name)
