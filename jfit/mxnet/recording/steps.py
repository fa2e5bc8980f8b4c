"""The tree of all that was recorded: the path to a step is a sequence of operations, whose shapes and programs are kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jfit.mxnet.errors import MXNetError
from jfit.mxnet.recording.calls import Call
from jfit.ops.rules import reason

MAX_STEPS = 100_000  # the tree is emptied when it has more nodes


class Step:
    """One operation, or an array from outside (a leaf), after those of its ancestors.

    The leaves and results of a path are numbered; these numbers are called slots.

    Attributes:
        call: the operation; None for a leaf.
        train: whether the operation computes in training mode.
        inputs: slots of the inputs.
        first: slot of the leaf, or of the first result.
        request: of a leaf: "write" or "add" for a variable, "link" for an array that was computed from variables elsewhere,
            None for a constant.
        outputs: shape and dtype of the leaf, or of each result.
        next: the steps that were recorded after this one, by what they do.
        plans: `Plan`s for paths that end here.
    """

    __slots__ = ("call", "first", "inputs", "next", "outputs", "parent", "plans", "request", "train")
    count = 0  # of all steps that were made since the tree was emptied

    def __init__(
        self,
        parent: Step | None,
        outputs: tuple[Any, ...],
        call: Call | None = None,
        train: bool = False,
        inputs: tuple[int, ...] = (),
        request: str | None = None,
    ) -> None:
        self.parent, self.call, self.train, self.inputs, self.request = parent, call, train, inputs, request
        self.outputs = outputs
        self.first = 0 if parent is None else parent.first + len(parent.outputs)
        self.next: dict[Any, Step] = {}
        self.plans: dict[Any, Any] = {}

    def path(self) -> list[Step]:
        """Return the steps from the beginning to this one."""
        steps: list[Step] = []
        step: Step | None = self
        while step is not None and step.parent is not None:
            steps.append(step)
            step = step.parent
        return steps[::-1]

    def leaf(self, key: tuple[Any, Any, str | None]) -> Step:
        """Add a leaf with this (shape, dtype, request)."""
        shape, dtype, request = key
        return self._add(key, Step(self, (jax.ShapeDtypeStruct(shape, dtype),), request=request))

    def operation(self, key: tuple[Any, ...], specs: Sequence[Any]) -> Step:
        """Add the step of (operation, training mode, *slots of its inputs); `specs` are shapes and dtypes of the inputs.

        Raises:
            MXNetError: the operation does not accept arrays of these shapes and dtypes.
        """
        call, train, *inputs = key
        try:
            outputs = call.shapes(train, tuple(specs))
        except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError) as error:
            raise refused(call, specs, error) from error
        return self._add(key, Step(self, outputs, call, train, tuple(inputs)))

    def _add(self, key: Any, step: Step) -> Step:
        self.next[key] = step
        Step.count += 1
        return step


def refused(call: Call, arrays: Any, error: Exception) -> MXNetError:
    """Return the error that an operator does not accept arrays."""
    types = ", ".join(f"{np.dtype(a.dtype).name}{list(a.shape)}" for a in arrays)
    return MXNetError(f"{call.op.name} does not accept {types or 'its attributes'}: {reason(error)}")
