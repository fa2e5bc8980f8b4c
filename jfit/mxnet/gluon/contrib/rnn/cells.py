"""LSTM with projection, variational dropout, and unrolling as a loop."""

from __future__ import annotations

from typing import Any

from jfit.mxnet.gluon.rnn.base import States, arranged, as_one, initial, masked, namespace
from jfit.mxnet.gluon.rnn.cells import GatedCell, initializers
from jfit.mxnet.gluon.rnn.composed import ModifierCell, check_steps
from jfit.mxnet.rnn import steps
from jfit.mxnet.rnn.steps import Step


class VariationalDropoutCell(ModifierCell):
    """Dropout with the same mask at every time step, on inputs, first state and outputs of a cell.

    The masks are drawn in the first step; `reset` discards them, and `unroll` calls it.

    Args:
        base_cell: the cell to wrap.
        drop_inputs, drop_states, drop_outputs: fraction that is set to 0 in training.

    Raises:
        AssertionError: `drop_states` for a bidirectional cell, or a stack that has one.

    Example:
        >>> import jfit.mx as mx
        >>> cell = VariationalDropoutCell(mx.gluon.rnn.RNNCell(3), drop_inputs=0.5)
        >>> cell.initialize()
        >>> cell.unroll(2, mx.nd.ones((5, 2, 4)), merge_outputs=True)[0].shape
        (5, 2, 3)

    Source: Gal and Ghahramani, A Theoretically Grounded Application of Dropout in Recurrent Neural Networks, 2016.
    """

    def __init__(self, base_cell: Any, drop_inputs: float = 0.0, drop_states: float = 0.0, drop_outputs: float = 0.0) -> None:
        if drop_states:
            check_steps(base_cell, "variational dropout of states")
        super().__init__(base_cell)
        self.drop_inputs, self.drop_states, self.drop_outputs = drop_inputs, drop_states, drop_outputs

    def __repr__(self) -> str:
        return f"{type(self).__name__}(p_out = {self.drop_outputs}, p_state = {self.drop_states})"

    def _alias(self) -> str:
        return "vardrop"

    def reset(self) -> None:
        """Reset the step counter and discard the masks."""
        super().reset()
        self._masks: dict[str, Any] = {}

    def _dropped(self, F: Any, what: str, x: Any, rate: float) -> Any:
        if not rate:
            return x
        if what not in self._masks:
            self._masks[what] = F.Dropout(F.ones_like(x), p=rate)
        return x * self._masks[what]

    def hybrid_forward(self, F: Any, inputs: Any, states: States) -> tuple[Any, States]:
        """Compute one time step: (inputs, states) -> (output, new states)."""
        states = [self._dropped(F, "states", states[0], self.drop_states), *states[1:]]
        output, new_states = self.base_cell(self._dropped(F, "inputs", inputs, self.drop_inputs), states)
        return self._dropped(F, "outputs", output, self.drop_outputs), new_states

    def unroll(
        self,
        length: int,
        inputs: Any,
        begin_state: States | None = None,
        layout: str = "NTC",
        merge_outputs: bool | None = None,
        valid_length: Any = None,
    ) -> tuple[Any, States]:
        """Unroll the wrapped cell, as `RecurrentCell.unroll`; without `drop_states` inputs are dropped in all steps at once."""
        if self.drop_states:
            return super().unroll(length, inputs, begin_state, layout, merge_outputs, valid_length)
        self.reset()
        F, axis = namespace(inputs), layout.find("T")
        states = initial(self, F, begin_state, inputs, layout)
        inputs = _drop_sequence(F, as_one(F, inputs, axis), self.drop_inputs, axis)
        outputs, states = self.base_cell.unroll(length, inputs, states, layout, True, valid_length)
        outputs = _drop_sequence(F, outputs, self.drop_outputs, axis)
        merge = merge_outputs is not False
        if valid_length is not None:
            return masked(F, length, outputs, valid_length, axis, merge), states
        return arranged(F, length, outputs, axis, merge), states


def _drop_sequence(F: Any, x: Any, rate: float, axis: int) -> Any:
    return F.Dropout(x, p=rate, axes=(axis,)) if rate else x


class LSTMPCell(GatedCell):
    """`mx.gluon.rnn.LSTMCell` whose output h' is projected: r' = P h'; the states are [r, c], the output is r'.

    Args:
        hidden_size: size of h and c.
        projection_size: size of the output.
        h2r_weight_initializer: initializer of the projection, h2r_weight; None: that of `initialize`.
        i2h_weight_initializer, h2h_weight_initializer, i2h_bias_initializer, h2h_bias_initializer, input_size, prefix, params:
            as for `mx.gluon.rnn.GRUCell`.

    Example:
        >>> LSTMPCell(5, 3).state_info(2)[0]["shape"]
        (2, 3)

    Source: Sak and others, Long Short-Term Memory Based Recurrent Neural Network Architectures, 2014.
    """

    _gates = 4

    def __init__(
        self,
        hidden_size: int,
        projection_size: int,
        i2h_weight_initializer: Any = None,
        h2h_weight_initializer: Any = None,
        h2r_weight_initializer: Any = None,
        i2h_bias_initializer: Any = "zeros",
        h2h_bias_initializer: Any = "zeros",
        input_size: int = 0,
        prefix: str | None = None,
        params: Any = None,
    ) -> None:
        inits = initializers(i2h_weight_initializer, h2h_weight_initializer, i2h_bias_initializer, h2h_bias_initializer)
        inits["h2r_weight"], h2r = h2r_weight_initializer, (projection_size, hidden_size)
        super().__init__(hidden_size, (input_size,), (projection_size,), inits, prefix, params, h2r_weight=h2r)

    def _mapping(self) -> str:
        return f"{super()._mapping()} -> {self.h2r_weight.shape[0]}"

    def _alias(self) -> str:
        return "lstmp"

    def state_info(self, batch_size: int = 0) -> list[Any]:
        """Return the shapes (batch_size, projection_size) and (batch_size, hidden_size) of the states."""
        return [{"shape": (batch_size, size), "__layout__": "NC"} for size in self.h2r_weight.shape]

    def hybrid_forward(self, F: Any, inputs: Any, states: States, h2r_weight: Any = None, **weights: Any) -> tuple[Any, States]:
        """Compute one time step: (batch, features) and [r, c] -> output and new states."""
        hidden, (_, cell) = super().hybrid_forward(F, inputs, states, **weights)
        options = {"num_hidden": self.h2r_weight.shape[0], "no_bias": True, "name": f"t{self._counter}_out"}
        output = F.FullyConnected(hidden, h2r_weight, **options)
        return output, [output, cell]

    def _advance(self, step: Step, i2h: Any, h2h: Any, states: States) -> tuple[Any, States]:
        hidden, cell = steps.lstm(step._replace(named=False), i2h, h2h, states[1], "tanh", out="hidden")
        return hidden, [hidden, cell]


def dynamic_unroll(
    cell: Any,
    inputs: Any,
    begin_state: States,
    drop_inputs: float = 0,
    drop_outputs: float = 0,
    layout: str = "TNC",
    valid_length: Any = None,
) -> tuple[Any, States]:
    """Apply a cell to every step of a sequence in a loop, which compiles one step whatever the length.

    Args:
        cell: recurrent cell.
        inputs: array or symbol in this layout.
        begin_state: initial states.
        drop_inputs, drop_outputs: fraction set to 0 in training, with the same mask in all steps.
        layout: "TNC" (time, batch, features) or "NTC".
        valid_length: (batch,), the number of steps of each sequence, as in `RecurrentCell.unroll`; None: all steps.

    Returns:
        (outputs in this layout, states after the last step).

    Example:
        >>> import jfit.mx as mx
        >>> cell = mx.gluon.rnn.GRUCell(3, input_size=4)
        >>> cell.initialize()
        >>> outputs, states = dynamic_unroll(cell, mx.nd.ones((5, 2, 4)), cell.begin_state(batch_size=2))
        >>> outputs.shape, states[0].shape
        ((5, 2, 3), (2, 3))
    """
    F, axis = namespace(inputs), layout.find("T")

    def swap(x: Any) -> Any:
        return F.swapaxes(x, 0, axis) if axis else x

    def body(x: Any, states: States) -> tuple[Any, States]:
        if valid_length is None:
            return cell(x, states)
        *states, step = states
        output, new_states = cell(x, states)
        alive = F.broadcast_greater(valid_length, step)
        return output, [*(F.where(alive, new, old) for new, old in zip(new_states, states, strict=True)), step + 1]

    inputs = _drop_sequence(F, inputs, drop_inputs, axis)
    states = list(begin_state) if valid_length is None else [*begin_state, F.zeros((1,))]
    outputs, states = F.contrib.foreach(body, swap(inputs), states)
    outputs = swap(_drop_sequence(F, outputs, drop_outputs, 0))
    if valid_length is None:
        return outputs, states
    return F.SequenceMask(outputs, valid_length, use_sequence_length=True, axis=axis), states[:-1]
