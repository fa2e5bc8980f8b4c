"""RNN, LSTM and GRU cells, and dropout.

In the equations x is the input of a step, h and c the states before the step, h' and c' the states after it, σ the logistic
function, W and U the weights i2h_weight and h2h_weight, b and d their biases.
"""

from __future__ import annotations

from numbers import Number
from typing import Any

from jfit.graph.symbol import Symbol
from jfit.mxnet import initializer
from jfit.mxnet import symbol as sym
from jfit.mxnet.rnn.base import BaseRNNCell, RNNParams, States, sequence
from jfit.ops.rnn import GATES

LSTM_GATES, GRU_GATES = GATES["lstm"], GATES["gru"]


class GatedCell(BaseRNNCell):
    """A cell whose gates are W x + b + U h + d; each weight and bias holds all gates: (gates * num_hidden, ...).

    Args:
        num_hidden: size of the state and of the output.
        prefix: prepended to the names of the cell's nodes and weights.
        params: container of the weights, to share them with another cell; a new one by default.
        bias: further arguments of the variable `i2h_bias`.
    """

    _states = 1

    def __init__(self, num_hidden: int, prefix: str, params: RNNParams | None, **bias: Any) -> None:
        super().__init__(prefix, params)
        self._num_hidden = num_hidden
        self._iW, self._hW = self._params.get("i2h_weight"), self._params.get("h2h_weight")
        self._iB, self._hB = self._params.get("i2h_bias", **bias), self._params.get("h2h_bias")

    @property
    def state_info(self) -> list[Any]:
        """(batch, num_hidden) for each state."""
        return [{"shape": (0, self._num_hidden), "__layout__": "NC"} for _ in range(self._states)]

    def _projections(self, inputs: Symbol, hidden: Symbol, name: str) -> tuple[Symbol, Symbol]:
        """Return the input projection W x + b and the state projection U h + d of all gates."""
        size = self._num_hidden * self._num_gates
        i2h = sym.FullyConnected(data=inputs, weight=self._iW, bias=self._iB, num_hidden=size, name=f"{name}i2h")
        h2h = sym.FullyConnected(data=hidden, weight=self._hW, bias=self._hB, num_hidden=size, name=f"{name}h2h")
        return i2h, h2h


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

    def __init__(
        self, num_hidden: int, activation: Any = "tanh", prefix: str = "rnn_", params: RNNParams | None = None
    ) -> None:
        super().__init__(num_hidden, prefix, params)
        self._activation = activation

    def __call__(self, inputs: Symbol, states: States) -> tuple[Symbol, States]:
        """Compute one time step (batch, features): (inputs, states) -> (output, new states)."""
        name = self._next_name()
        i2h, h2h = self._projections(inputs, states[0], name)
        output = self._get_activation(i2h + h2h, self._activation, name=f"{name}out")
        return output, [output]


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
    _states = 2

    def __init__(
        self, num_hidden: int, prefix: str = "lstm_", params: RNNParams | None = None, forget_bias: float = 1.0
    ) -> None:
        super().__init__(num_hidden, prefix, params, init=initializer.LSTMBias(forget_bias=forget_bias))

    def __call__(self, inputs: Symbol, states: States) -> tuple[Symbol, States]:
        """Compute one time step (batch, features): (inputs, [h, c]) -> (output, new [h, c])."""
        name = self._next_name()
        i2h, h2h = self._projections(inputs, states[0], name)
        parts = sym.SliceChannel(i2h + h2h, num_outputs=4, name=f"{name}slice")
        return lstm_step(parts, states[1], name, "tanh", self._get_activation)


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

    def __init__(self, num_hidden: int, prefix: str = "gru_", params: RNNParams | None = None) -> None:
        super().__init__(num_hidden, prefix, params)

    def __call__(self, inputs: Symbol, states: States) -> tuple[Symbol, States]:
        """Compute one time step (batch, features): (inputs, states) -> (output, new states)."""
        name = self._next_name()
        # the extra underscore is MXNet's: it names these two nodes gru_t0__i2h and gru_t0__h2h
        i2h, h2h = self._projections(inputs, states[0], f"{name}_")
        return gru_step(i2h, h2h, states[0], name, "tanh", self._get_activation)


def lstm_step(parts: Symbol, cell: Symbol, name: str, activation: Any, act: Any) -> tuple[Symbol, States]:
    """Return (h', [h', c']) with c' = σ(f)·c + σ(i)·act(g), h' = σ(o)·act(c').

    parts: the gates (i, f, g, o) before their activations.  cell: c.  name: prefix of the node names.
    """
    i = sym.Activation(parts[0], act_type="sigmoid", name=f"{name}i")
    f = sym.Activation(parts[1], act_type="sigmoid", name=f"{name}f")
    g = act(parts[2], activation, name=f"{name}c")
    o = sym.Activation(parts[3], act_type="sigmoid", name=f"{name}o")
    # The order matters: automatic node names are numbered as the nodes are created, and MXNet creates f * c first.
    remembered, added = f * cell, i * g
    new_cell = sym.elemwise_add(remembered, added, name=f"{name}state")
    hidden = sym.elemwise_mul(o, act(new_cell, activation), name=f"{name}out")
    return hidden, [hidden, new_cell]


def gru_step(i2h: Symbol, h2h: Symbol, hidden: Symbol, name: str, activation: Any, act: Any) -> tuple[Symbol, States]:
    """Return (h', [h']) with h' = (1 - z)·n + z·h, from the projections W x + b (`i2h`) and U h + d (`h2h`); see `GRUCell`."""
    from_x = sym.SliceChannel(i2h, num_outputs=3, name=f"{name}_i2h_slice")
    from_h = sym.SliceChannel(h2h, num_outputs=3, name=f"{name}_h2h_slice")
    reset = sym.Activation(from_x[0] + from_h[0], act_type="sigmoid", name=f"{name}_r_act")
    update = sym.Activation(from_x[1] + from_h[1], act_type="sigmoid", name=f"{name}_z_act")
    candidate = act(from_x[2] + reset * from_h[2], activation, name=f"{name}_h_act")
    new = (1.0 - update) * candidate
    output = sym.elemwise_add(new, update * hidden, name=f"{name}out")
    return output, [output]


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
        if not isinstance(dropout, Number):
            raise TypeError(f"dropout is {dropout!r}, expected a number: the fraction of the inputs to drop")
        self.dropout = dropout

    @property
    def state_info(self) -> list[Any]:
        """An empty list: the cell has no states."""
        return []

    def __call__(self, inputs: Symbol, states: States) -> tuple[Symbol, States]:
        """Apply dropout to one time step, or to a whole sequence."""
        return (sym.Dropout(data=inputs, p=self.dropout) if self.dropout > 0 else inputs), states

    def _unroll(self, length: int, inputs: Any, begin_state: Any, layout: str, merge_outputs: Any) -> tuple[Any, States]:
        """Apply dropout to a sequence, as `BaseRNNCell.unroll`; to all steps at once if the sequence is one symbol."""
        inputs = sequence(length, inputs, layout, merge_outputs)
        if isinstance(inputs, Symbol):
            return self(inputs, [])
        return super()._unroll(length, inputs, begin_state, layout, merge_outputs)
