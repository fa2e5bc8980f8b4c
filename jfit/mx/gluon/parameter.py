"""`mx.gluon.parameter`: parameters whose data and gradients are NDArrays that can be written and bound."""

from jfit.mxnet.gluon.parameter import DeferredInitializationError
from jfit.mxnet.ndarray_classes import Constant, Parameter, ParameterDict

__all__ = ["Constant", "DeferredInitializationError", "Parameter", "ParameterDict"]
