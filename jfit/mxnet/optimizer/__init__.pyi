"""The public names of this package: type checkers read them here, and so does `jfit.lazy.stub`."""

from jfit.mxnet.optimizer.base import Optimizer as Optimizer
from jfit.mxnet.optimizer.named import (
    AdaDelta as AdaDelta, AdaGrad as AdaGrad, Adam as Adam, AdamW as AdamW, Adamax as Adamax, DCASGD as DCASGD, FTML as
    FTML, Ftrl as Ftrl, GroupAdaGrad as GroupAdaGrad, LAMB as LAMB, LARS as LARS, LBSGD as LBSGD, NAG as NAG, Nadam as
    Nadam, RMSProp as RMSProp, SGD as SGD, SGLD as SGLD, Signum as Signum, Test as Test, ccSGD as ccSGD, contrib as contrib,
    create as create, opt_registry as opt_registry, register as register,
)
from jfit.mxnet.optimizer.updater import Updater as Updater, get_updater as get_updater
