"""Deferred computation: passes over a graph are recorded, and run when a result is needed, in as few programs as possible.

What is needed first determines what runs:

| needed first                               | program                                                     |
|--------------------------------------------|-------------------------------------------------------------|
| outputs, and there is no backward pass yet | forward pass                                                |
| outputs or gradients of the backward pass  | forward and backward pass                                   |
| an update                                  | forward pass, backward pass and update (`Deferred.take`)    |

Modules (`jfit.mxnet.module.passes`) and executors (`jfit.mxnet.executor.executor`) record their passes here.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import jax

Outputs = tuple[jax.Array, ...]


class Deferred:
    """A recorded forward pass, to which a backward pass may be added.

    Args:
        forward: function that runs the forward pass and returns its outputs; None if it only runs as part of a step.

    Example:
        >>> passes = Deferred(lambda: print("forward") or (1,))
        >>> passes.outputs(), passes.outputs()
        forward
        ((1,), (1,))
        >>> passes = Deferred(lambda: print("forward") or (1,))
        >>> passes.backward(lambda: print("forward and backward") or (1,))
        >>> passes.outputs()
        forward and backward
        (1,)
    """

    def __init__(self, forward: Callable[[], Outputs] | None) -> None:
        self._forward, self._backward, self._outputs = forward, None, None
        self._part_of_step = False

    def backward(self, run: Callable[[], Outputs], part_of_step: bool = False) -> None:
        """Record a backward pass; one that was recorded before runs first.

        Args:
            run: function that runs both passes, stores the gradients, and returns the outputs.
            part_of_step: whether both passes and an update may be one program.
        """
        self.settle()  # every backward pass has effects: it adds to gradients ("add") and updates moving statistics
        self._backward, self._part_of_step = run, part_of_step

    def settle(self) -> None:
        """Run the recorded backward pass, if any."""
        run, self._backward = self._backward, None  # before running: a pass that fails must not be repeated by the next call
        if run is not None:
            self.finish(run())

    def outputs(self) -> Outputs:
        """Return the outputs, computed at the first call."""
        if self._outputs is None:
            self.settle()
        if self._outputs is None:
            assert self._forward is not None, "the pass runs only as part of a step"
            self.finish(self._forward())
        assert self._outputs is not None
        return self._outputs

    def read(self, number: int) -> jax.Array:
        """Return one of the outputs, for an NDArray that has this source and number as `_later`."""
        return self.outputs()[number]

    @property
    def is_forward(self) -> bool:
        """Whether this is a forward pass alone that is not computed yet."""
        return self._backward is None and self._forward is not None

    @property
    def is_done(self) -> bool:
        """Whether the outputs are computed."""
        return self._outputs is not None

    @functools.cached_property
    def specs(self) -> Any:
        """Shapes and dtypes of the outputs, without computing them."""
        return jax.eval_shape(self._forward) if self._outputs is None and self._forward else self._outputs

    def materialize(self) -> None:
        """Compute gradients and outputs now, because the parameters are about to change."""
        self.settle()
        if self._forward is not None:
            self.outputs()

    def take(self) -> bool:
        """Return whether nothing was computed yet, so that the caller runs both passes as part of a step and calls `finish`."""
        is_whole = self._backward is not None and self._part_of_step and self._outputs is None
        if is_whole:
            self._backward = None
        return is_whole

    def finish(self, outputs: Outputs) -> None:
        """Set the outputs; those that were read before are kept, even if the parameters have changed since."""
        if self._outputs is None:
            self._outputs = outputs
        self._forward = None  # it refers to the inputs


class Pending:
    """The passes of all graphs that share parameters, as long as the graphs refer to them.

    Outputs are those of the parameters at the time of `forward`: whoever changes the parameters calls `materialize` first.

    Example:
        >>> pending, passes = Pending(), Deferred(lambda: print("forward") or (1,))
        >>> pending.add(passes)
        >>> pending.materialize()
        forward
    """

    def __init__(self) -> None:
        self._passes: weakref.WeakKeyDictionary[Deferred, None] = weakref.WeakKeyDictionary()  # in the order of recording

    def add(self, passes: Deferred) -> None:
        """Add recorded passes."""
        self._passes[passes] = None

    def settle(self) -> None:
        """Run the recorded backward passes."""
        for passes in list(self._passes):
            passes.settle()

    def forward(self, except_for: Deferred) -> None:
        """Compute the outputs of all forward passes but one: auxiliary states, which they depend on, are about to change."""
        for passes in list(self._passes):
            if passes is not except_for and passes.is_forward:
                passes.outputs()

    def materialize(self, except_for: Deferred | None = None) -> None:
        """Compute gradients and outputs of all passes but one."""
        for passes in list(self._passes):
            if passes is not except_for:
                passes.materialize()
