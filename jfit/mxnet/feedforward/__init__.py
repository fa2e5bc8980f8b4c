"""FeedForward, MXNet's estimator, with the APIs of MXNet's Python package and of MXNet.jl.

feedforward  the FeedForward class, and the Module subclasses that it trains with
julia        MXNet.jl's `train`: options, epochs, logging
callbacks    MXNet.jl's callback classes
"""

from jfit.mxnet.feedforward.feedforward import FeedForward
from jfit.mxnet.feedforward.julia import TrainingOptions

__all__ = ["FeedForward", "TrainingOptions"]
