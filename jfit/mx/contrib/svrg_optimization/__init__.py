"""`mx.contrib.svrg_optimization`: training with stochastic variance-reduced gradients (SVRG).

>>> from jfit.mx.contrib.svrg_optimization.svrg_module import SVRGModule
>>> SVRGModule.__name__
'SVRGModule'
"""

from jfit.mx.contrib.svrg_optimization import svrg_module, svrg_optimizer

__all__ = ["svrg_module", "svrg_optimizer"]
