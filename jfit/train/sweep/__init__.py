"""Sweeps: many runs with other settings, trained as one program."""

from jfit.train.sweep.api import sweep
from jfit.train.sweep.result import Member, Sweep
from jfit.train.sweep.spaces import Distribution, choice, log_uniform, uniform

__all__ = ["Distribution", "Member", "Sweep", "choice", "log_uniform", "sweep", "uniform"]
