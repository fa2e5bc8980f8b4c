"""`mx.rnn`: see `jfit.mxnet.rnn`."""

from typing import Any

from jfit.mxnet import rnn as _home
from jfit.mxnet.rnn import *  # noqa: F403


def __getattr__(name: str) -> Any:
    return getattr(_home, name)
