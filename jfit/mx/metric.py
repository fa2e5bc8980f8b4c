"""`mx.metric`: MXNet's evaluation metrics; see `jfit.mxnet.metric`."""

from jfit.mxnet.metric import *  # noqa: F403
from jfit.mxnet.metric import __all__ as __all__
