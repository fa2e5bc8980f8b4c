"""`mx.nd`: MXNet's mutable NDArray, and every operator as a function that runs immediately.

>>> import jfit.mx as mx
>>> mx.nd.FullyConnected(mx.nd.ones((1, 2)), mx.nd.ones((3, 2)), mx.nd.zeros(3), num_hidden=3).asnumpy().tolist()
[[2.0, 2.0, 2.0]]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jfit import lazy as _lazy


def _made(name: str, _: Sequence[str]) -> Any:
    # Imported when it is used: modules of this package have the names of functions, which the stub protects.
    from jfit.mxnet.ndarray import namespaces

    globals()[name] = made = namespaces.made(name)
    return made


_lazy.stub(__name__, _made)


def __dir__() -> list[str]:
    from jfit.mxnet.ndarray import namespaces

    return sorted({*globals()["__all__"], *namespaces.names()})
