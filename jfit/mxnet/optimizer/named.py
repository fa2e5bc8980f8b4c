"""Registry of MXNet's optimizers: `create` by name, `register` for user classes, and all classes.

>>> fast = create("sgd", momentum=0.9, learning_rate=0.5)
>>> fast, fast.hyper_key()[0]
(SGD(momentum=0.9, wd=0.0, clip_gradient=None), 'sgd')
"""

from __future__ import annotations

from types import SimpleNamespace

from jfit.mxnet.optimizer.base import Optimizer
from jfit.mxnet.optimizer.large_batch import LAMB, LARS, LBSGD
from jfit.mxnet.optimizer.moments import FTML, Adam, Adamax, AdamW, Nadam
from jfit.mxnet.optimizer.momentum import DCASGD, NAG, SGD, SGLD, Signum, Test, ccSGD
from jfit.mxnet.optimizer.rms import AdaDelta, AdaGrad, Ftrl, GroupAdaGrad, RMSProp

register = Optimizer.register
create = Optimizer.create_optimizer
contrib = SimpleNamespace(GroupAdaGrad=GroupAdaGrad, register=register)
opt_registry = Optimizer.opt_registry  # lower-case name -> class

__all__ = [
    "DCASGD",
    "FTML",
    "LAMB",
    "LARS",
    "LBSGD",
    "NAG",
    "SGD",
    "SGLD",
    "AdaDelta",
    "AdaGrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Ftrl",
    "GroupAdaGrad",
    "Nadam",
    "RMSProp",
    "Signum",
    "Test",
    "ccSGD",
    "contrib",
    "create",
    "opt_registry",
    "register",
]
