"""gluon's recurrent layers and cells.

>>> import jfit.mx as mx
>>> layer = mx.gluon.rnn.GRU(3)
>>> layer.initialize()
>>> layer(mx.nd.ones((5, 2, 4))).shape
(5, 2, 3)
"""
