"""`mx.gluon.trainer`: see `jfit.mxnet.gluon.boxed_trainer`."""

from typing import Any

from jfit.mxnet.gluon import boxed_trainer as _home
from jfit.mxnet.gluon.boxed_trainer import *  # noqa: F403


def __getattr__(name: str) -> Any:
    return getattr(_home, name)
