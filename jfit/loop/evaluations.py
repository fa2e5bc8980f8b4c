"""When a training is evaluated: within epochs, after epochs, and at its end."""

from __future__ import annotations

from typing import Any

from jfit.callbacks.intervals import Every
from jfit.loop.events import NEVER
from jfit.loop.pace import Pace


class Evaluations:
    """Evaluates after every k-th step or epoch, and at the end of training: `eval_every` of `fit`.

    An evaluation within an epoch comes just before the next dispatch.  So the epoch is known to go on; the
    evaluation after the last step of an epoch is done by `at_end`.

    Args:
        evaluate: `evaluate(state, epoch) -> {name: value}`.
        every: the interval between two evaluations.

    Attributes:
        are_within: whether they may come within epochs.
    """

    def __init__(self, evaluate: Any, every: Every) -> None:
        self.evaluate, self._every, self.are_within = evaluate, every, every.steps is not None

    def gap(self, step: int) -> int:
        """Number of steps from `step` (updates done) to the next evaluation, where a dispatch must end."""
        steps = self._every.steps
        return NEVER if steps is None else steps - step % steps

    def is_due(self, step: int) -> bool:
        """Whether `step` updates are a multiple of the interval in steps."""
        return self._every.steps is not None and step > 0 and step % self._every.steps == 0

    def before(self, loop: Any, pace: Pace) -> None:
        """Evaluate within an epoch, if one is due and the history has none for this step (as after a resume)."""
        if not self.is_due(loop.step) or loop.history.last_step("evaluations") == loop.step:
            return
        loop.read_steps()  # sync: the evaluation waits for the last step anyway
        pace.flush()
        if loop.nan.stopped:
            return
        with pace.paused():
            values = self.values(loop)
            loop.history.add("evaluations", epoch=loop.epoch, step=loop.step, **values)
            loop.events.send("evaluation", values)

    def at_end(self, loop: Any, epochs: int, is_last: bool) -> dict[str, Any]:
        """Return the values of the evaluation after an epoch; empty if none is due.

        Args:
            loop: the `Loop`, before its position is that of the next epoch.
            epochs: number of epochs that are complete.
            is_last: whether training ends here.
        """
        every = self._every.epochs
        is_due = self.is_due(loop.step) if every is None else epochs % every == 0 and epochs > loop.epoch
        return self.values(loop) if is_due or is_last else {}

    def values(self, loop: Any) -> dict[str, Any]:
        """Evaluate, and return the values by the names that they have in logs."""
        return {f"val_{name}": value for name, value in self.evaluate(loop.state, loop.epoch).items()}
