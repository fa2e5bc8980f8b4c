"""FeedForward, MXNet's estimator, with the APIs of MXNet's Python package and of MXNet.jl.

feedforward  the FeedForward class
julia        MXNet.jl's `train`: options, epochs, logging
callbacks    MXNet.jl's callback classes
data         conversion of arrays and iterators to data iterators
modules      the Module subclasses that FeedForward trains with
"""

from jfit.mxnet.feedforward.feedforward import FeedForward
from jfit.mxnet.feedforward.julia import TrainingOptions

__all__ = ["FeedForward", "TrainingOptions"]
