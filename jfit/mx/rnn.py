"""`mx.rnn`: symbolic recurrent cells; a re-export of `jfit.mxnet.rnn`."""

from typing import Any

from jfit.mxnet import rnn as _source
from jfit.mxnet.rnn import *  # noqa: F403


def __getattr__(name: str) -> Any:
    return getattr(_source, name)
