"""MXNet's data iterators, whose batches contain NDArrays; `mx.io` is `jfit.mxnet.io.arrays`."""

from jfit import lazy as _lazy

_lazy.modules(__name__)
