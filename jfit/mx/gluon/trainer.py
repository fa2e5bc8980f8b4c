"""`gluon.Trainer` over parameters in NDArrays."""

from __future__ import annotations

from jfit.facade.trainer import trainer
from jfit.mx import kvstore
from jfit.mx.optimizer import get_updater


class Trainer(trainer.Trainer):
    """`jfit.Trainer` over Parameters only, with a store of NDArrays.

    Example:
        >>> from jfit.mx import gluon
        >>> weight = gluon.Parameter("w", shape=(2,))
        >>> weight.initialize()
        >>> gluon.Trainer([weight], "adam").learning_rate
        0.001

    Source: Apache MXNet 1.9.1, `mxnet.gluon.Trainer`.
    """

    _trees = False
    _updater_of = staticmethod(get_updater)
    _create_store = staticmethod(kvstore.create)
