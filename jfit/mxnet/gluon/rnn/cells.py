"""gluon's RNN, LSTM and GRU cells.

In the equations x is the input of a step, h and c the states before the step, h' and c' the states after it, σ the logistic
function, W and U the weights i2h_weight and h2h_weight, b and d their biases.
"""

from __future__ import annotations

from typing import Any

from jfit.mxnet.gluon.rnn.base import HybridRecurrentCell, States
from jfit.mxnet.rnn import steps
from jfit.mxnet.rnn.steps import Step


def initializers(*of: Any) -> dict[str, Any]:
    """Return the initializers of weights and biases by name."""
    return dict(zip(("i2h_weight", "h2h_weight", "i2h_bias", "h2h_bias"), of, strict=True))


class GatedCell(HybridRecurrentCell):
    """A cell whose gates are W x + b + U h + d; each weight and bias has all gates: (gates * hidden_size, ...).

    Args:
        hidden_size: size of the state, or its number of channels.
        i2h, h2h: shapes of the weights without the first axis.
        inits: initializers of all parameters by name.
        prefix, params: as for `RecurrentCell`.
        more: shapes of further weights by name.
    """

    _gates = _states = 1
    _activation: Any = "tanh"

    def __init__(
        self,
        hidden_size: int,
        i2h: tuple[int, ...],
        h2h: tuple[int, ...],
        inits: dict[str, Any],
        prefix: str | None,
        params: Any,
        **more: tuple[int, ...],
    ) -> None:
        super().__init__(prefix, params)
        self._hidden_size, rows = hidden_size, self._gates * hidden_size
        shapes = {"i2h_weight": (rows, *i2h), "h2h_weight": (rows, *h2h), **more, "i2h_bias": (rows,), "h2h_bias": (rows,)}
        for name, shape in shapes.items():
            setattr(self, name, self.params.get(name, shape=shape, init=inits[name], allow_deferred_init=True))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._mapping()})"

    def _mapping(self) -> str:
        rows, inputs = self.i2h_weight.shape
        return f"{inputs or None} -> {rows}"

    def state_info(self, batch_size: int = 0) -> list[Any]:
        """Return the shape (batch_size, hidden_size) of each state."""
        return [{"shape": (batch_size, self._hidden_size), "__layout__": "NC"} for _ in range(self._states)]

    def hybrid_forward(self, F: Any, inputs: Any, states: States, **weights: Any) -> tuple[Any, States]:
        """Compute one time step: (batch, features) and states -> output and new states."""
        step = self._step(F)
        i2h, h2h = (self._project(step, name, x, weights) for name, x in (("i2h", inputs), ("h2h", states[0])))
        return self._advance(step, i2h, h2h, states)

    def _project(self, step: Step, name: str, x: Any, weights: dict[str, Any]) -> Any:
        weight, bias = weights[f"{name}_weight"], weights[f"{name}_bias"]
        return step.F.FullyConnected(x, weight, bias, num_hidden=self._gates * self._hidden_size, **step.name(name))

    def _advance(self, step: Step, i2h: Any, h2h: Any, states: States) -> tuple[Any, States]:
        """Return output and new states, given the projections of all gates."""
        raise NotImplementedError


class RNNCell(GatedCell):
    """Elman cell: h' = act(W x + b + U h + d); the output is h'.

    Args:
        hidden_size: size of the state and of the output.
        activation: a name of the operator Activation ("tanh", "relu", ...), a block, or a function.
        i2h_weight_initializer, h2h_weight_initializer, i2h_bias_initializer, h2h_bias_initializer, input_size, prefix, params:
            as for `GRUCell`.

    Example:
        >>> import jfit.mx as mx
        >>> mx.gluon.rnn.RNNCell(5, activation="relu")
        RNNCell(None -> 5, relu)
    """

    def __init__(
        self,
        hidden_size: int,
        activation: Any = "tanh",
        i2h_weight_initializer: Any = None,
        h2h_weight_initializer: Any = None,
        i2h_bias_initializer: Any = "zeros",
        h2h_bias_initializer: Any = "zeros",
        input_size: int = 0,
        prefix: str | None = None,
        params: Any = None,
    ) -> None:
        inits = initializers(i2h_weight_initializer, h2h_weight_initializer, i2h_bias_initializer, h2h_bias_initializer)
        super().__init__(hidden_size, (input_size,), (hidden_size,), inits, prefix, params)
        self._activation = activation

    def _alias(self) -> str:
        return "rnn"

    def _mapping(self) -> str:
        return f"{super()._mapping()}, {self._activation}"

    def _advance(self, step: Step, i2h: Any, h2h: Any, states: States) -> tuple[Any, States]:
        output = steps.rnn(step, i2h, h2h, self._activation)
        return output, [output]


class LSTMCell(GatedCell):
    """Long short-term memory cell; the states are [h, c], the output is h'.

        i, f, o = σ(W x + b + U h + d) of each gate,  g = tanh(W x + b + U h + d) of the third
        c' = f·c + i·g,  h' = o·tanh(c')

    Args:
        hidden_size: size of each state and of the output.
        i2h_weight_initializer, h2h_weight_initializer, i2h_bias_initializer, h2h_bias_initializer, input_size, prefix, params:
            as for `GRUCell`.
        activation: a name of the operator Activation that replaces tanh.
        recurrent_activation: one that replaces σ.

    Example:
        >>> import jfit.mx as mx
        >>> cell = mx.gluon.rnn.LSTMCell(3)
        >>> cell.initialize()
        >>> output, (h, c) = cell(mx.nd.ones((2, 4)), cell.begin_state(batch_size=2))
        >>> output.shape, cell
        ((2, 3), LSTMCell(4 -> 12))

    Source: Hochreiter and Schmidhuber, Long Short-Term Memory, 1997, with the forget gate of Gers and others, 2000.
    """

    _gates, _states = 4, 2
    _recurrent_activation: Any = "sigmoid"

    def __init__(
        self,
        hidden_size: int,
        i2h_weight_initializer: Any = None,
        h2h_weight_initializer: Any = None,
        i2h_bias_initializer: Any = "zeros",
        h2h_bias_initializer: Any = "zeros",
        input_size: int = 0,
        prefix: str | None = None,
        params: Any = None,
        activation: Any = "tanh",
        recurrent_activation: Any = "sigmoid",
    ) -> None:
        inits = initializers(i2h_weight_initializer, h2h_weight_initializer, i2h_bias_initializer, h2h_bias_initializer)
        super().__init__(hidden_size, (input_size,), (hidden_size,), inits, prefix, params)
        self._activation, self._recurrent_activation = activation, recurrent_activation

    def _alias(self) -> str:
        return "lstm"

    def _advance(self, step: Step, i2h: Any, h2h: Any, states: States) -> tuple[Any, States]:
        hidden, cell = steps.lstm(step, i2h, h2h, states[1], self._activation, self._recurrent_activation)
        return hidden, [hidden, cell]


class GRUCell(GatedCell):
    """Gated recurrent unit, in the form that cuDNN computes; the output is h'.

        r, z = σ(W x + b + U h + d) of each gate,  n = tanh(W x + b + r·(U h + d)) of the third
        h' = (1 - z)·n + z·h

    Args:
        hidden_size: size of the state and of the output.
        i2h_weight_initializer, h2h_weight_initializer: initializers of the weights; None: that of `initialize`.
        i2h_bias_initializer, h2h_bias_initializer: initializers of the biases.
        input_size: number of features of the input; 0: that of the first input.
        prefix, params: as for `RecurrentCell`.

    Example:
        >>> import jfit.mx as mx
        >>> mx.gluon.rnn.GRUCell(3, input_size=4)
        GRUCell(4 -> 9)

    Source: Cho and others, Learning Phrase Representations using RNN Encoder-Decoder, 2014.
    """

    _gates = 3

    def __init__(
        self,
        hidden_size: int,
        i2h_weight_initializer: Any = None,
        h2h_weight_initializer: Any = None,
        i2h_bias_initializer: Any = "zeros",
        h2h_bias_initializer: Any = "zeros",
        input_size: int = 0,
        prefix: str | None = None,
        params: Any = None,
    ) -> None:
        inits = initializers(i2h_weight_initializer, h2h_weight_initializer, i2h_bias_initializer, h2h_bias_initializer)
        super().__init__(hidden_size, (input_size,), (hidden_size,), inits, prefix, params)

    def _alias(self) -> str:
        return "gru"

    def _advance(self, step: Step, i2h: Any, h2h: Any, states: States) -> tuple[Any, States]:
        output = steps.gru(step, i2h, h2h, states[0], self._activation)
        return output, [output]
