"""`mx.model`: checkpoints, and `FeedForward`, MXNet's deprecated estimator.

>>> import jfit.mx as mx, numpy as np
>>> net = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2), name="softmax")
>>> x = np.eye(2, dtype="float32").repeat(20, axis=0)
>>> model = mx.model.FeedForward(net, ctx=mx.cpu(), num_epoch=20, numpy_batch_size=8, learning_rate=1.0)
>>> model.fit(x, x.argmax(1))
>>> model.predict(x).argmax(1).tolist() == x.argmax(1).tolist()
True
>>> mx.model.save_checkpoint("note", 1, mx.sym.Variable("x"), {"w": mx.nd.ones(2)}, {})
>>> mx.model.load_checkpoint("note", 1)[1]["w"].asnumpy().tolist()
[1.0, 1.0]
"""

from jfit.mxnet.callback import BatchEndParam
from jfit.mxnet.files import save_checkpoint
from jfit.mxnet.ndarray_classes import FeedForward, load_checkpoint, load_params

__all__ = ["BatchEndParam", "FeedForward", "load_checkpoint", "load_params", "save_checkpoint"]
