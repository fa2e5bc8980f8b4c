"""`mx.executor`: see `jfit.mxnet.executor.executor`."""

from typing import Any

from jfit.mxnet.executor import executor as _home
from jfit.mxnet.executor.executor import *  # noqa: F403


def __getattr__(name: str) -> Any:
    return getattr(_home, name)
