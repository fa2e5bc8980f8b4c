"""Trains the members of a sweep that share a program: as one stack by `jax.vmap`; on a CPU, each device one after the other."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jfit import counters
from jfit.checks import positive_integer
from jfit.feed.batches import RESIDENT_SHARE, BatchLayout
from jfit.interrupts import StopFlag, Stopped
from jfit.loop.dispatch import auto_steps_per_call, reported_lr
from jfit.lowering.model import plan_of
from jfit.parallel.devices import place
from jfit.parallel.spmd import Window, compile_spmd
from jfit.step import eval_step, unrolls
from jfit.step.totals import values
from jfit.tools.sweep.problem import RowSet, Trial
from jfit.tools.sweep.stacked import Spec, Stacking, evaluation_step, keep_better, run_batches, training_step
from jfit.tools.sweep.watch import Watch

MAX_MEMBERS = 256  # of a device: with more, a program does not get faster


class Group:
    """Members of a sweep that one program trains; they differ in numbers and arrays only.

    Args:
        trials: the members, with equal `Trial.group`.
        devices: list of devices over which the members are split.
        most: maximum number of members in a call of the program; None: an estimate.
        keeps_best: whether to keep a copy of each member's best state.
    """

    def __init__(self, trials: Sequence[Trial], devices: Sequence[Any], most: int | None, keeps_best: bool) -> None:
        self.trials, self.devices, self.keeps_best = trials, devices, keeps_best
        self.shared, self.layout, self.zeros = trials[0].shared, trials[0].layout, trials[0].state.metrics
        task = self.shared.task
        self.loops = not unrolls(task.model, devices, plan_of(task.model, dict(task.probe)))
        if most is not None:
            positive_integer(members_per_call=most)
        self.most = max(most // len(devices), 1) if most else members_per_device(trials[0], devices, keeps_best)
        shares_order = len({trial.order_key for trial in trials}) == 1
        self.order_axis, self.eval_axis = None if shares_order else 0, None if self.shared.folds is None else 0
        self._programs: dict[Any, Any] = {}

    def train(self, end: int, watch: Watch) -> None:
        """Train the members that have not ended, until they have done `end` epochs or `watch` ends them."""
        active = [trial for trial in self.trials if trial.trains and len(trial.history) < end]
        parts = max(-(-len(active) // (self.most * len(self.devices))), 1)
        size = max(-(-len(active) // parts), 1)  # parts of equal length: one program serves all
        for low in range(0, len(active), size):
            if not watch.stop:
                Part(self, active[low : low + size], -(-size // len(self.devices))).train(end, watch)

    def program(self, name: str, batched: bool) -> Any:
        """Return the program "train", "train_tail" (for an incomplete last batch), "eval" or "best"; compiled once."""
        if (name, batched) not in self._programs:
            self._programs[name, batched] = self._make_program(name, batched)
        return self._programs[name, batched]

    def _make_program(self, name: str, batched: bool) -> Any:
        if name == "best":
            return compile_spmd(keep_better, self.devices, (0, 0, 0), 0, donate=(1,), name="sweep_best")
        first, layout, axis, loops = self.trials[0], self.layout, self.order_axis, self.loops and name != "train_tail"
        if name == "eval":
            settings = first.settings
            options = {"metrics": settings.metrics, "policy": settings.policy, "regularizers": settings.regularizers}
            model = self.shared.task.model
            step = functools.partial(evaluation_step, model, eval_step(model, **options))
            assert self.shared.evaluation is not None
            layout, axis = self.shared.evaluation.of_fold(first.given.fold)[1], self.eval_axis
            tail = None if layout.paddable else False
        else:
            step = functools.partial(training_step, first.step, first.constants)
            tail = name == "train_tail" or (None if layout.paddable and layout.last_size != layout.batch_size else False)
        spec = Spec(step, layout, tail, loops, batched, axis)
        run, axes = functools.partial(run_batches, spec), (0, 0, spec.data_axes, None, None)
        return compile_spmd(run, self.devices, axes, (0, 0), donate=(0,), name=f"sweep_{name}")


class Part:
    """Members of a group whose states are on the devices, as one stack.

    Args:
        group: what they share with others.
        trials: the members.
        size: number of members on each device; those that are missing are copies of others.
    """

    def __init__(self, group: Group, trials: Sequence[Trial], size: int) -> None:
        self.group, self.trials, self.stacking = group, trials, Stacking(group.devices, size)
        self.slots = [trials[i % len(trials)] for i in range(size * len(group.devices))]
        self.numbers, self.stack = self._place("numbers"), self._place("state")
        self.best = self._place("best_state") if group.keeps_best else None

    def _place(self, name: str) -> Any:
        return self.stacking.place([getattr(trial, name) for trial in self.slots])

    def train(self, end: int, watch: Watch) -> None:
        """Train the members as `Group.train` does, and copy their states to the host."""
        with contextlib.suppress(Stopped):
            self._train(end, watch)
        for name, stack in (("state", self.stack), ("best_state", self.best)):
            for trial, state in zip(self.trials, () if stack is None else self.stacking.read(stack), strict=False):
                setattr(trial, name, state)

    def _train(self, end: int, watch: Watch) -> None:
        group, options, rows = self.group, self.trials[0].given.options, self.group.shared.evaluation
        assert group.shared.train is not None
        layout = group.layout
        whole = layout.num_batches if layout.paddable else layout.num_full
        evaluation = None if rows is None else self._data(rows, lambda trial: rows.of_fold(trial.given.fold), group.eval_axis)
        for epoch in range(len(self.trials[0].history), end):
            data = self._data(group.shared.train, lambda trial, epoch=epoch: trial.order(epoch), group.order_axis)
            if epoch == 0:  # other threads compile what is traced here
                programs = (("train", data), *([] if evaluation is None else [("eval", evaluation)]))
                watch.ahead(
                    self.stack, [(self._program(name), (self.numbers, x, np.int32(0), np.int32(1))) for name, x in programs]
                )
            report = self._run("train", data, range(whole), watch.stop)
            if whole < layout.num_batches and not watch.stop:
                report = self._run("train_tail", data, range(whole, layout.num_batches), watch.stop)
            if watch.stop:
                return
            sums, eval_sums = self.stack.metrics, None
            if evaluation is not None and ((epoch + 1) % options.eval_every.count == 0 or epoch + 1 == options.num_epoch):
                self._run("eval", evaluation, range(evaluation["order"].shape[-2]))
                eval_sums, self.stack = self.stack.metrics, self.stack._replace(metrics=sums)
            read = self.stacking.read((sums, report, eval_sums))  # sync: once per epoch
            better = watch.record(self.trials, [self._logs(*parts) for parts in read[: len(self.trials)]])
            if group.keeps_best and any(better):
                mask = self.stacking.place([np.asarray(better[i % len(better)]) for i in range(len(self.slots))])
                self.best = self._program("best")(mask, self.best, self.stack)
            if not any(trial.trains for trial in self.trials):
                return

    def _program(self, name: str) -> Any:
        return self.group.program(name, self.stacking.size > 1)

    def _run(self, name: str, data: Any, batches: range, stop: StopFlag | None = None) -> Any:
        """Call a program for some batches, the first of which clears the running sums; return the reports of the last one."""
        program, most, report, window = self._program(name), self._batches_per_call(name), None, Window()
        if not batches.start:
            self.stack = self.stack._replace(metrics=self.stacking.place([self.group.zeros] * len(self.slots)))
        for first in batches[::most]:
            count = np.int32(min(most, batches.stop - first))
            self.stack, report = program(self.stack, self.numbers, data, np.int32(first), count)
            if (fence := window.push(report)) is not None:
                counters.wait(fence)  # sync: at most 16 dispatches are queued
            if stop:
                break
        return report

    def _batches_per_call(self, name: str) -> int:
        trial, group = self.trials[0], self.group
        if not group.loops:
            return 1
        steps = trial.given.options.steps_per_call if name == "train" else "auto"
        size = group.layout.batch_size * self.stacking.size
        one = group.shared.task.model, trial.state.params, size, group.devices
        return int(auto_steps_per_call(*one) if steps == "auto" else steps)

    def _data(self, rows: RowSet, order_of: Any, axis: int | None) -> dict[str, Any]:
        """Put the row indices of the batches of an epoch or an evaluation on the devices, as `DeviceBatches.epoch_data`."""
        if axis is None:
            order, numbers = place(batch_table(*order_of(self.slots[0])), self.group.devices)
        else:
            distinct = {trial.order_key: trial for trial in self.slots}
            tables = {key: batch_table(*order_of(trial)) for key, trial in distinct.items()}
            order, numbers = self.stacking.place([tables[trial.order_key] for trial in self.slots])
        return {"arrays": rows.arrays, "weight": rows.weight, "order": order, "numbers": numbers}

    def _logs(self, sums: Any, report: Any, eval_sums: Any) -> dict[str, Any]:
        """Losses and metrics of a member from running sums and the report of the last batch, on the host."""
        metrics = self.trials[0].settings.metrics
        logs = values(metrics, sums) | reported_lr(report)
        if eval_sums is not None:
            logs |= {f"val_{name}": value for name, value in values(metrics, eval_sums).items()}
        bad = int(sums.first_bad_step)
        return logs | ({"first_bad_step": bad} if bad >= 0 else {})


def batch_table(order: np.ndarray, layout: BatchLayout) -> tuple[np.ndarray, np.ndarray]:
    """Return (row indices of every batch, int32 (batches, padded_size), padding repeats rows; "numbers" of `epoch_data`)."""
    return layout.table(order)


def members_per_device(trial: Trial, devices: Sequence[Any], keeps_best: bool) -> int:
    """How many members a device trains at once: one on a CPU, where `jax.vmap` compiles longer and slows convolutions down.

    On accelerators, it is an estimate from the memory of their states, gradients and batches.
    """
    if devices[0].platform == "cpu":
        return 1
    memory = RESIDENT_SHARE * (devices[0].memory_stats() or {}).get("bytes_limit", 4 << 30)
    batch = sum(x.nbytes for x in trial.shared.task.probe.values())
    # gradients, updates and a second state while a step runs; activations
    per_member = (4 + keeps_best) * nbytes(trial.state) + 8 * batch
    return int(np.clip(memory // max(per_member, 1), 1, MAX_MEMBERS))


def nbytes(tree: Any) -> int:
    """Number of bytes of the arrays of a pytree."""
    return sum(x.nbytes for x in jax.tree.leaves(tree))
