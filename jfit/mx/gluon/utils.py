"""`mx.gluon.utils`: see `jfit.mxnet.gluon.utils`."""

from typing import Any

from jfit.mxnet.gluon import utils as _home
from jfit.mxnet.gluon.utils import *  # noqa: F403


def __getattr__(name: str) -> Any:
    return getattr(_home, name)
