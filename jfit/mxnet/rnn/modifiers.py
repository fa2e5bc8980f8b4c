"""Modifier cells, which wrap another cell and change its outputs: zoneout and residual connections."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from jfit.graph.symbol import Symbol
from jfit.mxnet import symbol as sym
from jfit.mxnet.rnn.base import Arrays, BaseRNNCell
from jfit.mxnet.rnn.cells import BidirectionalCell
from jfit.mxnet.rnn.composed import Modifier, Residual, States, Zoneout
from jfit.mxnet.rnn.fused import FusedRNNCell


class ModifierCell(Modifier, BaseRNNCell):
    """Base of cells that wrap another cell and have its states and weights.  The wrapped cell must not be called directly.

    Args:
        base_cell: the cell to wrap.

    Example:
        >>> import jfit.mx as mx
        >>> mx.rnn.ModifierCell(mx.rnn.RNNCell(3)).state_shape
        [(0, 3)]
    """

    def __init__(self, base_cell: BaseRNNCell) -> None:
        super().__init__()
        base_cell._modified = True
        self.base_cell = base_cell

    @property
    def state_info(self) -> list[Any]:
        """Shape and `__layout__` of each state of the wrapped cell."""
        return self.base_cell.state_info

    def begin_state(self, init_sym: Callable[..., Any] = sym.zeros, **kwargs: Any) -> States:
        """Return the initial states of the wrapped cell.

        Args:
            init_sym: function that returns a symbol, see `func` of `BaseRNNCell.begin_state`; may also be passed as `func=`.
            kwargs: further arguments of that function.
        """
        return self._begin_wrapped(**{"func": init_sym, **kwargs})

    def unpack_weights(self, args: Mapping[str, Any]) -> Arrays:
        """Split the weights of the wrapped cell into one array per gate, as `BaseRNNCell.unpack_weights`."""
        return self.base_cell.unpack_weights(args)

    def pack_weights(self, args: Mapping[str, Any]) -> Arrays:
        """Concatenate the gate arrays of the wrapped cell, as `BaseRNNCell.pack_weights`; the inverse of `unpack_weights`."""
        return self.base_cell.pack_weights(args)


class ZoneoutCell(Zoneout, ModifierCell):
    """Zoneout: in training, each output and state keeps its value of the previous step with a given probability.

        y(t) = m·y'(t) + (1 - m)·y(t-1), where y' is the output of the wrapped cell, y(-1) = 0 and m is a random 0/1 mask

    Args:
        base_cell: the cell to wrap; neither fused nor bidirectional.
        zoneout_outputs: probability of keeping an output's previous value.
        zoneout_states: probability of keeping a state's previous value.

    Raises:
        ValueError: the cell is, or contains, a fused or bidirectional cell.

    Example:
        >>> import jfit.mx as mx
        >>> cell = mx.rnn.ZoneoutCell(mx.rnn.RNNCell(3), zoneout_states=0.1)
        >>> cell.unroll(2, mx.sym.Variable("x"), merge_outputs=True)[0].infer_shape(x=(4, 2, 5))[1]
        [(4, 2, 3)]

    Source: Krueger and others, Zoneout, 2016.
    """

    def _check_steps(self, cell: BaseRNNCell) -> None:
        for each in (cell, *cell._cells):
            if isinstance(each, FusedRNNCell | BidirectionalCell):
                raise ValueError(f"zoneout works step by step, and a {type(each).__name__} does not; wrap the cells inside it")

    def __call__(self, inputs: Symbol, states: States) -> tuple[Symbol, States]:
        """Compute one time step: (inputs, states) -> (output, new states)."""
        return self._zoned(sym, inputs, states, lambda output: sym.zeros((0, 0)))


class ResidualCell(Residual, ModifierCell):
    """Residual connection: y = cell(x) + x.

    Args:
        base_cell: the cell to wrap; its outputs must have the shape of its inputs.

    Example:
        >>> import jfit.mx as mx
        >>> cell = mx.rnn.ResidualCell(mx.rnn.RNNCell(3))
        >>> cell.unroll(2, mx.sym.Variable("x"), merge_outputs=True)[0].infer_shape(x=(4, 2, 3))[1]
        [(4, 2, 3)]

    Source: Wu and others, Google's Neural Machine Translation System, 2016.
    """

    def __call__(self, inputs: Symbol, states: States) -> tuple[Symbol, States]:
        """Compute one time step: (inputs, states) -> (output, new states)."""
        output, states = self.base_cell(inputs, states)
        return self._sum(output, inputs), states

    def _sum(self, output: Symbol, inputs: Symbol) -> Symbol:
        return sym.elemwise_add(output, inputs, name=f"{output.name}_plus_residual")
