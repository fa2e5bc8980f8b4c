"""`mx.lr_scheduler`: MXNet's learning-rate schedulers, called with the number of updates.

>>> import jfit.mx as mx
>>> mx.lr_scheduler.FactorScheduler(step=5, factor=0.5, base_lr=0.1)(6)
0.05
"""

from jfit.mxnet.optimizer.lr_scheduler import CosineScheduler, FactorScheduler, LRScheduler, MultiFactorScheduler, PolyScheduler

__all__ = ["CosineScheduler", "FactorScheduler", "LRScheduler", "MultiFactorScheduler", "PolyScheduler"]
