"""`mx.base`: see `jfit.mxnet.base`."""

from typing import Any

from jfit.mxnet import base as _home
from jfit.mxnet.base import *  # noqa: F403


def __getattr__(name: str) -> Any:
    return getattr(_home, name)
