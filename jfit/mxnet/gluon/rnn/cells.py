"""gluon's recurrent cells: RNN, LSTM and GRU; stacks, both directions, dropout, zoneout, residual connections.

In the equations x is the input of a step, h and c the states before the step, h' and c' the states after it, σ the logistic
function, W and U the weights i2h_weight and h2h_weight, b and d their biases.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from jfit.mxnet import ndarray as nd
from jfit.mxnet import symbol as sym
from jfit.mxnet.gluon.block import Block
from jfit.mxnet.gluon.hybrid import HybridBlock
from jfit.mxnet.gluon.nn.basic_layers import Container
from jfit.mxnet.rnn import steps
from jfit.mxnet.rnn.composed import BothDirections, Cell, Modifier, Parts, Residual, Stacked, States, Zoneout
from jfit.mxnet.rnn.sequences import Sequences, namespace
from jfit.mxnet.rnn.steps import Step

NAMES: tuple[str, ...] = ("i2h_weight", "h2h_weight", "i2h_bias", "h2h_bias")


class RecurrentCell(Cell, Block):
    """A function of one time step, (input, states) -> (output, states), that can be unrolled over a sequence.

    A subclass implements `state_info` and `forward`.

    Args:
        prefix: prefix of the names of parameters and nodes; None: a number is found.
        params: ParameterDict of another cell, whose parameters this one shares.

    Example:
        >>> import jfit.mx as mx
        >>> cell = mx.gluon.rnn.RNNCell(3, input_size=4)
        >>> cell.initialize()
        >>> outputs, states = cell.unroll(2, mx.nd.ones((5, 2, 4)), merge_outputs=True)
        >>> outputs.shape, states[0].shape
        ((5, 2, 3), (5, 3))
    """

    def __init__(self, prefix: str | None = None, params: Any = None) -> None:
        super().__init__(prefix, params)
        self._modified = False
        self.reset()

    def reset(self) -> None:
        """Restart the numbering of time steps and initial states, before the cell is used for another sequence."""
        self._init_counter = self._counter = -1
        for cell in self._children.values():
            if isinstance(cell, RecurrentCell):
                cell.reset()

    def state_info(self, batch_size: int = 0) -> list[Any]:
        """Return the shape and `__layout__` of each state, a list of dicts."""
        raise NotImplementedError(f"{type(self).__name__} does not define state_info(), the shapes of its states")

    def begin_state(self, batch_size: int = 0, func: Callable[..., Any] = nd.zeros, **kwargs: Any) -> States:
        """Return the initial states.

        Args:
            batch_size: size of the batch axis; 0 for symbols.
            func: function of name and shape: `mx.nd.zeros`, `mx.sym.zeros`, `mx.sym.var` for states that are inputs, ...
            kwargs: further arguments of `func`, such as dtype.

        Returns:
            List of arrays or symbols.

        Raises:
            AssertionError: the cell is inside a modifier cell.
        """
        self._check_not_modified()
        return [self._begin(func, {**(info or {}), **kwargs}) for info in self.state_info(batch_size)]

    def _check_not_modified(self) -> None:
        assert not self._modified, f"{self.name} is inside a modifier cell, which has the states; call the modifier cell."

    def unroll(
        self,
        length: int,
        inputs: Any,
        begin_state: States | None = None,
        layout: str = "NTC",
        merge_outputs: bool | None = None,
        valid_length: Any = None,
    ) -> tuple[Any, States]:
        """Apply the cell to every step of a sequence.

        Args:
            length: number of steps.
            inputs: one array or symbol in this layout, or a list with one of (batch, features) per step.
            begin_state: initial states; zeros by default.
            layout: "NTC" (batch, time, features) or "TNC".
            merge_outputs: True returns the outputs as one array, False as a list, None in the form the cell computes them.
            valid_length: (batch,), the number of steps of each sequence: outputs after them are 0, and the states are those
                after the last of them.  None: all steps.

        Returns:
            (outputs, states after the last step).

        Raises:
            AssertionError: the inputs do not have `length` steps.
        """
        self.reset()
        sequences = Sequences(namespace(inputs), length, layout, merge_outputs, valid_length)
        if begin_state is None and sequences.F is sym:
            begin_state = self.begin_state(func=sym.zeros, batch_size=0)
        elif begin_state is None:
            first, axis = (inputs[0], 0) if isinstance(inputs, (list, tuple)) else (inputs, layout.find("N"))
            with first.context:
                begin_state = self.begin_state(func=nd.zeros, batch_size=first.shape[axis])
        return self._unroll(sequences, inputs, begin_state)

    def _get_activation(self, F: Any, inputs: Any, activation: Any, **kwargs: Any) -> Any:
        """Apply an activation: a name of the operator Activation, a block, or a function."""
        if isinstance(activation, str):
            return F.Activation(inputs, act_type=activation, **kwargs)
        return activation(inputs) if isinstance(activation, Block) else activation(inputs, **kwargs)

    def forward(self, inputs: Any, states: States) -> tuple[Any, States]:
        """Compute one time step.

        Args:
            inputs: (batch, features).
            states: the states after the previous step, or `begin_state()`.

        Returns:
            (output, new states).
        """
        self._counter += 1
        return super().forward(inputs, states)


class HybridRecurrentCell(RecurrentCell, HybridBlock):
    """A `RecurrentCell` that can be hybridized; a subclass implements `hybrid_forward(F, inputs, states, **params)`."""


# ------------------------------------------------------------------------------------------------ cells with weights
def add_parameters(block: Any, shapes: dict[str, tuple[int, ...]], inits: dict[str, Any], at: str = "", **options: Any) -> None:
    """Create the parameters of a block, whose names begin with `at`."""
    for name, shape in shapes.items():
        options |= {"shape": shape, "init": inits.get(name), "allow_deferred_init": True}
        setattr(block, at + name, block.params.get(at + name, **options))


class GatedCell(HybridRecurrentCell):
    """A cell whose gates are W x + b + U h + d; each weight and bias has all gates: (gates * hidden_size, ...).

    Args:
        hidden_size: size of the state.
        i2h_weight_initializer, h2h_weight_initializer: initializers of the weights; None: that of `initialize`.
        i2h_bias_initializer, h2h_bias_initializer: initializers of the biases.
        input_size: number of features of the input; 0: that of the first input.
        prefix, params: as for `RecurrentCell`.
    """

    _gates = _states = 1
    _activation: Any = "tanh"
    _recurrent_activation: Any = "sigmoid"
    _advance: Any
    i2h_weight: Any

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
        super().__init__(prefix, params)
        self._hidden_size, self._rows = hidden_size, self._gates * hidden_size
        inits = i2h_weight_initializer, h2h_weight_initializer, i2h_bias_initializer, h2h_bias_initializer
        shapes = {**self._weights(input_size), "i2h_bias": (self._rows,), "h2h_bias": (self._rows,)}
        add_parameters(self, shapes, dict(zip(NAMES, inits, strict=True)))

    def _weights(self, input_size: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the weights."""
        return {"i2h_weight": (self._rows, input_size), "h2h_weight": (self._rows, self._hidden_size)}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._mapping()})"

    def _mapping(self) -> str:
        return f"{self.i2h_weight.shape[1] or None} -> {self._rows}"

    def _alias(self) -> str:
        return self._advance.__name__  # also the prefix of subclasses, as in MXNet

    def state_info(self, batch_size: int = 0) -> list[Any]:
        """Return the shape (batch_size, hidden_size) of each state."""
        return [{"shape": (batch_size, self._hidden_size), "__layout__": "NC"} for _ in range(self._states)]

    def hybrid_forward(self, F: Any, inputs: Any, states: States, **weights: Any) -> tuple[Any, States]:
        """Compute one time step: (batch, features) and states -> output and new states."""
        step = self._step(F)
        i2h, h2h = (self._project(step, name, x, weights) for name, x in (("i2h", inputs), ("h2h", states[0])))
        return self._advance(step, i2h, h2h, states)

    def _step(self, F: Any) -> Step:
        return Step(F, f"t{self._counter}_", functools.partial(self._get_activation, F))

    def _project(self, step: Step, name: str, x: Any, weights: dict[str, Any]) -> Any:
        arrays = x, weights[f"{name}_weight"], weights[f"{name}_bias"]
        return step.F.FullyConnected(*arrays, num_hidden=self._rows, **step.name(name))


class RNNCell(GatedCell):
    """Elman cell: h' = act(W x + b + U h + d); the output is h'.

    Args:
        hidden_size: size of the state and of the output.
        activation: a name of the operator Activation ("tanh", "relu", ...), a block, or a function.
        args, kwargs: i2h_weight_initializer, ..., params, as for `GRUCell`.

    Example:
        >>> import jfit.mx as mx
        >>> mx.gluon.rnn.RNNCell(5, activation="relu")
        RNNCell(None -> 5, relu)
    """

    _advance = steps.rnn

    def __init__(self, hidden_size: int, activation: Any = "tanh", *args: Any, **kwargs: Any) -> None:
        super().__init__(hidden_size, *args, **kwargs)
        self._activation = activation

    def _mapping(self) -> str:
        return f"{super()._mapping()}, {self._activation}"


class LSTMCell(GatedCell):
    """Long short-term memory cell; the states are [h, c], the output is h'.

        i, f, o = σ(W x + b + U h + d) of each gate,  g = tanh(W x + b + U h + d) of the third
        c' = f·c + i·g,  h' = o·tanh(c')

    Args:
        hidden_size: size of each state and of the output.
        args, kwargs: i2h_weight_initializer, ..., params, as for `GRUCell`.
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
    _advance = steps.lstm

    def __init__(
        self, hidden_size: int, *args: Any, activation: Any = "tanh", recurrent_activation: Any = "sigmoid", **kwargs: Any
    ) -> None:
        super().__init__(hidden_size, *args, **kwargs)
        self._activation, self._recurrent_activation = activation, recurrent_activation


class GRUCell(GatedCell):
    """Gated recurrent unit, in the form that cuDNN computes; the output is h'.

        r, z = σ(W x + b + U h + d) of each gate,  n = tanh(W x + b + r·(U h + d)) of the third
        h' = (1 - z)·n + z·h

    Args:
        hidden_size: size of the state and of the output.
        i2h_weight_initializer, h2h_weight_initializer: initializers of the weights; None: that of `initialize`.
        i2h_bias_initializer, h2h_bias_initializer: initializers of the biases, "zeros" by default.
        input_size: number of features of the input; 0: that of the first input.
        prefix, params: as for `RecurrentCell`.

    Example:
        >>> import jfit.mx as mx
        >>> mx.gluon.rnn.GRUCell(3, input_size=4)
        GRUCell(4 -> 9)

    Source: Cho and others, Learning Phrase Representations using RNN Encoder-Decoder, 2014.
    """

    _gates = 3
    _advance = steps.gru


# ------------------------------------------------------------------------------------------------ cells of cells
class Composite(Parts, RecurrentCell):
    """A cell whose states are those of its children, in order."""

    def state_info(self, batch_size: int = 0) -> list[Any]:
        """Return the shape and `__layout__` of each state of all children, in order."""
        return [info for cell in self._children.values() for info in cell.state_info(batch_size)]

    def begin_state(self, **kwargs: Any) -> States:
        """Return the initial states of all children in one list, with the arguments of `RecurrentCell.begin_state`."""
        self._check_not_modified()
        return [state for cell in self._children.values() for state in cell.begin_state(**kwargs)]

    @property
    def _cells(self) -> list[Any]:
        return list(self._children.values())

    def _state_counts(self) -> list[int]:
        return [len(cell.state_info()) for cell in self._cells]


class Stack(Stacked, Composite, Container):
    """A stack of cells: the inputs of each cell are the outputs of the previous one."""

    def __repr__(self) -> str:
        lines = [f"({i}): " + repr(cell).replace("\n", "\n  ") for i, cell in self._children.items()]
        return "\n".join([f"{type(self).__name__}(", *lines, ")"])


class SequentialRNNCell(Stack):
    """A stack of cells, y = cell_n(... cell_1(x)).

    Args:
        prefix, params: as for `RecurrentCell`.

    Example:
        >>> import jfit.mx as mx
        >>> stack = mx.gluon.rnn.SequentialRNNCell()
        >>> stack.add(mx.gluon.rnn.LSTMCell(4))
        >>> stack.add(mx.gluon.rnn.GRUCell(3))
        >>> stack.initialize()
        >>> outputs, states = stack.unroll(2, mx.nd.ones((5, 2, 4)), merge_outputs=True)
        >>> outputs.shape, len(states)
        ((5, 2, 3), 3)
    """


class HybridSequentialRNNCell(Stack, HybridRecurrentCell):
    """A `SequentialRNNCell` of cells that can be hybridized; prefix, params: as for `RecurrentCell`."""


class BidirectionalCell(BothDirections, Composite, HybridRecurrentCell):
    """Two cells over the same sequence in opposite directions; y(t) = [l_cell over x(0..t), r_cell over x(T..t)].

    The cell can only be unrolled, it has no single time step.

    Args:
        l_cell: cell that runs forward in time.
        r_cell: cell that runs backward in time.
        output_prefix: prepended to the names of the outputs.

    Example:
        >>> import jfit.mx as mx
        >>> cell = mx.gluon.rnn.BidirectionalCell(mx.gluon.rnn.GRUCell(4), mx.gluon.rnn.GRUCell(4))
        >>> cell.initialize()
        >>> cell.unroll(2, mx.nd.ones((3, 2, 5)), merge_outputs=True)[0].shape
        (3, 2, 8)
    """

    def __init__(self, l_cell: Any, r_cell: Any, output_prefix: str = "bi_") -> None:
        super().__init__(prefix="")
        self.register_child(l_cell, "l_cell")
        self.register_child(r_cell, "r_cell")
        self._output_prefix = output_prefix

    def __call__(self, inputs: Any, states: States) -> Any:
        """Raise NotImplementedError: the cell has no single time step."""
        raise NotImplementedError("a BidirectionalCell has no single time step; call unroll")

    def __repr__(self) -> str:
        return "{}(forward={}, backward={})".format(type(self).__name__, *self._children.values())

    def _unroll(self, sequences: Sequences, inputs: Any, states: States) -> tuple[Any, States]:
        outputs, (left, right) = super()._unroll(sequences, inputs, states)
        return outputs, left + right


class DropoutCell(HybridRecurrentCell):
    """Dropout on the inputs: y = dropout(x).  The cell has no states and no weights.

    Args:
        rate: fraction of the inputs set to 0 in training.
        axes: axes along which the mask is the same.
        prefix, params: as for `RecurrentCell`.

    Raises:
        AssertionError: `rate` is not a number.

    Example:
        >>> import jfit.mx as mx
        >>> mx.gluon.rnn.DropoutCell(0.5)
        DropoutCell(rate=0.5, axes=())
    """

    def __init__(self, rate: float, axes: tuple[int, ...] = (), prefix: str | None = None, params: Any = None) -> None:
        super().__init__(prefix, params)
        assert isinstance(rate, (int, float)), f"rate is {rate!r}; it must be a number."
        self._rate, self._axes = rate, axes

    def __repr__(self) -> str:
        return f"{type(self).__name__}(rate={self._rate}, axes={self._axes})"

    def _alias(self) -> str:
        return "dropout"

    def state_info(self, batch_size: int = 0) -> list[Any]:
        """Return an empty list: the cell has no states."""
        return []

    def hybrid_forward(self, F: Any, inputs: Any, states: States) -> tuple[Any, States]:
        """Apply dropout to one time step, or to a whole sequence."""
        if self._rate > 0:
            inputs = F.Dropout(data=inputs, p=self._rate, axes=self._axes, name=f"t{self._counter}_fwd")
        return inputs, states

    def _unroll(self, sequences: Sequences, inputs: Any, states: States) -> tuple[Any, States]:
        inputs = sequences.arranged(inputs, sequences.merge)
        if isinstance(inputs, list):
            return super()._unroll(sequences._replace(valid_length=None), inputs, states)
        return self.hybrid_forward(sequences.F, inputs, states)


class ModifierCell(Modifier, HybridRecurrentCell):
    """Base of cells that wrap another cell and have its states and weights.  The wrapped cell must not be called directly.

    Args:
        base_cell: the cell to wrap.

    Raises:
        AssertionError: the cell is wrapped already.
    """

    def __init__(self, base_cell: Any) -> None:
        base_cell._check_not_modified()
        base_cell._modified = True
        super().__init__(prefix=base_cell.prefix + self._alias())
        self.base_cell = base_cell

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base_cell})"

    def state_info(self, batch_size: int = 0) -> list[Any]:
        """Return the shape and `__layout__` of each state of the wrapped cell."""
        return self.base_cell.state_info(batch_size)

    def begin_state(self, func: Callable[..., Any] = sym.zeros, **kwargs: Any) -> States:
        """Return the initial states of the wrapped cell, with the arguments of its `begin_state`."""
        return self._begin_wrapped(func=func, **kwargs)

    def _check_steps(self, cell: Any) -> None:
        """Raise AssertionError if a cell, or a cell of a stack, is bidirectional and so cannot do a single time step."""
        cells = (cell, *cell._children.values())
        hint = "works step by step, and a BidirectionalCell does not; wrap the cells inside it."
        assert not any(isinstance(each, BidirectionalCell) for each in cells), f"{type(self).__name__} {hint}"


class ZoneoutCell(Zoneout, ModifierCell):
    """Zoneout: in training, each output and state keeps its value of the previous step with a given probability.

        y(t) = m·y'(t) + (1 - m)·y(t-1), where y' is the output of the wrapped cell, y(-1) = 0 and m is a random 0/1 mask

    Args:
        base_cell: the cell to wrap.
        zoneout_outputs: probability of keeping an output's previous value.
        zoneout_states: probability of keeping a state's previous value.

    Raises:
        AssertionError: the cell is bidirectional, or a stack that has a bidirectional cell.

    Example:
        >>> import jfit.mx as mx
        >>> mx.gluon.rnn.ZoneoutCell(mx.gluon.rnn.GRUCell(3), 0.1, 0.2)
        ZoneoutCell(p_out=0.1, p_state=0.2, GRUCell(None -> 9))

    Source: Krueger and others, Zoneout, 2016.
    """

    def __repr__(self) -> str:
        return f"{type(self).__name__}(p_out={self.zoneout_outputs}, p_state={self.zoneout_states}, {self.base_cell})"

    def _alias(self) -> str:
        return "zoneout"

    def hybrid_forward(self, F: Any, inputs: Any, states: States) -> tuple[Any, States]:
        """Compute one time step: (inputs, states) -> (output, new states)."""
        return self._zoned(F, inputs, states, F.zeros_like)


class ResidualCell(Residual, ModifierCell):
    """Residual connection: y = cell(x) + x.

    Args:
        base_cell: the cell to wrap; its outputs must have the shape of its inputs.

    Example:
        >>> import jfit.mx as mx
        >>> mx.gluon.rnn.ResidualCell(mx.gluon.rnn.GRUCell(3))
        ResidualCell(GRUCell(None -> 9))

    Source: Wu and others, Google's Neural Machine Translation System, 2016.
    """

    def hybrid_forward(self, F: Any, inputs: Any, states: States) -> tuple[Any, States]:
        """Compute one time step: (inputs, states) -> (output, new states)."""
        output, states = self.base_cell(inputs, states)
        return F.elemwise_add(output, inputs, name=f"t{self._counter}_fwd"), states

    def _sum(self, output: Any, inputs: Any) -> Any:
        return output + inputs
