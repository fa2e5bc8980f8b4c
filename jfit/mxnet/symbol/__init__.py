"""`mx.sym`: symbolic graphs as in `jfit.sym`, with MXNet's `bind`, `simple_bind` and `eval`.

>>> import jfit.mx as mx
>>> net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2, no_bias=True, name="fc")
>>> net.bind(mx.cpu(), {"data": mx.nd.ones((1, 3)), "fc_weight": mx.nd.ones((2, 3))}).forward()[0].asnumpy().tolist()
[[3.0, 3.0]]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jfit import lazy as _lazy


def _made(name: str, _: Sequence[str]) -> Any:
    # Imported when it is used: modules of this package have the names of functions, which the stub protects.
    from jfit.mxnet.symbol import namespaces

    globals()[name] = made = namespaces.made(name)
    return made


_lazy.stub(__name__, _made)


def __dir__() -> list[str]:
    from jfit.mxnet.symbol import namespaces

    return sorted({*globals()["__all__"], *namespaces.names()})
