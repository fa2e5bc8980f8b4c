"""Monitor: statistics of outputs, arguments and gradients, captured by a second program."""

from jfit.mxnet.monitor.monitor import Monitor

__all__ = ["Monitor"]
