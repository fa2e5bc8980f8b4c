"""RNN, LSTM and GRU cells, with matrix products or convolutions; dropout; cells composed of other cells.

In the equations x is the input of a step, h and c the states before the step, h' and c' the states after it, σ the logistic
function, W and U the weights i2h_weight and h2h_weight, b and d their biases, * a convolution.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jfit.graph.symbol import Symbol
from jfit.mxnet import initializer
from jfit.mxnet import symbol as sym
from jfit.mxnet.rnn import steps
from jfit.mxnet.rnn.base import Arrays, BaseRNNCell, RNNParams
from jfit.mxnet.rnn.composed import BothDirections, Parts, Stacked
from jfit.mxnet.rnn.sequences import Sequences
from jfit.mxnet.rnn.steps import States
from jfit.ops.rnn import GATES

LSTM_GATES, GRU_GATES = GATES["lstm"], GATES["gru"]


class GatedCell(BaseRNNCell):
    """A cell whose gates are W x + b + U h + d; each weight and bias holds all gates: (gates * num_hidden, ...).

    Args:
        num_hidden: size of the state and of the output.
        prefix: prepended to the names of the cell's nodes and weights.
        params: container of the weights, to share them with another cell; a new one by default.
        initializers: initializers of the variables `i2h_weight`, `h2h_weight`, `i2h_bias` and `h2h_bias`, by name.
    """

    _states = 1
    _activation: Any = "tanh"
    _recurrent_activation = "sigmoid"
    _advance: Any
    _mark = _input_mark = ""  # of the names of nodes, and of those of the projections
    _split_axis: Any = None  # axis of the gates; None: axis 1

    def __init__(self, num_hidden: int, prefix: str, params: RNNParams | None, **initializers: Any) -> None:
        super().__init__(prefix, params)
        self._num_hidden = num_hidden
        names = ("i2h_weight", "h2h_weight", "i2h_bias", "h2h_bias")
        self._iW, self._hW, self._iB, self._hB = (self._params.get(n, init=initializers.get(n)) for n in names)

    @property
    def state_info(self) -> list[Any]:
        """(batch, num_hidden) for each state."""
        return [{"shape": (0, self._num_hidden), "__layout__": "NC"} for _ in range(self._states)]

    def _projections(self, inputs: Symbol, hidden: Symbol, name: str) -> tuple[Symbol, Symbol]:
        """Return the input projection W x + b and the state projection U h + d of all gates."""
        size = self._num_hidden * len(self._gate_names)
        i2h = sym.FullyConnected(data=inputs, weight=self._iW, bias=self._iB, num_hidden=size, name=f"{name}i2h")
        h2h = sym.FullyConnected(data=hidden, weight=self._hW, bias=self._hB, num_hidden=size, name=f"{name}h2h")
        return i2h, h2h

    def __call__(self, inputs: Symbol, states: States) -> tuple[Symbol, States]:
        """Compute one time step (batch, features): (inputs, states) -> (output, new states)."""
        name = self._next_name()
        i2h, h2h = self._projections(inputs, states[0], name + self._input_mark)
        step = steps.Step(sym, name, self._get_activation, named=False, mark=self._mark, axis=self._split_axis)
        return self._advance(step, i2h, h2h, states)


class RNNCell(GatedCell):
    """Elman cell: h' = act(W x + b + U h + d); the output is h'.

    Args:
        num_hidden: size of the state and of the output.
        activation: a name of the operator Activation ("tanh", "relu", ...), or a function of a symbol.
        prefix: prepended to the names of the cell's nodes and weights.
        params: container of the weights, to share them with another cell; a new one by default.

    Example:
        >>> import jfit.mx as mx
        >>> outputs, states = mx.rnn.RNNCell(5).unroll(2, mx.sym.Variable("data"), merge_outputs=True)
        >>> outputs.infer_shape(data=(3, 2, 4))[1]
        [(3, 2, 5)]
    """

    _gate_names = ("",)
    _advance = steps.rnn

    def __init__(
        self, num_hidden: int, activation: Any = "tanh", prefix: str = "rnn_", params: RNNParams | None = None
    ) -> None:
        super().__init__(num_hidden, prefix, params)
        self._activation = activation


class LSTMCell(GatedCell):
    """Long short-term memory cell; the states are [h, c], the output is h'.

        i, f, o = σ(W x + b + U h + d) of each gate,  g = tanh(W x + b + U h + d) of the gate c
        c' = f·c + i·g,  h' = o·tanh(c')

    Args:
        num_hidden: size of each state and of the output.
        prefix: prepended to the names of the cell's nodes and weights.
        params: container of the weights, to share them with another cell; a new one by default.
        forget_bias: initial bias of the forget gate.

    Example:
        >>> import jfit.mx as mx
        >>> outputs, states = mx.rnn.LSTMCell(4).unroll(3, mx.sym.Variable("data"), merge_outputs=True)
        >>> outputs.infer_shape(data=(2, 3, 5))[1], len(states)
        ([(2, 3, 4)], 2)

    Source: Hochreiter and Schmidhuber, Long Short-Term Memory, 1997, with the forget gate of Gers and others, 2000.
    """

    _gate_names = LSTM_GATES
    _advance = steps.lstm
    _states = 2

    def __init__(
        self, num_hidden: int, prefix: str = "lstm_", params: RNNParams | None = None, forget_bias: float = 1.0
    ) -> None:
        super().__init__(num_hidden, prefix, params, i2h_bias=initializer.LSTMBias(forget_bias=forget_bias))


class GRUCell(GatedCell):
    """Gated recurrent unit, in the form that cuDNN computes; the output is h'.

        r, z = σ(W x + b + U h + d) of each gate,  n = tanh(W x + b + r·(U h + d)) of the third
        h' = (1 - z)·n + z·h

    Args:
        num_hidden: size of the state and of the output.
        prefix: prepended to the names of the cell's nodes and weights.
        params: container of the weights, to share them with another cell; a new one by default.

    Example:
        >>> import jfit.mx as mx
        >>> outputs, states = mx.rnn.GRUCell(4).unroll(3, mx.sym.Variable("data"), merge_outputs=True)
        >>> outputs.infer_shape(data=(2, 3, 5))[1]
        [(2, 3, 4)]

    Source: Cho and others, Learning Phrase Representations using RNN Encoder-Decoder, 2014.
    """

    _gate_names = GRU_GATES
    _advance = steps.gru
    _mark = _input_mark = "_"  # of the names of all nodes but the output, as in MXNet: gru_t0__i2h

    def __init__(self, num_hidden: int, prefix: str = "gru_", params: RNNParams | None = None) -> None:
        super().__init__(num_hidden, prefix, params)


class DropoutCell(BaseRNNCell):
    """Dropout on the inputs: y = dropout(x).  The cell has no states and no weights.

    Args:
        dropout: fraction of the inputs set to 0 in training, in [0, 1).
        prefix: accepted for MXNet's signature and ignored.
        params: accepted for MXNet's signature and ignored.

    Example:
        >>> import jfit.mx as mx
        >>> outputs, states = mx.rnn.DropoutCell(0.5).unroll(3, mx.sym.Variable("data"))
        >>> outputs.infer_shape(data=(2, 3, 5))[1], states
        ([(2, 3, 5)], [])
    """

    def __init__(self, dropout: float, prefix: str = "dropout_", params: RNNParams | None = None) -> None:
        super().__init__(prefix, params)
        self.dropout = dropout

    @property
    def state_info(self) -> list[Any]:
        """An empty list: the cell has no states."""
        return []

    def __call__(self, inputs: Symbol, states: States) -> tuple[Symbol, States]:
        """Apply dropout to one time step, or to a whole sequence."""
        return (sym.Dropout(data=inputs, p=self.dropout) if self.dropout > 0 else inputs), states

    def _unroll(self, sequences: Sequences, inputs: Any, states: States) -> tuple[Any, States]:
        inputs = sequences.arranged(inputs, sequences.merge)
        return self(inputs, []) if isinstance(inputs, Symbol) else super()._unroll(sequences, inputs, states)


# ------------------------------------------------------------------------------------------------ convolutional cells

LEAKY = functools.partial(sym.LeakyReLU, act_type="leaky", slope=0.2)
Pair = Sequence[int]


class BaseConvRNNCell(GatedCell):
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
        inits = {"i2h_weight": i2h_weight_initializer, "h2h_weight": h2h_weight_initializer}
        inits |= {"i2h_bias": i2h_bias_initializer, "h2h_bias": h2h_bias_initializer}
        super().__init__(num_hidden, self._default_prefix if prefix is None else prefix, params, **inits)
        if any(k % 2 == 0 for k in h2h_kernel):
            raise ValueError(f"h2h_kernel is {tuple(h2h_kernel)}; only odd sizes keep the height and width of the state")
        self._activation = activation
        self._input_shape, self._conv_layout = tuple(input_shape), conv_layout
        self._i2h: dict[str, Any] = {"kernel": i2h_kernel, "stride": i2h_stride, "pad": i2h_pad, "dilate": i2h_dilate}
        pad = tuple(d * (k - 1) // 2 for k, d in zip(h2h_kernel, h2h_dilate, strict=True))
        self._h2h: dict[str, Any] = {"kernel": h2h_kernel, "stride": (1, 1), "pad": pad, "dilate": h2h_dilate}
        # MXNet also creates an unnamed Convolution here, which advances the numbering of automatic node names.
        probe = sym.Convolution(sym.Variable("data"), num_filter=num_hidden, layout=conv_layout, **self._i2h)
        self._state_shape = (0, *probe.infer_shape(data=self._input_shape)[1][0][1:])

    @property
    def state_info(self) -> list[Any]:
        """Shape of each state: that of the input's convolution, with batch size 0."""
        return [{"shape": self._state_shape, "__layout__": self._conv_layout} for _ in range(self._states)]

    def _projections(self, inputs: Symbol, hidden: Symbol, name: str) -> tuple[Symbol, Symbol]:
        """Return the input projection W * x + b and the state projection U * h + d of all gates."""
        shared: dict[str, Any] = {"num_filter": self._num_hidden * len(self._gate_names), "layout": self._conv_layout}
        i2h = sym.Convolution(inputs, self._iW, self._iB, name=f"{name}i2h", **self._i2h, **shared)
        h2h = sym.Convolution(hidden, self._hW, self._hB, name=f"{name}h2h", **self._h2h, **shared)
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
    _advance = steps.rnn


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
    _advance = steps.lstm
    _split_axis = property(lambda self: self._conv_layout.find("C"))


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
    _advance = steps.gru
    _mark = "_"


# ------------------------------------------------------------------------------------------------ composed cells


class Composite(Parts, BaseRNNCell):
    """Base of cells composed of other cells; its states and weights are those of its children, in order.

    Args:
        params: container of the weights shared by all children; by default each child has its own.
    """

    def __init__(self, params: RNNParams | None = None) -> None:
        super().__init__("", params)
        self._override_cell_params = params is not None
        self._cells: list[BaseRNNCell] = []

    def _adopt(self, cell: BaseRNNCell) -> None:
        """Append a child and merge the containers of the weights."""
        if self._override_cell_params:
            if not cell._own_params:
                raise ValueError("both this cell and its child were created with params=; pass params= to only one of them")
            cell.params._params.update(self.params._params)
        self.params._params.update(cell.params._params)
        self._cells.append(cell)

    @property
    def state_info(self) -> list[Any]:
        """Shape and `__layout__` of each state of all children, in order."""
        return [info for cell in self._cells for info in cell.state_info]

    def begin_state(self, func: Callable[..., Any] = sym.zeros, **kwargs: Any) -> States:
        """Return the initial states of all children in one list, with the arguments of `BaseRNNCell.begin_state`."""
        self._check_not_modified()
        return [state for cell in self._cells for state in cell.begin_state(func, **kwargs)]

    def unpack_weights(self, args: Mapping[str, Any]) -> Arrays:
        """Split the weights of every child cell into one array per gate, as `BaseRNNCell.unpack_weights`."""
        args = dict(args)
        for cell in self._cells:
            args = cell.unpack_weights(args)
        return args

    def pack_weights(self, args: Mapping[str, Any]) -> Arrays:
        """Concatenate the gate arrays of every child cell, as `BaseRNNCell.pack_weights`; the inverse of `unpack_weights`."""
        args = dict(args)
        for cell in self._cells:
            args = cell.pack_weights(args)
        return args

    def _state_counts(self) -> list[int]:
        return [len(cell.state_info) for cell in self._cells]


class SequentialRNNCell(Stacked, Composite):
    """A stack of cells, y = cell_n(... cell_1(x)): the inputs of each cell are the outputs of the previous one.

    Args:
        params: container of the weights shared by all cells; by default each cell has its own.

    Example:
        >>> import jfit.mx as mx
        >>> stack = mx.rnn.SequentialRNNCell()
        >>> for k in range(2):
        ...     stack.add(mx.rnn.LSTMCell(4, prefix=f"lstm{k}_"))
        >>> outputs, states = stack.unroll(3, mx.sym.Variable("data"), merge_outputs=True)
        >>> outputs.infer_shape(data=(2, 3, 5))[1], len(states)
        ([(2, 3, 4)], 4)
    """

    def add(self, cell: BaseRNNCell) -> None:
        """Append a cell to the stack."""
        self._adopt(cell)


class BidirectionalCell(BothDirections, Composite):
    """Two cells over the same sequence in opposite directions; y(t) = [l_cell over x(0..t), r_cell over x(T..t)].

    The cell can only be unrolled, it has no single time step.

    Args:
        l_cell: cell that runs forward in time.
        r_cell: cell that runs backward in time.
        params: container of the weights shared by both cells; by default each cell has its own.
        output_prefix: prepended to the names of the outputs.

    Example:
        >>> import jfit.mx as mx
        >>> cell = mx.rnn.BidirectionalCell(mx.rnn.GRUCell(4, prefix="l_"), mx.rnn.GRUCell(4, prefix="r_"))
        >>> cell.unroll(2, mx.sym.Variable("x"), merge_outputs=True)[0].infer_shape(x=(3, 2, 5))[1]
        [(3, 2, 8)]
    """

    def __init__(
        self, l_cell: BaseRNNCell, r_cell: BaseRNNCell, params: RNNParams | None = None, output_prefix: str = "bi_"
    ) -> None:
        super().__init__(params)
        self._output_prefix = output_prefix
        self._adopt(l_cell)
        self._adopt(r_cell)
