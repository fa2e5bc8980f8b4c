"""`mx.module`: see `jfit.mxnet.module.boxed`."""

from typing import Any

from jfit.mxnet.module import boxed as _home
from jfit.mxnet.module.boxed import *  # noqa: F403


def __getattr__(name: str) -> Any:
    return getattr(_home, name)
