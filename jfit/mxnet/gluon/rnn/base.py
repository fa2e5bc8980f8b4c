"""Base classes of gluon's recurrent cells: initial states, time steps, unrolling of sequences."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from jfit.graph.symbol import Symbol
from jfit.mxnet import ndarray as nd
from jfit.mxnet import symbol as sym
from jfit.mxnet.gluon.block import Block
from jfit.mxnet.gluon.hybrid import HybridBlock
from jfit.mxnet.rnn.steps import Step

MODIFIED = "is inside a modifier cell, which has the states; call the modifier cell instead"
States = list[Any]


class RecurrentCell(Block):
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
        raise NotImplementedError(f"{type(self).__name__} has no state_info, the list of its states' shapes")

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
        assert not self._modified, f"{self.name} {MODIFIED}."
        states = []
        for info in self.state_info(batch_size):
            self._init_counter += 1
            states.append(func(name=f"{self._prefix}begin_state_{self._init_counter}", **{**(info or {}), **kwargs}))
        return states

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
        F, axis = namespace(inputs), layout.find("T")
        steps = as_list(F, length, inputs, axis)
        states = initial(self, F, begin_state, inputs, layout)
        outputs, all_states = [], []
        for step in steps:
            output, states = self(step, states)
            outputs.append(output)
            all_states.append(states)
        if valid_length is None:
            return arranged(F, length, outputs, axis, merge_outputs), states
        last = functools.partial(F.SequenceLast, sequence_length=valid_length, use_sequence_length=True)
        states = [last(F.stack(*each, axis=0)) for each in zip(*all_states, strict=True)]
        return masked(F, length, outputs, valid_length, axis, merge_outputs), states

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
    """A `RecurrentCell` that can be hybridized; a subclass implements `hybrid_forward(F, inputs, states, **params)`.

    Args:
        prefix, params: as for `RecurrentCell`.
    """

    def _step(self, F: Any, **options: Any) -> Step:
        return Step(F, f"t{self._counter}_", functools.partial(self._get_activation, F), **options)


# ------------------------------------------------------------------------------------------------ sequences
def namespace(inputs: Any) -> Any:
    """Return `mx.sym` if the inputs are symbols, else `mx.nd`."""
    assert inputs is not None, "unroll needs inputs: an array or symbol, or a list with one for each step."
    return sym if isinstance(inputs[0] if isinstance(inputs, (list, tuple)) else inputs, Symbol) else nd


def as_list(F: Any, length: int, inputs: Any, axis: int) -> list[Any]:
    """Split a sequence along the time axis into a list with one array per step, unless it is one."""
    if isinstance(inputs, (list, tuple)) or F is nd:
        steps = len(inputs) if isinstance(inputs, (list, tuple)) else inputs.shape[axis]
        assert steps == length, f"inputs has {steps} steps, length is {length}; they must be equal."
    if isinstance(inputs, (list, tuple)):
        return list(inputs)
    parts = F.split(inputs, axis=axis, num_outputs=length, squeeze_axis=1)
    return [parts] if F is nd and length == 1 else list(parts)


def as_one(F: Any, inputs: Any, axis: int) -> Any:
    """Stack a list of steps along the time axis, unless it is one array already."""
    return F.stack(*inputs, axis=axis) if isinstance(inputs, (list, tuple)) else inputs


def arranged(F: Any, length: int, inputs: Any, axis: int, merge: bool | None) -> Any:
    """Convert a sequence to one array (`merge` True) or to a list with one array per step (False); None: leave it unchanged."""
    if merge is None:
        return inputs
    return as_one(F, inputs, axis) if merge else as_list(F, length, inputs, axis)


def masked(F: Any, length: int, inputs: Any, valid_length: Any, axis: int, merge: bool | None) -> Any:
    """Set the steps of a sequence after `valid_length` to 0."""
    one = as_one(F, inputs, axis)
    return arranged(F, length, F.SequenceMask(one, valid_length, use_sequence_length=True, axis=axis), axis, merge)


def backwards(F: Any, steps: Sequence[Any], valid_length: Any) -> list[Any]:
    """Reverse a list of steps; of each sequence only its first `valid_length` steps."""
    if valid_length is None:
        return list(steps[::-1])
    return as_list(F, len(steps), F.SequenceReverse(F.stack(*steps, axis=0), valid_length, use_sequence_length=True), 0)


def initial(cell: Any, F: Any, begin_state: States | None, inputs: Any, layout: str) -> States:
    """Return `begin_state`, or zeros for these inputs."""
    if begin_state is not None:
        return begin_state
    if F is sym:
        return cell.begin_state(func=F.zeros, batch_size=0)
    listed = isinstance(inputs, (list, tuple))
    first = inputs[0] if listed else inputs
    with first.context:
        return cell.begin_state(func=F.zeros, batch_size=first.shape[0 if listed else layout.find("N")])
