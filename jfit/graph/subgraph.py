"""What operators see of the graphs inside their nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jfit.graph.symbol import Symbol


class Subgraph:
    """What the record of a loop or branch may ask of its body: shapes and dtypes.  Lowering makes a function of it."""

    __slots__ = ("inputs", "outputs", "symbol")

    def __init__(self, symbol: Symbol) -> None:
        self.symbol, self.inputs, self.outputs = symbol, len(symbol.list_inputs()), len(symbol)

    def shapes(self, ins: Sequence[Any], outs: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """(input shapes, output shapes) as far as they follow from these; None is an unknown one."""
        from jfit.graph.infer import shapes_through

        return shapes_through(self.symbol, ins, outs)

    def types(self, ins: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """(input dtypes, output dtypes) as far as they follow from these; None is an unknown one."""
        from jfit.graph.infer import types_through

        return types_through(self.symbol, ins)
