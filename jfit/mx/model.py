"""`mx.model`: see `jfit.mxnet.feedforward.boxed`."""

from typing import Any

from jfit.mxnet.feedforward import boxed as _home
from jfit.mxnet.feedforward.boxed import *  # noqa: F403


def __getattr__(name: str) -> Any:
    return getattr(_home, name)
