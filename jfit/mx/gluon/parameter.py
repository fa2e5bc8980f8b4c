"""`mx.gluon.parameter`: see `jfit.mxnet.gluon.boxed_parameter`."""

from typing import Any

from jfit.mxnet.gluon import boxed_parameter as _home
from jfit.mxnet.gluon.boxed_parameter import *  # noqa: F403


def __getattr__(name: str) -> Any:
    return getattr(_home, name)
