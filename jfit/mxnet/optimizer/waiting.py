"""Updates of single parameters that wait, so that those of all parameters run as one program."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from jfit.mxnet.mutable import MutableArray
from jfit.mxnet.optimizer.apply import existing_states, prepared_update, rule_of, write_back


class WaitingUpdates:
    """Updates by the same rule on the same device, which run when the value of one of their weights or states is read.

    The arrays that an update takes never change, so nobody sees when it runs.

    Args:
        optimizer: the optimizer.
        key: its `hyper_key`.
    """

    def __init__(self, optimizer: Any, key: Any) -> None:
        self._optimizer, self._key, self._scale = optimizer, key, optimizer.rescale_grad
        self.specs: list[Any] = []  # the old values of the boxes
        self._boxes: list[Any] = []
        self._updates: list[tuple[Any, ...]] = []

    @property
    def is_over(self) -> bool:
        """Whether the updates have run."""
        return not self._updates

    def add(self, boxes: Sequence[Any], *update: Any) -> None:
        """Add an update.

        Args:
            boxes: the weight and the arrays of its state.
            update: index, weight, state, gradient, update count before this one, and (rate, decay, multiplier), each a tuple.
        """
        self._updates.append(update)
        for box in boxes:
            self.specs.append(box.value)
            box._later = self, len(self._boxes)
            self._boxes.append(box)
            del box.value

    def read(self, number: int) -> Any:
        """Return the new value of a box."""
        self.run()
        return self._boxes[number].value

    def run(self) -> None:
        """Run the updates."""
        (indices, weights, states, grads, done, numbers), self._updates = zip(*self._updates, strict=True), []
        written = [(box, box.value) for box in self._boxes if box.has_value]  # since the update
        for box, old in zip(self._boxes, self.specs, strict=True):
            box.value, box._later = old, None
        values = [weight.value for weight in weights]
        names = tuple(rule_of(self._key).state_spec.slots)
        slots = tuple(existing_states(self._optimizer, names, indices, states, values))
        columns = [tuple(itertools.chain(*column)) for column in zip(*numbers, strict=True)]
        program, rest = prepared_update(self._key, values, slots, done, columns, self._scale, {})
        new, after, _ = program(tuple(values), grads, *rest)
        write_back(self._optimizer, names, weights, states, new, after)
        for box, value in written:
            box.value = value


def can_wait(boxes: Sequence[Any]) -> bool:
    """Return whether the values of these mutable arrays can be made when they are read: NDArrays that are no views."""
    return all([type(b).value is MutableArray.value and b._entry is None and hasattr(b, "has_value") for b in boxes])
