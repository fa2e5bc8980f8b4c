"""The optimizers that `SVRGModule` creates, under the names that MXNet registers.

>>> import jfit.mx as mx
>>> mx.optimizer.create("_SVRGOptimizer", default_optimizer="sgd", learning_rate=0.5).default_opt.lr
0.5
"""

from jfit.mxnet.optimizer.svrg import _AssignmentOptimizer, _SVRGOptimizer

__all__ = ["_AssignmentOptimizer", "_SVRGOptimizer"]
