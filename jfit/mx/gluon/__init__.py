"""`mx.gluon`: Parameter, ParameterDict, Trainer and the functions that split batches over devices.

>>> import jfit.mx as mx
>>> from jfit.mx import gluon
>>> weight = gluon.Parameter("w", shape=(2,), init="ones")
>>> weight.initialize()
>>> trainer = gluon.Trainer([weight], "sgd", {"learning_rate": 0.5})
>>> weight.grad()[:] = 1
>>> weight.data()._fresh_grad = True  # as a backward pass does
>>> trainer.step(1)
>>> weight.data().asnumpy().tolist()
[0.5, 0.5]
"""

from typing import NoReturn

from jfit.mx.gluon import parameter, trainer
from jfit.mx.gluon.parameter import Constant, DeferredInitializationError, Parameter, ParameterDict
from jfit.mx.gluon.trainer import Trainer
from jfit.mxnet.gluon import utils
from jfit.mxnet.namespaces import absent

__all__ = [
    "Constant",
    "DeferredInitializationError",
    "Parameter",
    "ParameterDict",
    "Trainer",
    "parameter",
    "trainer",
    "utils",
]


def __getattr__(name: str) -> NoReturn:
    absent("mx.gluon", name, __all__)
