"""`mx.contrib`: contributed operators in `nd` and `sym`, and the SVRG module in `svrg_optimization`.

>>> import jfit.mx as mx
>>> mx.contrib.nd.arange_like(mx.nd.zeros((3,))).asnumpy().tolist()
[0.0, 1.0, 2.0]
"""

from typing import NoReturn

from jfit.mx.contrib import svrg_optimization
from jfit.mxnet.namespaces import absent
from jfit.mxnet.ndarray import contrib as nd
from jfit.mxnet.symbol import contrib as sym

ndarray, symbol = nd, sym

__all__ = ["nd", "ndarray", "svrg_optimization", "sym", "symbol"]


def __getattr__(name: str) -> NoReturn:
    absent("mx.contrib", name, __all__)
