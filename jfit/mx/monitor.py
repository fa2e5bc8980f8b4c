"""`mx.monitor`: see `jfit.mxnet.monitor.boxed`."""

from typing import Any

from jfit.mxnet.monitor import boxed as _home
from jfit.mxnet.monitor.boxed import *  # noqa: F403


def __getattr__(name: str) -> Any:
    return getattr(_home, name)
