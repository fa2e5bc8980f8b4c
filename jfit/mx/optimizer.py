"""`mx.optimizer`: see `jfit.mxnet.optimizer.boxed`."""

from typing import Any

from jfit.mxnet.optimizer import boxed as _home
from jfit.mxnet.optimizer.boxed import *  # noqa: F403


def __getattr__(name: str) -> Any:
    return getattr(_home, name)
