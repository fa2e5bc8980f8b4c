"""Sequences of arrays or symbols: one for all time steps, or a list with one for each."""

from __future__ import annotations

from typing import Any, NamedTuple

from jfit.graph.symbol import Symbol
from jfit.mxnet import ndarray as nd
from jfit.mxnet import symbol as sym


def namespace(inputs: Any) -> Any:
    """Return `mx.sym` for symbols, else `mx.nd`."""
    assert inputs is not None, "unroll needs inputs: an array or symbol, or a list with one for each step."
    return sym if isinstance(inputs[0] if isinstance(inputs, (list, tuple)) else inputs, Symbol) else nd


class Sequences(NamedTuple):
    """The sequences of a call of `unroll`, with its arguments; F is the namespace of its inputs."""

    F: Any
    length: int
    layout: str
    merge: bool | None
    valid_length: Any = None

    @property
    def axis(self) -> int:
        """The axis of time."""
        return self.layout.find("T")

    def unroll(self, cell: Any, inputs: Any, states: Any, merge: bool | None) -> Any:
        """Unroll another cell over sequences of the same length."""
        lengths = () if self.valid_length is None else (self.valid_length,)
        return cell.unroll(self.length, inputs, states, self.layout, merge, *lengths)

    def steps(self, inputs: Any, split: str = "split") -> list[Any]:
        """Return a sequence as a list with one array for each step; `split`: the operator by the name that its node gets."""
        listed = isinstance(inputs, (list, tuple))
        if listed or self.F is nd:
            found = len(inputs) if listed else inputs.shape[self.axis]
            assert found == self.length, f"inputs has {found} steps, length is {self.length}; they must be equal."
        if listed:
            return list(inputs)
        parts = getattr(self.F, split)(inputs, axis=self.axis, num_outputs=self.length, squeeze_axis=1)
        return [parts] if self.F is nd and self.length == 1 else list(parts)

    def one(self, inputs: Any) -> Any:
        """Return a sequence as one array."""
        return self.F.stack(*inputs, axis=self.axis) if isinstance(inputs, (list, tuple)) else inputs

    def arranged(self, inputs: Any, merge: bool | None) -> Any:
        """Return a sequence as one array (`merge` True), as a list (False) or unchanged (None)."""
        return inputs if merge is None else self.one(inputs) if merge else self.steps(inputs)

    def masked(self, inputs: Any, merge: bool | None) -> Any:
        """Return `arranged`; steps after `valid_length` are 0."""
        if self.valid_length is not None:
            inputs = self.F.SequenceMask(self.one(inputs), self.valid_length, use_sequence_length=True, axis=self.axis)
        return self.arranged(inputs, merge)

    def reversed(self, inputs: Any) -> Any:
        """Reverse a sequence; if there is a `valid_length`, only its first steps."""
        if self.valid_length is None:
            return inputs[::-1] if isinstance(inputs, list) else self.F.reverse(inputs, axis=self.axis)
        if not isinstance(inputs, list):
            return self.one(self.reversed(self.steps(inputs)))
        turned = self.F.SequenceReverse(self.F.stack(*inputs, axis=0), self.valid_length, use_sequence_length=True)
        return self._replace(layout="TNC").steps(turned)

    def last(self, steps: Any) -> Any:
        """Return the array of the last step, that is of the last before `valid_length`."""
        return self.F.SequenceLast(self.F.stack(*steps, axis=0), self.valid_length, use_sequence_length=True)
