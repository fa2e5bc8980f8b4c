"""`mx.rnn`: MXNet's symbolic recurrent cells, their checkpoints, and an iterator over sentences grouped by length.

>>> import jfit.mx as mx
>>> cell = mx.rnn.LSTMCell(4)
>>> outputs, states = cell.unroll(2, mx.sym.Variable("data"))
>>> [o.name for o in outputs], states[1].name
(['lstm_t0_out', 'lstm_t1_out'], 'lstm_t1_state')
"""

import functools

from jfit import lazy as _lazy
from jfit.mxnet.namespaces import absent

_lazy.stub(__name__, functools.partial(absent, "mx.rnn"))
