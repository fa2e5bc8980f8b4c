"""The server of asynchronous training: it owns parameters and optimizer state, and applies each gradient when it arrives."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jfit.distributed.staleness import StalenessClock
from jfit.optim import as_schedule
from jfit.step import update_step
from jfit.step.state import TrainState
from jfit.step.totals import Totals, fold, mean_loss, values, zero_totals
from jfit.train.asynchronous.problem import Problem
from jfit.train.asynchronous.worker import Sent, Values


class ParameterServer:
    """Parameters that several workers train; its methods are called in threads.

    Args:
        problem: what is trained.
        state: initial `TrainState` of NumPy arrays.
        workers: number of workers.
        epoch: the first epoch.
        max_staleness: bound of the staleness, or None.
    """

    def __init__(self, problem: Problem, state: TrainState, workers: int, epoch: int, max_staleness: int | None) -> None:
        self._problem, model = problem, problem.model()
        self._device = jax.local_devices(backend="cpu")[0]
        self._clock = StalenessClock(max_staleness, int(state.step))
        self._ended = dict.fromkeys(range(workers), epoch)  # number of epochs that a worker has done
        self._epochs: dict[int, _Epoch] = {}
        self._workers, self._began = workers, time.perf_counter()
        self._ready, self._started = set[int](), False  # workers that have compiled their programs
        options = {"schedule": problem.schedule, "clip_norm": problem.clip_norm, "clip_value": problem.clip_value}
        update = update_step(problem.optimizer, model=model, **options)
        with jax.default_device(self._device):
            self._zero = functools.partial(zero_totals, problem.metrics, model.logged, model.num_losses)
            self._update = jax.jit(functools.partial(_updated, update, problem.metrics), donate_argnums=0)
            self._state = jax.device_put(state._replace(metrics=()), self._device)

    def values(self) -> Values:
        """Return the newest parameters."""
        with self._clock.changed:
            return Values(*jax.device_get((self._state.params, self._state.aux)))

    def ready(self, worker: int, sent: Sent) -> None:
        """Wait until all workers have compiled their programs; `sent` is an example of what they will send."""
        with self._clock.changed:
            if not self._ready:
                state, totals = jax.tree.map(jnp.copy, self._state), self._zero()
                jax.block_until_ready(
                    self._update(state, totals, sent)
                )  # sync: compiles the update before anybody waits for it
            self._ready.add(worker)
            self._clock.changed.notify_all()
            self._clock.wait(lambda: self._ready >= set(self._ended))
            if not self._started:
                self._began, self._started = time.perf_counter(), True

    def pull(self, worker: int) -> Values:
        """Return the newest parameters, from which the worker computes its next gradient."""
        with self._clock.changed:
            self._clock.begin(worker)
            return self.values()

    def push(self, worker: int, epoch: int, sent: Sent) -> Values:
        """Update the parameters with the gradient of a worker, and return the newest ones."""
        with self._clock.changed:
            staleness = self._clock.finish(worker)
            if epoch not in self._epochs:
                self._epochs[epoch] = _Epoch(self._zero(), self._workers)
            sums = self._epochs[epoch]
            with jax.default_device(self._device):
                self._state, sums.totals = self._update(self._state, sums.totals, sent)
            sums.add(worker, staleness, float(sent.rows))
            return self.pull(worker)

    def end_epoch(self, worker: int, epoch: int) -> None:
        """Note that a worker has sent the gradients of all batches of an epoch."""
        with self._clock.changed:
            self._ended[worker] = epoch + 1
            self._note_ends()

    def leave(self, worker: int) -> None:
        """Do not wait for a worker that has no further batches, or was lost."""
        with self._clock.changed:
            self._clock.leave(worker)

    def lost(self, worker: int) -> None:
        """Do not wait for a worker that was lost, neither for its gradient nor for the end of its epochs."""
        with self._clock.changed:
            self._ended.pop(worker, None)
            self._note_ends()
            self._clock.leave(worker)

    def wait_epoch(self, epoch: int) -> dict[str, Any] | None:
        """Wait until the workers that are left have ended an epoch; return its history row, None if all workers failed."""
        with self._clock.changed:
            self._clock.wait(lambda: all(done > epoch for done in self._ended.values()))
            if not self._ended:
                return None
            sums = self._epochs.pop(epoch)
            step, ended, rate = sums.end
            seconds, self._began = ended - self._began, ended
            row = {"epoch": epoch, "step": step, "time": seconds, "samples_per_second": sums.rows / seconds}
            row |= {} if rate is None else {"lr": rate}
            return row | values(self._problem.metrics, jax.device_get(sums.totals)) | sums.row()

    def _note_ends(self) -> None:
        for epoch, sums in self._epochs.items():
            if sums.end is None and all(done > epoch for done in self._ended.values()):
                sums.end = self._clock.version, time.perf_counter(), _rate(self._problem.schedule, self._state)
        self._clock.changed.notify_all()

    def state(self) -> TrainState:
        """Copy of the state on the host; its step is the number of updates."""
        with self._clock.changed:
            totals = zero_totals(self._problem.metrics)
            state = self._state._replace(metrics=totals)
            return jax.tree.map(np.array, jax.device_get(state))

    def close(self) -> None:
        """Let all calls that wait end with an error."""
        with self._clock.changed:
            self._clock.close()


class _Epoch:
    """Sums over the updates of an epoch; workers are in different epochs at the same time."""

    def __init__(self, totals: Totals, workers: int) -> None:
        self.totals, self.rows = totals, 0.0
        self.end: Any = None  # (number of updates, time, learning rate) when the last worker had ended it
        self._staleness: list[list[int]] = [[] for _ in range(workers)]

    def add(self, worker: int, staleness: int, rows: float) -> None:
        self._staleness[worker].append(staleness)
        self.rows += rows

    def row(self) -> dict[str, Any]:
        every = [s for of_worker in self._staleness for s in of_worker]
        by_worker = [float(np.mean(s)) if s else 0.0 for s in self._staleness]
        return {
            "staleness": float(np.mean(every)),
            "max_staleness": float(max(every)),
            "worker_updates": np.asarray([len(s) for s in self._staleness]),
            "worker_staleness": np.asarray(by_worker),
        }


def _updated(
    update: Callable[..., TrainState], metrics: tuple[Any, ...], state: TrainState, totals: Totals, sent: Sent
) -> tuple[TrainState, Totals]:
    """θ ← θ − η · u(g) for a gradient g of older parameters; a batch whose weights sum to 0 changes nothing."""
    totals = fold(metrics, totals, sent.shared, state.step, mean_loss(*sent.shared.loss))
    new = update(state, sent.gradients)
    # Moving statistics are linear in what a batch adds to them: the change is added to the newest value.
    aux = {k: state.aux[k] + v if jnp.issubdtype(v.dtype, jnp.inexact) else v for k, v in sent.aux.items()}
    new = new._replace(aux={**state.aux, **aux})
    kept = jax.tree.map(lambda a, b: jnp.where(sent.rows > 0, a, b), new, state._replace(step=new.step))
    return kept, totals


def _rate(schedule: Any, state: TrainState) -> float | None:
    if state.base_lr is None:
        return None
    if schedule is None:
        return float(state.base_lr)
    return float(as_schedule(schedule)(state.step, state.base_lr))
