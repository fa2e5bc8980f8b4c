"""gluon's recurrent layers and cells.

>>> import jfit.mx as mx
>>> layer = mx.gluon.rnn.GRU(3)
>>> layer.initialize()
>>> layer(mx.nd.ones((5, 2, 4))).shape
(5, 2, 3)
"""

from jfit.mxnet.gluon.rnn.base import HybridRecurrentCell, RecurrentCell
from jfit.mxnet.gluon.rnn.cells import GRUCell, LSTMCell, RNNCell
from jfit.mxnet.gluon.rnn.composed import (
    BidirectionalCell,
    DropoutCell,
    HybridSequentialRNNCell,
    ModifierCell,
    ResidualCell,
    SequentialRNNCell,
    ZoneoutCell,
)
from jfit.mxnet.gluon.rnn.layers import GRU, LSTM, RNN

__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "BidirectionalCell",
    "DropoutCell",
    "GRUCell",
    "HybridRecurrentCell",
    "HybridSequentialRNNCell",
    "LSTMCell",
    "ModifierCell",
    "RNNCell",
    "RecurrentCell",
    "ResidualCell",
    "SequentialRNNCell",
    "ZoneoutCell",
]
