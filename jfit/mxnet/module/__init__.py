"""Module and its family: bound networks that fit, score, predict, and train step by step.

base        fit, score, predict over forward, backward, update
bound       names, shapes, parameters, batches        descs, initial, slicing: what they need
module      Module: optimizer, computing, fit
passes      what runs for forward, backward, update   programs: compiled; session: the TrainState behind; epochs: many steps
bucketing, sequential, python, current                modules made of modules; svrg: one with a second at a snapshot
"""

from jfit.mxnet.module.base import BaseModule
from jfit.mxnet.module.bucketing import BucketingModule
from jfit.mxnet.module.module import Module
from jfit.mxnet.module.python import PythonLossModule, PythonModule
from jfit.mxnet.module.sequential import SequentialModule
from jfit.mxnet.module.svrg import SVRGModule

__all__ = ["BaseModule", "BucketingModule", "Module", "PythonLossModule", "PythonModule", "SVRGModule", "SequentialModule"]
