"""gluon's Trainer, over parameters with a copy on each device, or over any pytree."""

from jfit.facade.trainer.parameter import Parameter
from jfit.facade.trainer.parameter_dict import ParameterDict
from jfit.facade.trainer.trainer import Trainer

__all__ = ["Parameter", "ParameterDict", "Trainer"]
