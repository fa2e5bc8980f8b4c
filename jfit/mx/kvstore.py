"""`mx.kv`: MXNet's key-value store of NDArrays, which sums the values pushed by the devices.

>>> import jfit.mx as mx
>>> store = mx.kv.create("local")
>>> store.init("w", mx.nd.ones((2,)))
>>> def add_twice(key, value, stored):
...     stored += value * 2
>>> store.set_updater(add_twice)
>>> store.push("w", [mx.nd.ones((2,)), mx.nd.ones((2,))])
>>> store.pull("w").asnumpy().tolist()
[5.0, 5.0]
"""

from jfit.mxnet.kvstore import KVStoreBase
from jfit.mxnet.ndarray_classes import KVStore, create

__all__ = ["KVStore", "KVStoreBase", "create"]
