"""What is done after each epoch of the members of a sweep: histories, patience, successive halving, a line of progress."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from jfit.callbacks.base import Event
from jfit.callbacks.monitor import monitored
from jfit.callbacks.stopping import early_stopping
from jfit.interrupts import StopFlag
from jfit.tools.sweep.problem import Trial
from jfit.tools.sweep.result import Member, Sweep, named
from jfit.tools.sweep.rules import Halving, ranking


class Watch:
    """Records the epochs of members, and decides which of them end early.

    Args:
        trials: all members.
        monitor: name of the value that is the score.
        patience: number of evaluated epochs without improvement after which a member ends; None: never.
        stop: the flag that Ctrl-C sets.
        ahead: function of `jfit.loop.threads.compiling_ahead`.
        shows: whether to write a line per epoch.
    """

    def __init__(
        self, trials: Sequence[Trial], monitor: str, patience: int | None, stop: StopFlag, ahead: Any, shows: bool
    ) -> None:
        self.trials, self.monitor, self.stop, self.ahead, self.shows = trials, monitor, stop, ahead, shows
        self.stopping = None if patience is None else early_stopping(monitor, patience=patience)
        for trial in trials:
            trial.stopping = None if self.stopping is None else self.stopping.init()

    def record(self, trials: Sequence[Trial], logs: Sequence[dict[str, Any]]) -> list[bool]:
        """Add the values of an epoch to the histories of members, and end those whose patience is over.

        Returns:
            Which of them have a new best state: that of the best epoch so far, and before the first score that of each epoch.
        """
        better = [trial.trains and self._add(trial, row) for trial, row in zip(trials, logs, strict=True)]
        if self.shows:
            best = self.trials[ranking([trial.last_value(self.monitor) for trial in self.trials], self.monitor)[0]]
            text = f"members {trials[0].given.number} to {trials[-1].given.number} of {len(self.trials)}, "
            text += f"epoch {len(trials[0].history)}; best {self.monitor} {best.last_value(self.monitor):.4g}"
            text += f" ({named(best.given.values)})"
            print(f"\r{text[:158]:<158}", end="", file=sys.stderr, flush=True)
        return better

    def _add(self, trial: Trial, row: dict[str, Any]) -> bool:
        epoch, batches = len(trial.history), trial.layout.num_batches
        event = Event("epoch_end", epoch, (epoch + 1) * batches, batches, batches, row, run=trial)
        trial.history.add("epochs", epoch=epoch, step=event.step, **row)
        monitored("sweep: monitor", event, self.monitor, required=True)
        if self.stopping is None:
            return False
        trial.improved = False
        trial.stopping = self.stopping.on(event, trial.stopping)
        return trial.improved or trial.stopping["best"] is None

    def drop(self, halving: Halving) -> None:
        """Successive halving: end all but the best members; with folds, all folds of a combination of settings together."""
        active, metric = [trial for trial in self.trials if trial.trains], halving.metric
        for trial in active:
            event = Event("epoch_end", len(trial.history) - 1, 0, 0, 0, trial.history.epochs[-1], run=trial)
            monitored("sweep: metric of halving", event, metric, required=True)
        scored = [Member(t.given.number, t.given.values, t.last_value(metric), "", t.history, None, None) for t in active]
        rows = Sweep(scored, metric).summary
        order = ranking([row["score"] for row in rows], metric)
        for number in [number for i in order[halving.kept(len(order)) :] for number in rows[i]["members"]]:
            self.trials[number].status = "dropped"

    def member(self, trial: Trial) -> Member:
        """Return the result of a member: with patience its best epoch, else its last one."""
        score, state = trial.last_value(self.monitor), trial.state
        if self.stopping is not None:
            score = math.nan if trial.stopping["best"] is None else trial.stopping["best"]
            state = trial.best_state._replace(step=np.int32(len(trial.history) * trial.layout.num_batches))
        status = trial.status or ("interrupted" if self.stop.set and trial.trains else "finished")
        make = trial.shared.task.model, trial.settings
        return Member(trial.given.number, trial.given.values, score, status, trial.history, state, make)
