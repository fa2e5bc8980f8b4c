"""`mx.kv`: the key-value store, with NDArrays in and out.

>>> import jfit.mx as mx
>>> from jfit.mx import kvstore
>>> store = kvstore.create("device")
>>> store.init(3, mx.nd.ones((2,)))
>>> store.push(3, [mx.nd.ones((2,)), mx.nd.ones((2,))])
>>> out = mx.nd.zeros((2,))
>>> store.pull(3, out=out)
>>> out.asnumpy().tolist()
[2.0, 2.0]
"""

from __future__ import annotations

from typing import Any

from jfit.mxnet.kvstore import store as kvstore
from jfit.mxnet.kvstore.store import KVStoreBase
from jfit.mxnet.ndarray.array import NDArray
from jfit.mxnet.optimizer.boxed import get_updater

__all__ = ["KVStore", "KVStoreBase", "create"]


class KVStore(kvstore.KVStore):
    """`jfit.KVStore` of NDArrays: an updater is called with NDArrays, and what is pulled without `out` is one.

    Example:
        >>> import jfit.mx as mx
        >>> store = KVStore("local")
        >>> store.init("w", mx.nd.ones((1,)))
        >>> def add_twice(key, value, stored):
        ...     stored += value * 2
        >>> store.set_updater(add_twice)
        >>> store.push("w", mx.nd.ones((1,)))
        >>> store.pull("w").asscalar().item()
        3.0

    Source: Apache MXNet 1.9.1, `mxnet.kvstore.KVStore`.
    """

    _cell = NDArray
    _updater_of = staticmethod(get_updater)

    def _box(self, array: Any) -> NDArray:
        return NDArray(array)


def create(name: str = "local") -> KVStoreBase:
    """A store by type name; see `jfit.mxnet.kvstore.create`.

    Example:
        >>> create("local_update_cpu").type
        'local_update_cpu'
    """
    return kvstore.create(name, KVStore)
