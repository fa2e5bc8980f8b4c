"""`mx.visualization`: see `jfit.mxnet.visualization`."""

from typing import Any

from jfit.mxnet import visualization as _home
from jfit.mxnet.visualization import *  # noqa: F403


def __getattr__(name: str) -> Any:
    return getattr(_home, name)
