"""`mx.recordio`: see `jfit.mxnet.recordio`."""

from typing import Any

from jfit.mxnet import recordio as _home
from jfit.mxnet.recordio import *  # noqa: F403


def __getattr__(name: str) -> Any:
    return getattr(_home, name)
