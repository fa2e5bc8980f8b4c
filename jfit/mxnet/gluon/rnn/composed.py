"""gluon's cells that are made of other cells: stacks, both directions, dropout, zoneout, residual connections."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from jfit.mxnet import symbol as sym
from jfit.mxnet.gluon.rnn.base import (
    MODIFIED,
    HybridRecurrentCell,
    RecurrentCell,
    States,
    arranged,
    as_list,
    as_one,
    backwards,
    initial,
    masked,
    namespace,
)


class _Composite(RecurrentCell):
    """A cell whose states are those of its children, in order."""

    def state_info(self, batch_size: int = 0) -> list[Any]:
        """Return the shape and `__layout__` of each state of all children, in order."""
        return [info for cell in self._children.values() for info in cell.state_info(batch_size)]

    def begin_state(self, **kwargs: Any) -> States:
        """Return the initial states of all children in one list, with the arguments of `RecurrentCell.begin_state`."""
        assert not self._modified, f"{self.name} {MODIFIED}."
        return [state for cell in self._children.values() for state in cell.begin_state(**kwargs)]

    def _with_states(self, states: Sequence[Any]) -> Iterator[tuple[Any, States]]:
        """Return each child with its own states."""
        start = 0
        for cell in self._children.values():
            end = start + len(cell.state_info())
            yield cell, list(states[start:end])
            start = end


class _Stack(_Composite):
    """A stack of cells: the inputs of each cell are the outputs of the previous one."""

    def __repr__(self) -> str:
        lines = [f"({i}): " + repr(cell).replace("\n", "\n  ") for i, cell in self._children.items()]
        return "\n".join([f"{type(self).__name__}(", *lines, ")"])

    def __len__(self) -> int:
        return len(self._children)

    def __getitem__(self, i: int) -> Any:
        return self._children[str(i)]

    def add(self, cell: RecurrentCell) -> None:
        """Append a cell to the stack."""
        self.register_child(cell)

    def __call__(self, inputs: Any, states: States) -> tuple[Any, States]:
        """Compute one time step of every cell: (inputs, states of all cells) -> (output, new states of all cells)."""
        self._counter += 1
        new_states: States = []
        for cell, own in self._with_states(states):
            inputs, own = cell(inputs, own)
            new_states += own
        return inputs, new_states

    def hybrid_forward(self, F: Any, inputs: Any, states: States) -> tuple[Any, States]:
        """Compute one time step, as a call does."""
        return self(inputs, states)

    def unroll(
        self,
        length: int,
        inputs: Any,
        begin_state: States | None = None,
        layout: str = "NTC",
        merge_outputs: bool | None = None,
        valid_length: Any = None,
    ) -> tuple[Any, States]:
        """Unroll one cell after the other over the whole sequence, as `RecurrentCell.unroll`."""
        self.reset()
        states = initial(self, namespace(inputs), begin_state, inputs, layout)
        last, new_states = len(self) - 1, []
        for i, (cell, own) in enumerate(self._with_states(states)):
            inputs, own = cell.unroll(length, inputs, own, layout, merge_outputs if i == last else None, valid_length)
            new_states += own
        return inputs, new_states


class SequentialRNNCell(_Stack):
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


class HybridSequentialRNNCell(_Stack, HybridRecurrentCell):
    """A `SequentialRNNCell` of cells that can be hybridized.

    Args:
        prefix, params: as for `RecurrentCell`.
    """


class BidirectionalCell(_Composite, HybridRecurrentCell):
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
        super().__init__(prefix="", params=None)
        self.register_child(l_cell, "l_cell")
        self.register_child(r_cell, "r_cell")
        self._output_prefix = output_prefix

    def __call__(self, inputs: Any, states: States) -> Any:
        """Raise NotImplementedError: the cell has no single time step."""
        raise NotImplementedError("a BidirectionalCell has no single time step; call unroll")

    def __repr__(self) -> str:
        return "{}(forward={}, backward={})".format(type(self).__name__, *self._children.values())

    def unroll(
        self,
        length: int,
        inputs: Any,
        begin_state: States | None = None,
        layout: str = "NTC",
        merge_outputs: bool | None = None,
        valid_length: Any = None,
    ) -> tuple[Any, States]:
        """Unroll both cells and concatenate the features of their outputs, as `RecurrentCell.unroll`."""
        self.reset()
        F, axis = namespace(inputs), layout.find("T")
        steps = as_list(F, length, inputs, axis)
        (l_cell, l_begin), (r_cell, r_begin) = self._with_states(initial(self, F, begin_state, inputs, layout))
        left, l_states = l_cell.unroll(length, steps, l_begin, layout, merge_outputs, valid_length)
        right = backwards(F, steps, valid_length)
        right, r_states = r_cell.unroll(length, right, r_begin, layout, False, valid_length)
        right = backwards(F, right, valid_length)
        if merge_outputs is None:
            merge_outputs = not isinstance(left, list)
        if merge_outputs:
            outputs = F.concat(left, as_one(F, right, axis), dim=2, name=f"{self._output_prefix}out")
        else:
            pairs = enumerate(zip(left, right, strict=True))
            outputs = [F.concat(a, b, dim=1, name=f"{self._output_prefix}t{i}") for i, (a, b) in pairs]
        if valid_length is not None:
            outputs = masked(F, length, outputs, valid_length, axis, merge_outputs)
        return outputs, l_states + r_states


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

    def unroll(
        self,
        length: int,
        inputs: Any,
        begin_state: States | None = None,
        layout: str = "NTC",
        merge_outputs: bool | None = None,
        valid_length: Any = None,
    ) -> tuple[Any, States]:
        """Apply dropout to a sequence, as `RecurrentCell.unroll`; to all steps at once if the sequence is one array."""
        self.reset()
        F = namespace(inputs)
        inputs = arranged(F, length, inputs, layout.find("T"), merge_outputs)
        if isinstance(inputs, list):
            return super().unroll(length, inputs, begin_state, layout, merge_outputs)
        return self.hybrid_forward(F, inputs, begin_state or [])


class ModifierCell(HybridRecurrentCell):
    """Base of cells that wrap another cell and have its states and weights.  The wrapped cell must not be called directly.

    Args:
        base_cell: the cell to wrap.

    Raises:
        AssertionError: the cell is wrapped already.
    """

    def __init__(self, base_cell: Any) -> None:
        assert not base_cell._modified, f"{base_cell.name} is wrapped by a modifier cell already; wrap that one."
        base_cell._modified = True
        super().__init__(prefix=base_cell.prefix + self._alias(), params=None)
        self.base_cell = base_cell

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base_cell})"

    @property
    def params(self) -> Any:
        """The parameters of the wrapped cell."""
        return self.base_cell.params

    def state_info(self, batch_size: int = 0) -> list[Any]:
        """Return the shape and `__layout__` of each state of the wrapped cell."""
        return self.base_cell.state_info(batch_size)

    def begin_state(self, func: Callable[..., Any] = sym.zeros, **kwargs: Any) -> States:
        """Return the initial states of the wrapped cell, with the arguments of its `begin_state`."""
        assert not self._modified, f"{self.name} {MODIFIED}."
        with self._unlocked():
            return self.base_cell.begin_state(func=func, **kwargs)

    @contextmanager
    def _unlocked(self) -> Iterator[None]:
        """Context manager in which the wrapped cell may be called."""
        self.base_cell._modified = False
        try:
            yield
        finally:
            self.base_cell._modified = True


class ZoneoutCell(ModifierCell):
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

    def __init__(self, base_cell: Any, zoneout_outputs: float = 0.0, zoneout_states: float = 0.0) -> None:
        check_steps(base_cell, "zoneout")
        super().__init__(base_cell)
        self.zoneout_outputs, self.zoneout_states = zoneout_outputs, zoneout_states

    def __repr__(self) -> str:
        return f"{type(self).__name__}(p_out={self.zoneout_outputs}, p_state={self.zoneout_states}, {self.base_cell})"

    def _alias(self) -> str:
        return "zoneout"

    def reset(self) -> None:
        """Reset the step counter and discard the output of the previous step."""
        super().reset()
        self._prev_output: Any = None

    def hybrid_forward(self, F: Any, inputs: Any, states: States) -> tuple[Any, States]:
        """Compute one time step: (inputs, states) -> (output, new states)."""

        def zoneout(rate: float, new: Any, old: Any) -> Any:
            return F.where(F.Dropout(F.ones_like(new), p=rate), new, old) if rate else new

        output, new_states = self.base_cell(inputs, states)
        previous = F.zeros_like(output) if self._prev_output is None else self._prev_output
        self._prev_output = zoneout(self.zoneout_outputs, output, previous)
        pairs = zip(new_states, states, strict=True)
        return self._prev_output, [zoneout(self.zoneout_states, new, old) for new, old in pairs]


def check_steps(cell: Any, what: str) -> None:
    """Raise AssertionError if a cell, or a cell of a stack, is bidirectional and so cannot do a single time step."""
    both = any(isinstance(each, BidirectionalCell) for each in (cell, *cell._children.values()))
    assert not both, f"{what} works step by step, and a BidirectionalCell does not; wrap the cells inside it."


class ResidualCell(ModifierCell):
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

    def unroll(
        self,
        length: int,
        inputs: Any,
        begin_state: States | None = None,
        layout: str = "NTC",
        merge_outputs: bool | None = None,
        valid_length: Any = None,
    ) -> tuple[Any, States]:
        """Unroll the wrapped cell and add the inputs to its outputs, as `RecurrentCell.unroll`."""
        self.reset()
        with self._unlocked():
            outputs, states = self.base_cell.unroll(length, inputs, begin_state, layout, merge_outputs, valid_length)
        F, axis, merge = namespace(inputs), layout.find("T"), not isinstance(outputs, list)
        inputs = arranged(F, length, inputs, axis, merge)
        if valid_length is not None:
            inputs = masked(F, length, inputs, valid_length, axis, merge)
        if merge:
            return F.elemwise_add(outputs, inputs), states
        return [F.elemwise_add(out, x) for out, x in zip(outputs, inputs, strict=True)], states
