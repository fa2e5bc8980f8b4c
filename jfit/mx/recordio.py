"""`mx.recordio`: record files; a re-export of `jfit.mxnet.recordio`."""

from typing import Any

from jfit.mxnet import recordio as _source
from jfit.mxnet.recordio import *  # noqa: F403


def __getattr__(name: str) -> Any:
    return getattr(_source, name)
