"""Monitor: statistics of outputs, arguments and gradients on sampled steps, computed by a second program."""

from jfit import lazy as _lazy
from jfit.mxnet.monitor.monitor import Monitor

__all__ = ["Monitor"]

_lazy.modules(__name__)
