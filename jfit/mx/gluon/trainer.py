"""`mx.gluon.trainer`: the Trainer over parameters in NDArrays."""

from jfit.mxnet.spelled import Trainer

__all__ = ["Trainer"]
