"""`mx.context`: devices, such as `mx.cpu()` and `mx.gpu(0)`; a re-export of `jfit.mxnet.context`."""

from typing import Any

from jfit.mxnet import context as _source
from jfit.mxnet.context import *  # noqa: F403


def __getattr__(name: str) -> Any:
    return getattr(_source, name)
