"""`mx.gluon.trainer`: the Trainer, which applies an optimizer to a set of parameters."""

from jfit.mxnet.ndarray_classes import Trainer

__all__ = ["Trainer"]
