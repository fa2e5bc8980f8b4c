"""gluon's Trainer and Parameters; the Trainer also accepts any pytree of arrays."""

from jfit import lazy as _lazy
from jfit.mxnet.gluon.parameter import Parameter
from jfit.mxnet.gluon.parameter_dict import ParameterDict
from jfit.mxnet.gluon.trainer import Trainer

__all__ = ["Parameter", "ParameterDict", "Trainer"]

_lazy.modules(__name__)
