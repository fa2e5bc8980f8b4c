"""Module and its family: bound networks that fit, score, predict, and train step by step.

base        fit, score, predict over forward, backward, update
bound       names, shapes, parameters, batches        descs, initial, slicing: what they need
module      Module: optimizer, computing, fit
passes      what runs for forward, backward, update   programs: compiled; session: the TrainState behind; epochs: many steps
bucketing, sequential, python, current                modules made of modules; svrg: one with a second at a snapshot
"""

from jfit.facade.module.base import BaseModule
from jfit.facade.module.bucketing import BucketingModule
from jfit.facade.module.module import Module
from jfit.facade.module.python import PythonLossModule, PythonModule
from jfit.facade.module.sequential import SequentialModule
from jfit.facade.module.svrg import SVRGModule

__all__ = ["BaseModule", "BucketingModule", "Module", "PythonLossModule", "PythonModule", "SVRGModule", "SequentialModule"]
