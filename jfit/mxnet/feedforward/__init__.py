"""FeedForward, in the tradition of Python and in that of MXNet.jl."""

from jfit.mxnet.feedforward.feedforward import FeedForward
from jfit.mxnet.feedforward.options import TrainingOptions

__all__ = ["FeedForward", "TrainingOptions"]
