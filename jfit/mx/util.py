"""`mx.util`: utility functions; a re-export of `jfit.mxnet.util`."""

from typing import Any

from jfit.mxnet import util as _source
from jfit.mxnet.util import *  # noqa: F403


def __getattr__(name: str) -> Any:
    return getattr(_source, name)
