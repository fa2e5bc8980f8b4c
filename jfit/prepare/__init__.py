"""Everything that is decided before the first step: options, the model with its data, optimizer, state and training step."""

from jfit.prepare.options import FitOptions
from jfit.prepare.problem import Problem, prepare

__all__ = ["FitOptions", "Problem", "prepare"]
