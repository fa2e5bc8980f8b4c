"""Sweeps: many runs with other settings, trained as one program."""

from jfit.tools.sweep.api import sweep
from jfit.tools.sweep.result import Member, Sweep
from jfit.tools.sweep.spaces import Distribution, choice, log_uniform, uniform

__all__ = ["Distribution", "Member", "Sweep", "choice", "log_uniform", "sweep", "uniform"]
