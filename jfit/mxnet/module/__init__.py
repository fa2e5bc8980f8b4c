"""Module and its family: bound networks that fit, score, predict, and train step by step.

base        BaseModule: fit, score, predict over forward, backward, update
module      Module, of three parts:
  binding     names, devices, shapes, and a batch as inputs by name    initial: first values of the parameters
  parameters  parameters and optimizer on the devices                  states: the optimizer's state in files
  passes      forward, backward, update, as late as possible           slices: a batch over the devices
epochs      many steps of fit in one dispatch
bucketing, sequential, python, svrg                                   modules over modules
"""

from jfit.mxnet.module.base import BaseModule
from jfit.mxnet.module.bucketing import BucketingModule
from jfit.mxnet.module.module import Module
from jfit.mxnet.module.python import PythonLossModule, PythonModule
from jfit.mxnet.module.sequential import SequentialModule
from jfit.mxnet.module.svrg import SVRGModule

__all__ = ["BaseModule", "BucketingModule", "Module", "PythonLossModule", "PythonModule", "SVRGModule", "SequentialModule"]
