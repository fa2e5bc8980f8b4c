"""Convolutional recurrent cells: the matrix products of the RNN, LSTM and GRU cells are convolutions, written * below.

The symbols of the equations are those of `jfit.mxnet.rnn.cells`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from jfit.graph.symbol import Symbol
from jfit.mxnet import symbol as sym
from jfit.mxnet.rnn.base import BaseRNNCell, RNNParams, States
from jfit.mxnet.rnn.cells import GRU_GATES, LSTM_GATES, gru_step, lstm_step

LEAKY = functools.partial(sym.LeakyReLU, act_type="leaky", slope=0.2)
Pair = Sequence[int]


class BaseConvRNNCell(BaseRNNCell):
    """Base of the convolutional cells, whose gates are W * x + b + U * h + d.

    Args:
        input_shape: shape of the input of a step, including the batch axis.
        num_hidden: number of channels of the state and of the output.
        h2h_kernel: kernel of the state's convolution; sizes must be odd, because the state keeps its height and width.
        h2h_dilate: dilation of the state's convolution.
        i2h_kernel: kernel of the input's convolution.
        i2h_stride: stride of the input's convolution.
        i2h_pad: padding of the input's convolution.
        i2h_dilate: dilation of the input's convolution.
        i2h_weight_initializer: initializer of `i2h_weight`, or its name.
        h2h_weight_initializer: initializer of `h2h_weight`, or its name.
        i2h_bias_initializer: initializer of `i2h_bias`, or its name.
        h2h_bias_initializer: initializer of `h2h_bias`, or its name.
        activation: a name of the operator Activation, or a function of a symbol; leaky ReLU by default.
        prefix: prepended to the names of the cell's nodes and weights; "ConvRNN_", "ConvLSTM_" or "ConvGRU_" by default.
        params: container of the weights, to share them with another cell; a new one by default.
        conv_layout: layout of the convolutions.

    Example:
        >>> import jfit.mx as mx
        >>> issubclass(mx.rnn.ConvLSTMCell, BaseConvRNNCell)
        True
    """

    _states = 1
    _default_prefix = ""

    def __init__(
        self,
        input_shape: Sequence[int],
        num_hidden: int,
        h2h_kernel: Pair = (3, 3),
        h2h_dilate: Pair = (1, 1),
        i2h_kernel: Pair = (3, 3),
        i2h_stride: Pair = (1, 1),
        i2h_pad: Pair = (1, 1),
        i2h_dilate: Pair = (1, 1),
        i2h_weight_initializer: Any = None,
        h2h_weight_initializer: Any = None,
        i2h_bias_initializer: Any = "zeros",
        h2h_bias_initializer: Any = "zeros",
        activation: Any = LEAKY,
        prefix: str | None = None,
        params: RNNParams | None = None,
        conv_layout: str = "NCHW",
    ) -> None:
        super().__init__(self._default_prefix if prefix is None else prefix, params)
        if any(k % 2 == 0 for k in h2h_kernel):
            raise ValueError(f"h2h_kernel is {tuple(h2h_kernel)}; only odd sizes keep the height and width of the state")
        self._num_hidden, self._activation = num_hidden, activation
        self._input_shape, self._conv_layout = tuple(input_shape), conv_layout
        self._i2h: dict[str, Any] = {"kernel": i2h_kernel, "stride": i2h_stride, "pad": i2h_pad, "dilate": i2h_dilate}
        pad = tuple(d * (k - 1) // 2 for k, d in zip(h2h_kernel, h2h_dilate, strict=True))
        self._h2h: dict[str, Any] = {"kernel": h2h_kernel, "stride": (1, 1), "pad": pad, "dilate": h2h_dilate}
        # MXNet also creates an unnamed Convolution here, which advances the numbering of automatic node names.
        probe = sym.Convolution(sym.Variable("data"), num_filter=num_hidden, layout=conv_layout, **self._i2h)
        self._state_shape = (0, *probe.infer_shape(data=self._input_shape)[1][0][1:])
        self._iW = self._params.get("i2h_weight", init=i2h_weight_initializer)
        self._hW = self._params.get("h2h_weight", init=h2h_weight_initializer)
        self._iB = self._params.get("i2h_bias", init=i2h_bias_initializer)
        self._hB = self._params.get("h2h_bias", init=h2h_bias_initializer)

    @property
    def state_info(self) -> list[Any]:
        """Shape of each state: that of the input's convolution, with batch size 0."""
        return [{"shape": self._state_shape, "__layout__": self._conv_layout} for _ in range(self._states)]

    def _conv_forward(self, inputs: Symbol, states: States, name: str) -> tuple[Symbol, Symbol]:
        """Return the input projection W * x + b and the state projection U * h + d of all gates."""
        shared: dict[str, Any] = {"num_filter": self._num_hidden * self._num_gates, "layout": self._conv_layout}
        i2h = sym.Convolution(inputs, self._iW, self._iB, name=f"{name}i2h", **self._i2h, **shared)
        h2h = sym.Convolution(states[0], self._hW, self._hB, name=f"{name}h2h", **self._h2h, **shared)
        return i2h, h2h


class ConvRNNCell(BaseConvRNNCell):
    """Convolutional Elman cell: h' = act(W * x + b + U * h + d); the output is h'.

    Args:
        input_shape, num_hidden: and all other arguments: see `BaseConvRNNCell`.

    Example:
        >>> import jfit.mx as mx
        >>> cell = mx.rnn.ConvRNNCell((1, 3, 8, 8), 4)
        >>> outputs, states = cell.unroll(2, mx.sym.Variable("data"), layout="NTCHW", merge_outputs=True)
        >>> outputs.infer_shape(data=(5, 2, 3, 8, 8))[1]
        [(5, 2, 4, 8, 8)]
    """

    _default_prefix = "ConvRNN_"
    _gate_names = ("",)

    def __call__(self, inputs: Symbol, states: States) -> tuple[Symbol, States]:
        """Compute one time step: (inputs, states) -> (output, new states)."""
        name = self._next_name()
        i2h, h2h = self._conv_forward(inputs, states, name)
        output = self._get_activation(i2h + h2h, self._activation, name=f"{name}out")
        return output, [output]


class ConvLSTMCell(BaseConvRNNCell):
    """Convolutional LSTM cell: `LSTMCell` with convolutions and `activation` instead of tanh; the states are [h, c].

    Args:
        input_shape, num_hidden: and all other arguments: see `BaseConvRNNCell`.

    Example:
        >>> import jfit.mx as mx
        >>> [info["shape"] for info in mx.rnn.ConvLSTMCell((1, 3, 8, 8), 4).state_info]
        [(0, 4, 8, 8), (0, 4, 8, 8)]

    Source: Shi and others, Convolutional LSTM Network, 2015.
    """

    _states = 2
    _default_prefix = "ConvLSTM_"
    _gate_names = LSTM_GATES

    def __call__(self, inputs: Symbol, states: States) -> tuple[Symbol, States]:
        """Compute one time step: (inputs, [h, c]) -> (output, new [h, c])."""
        name = self._next_name()
        i2h, h2h = self._conv_forward(inputs, states, name)
        axis = self._conv_layout.find("C")
        parts = sym.SliceChannel(i2h + h2h, num_outputs=4, axis=axis, name=f"{name}slice")
        return lstm_step(parts, states[1], name, self._activation, self._get_activation)


class ConvGRUCell(BaseConvRNNCell):
    """Convolutional GRU cell: `GRUCell` with convolutions and `activation` instead of tanh.

    The gates are split along axis 1, as in MXNet, so `conv_layout` must have the channels on axis 1.

    Args:
        input_shape, num_hidden: and all other arguments: see `BaseConvRNNCell`.

    Example:
        >>> import jfit.mx as mx
        >>> [info["shape"] for info in mx.rnn.ConvGRUCell((1, 3, 8, 8), 4).state_info]
        [(0, 4, 8, 8)]
    """

    _default_prefix = "ConvGRU_"
    _gate_names = GRU_GATES

    def __call__(self, inputs: Symbol, states: States) -> tuple[Symbol, States]:
        """Compute one time step: (inputs, states) -> (output, new states)."""
        name = self._next_name()
        i2h, h2h = self._conv_forward(inputs, states, name)
        return gru_step(i2h, h2h, states[0], name, self._activation, self._get_activation)
