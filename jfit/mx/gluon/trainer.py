"""`mx.gluon.trainer`: the Trainer over parameters in NDArrays."""

from jfit.mxnet.ndarray_classes import Trainer

__all__ = ["Trainer"]
