"""`mx.gluon.nn`: the layers of gluon.

>>> import jfit.mx as mx
>>> net = mx.gluon.nn.HybridSequential()
>>> net.add(mx.gluon.nn.Conv2D(8, 3, activation="relu"), mx.gluon.nn.GlobalAvgPool2D(), mx.gluon.nn.Dense(10))
>>> net.initialize()
>>> net(mx.nd.ones((2, 1, 28, 28))).shape
(2, 10)
"""

from jfit import lazy as _lazy

_lazy.stub(__name__)
