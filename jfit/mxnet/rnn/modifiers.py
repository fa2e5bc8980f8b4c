"""Cells that change what another cell does: zoneout, residual connections."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from jfit.graph.symbol import Symbol
from jfit.mxnet import symbol as sym
from jfit.mxnet.rnn.base import Arrays, BaseRNNCell, RNNParams, States, sequence
from jfit.mxnet.rnn.fused import FusedRNNCell
from jfit.mxnet.rnn.stacked import BidirectionalCell


class ModifierCell(BaseRNNCell):
    """Base of cells around another cell, whose states and weights they have; the other is no longer called by itself.

    Args:
        base_cell: the other cell.
    """

    def __init__(self, base_cell: BaseRNNCell) -> None:
        super().__init__()
        base_cell._modified = True
        self.base_cell = base_cell

    @property
    def params(self) -> RNNParams:
        """The variables of the other cell."""
        self._own_params = False
        return self.base_cell.params

    @property
    def state_info(self) -> list[Any]:
        """The states of the other cell."""
        return self.base_cell.state_info

    def begin_state(self, init_sym: Callable[..., Any] = sym.zeros, **kwargs: Any) -> States:
        """The begin states of the other cell; see `BaseRNNCell.begin_state` (the function may be called `func` here too)."""
        self._refuse_if_modified()
        with self.base_cell._lent():
            return self.base_cell.begin_state(kwargs.pop("func", init_sym), **kwargs)

    def unpack_weights(self, args: Mapping[str, Any]) -> Arrays:
        """See `BaseRNNCell.unpack_weights`."""
        return self.base_cell.unpack_weights(args)

    def pack_weights(self, args: Mapping[str, Any]) -> Arrays:
        """See `BaseRNNCell.pack_weights`."""
        return self.base_cell.pack_weights(args)


class ZoneoutCell(ModifierCell):
    """y = mask·y' + (1 - mask)·y(t-1), the states alike: in training some keep their value of the step before.

    (Krueger and others, 2016.)  The output before the first step is 0.  What dropout leaves of an array of ones is the mask.

    Args:
        base_cell: the other cell.
        zoneout_outputs: the part of the outputs that stays as it was.
        zoneout_states: the part of the states that stays as it was.
    """

    def __init__(self, base_cell: BaseRNNCell, zoneout_outputs: float = 0.0, zoneout_states: float = 0.0) -> None:
        cells = base_cell._cells if not isinstance(base_cell, BidirectionalCell) else ()
        for cell in (base_cell, *cells):
            if isinstance(cell, FusedRNNCell | BidirectionalCell):
                raise ValueError(
                    f"zoneout works step by step, which a {type(cell).__name__} does not; "
                    "unfuse it, or put zoneout around the cells inside it"
                )
        super().__init__(base_cell)
        self.zoneout_outputs, self.zoneout_states = zoneout_outputs, zoneout_states

    def reset(self) -> None:
        """Forget the output of the step before."""
        super().reset()
        self.prev_output: Any = None

    def __call__(self, inputs: Symbol, states: States) -> tuple[Symbol, States]:
        """One time step."""
        output, after = self.base_cell(inputs, states)
        before = sym.zeros((0, 0)) if self.prev_output is None else self.prev_output
        output = _zoned(self.zoneout_outputs, output, before)
        after = [_zoned(self.zoneout_states, new, old) for new, old in zip(after, states, strict=True)]
        self.prev_output = output
        return output, after


def _zoned(part: float, new: Symbol, old: Symbol) -> Symbol:
    return sym.where(sym.Dropout(sym.ones_like(new), p=part), new, old) if part != 0 else new


class ResidualCell(ModifierCell):
    """y = cell(x) + x; the cell's outputs are as wide as its inputs (Wu and others, 2016).

    Args:
        base_cell: the cell.
    """

    def __call__(self, inputs: Symbol, states: States) -> tuple[Symbol, States]:
        """One time step."""
        output, states = self.base_cell(inputs, states)
        return _plus(output, inputs), states

    def unroll(
        self,
        length: int,
        inputs: Any,
        begin_state: States | None = None,
        layout: str = "NTC",
        merge_outputs: bool | None = None,
    ) -> tuple[Any, States]:
        """The cell unrolled, and its inputs added; see `BaseRNNCell.unroll`."""
        self.reset()
        with self.base_cell._lent():
            outputs, states = self.base_cell.unroll(length, inputs, begin_state, layout, merge_outputs)
        merge = isinstance(outputs, Symbol) if merge_outputs is None else merge_outputs
        inputs = sequence(length, inputs, layout, merge)
        if merge:
            return _plus(outputs, inputs), states
        return [_plus(out, x) for out, x in zip(outputs, inputs, strict=True)], states


def _plus(output: Symbol, inputs: Symbol) -> Symbol:
    return sym.elemwise_add(output, inputs, name=f"{output.name}_plus_residual")
