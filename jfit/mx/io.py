"""`mx.io`: data iterators; a re-export of `jfit.mxnet.io.arrays`."""

from typing import Any

from jfit.mxnet.io import arrays as _source
from jfit.mxnet.io.arrays import *  # noqa: F403


def __getattr__(name: str) -> Any:
    return getattr(_source, name)
