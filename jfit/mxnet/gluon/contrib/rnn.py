"""gluon's contributed cells: convolutional cells, LSTM with projection, variational dropout.

>>> import jfit.mx as mx
>>> mx.gluon.contrib.rnn.LSTMPCell(5, 3, input_size=4)
LSTMPCell(4 -> 20 -> 3)
"""

from __future__ import annotations

from typing import Any

from jfit.mxnet.gluon.nn.weighted import per_axis, weight_shape
from jfit.mxnet.gluon.rnn.cells import GatedCell, GRUCell, LSTMCell, ModifierCell, RNNCell
from jfit.mxnet.rnn.composed import States
from jfit.mxnet.rnn.sequences import Sequences
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
            self._check_steps(base_cell)
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

    def _dropped(self, F: Any, what: str, x: Any) -> Any:
        rate = getattr(self, what)
        if rate and what not in self._masks:
            self._masks[what] = F.Dropout(F.ones_like(x), p=rate)
        return x * self._masks[what] if rate else x

    def hybrid_forward(self, F: Any, inputs: Any, states: States) -> tuple[Any, States]:
        """Compute one time step: (inputs, states) -> (output, new states)."""
        states = [self._dropped(F, "drop_states", states[0]), *states[1:]]
        output, new_states = self.base_cell(self._dropped(F, "drop_inputs", inputs), states)
        return self._dropped(F, "drop_outputs", output), new_states

    def _unroll(self, sequences: Sequences, inputs: Any, states: States) -> tuple[Any, States]:
        if self.drop_states:
            return super()._unroll(sequences, inputs, states)
        F, axis = sequences.F, sequences.axis
        inputs = _dropped_steps(F, sequences.one(inputs), self.drop_inputs, axis)
        outputs, states = sequences.unroll(self.base_cell, inputs, states, True)
        outputs = _dropped_steps(F, outputs, self.drop_outputs, axis)
        return sequences.masked(outputs, sequences.merge is not False), states


def _dropped_steps(F: Any, x: Any, rate: float, axis: int) -> Any:
    """Apply dropout with the same mask at every time step."""
    return F.Dropout(x, p=rate, axes=(axis,)) if rate else x


class LSTMPCell(LSTMCell):
    """`mx.gluon.rnn.LSTMCell` whose output h' is projected: r' = P h'; the states are [r, c], the output is r'.

    Args:
        hidden_size: size of h and c.
        projection_size: size of r.
        args: the initializers of i2h_weight, h2h_weight, h2r_weight, i2h_bias and h2h_bias, then
            input_size, prefix, params, as for `mx.gluon.rnn.GRUCell`; h2r_weight is P.
        kwargs: i2h_weight_initializer, ..., params by name.

    Example:
        >>> LSTMPCell(5, 3).state_info(2)[0]["shape"]
        (2, 3)

    Source: Sak and others, Long Short-Term Memory Based Recurrent Neural Network Architectures, 2014.
    """

    h2r_weight: Any

    def __init__(
        self, hidden_size: int, projection_size: int, *args: Any, h2r_weight_initializer: Any = None, **kwargs: Any
    ) -> None:
        self._projection_size = projection_size
        super().__init__(hidden_size, *args[:2], *args[3:], **kwargs)
        self.h2r_weight.init = args[2] if len(args) > 2 else h2r_weight_initializer

    def _weights(self, input_size: int) -> dict[str, tuple[int, ...]]:
        h2r = self._projection_size, self._hidden_size
        return {**super()._weights(input_size), "h2h_weight": (self._rows, h2r[0]), "h2r_weight": h2r}

    def _alias(self) -> str:
        return "lstmp"

    def _mapping(self) -> str:
        return f"{super()._mapping()} -> {self._projection_size}"

    def state_info(self, batch_size: int = 0) -> list[Any]:
        """Return the shapes (batch_size, projection_size) and (batch_size, hidden_size) of the states."""
        return [{"shape": (batch_size, size), "__layout__": "NC"} for size in (self._projection_size, self._hidden_size)]

    def hybrid_forward(self, F: Any, inputs: Any, states: States, h2r_weight: Any = None, **weights: Any) -> tuple[Any, States]:
        """Compute one time step: (batch, features) and [r, c] -> output and new states."""
        hidden, (_, cell) = super().hybrid_forward(F, inputs, states, **weights)
        options = {"num_hidden": self._projection_size, "no_bias": True, "name": f"t{self._counter}_out"}
        output = F.FullyConnected(hidden, h2r_weight, **options)
        return output, [output, cell]

    def _step(self, F: Any) -> Step:
        return super()._step(F)._replace(named=False, out="hidden")


# ------------------------------------------------------------------------------------------------ convolutional cells
class ConvCell(GatedCell):
    """Base of the convolutional cells, whose gates are W * x + b + U * h + d, where * is convolution and b, d are biases.

    Args:
        input_shape: shape of the input of a step without the batch axis, such as (channels, height, width).
        hidden_channels: number of channels of the states and of the output.
        i2h_kernel: kernel of the input's convolution, an int or one per axis, as are all sizes below.
        h2h_kernel: kernel of the state's convolution; sizes must be odd, because the state keeps its shape.
        i2h_pad: padding of the input's convolution.
        i2h_dilate: dilation of the input's convolution.
        h2h_dilate: dilation of the state's convolution.
        inits: the initializers i2h_weight_initializer, h2h_weight_initializer, i2h_bias_initializer, h2h_bias_initializer.
        conv_layout: layout of the convolutions, such as "NCHW" (the default) or "NHWC".
        activation: a name that the operator Activation accepts, a block, or a function.
        kwargs: prefix and params, as for `mx.gluon.rnn.RecurrentCell`.

    Raises:
        AssertionError: a size has the wrong number of axes, or h2h_kernel is even.

    Example:
        >>> import jfit.mx as mx
        >>> cell = mx.gluon.contrib.rnn.Conv2DLSTMCell((3, 8, 8), 4, i2h_kernel=3, h2h_kernel=3, i2h_pad=1)
        >>> cell.initialize()
        >>> output, states = cell(mx.nd.ones((2, 3, 8, 8)), cell.begin_state(batch_size=2))
        >>> output.shape, len(states)
        ((2, 4, 8, 8), 2)

    Source: Shi and others, Convolutional LSTM Network, 2015.
    """

    _dims = 0

    def __init__(
        self,
        input_shape: tuple[int, ...],
        hidden_channels: int,
        i2h_kernel: Any,
        h2h_kernel: Any,
        i2h_pad: Any = 0,
        i2h_dilate: Any = 1,
        h2h_dilate: Any = 1,
        *inits: Any,
        conv_layout: str | None = None,
        activation: Any = "tanh",
        **kwargs: Any,
    ) -> None:
        self._input_shape, self._conv_layout = input_shape, conv_layout or ["NCW", "NCHW", "NCDHW"][self._dims - 1]
        self._axis = self._conv_layout.find("C")
        sizes = i2h_kernel, i2h_pad, i2h_dilate, h2h_kernel, h2h_dilate
        kernel, pad, dilate, own, wide = (per_axis(size, self._dims, "a size of the cell") for size in sizes)
        self._i2h = {"kernel": kernel, "pad": pad, "dilate": dilate}
        assert all(k % 2 for k in own), f"h2h_kernel is {h2h_kernel}; only odd sizes keep the shape of the state."
        same = tuple(d * (k - 1) // 2 for k, d in zip(own, wide, strict=True))
        self._h2h = {"kernel": own, "pad": same, "dilate": wide}
        parts = zip(input_shape[1:] if self._axis == 1 else input_shape[:-1], kernel, pad, dilate, strict=True)
        self._state_sizes = tuple(x and x + 2 * p - d * (k - 1) for x, k, p, d in parts)
        GatedCell.__init__(self, hidden_channels, *inits, input_size=0, **kwargs)
        self._activation = activation

    def _weights(self, input_size: int) -> dict[str, tuple[int, ...]]:
        i2h = weight_shape(self._rows, self._input_shape[self._axis - 1], self._i2h["kernel"], self._conv_layout)
        h2h = weight_shape(self._rows, self._hidden_size, self._h2h["kernel"], self._conv_layout)
        return {"i2h_weight": i2h, "h2h_weight": h2h}

    def _alias(self) -> str:
        return f"conv_{super()._alias()}"

    def _mapping(self) -> str:
        return f"{self._input_shape[self._axis - 1] or None} -> {self._rows}, {self._activation}, {self._conv_layout}"

    def state_info(self, batch_size: int = 0) -> list[Any]:
        """Return the shape of each state, that of the input's convolution."""
        shape = weight_shape(batch_size, self._hidden_size, self._state_sizes, self._conv_layout)
        return [{"shape": shape, "__layout__": self._conv_layout} for _ in range(self._states)]

    def _step(self, F: Any) -> Step:
        return super()._step(F)._replace(named=False, axis=self._axis)

    def _project(self, step: Step, name: str, x: Any, weights: dict[str, Any]) -> Any:
        arrays = x, weights[f"{name}_weight"], weights[f"{name}_bias"]
        options = {"num_filter": self._rows, "layout": self._conv_layout, "stride": (1,) * self._dims, **step.name(name)}
        return step.F.Convolution(*arrays, **(self._i2h if name == "i2h" else self._h2h), **options)


def _conv(dims: int, base: Any) -> Any:
    """Return the convolutional class of a cell."""
    doc = f"`mx.gluon.rnn.{base.__name__}` with {dims}D convolutions; arguments: see `ConvCell`."
    return type(f"Conv{dims}D{base.__name__}", (ConvCell, base), {"_dims": dims, "__doc__": doc, "__module__": __name__})


Conv1DRNNCell, Conv2DRNNCell, Conv3DRNNCell = (_conv(dims, RNNCell) for dims in (1, 2, 3))
Conv1DLSTMCell, Conv2DLSTMCell, Conv3DLSTMCell = (_conv(dims, LSTMCell) for dims in (1, 2, 3))
Conv1DGRUCell, Conv2DGRUCell, Conv3DGRUCell = (_conv(dims, GRUCell) for dims in (1, 2, 3))
