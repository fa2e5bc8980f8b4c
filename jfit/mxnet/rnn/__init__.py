"""`mx.rnn`: MXNet's symbolic recurrent cells, their checkpoints, and an iterator over sentences grouped by length.

>>> import jfit.mx as mx
>>> cell = mx.rnn.LSTMCell(4)
>>> outputs, states = cell.unroll(2, mx.sym.Variable("data"))
>>> [o.name for o in outputs], states[1].name
(['lstm_t0_out', 'lstm_t1_out'], 'lstm_t1_state')
"""

from typing import NoReturn

from jfit.mxnet.namespaces import absent
from jfit.mxnet.rnn.base import BaseRNNCell, RNNParams
from jfit.mxnet.rnn.cells import DropoutCell, GRUCell, LSTMCell, RNNCell
from jfit.mxnet.rnn.checkpoint import do_rnn_checkpoint, load_rnn_checkpoint, rnn_unroll, save_rnn_checkpoint
from jfit.mxnet.rnn.conv import BaseConvRNNCell, ConvGRUCell, ConvLSTMCell, ConvRNNCell
from jfit.mxnet.rnn.fused import FusedRNNCell
from jfit.mxnet.rnn.io import BucketSentenceIter, encode_sentences
from jfit.mxnet.rnn.modifiers import ModifierCell, ResidualCell, ZoneoutCell
from jfit.mxnet.rnn.stacked import BidirectionalCell, SequentialRNNCell

__all__ = [
    "BaseConvRNNCell",
    "BaseRNNCell",
    "BidirectionalCell",
    "BucketSentenceIter",
    "ConvGRUCell",
    "ConvLSTMCell",
    "ConvRNNCell",
    "DropoutCell",
    "FusedRNNCell",
    "GRUCell",
    "LSTMCell",
    "ModifierCell",
    "RNNCell",
    "RNNParams",
    "ResidualCell",
    "SequentialRNNCell",
    "ZoneoutCell",
    "do_rnn_checkpoint",
    "encode_sentences",
    "load_rnn_checkpoint",
    "rnn_unroll",
    "save_rnn_checkpoint",
]


def __getattr__(name: str) -> NoReturn:
    absent("mx.rnn", name, __all__)
