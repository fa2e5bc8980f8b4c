"""FeedForward, in the tradition of Python and in that of MXNet.jl.

feedforward  the class            data       what it makes of arrays and iterators
julia        train of MXNet.jl    callbacks  what it tells            modules  the modules below
"""

from jfit.mxnet.feedforward.feedforward import FeedForward
from jfit.mxnet.feedforward.julia import TrainingOptions

__all__ = ["FeedForward", "TrainingOptions"]
