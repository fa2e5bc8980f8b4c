"""What training does if a loss is not finite: the argument `nan=` of `fit`.

A training step stores the number of the first bad step in the running sums (`Totals.first_bad_step`), which the host reads at
log points and at the end of an epoch anyway, so that looking for bad steps costs no wait.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jfit.checkpoints.finite import is_finite
from jfit.data import ArrayData
from jfit.loop.replaying import Replayer, Start
from jfit.parallel import place
from jfit.step.state import TrainState

MAX_ROLLBACKS = 3  # to the same state; then training stops
_HELP = "Lower the learning rate, clip gradients (clip_norm=1.0), or check the data of that step for nan"


class NonFiniteLoss(UserWarning):
    """Warning that the loss is nan or infinite; the message contains the first step where it is."""


@dataclass
class NanPolicy:
    """Reacts to bad steps as `nan=` of `fit` says.

    Attributes:
        name: one of `NAN_POLICIES`.
        keeps: whether this policy goes back to states that were kept.
        kept: the finite state to which it goes back; None if there is none.
        reached: number of steps done when it last went back to an earlier state; 0: it did not.
        restored_at: number of the next step when it had gone back to an earlier state; -1: it did not.
        stopped: whether this policy stopped the training since the call of `Loop.train`.
        handled: bad steps with smaller numbers have been reported since then.
        rollbacks: number of times that training went back to `kept` since then.
    """

    name: str
    keeps: bool
    kept: Start | None = None
    reached: int = 0
    restored_at: int = -1
    stopped: bool = False
    handled: int = 0
    rollbacks: int = 0

    def keep(self, state: TrainState, position: dict[str, int]) -> bool:
        """Keep a state, if it is finite and the policy may go back to it; return whether the policy goes back to states.

        Args:
            state: a copy on the host, from `Run.snapshot`.
            position: its epoch, batch and step.
        """
        if self.keeps and is_finite(state):
            self.kept = Start(state, dict(position))
            if position["step"] != self.restored_at:  # otherwise it is the state that was restored, without a step since
                self.rollbacks = 0
        return self.keeps

    def report(self, loop: Any, step: int) -> None:
        """React to the first bad step of the running sums, unless that was done before.

        Args:
            loop: the `Loop`, between two dispatches.
            step: number of the step.
        """
        if step < self.handled:
            return
        self.handled = loop.step
        cause = _cause(loop, self.kept, step) if self.name != "warn" else ""
        if self.name == "warn":
            self.handled = 1 << 62
            text = f"the loss is not finite since step {step} (epoch {loop.epoch}); training continues. {_HELP}"
        elif self.name == "skip":
            text = f"step {step} (epoch {loop.epoch}) changed nothing, because it is not finite{cause}; training continues"
        else:
            text = f"step {step} (epoch {loop.epoch}) is not finite{cause}; {self._go_back(loop, step)}"
        warnings.warn(text, NonFiniteLoss, stacklevel=3)

    def _go_back(self, loop: Any, step: int) -> str:
        """Restore the state that was kept, and return what was done."""
        kept = self.kept
        self.rollbacks += 1
        again = self.name == "rollback" and self.rollbacks <= MAX_ROLLBACKS
        if kept is None or not again:
            self.stopped, loop.stop_reason = True, f"step {step} is not finite"
        if kept is None:
            return "training stops, and no finite state was kept"
        state, self.reached = kept.state, loop.step
        if again:  # later batches, other random numbers
            same = kept.position["epoch"] == loop.epoch
            metrics = state.metrics if same else jax.tree.map(np.zeros_like, state.metrics)
            first = np.full_like(state.metrics.first_bad_step, -1)
            state = state._replace(step=np.asarray(loop.step, np.int32), metrics=metrics._replace(first_bad_step=first))
        else:
            loop.epoch, loop.batch, loop.step = (kept.position[name] for name in ("epoch", "batch", "step"))
        loop.state, self.restored_at = place(state, loop.devices), loop.step
        done = f"the state is that of step {kept.position['step']} again"
        if again:
            return f"{done}, and training continues with the next batch"
        tried = f" after {MAX_ROLLBACKS} attempts" if self.name == "rollback" else ""
        return f"training stops{tried}, and {done}"


def _cause(loop: Any, kept: Start | None, step: int) -> str:
    """Return ": node ... is the first that is not finite", from a replay of the step; "" if it cannot be replayed."""
    with contextlib.suppress(Exception):  # an explanation must not end a training
        return _explained(loop, kept, step)
    return ""


def _explained(loop: Any, kept: Start | None, step: int) -> str:
    data, spec = loop.dispatcher.data, loop.dispatcher.spec
    if not isinstance(data, ArrayData):
        return ""
    number = step - (loop.step - loop.batch)  # of the batch in the epoch
    replayer = Replayer(loop)
    for name, x in replayer.batch(loop.epoch, number, parts=1).batch.inputs.items():
        if not is_finite(np.asarray(x)):
            axis = spec.model.batch_axes.get(name, 0)
            if axis is None:
                return f": input {name!r} of batch {number} is not"
            rows = np.isfinite(np.moveaxis(np.asarray(x), axis, 0)).reshape(x.shape[axis], -1).all(axis=1)
            return f": input {name!r} of batch {number} is not, in row {int(np.argmin(rows))} of the batch"
    if kept is None:
        state, item = loop.run.snapshot()._replace(step=np.asarray(step, np.int32)), replayer.batch(loop.epoch, number)
    else:
        state, _, item, _ = replayer.through(kept, step)
    if before := [name for name, x in state.params.items() if not is_finite(x)]:
        return f": the parameters {_listed(before)} were not before it"
    _, parameters, bad = replayer.explain(state, item)
    if bad is None:
        return ""
    gradients = [p.name for p in parameters if p.gradient_nonfinite]
    of_gradients = f"the gradients of {_listed(gradients)} are not; " if bad.what == "backward" else ""
    return f": {of_gradients}{bad}"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:3])) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
