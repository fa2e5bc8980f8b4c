"""`mx.image`: see `jfit.mxnet.image`."""

from typing import Any

from jfit.mxnet import image as _home
from jfit.mxnet.image import *  # noqa: F403


def __getattr__(name: str) -> Any:
    return getattr(_home, name)
