"""`mx.mon`: MXNet's Monitor, which prints a statistic of outputs, parameters and gradients during training.

>>> import jfit.mx as mx
>>> mon = mx.mon.Monitor(1, stat_func=lambda x: x.norm() / x.size**0.5)
>>> mon.tic()
>>> mon.collect({"fc_output": mx.nd.ones((2, 2))})
>>> mon.toc()
[(1, 'fc_output', '1.0\\t')]
"""

from jfit.mxnet.ndarray_classes import Monitor

__all__ = ["Monitor"]
