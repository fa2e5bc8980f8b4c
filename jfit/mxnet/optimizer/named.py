"""Registry of MXNet's optimizers: `create` by name, `register` for user classes, and all classes.

>>> fast = create("sgd", momentum=0.9, learning_rate=0.5)
>>> fast, fast.hyper_key()[0]
(SGD(momentum=0.9, wd=0.0, clip_gradient=None), 'sgd')
"""

from __future__ import annotations

from types import SimpleNamespace

from jfit.mxnet.optimizer import large_batch, moments, momentum  # noqa: F401  which register their classes
from jfit.mxnet.optimizer.base import Optimizer
from jfit.mxnet.optimizer.rms import GroupAdaGrad

register = Optimizer.register
create = Optimizer.create_optimizer
contrib = SimpleNamespace(GroupAdaGrad=GroupAdaGrad, register=register)
opt_registry = Optimizer.opt_registry  # lower-case name -> class
