"""`mx.random`: the random seed, and random NDArrays; a re-export of `jfit.mxnet.random`."""

from typing import Any

from jfit.mxnet import random as _source
from jfit.mxnet.random import *  # noqa: F403


def __getattr__(name: str) -> Any:
    return getattr(_source, name)
