"""gluon's convolutional cells, LSTM with projection, variational dropout.

>>> import jfit.mx as mx
>>> mx.gluon.contrib.rnn.LSTMPCell(5, 3, input_size=4)
LSTMPCell(4 -> 20 -> 3)
"""

from jfit.mxnet.gluon.contrib.rnn.cells import LSTMPCell, VariationalDropoutCell
from jfit.mxnet.gluon.contrib.rnn.conv import (
    Conv1DGRUCell,
    Conv1DLSTMCell,
    Conv1DRNNCell,
    Conv2DGRUCell,
    Conv2DLSTMCell,
    Conv2DRNNCell,
    Conv3DGRUCell,
    Conv3DLSTMCell,
    Conv3DRNNCell,
)

__all__ = [
    "Conv1DGRUCell",
    "Conv1DLSTMCell",
    "Conv1DRNNCell",
    "Conv2DGRUCell",
    "Conv2DLSTMCell",
    "Conv2DRNNCell",
    "Conv3DGRUCell",
    "Conv3DLSTMCell",
    "Conv3DRNNCell",
    "LSTMPCell",
    "VariationalDropoutCell",
]
