"""`mx.visualization`: drawings and summaries of a graph; a re-export of `jfit.mxnet.visualization`."""

from typing import Any

from jfit.mxnet import visualization as _source
from jfit.mxnet.visualization import *  # noqa: F403


def __getattr__(name: str) -> Any:
    return getattr(_source, name)
