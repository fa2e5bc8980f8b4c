"""`mx.metric`: MXNet's metric objects, with running sums on the device: `update` does not block, reading a value does.

Values are Python numbers.  A user-defined metric with an `update(self, labels, preds)` method receives NDArrays when it is
used by a module of `mx.mod`.

>>> import jfit.mx as mx
>>> accuracy = mx.metric.create("acc")
>>> accuracy.update([mx.nd.array([0, 1])], [mx.nd.array([[0.9, 0.1], [0.8, 0.2]])])
>>> accuracy.get()
('accuracy', 0.5)
"""

from jfit import lazy as _lazy
from jfit.mxnet.metric import named as _named  # noqa: F401  registers the classes

_lazy.stub(__name__)
