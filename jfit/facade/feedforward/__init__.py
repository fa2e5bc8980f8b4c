"""FeedForward, in the tradition of Python and in that of MXNet.jl."""

from jfit.facade.feedforward.feedforward import FeedForward
from jfit.facade.feedforward.options import TrainingOptions

__all__ = ["FeedForward", "TrainingOptions"]
