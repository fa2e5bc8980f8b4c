"""Monitor: statistics of outputs, arguments and gradients, captured by a second program."""

from jfit.facade.monitor.monitor import Monitor

__all__ = ["Monitor"]
