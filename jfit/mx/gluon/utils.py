"""`mx.gluon.utils`: functions that split batches and clip gradients; a re-export of `jfit.mxnet.gluon.utils`."""

from typing import Any

from jfit.mxnet.gluon import utils as _source
from jfit.mxnet.gluon.utils import *  # noqa: F403


def __getattr__(name: str) -> Any:
    return getattr(_source, name)
