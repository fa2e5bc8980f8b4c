"""Cells made of cells: one above the other, and one in each direction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jfit.graph.symbol import Symbol
from jfit.mxnet import symbol as sym
from jfit.mxnet.rnn.base import Arrays, BaseRNNCell, RNNParams, States, sequence


class Composite(BaseRNNCell):
    """A cell whose states and weights are those of its parts, in order.

    Args:
        params: weights for all parts; each part has its own by default.
    """

    def __init__(self, params: RNNParams | None = None) -> None:
        super().__init__("", params)
        self._override_cell_params = params is not None
        self._cells: list[BaseRNNCell] = []

    def _adopt(self, cell: BaseRNNCell) -> None:
        """Take a part in; containers of weights know each other's."""
        if self._override_cell_params:
            if not cell._own_params:
                raise ValueError("params are given to the whole and to a part; give them to one of the two")
            cell.params._params.update(self.params._params)
        self.params._params.update(cell.params._params)
        self._cells.append(cell)

    @property
    def state_info(self) -> list[Any]:
        """The states of all parts."""
        return [info for cell in self._cells for info in cell.state_info]

    def begin_state(self, func: Callable[..., Any] = sym.zeros, **kwargs: Any) -> States:
        """The begin states of all parts; see `BaseRNNCell.begin_state`."""
        self._refuse_if_modified()
        return [state for cell in self._cells for state in cell.begin_state(func, **kwargs)]

    def unpack_weights(self, args: Mapping[str, Any]) -> Arrays:
        """See `BaseRNNCell.unpack_weights`; for all parts."""
        args = dict(args)
        for cell in self._cells:
            args = cell.unpack_weights(args)
        return args

    def pack_weights(self, args: Mapping[str, Any]) -> Arrays:
        """See `BaseRNNCell.pack_weights`; for all parts."""
        args = dict(args)
        for cell in self._cells:
            args = cell.pack_weights(args)
        return args

    def _shared_out(self, states: Sequence[Any]) -> list[States]:
        """The states of each part."""
        needed = len(self.state_info)
        if len(states) != needed:
            raise ValueError(f"{len(states)} states are given, the {len(self._cells)} cells have {needed}; see state_info")
        parts, at = [], 0
        for cell in self._cells:
            count = len(cell.state_info)
            parts.append(list(states[at : at + count]))
            at += count
        return parts


class SequentialRNNCell(Composite):
    """y = cellₙ(... cell₁(x)): each cell takes the outputs of the one before.

    Args:
        params: weights for all cells; each has its own by default.

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
        """Put a cell on top."""
        self._adopt(cell)

    def __call__(self, inputs: Symbol, states: States) -> tuple[Symbol, States]:
        """One time step of every cell."""
        self._counter += 1
        after = []
        for cell, own in zip(self._cells, self._shared_out(states), strict=True):
            inputs, new = cell(inputs, own)
            after.extend(new)
        return inputs, after

    def unroll(
        self,
        length: int,
        inputs: Any,
        begin_state: States | None = None,
        layout: str = "NTC",
        merge_outputs: bool | None = None,
    ) -> tuple[Any, States]:
        """Cell by cell over the whole sequence; see `BaseRNNCell.unroll`."""
        self.reset()
        states = self._shared_out(self.begin_state() if begin_state is None else begin_state)
        after: States = []
        for cell, own in zip(self._cells, states, strict=True):
            merge = merge_outputs if cell is self._cells[-1] else None
            inputs, new = cell.unroll(length, inputs, begin_state=own, layout=layout, merge_outputs=merge)
            after.extend(new)
        return inputs, after


class BidirectionalCell(Composite):
    """y(t) = [left cell of x(0..t), right cell of x(T..t)]: one cell forward in time, one backward.

    Args:
        l_cell: runs forward.
        r_cell: runs backward.
        params: weights for both; each has its own by default.
        output_prefix: stands before the names of the outputs.
    """

    def __init__(
        self, l_cell: BaseRNNCell, r_cell: BaseRNNCell, params: RNNParams | None = None, output_prefix: str = "bi_"
    ) -> None:
        super().__init__(params)
        self._output_prefix = output_prefix
        self._adopt(l_cell)
        self._adopt(r_cell)

    def unroll(
        self,
        length: int,
        inputs: Any,
        begin_state: States | None = None,
        layout: str = "NTC",
        merge_outputs: bool | None = None,
    ) -> tuple[Any, States]:
        """Both directions over the whole sequence; the states are [those of the left cell, those of the right one].

        See `BaseRNNCell.unroll`.
        """
        self.reset()
        steps = sequence(length, inputs, layout, merge=False)
        states = self._shared_out(self.begin_state() if begin_state is None else begin_state)
        runs = [
            cell.unroll(length, given, begin_state=own, layout=layout, merge_outputs=merge_outputs)
            for cell, given, own in zip(self._cells, (steps, steps[::-1]), states, strict=True)
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
        """Outputs that a cell gave as one symbol, step by step."""
        if isinstance(outputs, Symbol):
            return list(sym.SliceChannel(outputs, axis=axis, num_outputs=length, squeeze_axis=1))
        return outputs
