"""MXNet's data iterators, whose batches contain NDArrays; `mx.io` is `jfit.mxnet.io.arrays`."""
