"""`gluon.Trainer` over parameters in NDArrays."""

from __future__ import annotations

from jfit.mxnet.gluon import trainer
from jfit.mxnet.kvstore import boxed as kvstore
from jfit.mxnet.optimizer.boxed import get_updater


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
