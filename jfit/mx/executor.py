"""`mx.executor`: executors, graphs bound to NDArrays; a re-export of `jfit.mxnet.executor.executor`."""

from typing import Any

from jfit.mxnet.executor import executor as _source
from jfit.mxnet.executor.executor import *  # noqa: F403


def __getattr__(name: str) -> Any:
    return getattr(_source, name)
