"""The public names of this package: type checkers read them here, and so does `jfit.lazy.stub`."""

from jfit.mxnet.optimizer.base import Optimizer as Optimizer
from jfit.mxnet.optimizer.large_batch import LAMB as LAMB, LARS as LARS, LBSGD as LBSGD
from jfit.mxnet.optimizer.moments import Adam as Adam, AdamW as AdamW, Adamax as Adamax, FTML as FTML, Nadam as Nadam
from jfit.mxnet.optimizer.momentum import (
    DCASGD as DCASGD, NAG as NAG, SGD as SGD, SGLD as SGLD, Signum as Signum, Test as Test, ccSGD as ccSGD,
)
from jfit.mxnet.optimizer.named import contrib as contrib, create as create, opt_registry as opt_registry, register as register
from jfit.mxnet.optimizer.rms import (
    AdaDelta as AdaDelta, AdaGrad as AdaGrad, Ftrl as Ftrl, GroupAdaGrad as GroupAdaGrad, RMSProp as RMSProp,
)
from jfit.mxnet.optimizer.updater import Updater as Updater, get_updater as get_updater
