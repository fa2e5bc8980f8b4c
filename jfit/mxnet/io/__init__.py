"""MXNet's iterators, whose batches hold NDArrays."""
