"""MXNet's Module and its relatives: networks bound to shapes and devices, with fit, score, predict and single steps.

base        BaseModule: fit, score and predict, built on forward, backward and update
module      Module, which has three parts:
  binding     names, devices and shapes of a graph                      initial: initial parameter values
  parameters  parameters and optimizer state on the devices             states: optimizer state in files
  passes      forward, backward and update, deferred                    programs: their compiled programs
epochs      run many steps of fit in one dispatch                     exec_group: gradients that scripts overwrite
slices, groups, workers: several devices, devices of `ctx_group`s, processes of a job
bucketing, sequential, python, svrg: modules composed of other modules or written in Python
"""

from jfit import lazy as _lazy
from jfit.mxnet.module.base import BaseModule
from jfit.mxnet.module.bucketing import BucketingModule
from jfit.mxnet.module.module import Module
from jfit.mxnet.module.python import PythonLossModule, PythonModule
from jfit.mxnet.module.sequential import SequentialModule
from jfit.mxnet.module.svrg import SVRGModule

__all__ = ["BaseModule", "BucketingModule", "Module", "PythonLossModule", "PythonModule", "SVRGModule", "SequentialModule"]

_lazy.modules(__name__)
