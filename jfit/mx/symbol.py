"""`mx.symbol`: symbolic graphs; a re-export of `jfit.mxnet.symbol`."""

from typing import Any

from jfit.mxnet import symbol as _source
from jfit.mxnet.symbol import *  # noqa: F403


def __getattr__(name: str) -> Any:
    return getattr(_source, name)
