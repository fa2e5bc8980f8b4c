"""`mx.kvstore`: see `jfit.mxnet.kvstore.boxed`."""

from typing import Any

from jfit.mxnet.kvstore import boxed as _home
from jfit.mxnet.kvstore.boxed import *  # noqa: F403


def __getattr__(name: str) -> Any:
    return getattr(_home, name)
