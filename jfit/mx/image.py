"""`mx.image`: image functions, augmenters and iterators; a re-export of `jfit.mxnet.image`."""

from typing import Any

from jfit.mxnet import image as _source
from jfit.mxnet.image import *  # noqa: F403


def __getattr__(name: str) -> Any:
    return getattr(_source, name)
