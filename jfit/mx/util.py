"""`mx.util`: see `jfit.mxnet.util`."""

from typing import Any

from jfit.mxnet import util as _home
from jfit.mxnet.util import *  # noqa: F403


def __getattr__(name: str) -> Any:
    return getattr(_home, name)
