"""The three cells and dropout.  x is the input of a step, h and c are the states before it, σ the logistic function."""

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
    """A cell whose gates are a·x + b + u·h + v: the weights of all gates stacked, (gates * num_hidden, ...).

    Args:
        num_hidden: size of the state and of the output.
        prefix: stands before the names of its nodes and weights.
        params: weights to share; new ones by default.
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

    def _products(self, inputs: Symbol, hidden: Symbol, name: str) -> tuple[Symbol, Symbol]:
        """What the input and what the state say to the gates."""
        size = self._num_hidden * self._num_gates
        i2h = sym.FullyConnected(data=inputs, weight=self._iW, bias=self._iB, num_hidden=size, name=f"{name}i2h")
        h2h = sym.FullyConnected(data=hidden, weight=self._hW, bias=self._hB, num_hidden=size, name=f"{name}h2h")
        return i2h, h2h


class RNNCell(GatedCell):
    """h' = act(a·x + b + u·h + v), the output too.

    Args:
        num_hidden: size of the state and of the output.
        activation: tanh, relu, another of Activation's, or a function of a symbol.
        prefix: stands before the names of its nodes and weights.
        params: weights to share; new ones by default.

    Example:
        >>> import jfit.mx as mx
        >>> outputs, states = mx.rnn.RNNCell(5).unroll(2, mx.sym.Variable("data"), merge_outputs=True)
        >>> outputs.infer_shape(data=(3, 2, 4))[1]
        [(3, 2, 5)]
    """

    def __init__(
        self, num_hidden: int, activation: Any = "tanh", prefix: str = "rnn_", params: RNNParams | None = None
    ) -> None:
        super().__init__(num_hidden, prefix, params)
        self._activation = activation

    @property
    def _gate_names(self):
        return ("",)

    def __call__(self, inputs: Symbol, states: States) -> tuple[Symbol, States]:
        """One time step."""
        name = self._next_name()
        i2h, h2h = self._products(inputs, states[0], name)
        output = self._get_activation(i2h + h2h, self._activation, name=f"{name}out")
        return output, [output]


class LSTMCell(GatedCell):
    """i, f, o = σ(gates), g = tanh(gate c), c' = f·c + i·g, h' = o·tanh(c'); the output is h' (Hochreiter and others).

    Args:
        num_hidden: size of each state and of the output.
        prefix: stands before the names of its nodes and weights.
        params: weights to share; new ones by default.
        forget_bias: initial bias of the forget gate.
    """

    _states = 2

    def __init__(
        self, num_hidden: int, prefix: str = "lstm_", params: RNNParams | None = None, forget_bias: float = 1.0
    ) -> None:
        super().__init__(num_hidden, prefix, params, init=initializer.LSTMBias(forget_bias=forget_bias))

    @property
    def _gate_names(self):
        return LSTM_GATES

    def __call__(self, inputs: Symbol, states: States) -> tuple[Symbol, States]:
        """One time step; the states are [h, c]."""
        name = self._next_name()
        i2h, h2h = self._products(inputs, states[0], name)
        parts = sym.SliceChannel(i2h + h2h, num_outputs=4, name=f"{name}slice")
        return lstm_step(parts, states[1], name, "tanh", self._get_activation)


class GRUCell(GatedCell):
    """r, z = σ(gates), n = tanh(a·x + b + r·(u·h + v)), h' = (1 - z)·n + z·h, the output too (Cho and others, as cuDNN).

    Args:
        num_hidden: size of the state and of the output.
        prefix: stands before the names of its nodes and weights.
        params: weights to share; new ones by default.
    """

    def __init__(self, num_hidden: int, prefix: str = "gru_", params: RNNParams | None = None) -> None:
        super().__init__(num_hidden, prefix, params)

    @property
    def _gate_names(self):
        return GRU_GATES

    def __call__(self, inputs: Symbol, states: States) -> tuple[Symbol, States]:
        """One time step."""
        name = self._next_name()
        # MXNet puts one more underscore into these names
        i2h, h2h = self._products(inputs, states[0], f"{name}_")
        return gru_step(i2h, h2h, states[0], name, "tanh", self._get_activation)


def lstm_step(parts: Symbol, cell: Symbol, name: str, activation: Any, act: Any) -> tuple[Symbol, States]:
    """c' = σ(f)·c + σ(i)·act(g), h' = σ(o)·act(c') from the four gates before their activations."""
    i = sym.Activation(parts[0], act_type="sigmoid", name=f"{name}i")
    f = sym.Activation(parts[1], act_type="sigmoid", name=f"{name}f")
    g = act(parts[2], activation, name=f"{name}c")
    o = sym.Activation(parts[3], act_type="sigmoid", name=f"{name}o")
    # automatic names count up as the nodes are made: forget before input
    kept, added = f * cell, i * g
    new_cell = sym.elemwise_add(kept, added, name=f"{name}state")
    hidden = sym.elemwise_mul(o, act(new_cell, activation), name=f"{name}out")
    return hidden, [hidden, new_cell]


def gru_step(i2h: Symbol, h2h: Symbol, hidden: Symbol, name: str, activation: Any, act: Any) -> tuple[Symbol, States]:
    """r, z = σ(·), n = act(x's part + r · h's part), h' = (1 - z)·n + z·h from what input and state say to the gates."""
    from_x = sym.SliceChannel(i2h, num_outputs=3, name=f"{name}_i2h_slice")
    from_h = sym.SliceChannel(h2h, num_outputs=3, name=f"{name}_h2h_slice")
    reset = sym.Activation(from_x[0] + from_h[0], act_type="sigmoid", name=f"{name}_r_act")
    update = sym.Activation(from_x[1] + from_h[1], act_type="sigmoid", name=f"{name}_z_act")
    fresh = act(from_x[2] + reset * from_h[2], activation, name=f"{name}_h_act")
    new = (1.0 - update) * fresh
    output = sym.elemwise_add(new, update * hidden, name=f"{name}out")
    return output, [output]


class DropoutCell(BaseRNNCell):
    """y = dropout(x), without states.

    Args:
        dropout: the part of the inputs that becomes 0 in training.
        prefix: kept for MXNet's signature; the cell has no weights.
        params: as `prefix`.
    """

    def __init__(self, dropout: float, prefix: str = "dropout_", params: RNNParams | None = None) -> None:
        super().__init__(prefix, params)
        if not isinstance(dropout, Number):
            raise TypeError(f"dropout is {dropout!r}, needed a number: the part of the inputs that is dropped")
        self.dropout = dropout

    @property
    def state_info(self) -> list[Any]:
        """None."""
        return []

    def __call__(self, inputs: Symbol, states: States) -> tuple[Symbol, States]:
        """One time step, or a whole sequence."""
        return (sym.Dropout(data=inputs, p=self.dropout) if self.dropout > 0 else inputs), states

    def unroll(
        self,
        length: int,
        inputs: Any,
        begin_state: States | None = None,
        layout: str = "NTC",
        merge_outputs: bool | None = None,
    ) -> tuple[Any, States]:
        """Dropout of the sequence as a whole where it is one symbol; see `BaseRNNCell.unroll`."""
        self.reset()
        inputs = sequence(length, inputs, layout, merge_outputs)
        if isinstance(inputs, Symbol):
            return self(inputs, [])
        return super().unroll(length, inputs, begin_state, layout, merge_outputs)
