"""`mx.gluon.parameter`: parameters whose values and gradients are writable NDArrays, which executors can be bound to."""

from jfit.mxnet.gluon.parameter import DeferredInitializationError
from jfit.mxnet.ndarray_classes import Constant, Parameter, ParameterDict

__all__ = ["Constant", "DeferredInitializationError", "Parameter", "ParameterDict"]
