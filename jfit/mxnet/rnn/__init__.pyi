"""The public names of this package: type checkers read them here, and so does `jfit.lazy.stub`."""

from jfit.mxnet.rnn.base import BaseRNNCell as BaseRNNCell, RNNParams as RNNParams
from jfit.mxnet.rnn.cells import (
    BaseConvRNNCell as BaseConvRNNCell, BidirectionalCell as BidirectionalCell, ConvGRUCell as ConvGRUCell,
    ConvLSTMCell as ConvLSTMCell, ConvRNNCell as ConvRNNCell, DropoutCell as DropoutCell, GRUCell as GRUCell,
    LSTMCell as LSTMCell, RNNCell as RNNCell, SequentialRNNCell as SequentialRNNCell,
)
from jfit.mxnet.rnn.checkpoint import (
    do_rnn_checkpoint as do_rnn_checkpoint, load_rnn_checkpoint as load_rnn_checkpoint, rnn_unroll as rnn_unroll,
    save_rnn_checkpoint as save_rnn_checkpoint,
)
from jfit.mxnet.rnn.fused import FusedRNNCell as FusedRNNCell
from jfit.mxnet.rnn.io import BucketSentenceIter as BucketSentenceIter, encode_sentences as encode_sentences
from jfit.mxnet.rnn.modifiers import ModifierCell as ModifierCell, ResidualCell as ResidualCell, ZoneoutCell as ZoneoutCell
