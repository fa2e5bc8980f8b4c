"""`mx.initializer`: see `jfit.mxnet.initializer.rules`."""

from typing import Any

from jfit.mxnet.initializer import rules as _home
from jfit.mxnet.initializer.rules import *  # noqa: F403


def __getattr__(name: str) -> Any:
    return getattr(_home, name)
