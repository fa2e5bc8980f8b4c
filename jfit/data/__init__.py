"""Input pipeline: batches, arrays in memory, streams of batches, MXNet-style iterators, prefetching."""

from jfit import lazy as _lazy

_lazy.stub(__name__)
