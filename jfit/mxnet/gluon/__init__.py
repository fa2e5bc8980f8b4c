"""gluon's Trainer, over parameters with a copy on each device, or over any pytree."""

from jfit.mxnet.gluon.parameter import Parameter
from jfit.mxnet.gluon.parameter_dict import ParameterDict
from jfit.mxnet.gluon.trainer import Trainer

__all__ = ["Parameter", "ParameterDict", "Trainer"]
