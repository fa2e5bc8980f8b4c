"""`mx.gluon.data`: data sets, samplers, and a loader of mini-batches.

>>> import jfit.mx as mx
>>> loader = mx.gluon.data.DataLoader(mx.gluon.data.ArrayDataset([1.0, 2.0, 3.0], [0, 1, 0]), batch_size=2)
>>> [x.asnumpy().tolist() for x, y in loader]
[[1.0, 2.0], [3.0]]
"""

from jfit import lazy as _lazy

_lazy.modules(__name__)
