"""Cells composed of other cells: a stack of layers, and two cells in opposite directions of time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jfit.graph.symbol import Symbol
from jfit.mxnet import symbol as sym
from jfit.mxnet.rnn.base import Arrays, BaseRNNCell, RNNParams, States, sequence


class Composite(BaseRNNCell):
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

    def _split_states(self, states: Sequence[Any]) -> list[States]:
        """Split a flat list of states into one list for each child."""
        expected = len(self.state_info)
        if len(states) != expected:
            raise ValueError(f"found {len(states)} states, the {len(self._cells)} cells have {expected}; see state_info")
        parts, offset = [], 0
        for cell in self._cells:
            count = len(cell.state_info)
            parts.append(list(states[offset : offset + count]))
            offset += count
        return parts


class SequentialRNNCell(Composite):
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

    def __call__(self, inputs: Symbol, states: States) -> tuple[Symbol, States]:
        """Compute one time step of every cell: (inputs, states of all cells) -> (output, new states of all cells)."""
        self._counter += 1
        new_states = []
        for cell, cell_states in zip(self._cells, self._split_states(states), strict=True):
            inputs, cell_states = cell(inputs, cell_states)
            new_states.extend(cell_states)
        return inputs, new_states

    def _unroll(self, length: int, inputs: Any, begin_state: Any, layout: str, merge_outputs: Any) -> tuple[Any, States]:
        """Unroll one cell after the other over the whole sequence, with the arguments and results of `BaseRNNCell.unroll`."""
        states = self._split_states(self.begin_state() if begin_state is None else begin_state)
        new_states: States = []
        for cell, begin in zip(self._cells, states, strict=True):
            merge = merge_outputs if cell is self._cells[-1] else None
            inputs, cell_states = cell.unroll(length, inputs, begin_state=begin, layout=layout, merge_outputs=merge)
            new_states.extend(cell_states)
        return inputs, new_states


class BidirectionalCell(Composite):
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

    def _unroll(self, length: int, inputs: Any, begin_state: Any, layout: str, merge_outputs: Any) -> tuple[Any, States]:
        """Unroll both cells over the whole sequence, with the arguments of `BaseRNNCell.unroll`.

        Returns:
            (outputs with the features of both cells concatenated, [states of l_cell, states of r_cell]).
        """
        steps = sequence(length, inputs, layout, merge=False)
        states = self._split_states(self.begin_state() if begin_state is None else begin_state)
        runs = [
            cell.unroll(length, x, begin_state=begin, layout=layout, merge_outputs=merge_outputs)
            for cell, x, begin in zip(self._cells, (steps, steps[::-1]), states, strict=True)
        ]
        (left, left_states), (right, right_states) = runs
        if merge_outputs is None:
            merge_outputs = isinstance(left, Symbol) and isinstance(right, Symbol)
        axis = layout.find("T")
        if merge_outputs:
            outputs = sym.Concat(left, sym.reverse(right, axis=axis), dim=2, name=f"{self._output_prefix}out")
        else:
            pairs = zip(self._steps(left, length, axis), self._steps(right, length, axis)[::-1], strict=True)
            outputs = [sym.Concat(a, b, dim=1, name=f"{self._output_prefix}t{i}") for i, (a, b) in enumerate(pairs)]
        return outputs, [left_states, right_states]

    @staticmethod
    def _steps(outputs: Any, length: int, axis: int) -> list[Any]:
        """Return the outputs as a list of time steps; one symbol is split along the time axis `axis`."""
        if isinstance(outputs, Symbol):
            return list(sym.SliceChannel(outputs, axis=axis, num_outputs=length, squeeze_axis=1))
        return outputs
