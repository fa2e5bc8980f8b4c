"""`mx.contrib.svrg_optimization.svrg_module`: see `jfit.mxnet.module.boxed_svrg`."""

from typing import Any

from jfit.mxnet.module import boxed_svrg as _home
from jfit.mxnet.module.boxed_svrg import *  # noqa: F403


def __getattr__(name: str) -> Any:
    return getattr(_home, name)
