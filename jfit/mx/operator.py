"""`mx.operator`: custom operators written in Python; a re-export of `jfit.mxnet.operator`."""

from typing import Any

from jfit.mxnet import operator as _source
from jfit.mxnet.operator import *  # noqa: F403


def __getattr__(name: str) -> Any:
    return getattr(_source, name)
