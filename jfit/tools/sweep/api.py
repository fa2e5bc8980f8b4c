"""`sweep`: trains many runs with different settings, in as few compiled programs as possible."""

from __future__ import annotations

import collections
import contextlib
import math
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from jfit import counters
from jfit.checks import positive_integer
from jfit.feed.batches import RESIDENT_SHARE
from jfit.history.table import History
from jfit.interrupts import StopFlag, Stopped
from jfit.loop.ahead import compiling_ahead
from jfit.parallel import check_entry, resolve
from jfit.prepare import FitOptions
from jfit.step import unrolls
from jfit.step.state import TrainState
from jfit.tools.sweep.chunk import Chunk
from jfit.tools.sweep.problem import Prepared, checked_folds, make_problem, prepare, problem_key
from jfit.tools.sweep.result import Member, Sweep
from jfit.tools.sweep.rules import Halving, Patience, halving_of, number_of, ranking
from jfit.tools.sweep.settings import member_settings
from jfit.tools.sweep.spaces import check_count, combinations

MEMBER_BYTES_CPU = 1 << 30  # memory of the members that train at once on a CPU device
MAX_MEMBERS = 256  # of a device: with more, a program does not get faster


def sweep(
    model: Any,
    train_data: Any,
    eval_data: Any = None,
    *,
    over: Any,
    n: int | None = None,
    sample_seed: int = 0,
    folds: Any = None,
    monitor: str | None = None,
    patience: int | None = None,
    halving: Any = None,
    members_per_call: int | None = None,
    devices: Any = None,
    progress: bool | str = "auto",
    **settings: Any,
) -> Sweep:
    """Train many runs (members) with different settings, in as few compiled programs as possible, and return a `Sweep`.

    Each member has the losses, metrics and parameters that `jfit.fit` with its settings computes, up to rounding.  Members that
    differ only in values that a compiled program takes as arguments train together: learning rate, weight decay, momentum,
    decay rates such as beta1 and other numbers of jfit's optimizers, gradient clipping (clip_norm, clip_value), seed (initial
    values, dropout and other random operators, order of the rows), initializer, initial parameters, folds.  Members that differ
    in anything else (batch size, widths, optimizer) are grouped, one program per group.  A number of the optimizer other than
    the learning rate, or a clipping limit, is a constant of the program if it is 0 or 1: members with momentum=0 are not in a
    group with members with momentum=0.9.  The program is `jax.vmap` over the training states; on a CPU, where that is not
    faster, it trains one member per call.  All members read one copy of the data on each device.

    Args:
        model: a model as for `jfit.fit`; or a function of swept settings that returns one, such as
            `lambda width: make_net(width)` with over={"width": [64, 128]}.  To sweep settings of a pure function, it returns a
            pair (function, initial parameters).
        train_data: training data in arrays, in the forms of `jfit.fit`: `(x, y)`, `(x, y, weight)`, a dict or a DataFrame.
        eval_data: evaluation data in arrays, likewise.  Default: no evaluation.
        over: what the members differ in: a dict name -> list of values, of which all combinations train; a dict of lists and
            distributions (`jfit.uniform`, `jfit.log_uniform`, `jfit.choice`) with `n`; or a list of dicts.  Names are arguments
            of `jfit.fit`, parameters of the optimizer ("learning_rate", "momentum", "wd"; "weight_decay" means "wd" where the
            optimizer has that name), and arguments of `model`, if it is a function that makes models.
        n: number of random combinations of `over`, in which each value of a list has the same probability.
        sample_seed: seed of the random combinations.
        folds: number of folds of a cross-validation, or a list of (training row indices, evaluation row indices).  Every
            combination is trained once per fold, and evaluated on the other rows; not with `eval_data`.  Each pair of a
            combination and a fold is a member; `best` is a member of the combination with the best mean score over folds.
        monitor: name of the logged value that is the score, such as "val_accuracy".  Default: "val_loss", without evaluation
            "loss".  Larger is better if the name contains acc, f1, mcc, pcc, auc, precision, recall, top_k, pearson or r2 and
            does not end like a loss or an error ("acc_loss"); for all other names, smaller is better.
        patience: number of epochs without a better `monitor` after which a member ends; each member then has the state of its
            best epoch, as with `jfit.callbacks.early_stopping`.  Default: all train to the end.
        halving: successive halving, (metric, factor) or (metric, factor, first): after first, first * factor,
            first * factor ** 2, ... epochs (default of first: 1), the best 1 / factor of the members train on.  `metric` is the
            name of a logged value, such as "val_accuracy"; which values are better is as for `monitor`.
        members_per_call: maximum number of members that one call of a program trains.  Default: from an estimate of the
            memory; for networks with convolutions on CPU, one per device.
        devices: None (the default device), the number of devices, "all" or a list of devices.  The members are split over them.
        progress: "auto" writes a line per epoch if standard error is a terminal, True always, False never.
        **settings: arguments of `jfit.fit` that all members share, such as batch_size, num_epoch, optimizer, loss, params.

    Returns:
        `Sweep`: the members with `table`, `best`, `predict()` (ensemble), `plot()` and `to_pandas()`.  After Ctrl-C it has the
        values of the last finished dispatches, and `interrupted` is True.

    Raises:
        ValueError: an unknown or unsupported setting, more than 100,000 members or more than the memory has room for, data that
            is not in arrays, metrics that run on the host, or an error of `jfit.fit` for one of the members.
        TypeError: `over` has another type.

    Example:
        >>> import jfit, numpy as np
        >>> x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
        >>> y = (x[:, 0] > 0).astype("float32")
        >>> net = jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=2)
        >>> net = jfit.sym.SoftmaxOutput(net, name="softmax")
        >>> over = {"learning_rate": [0.01, 0.5], "seed": range(2)}
        >>> result = jfit.sweep(net, (x, y), over=over, folds=2, num_epoch=3, monitor="val_accuracy", progress=False)
        >>> len(result), result.best.settings["learning_rate"]
        (8, 0.5)
    """
    check_entry("jfit.sweep")
    if folds is not None and eval_data is not None:
        raise ValueError("sweep: folds= and eval_data= are both passed, but folds evaluate on rows of train_data; omit one")
    if folds is not None and settings.get("validation_split") is not None:
        raise ValueError("sweep: folds= and validation_split= are both passed; leave out one of them")
    chosen = list(resolve(devices))
    folds = checked_folds(folds)
    count = 0 if folds is None else folds if isinstance(folds, int) else len(folds)
    combined = combinations(over, n, sample_seed)
    check_count(len(combined) * max(count, 1), f"{len(combined):,} combinations in {count} folds")
    members = member_settings(model, combined, settings, count)
    keys = [problem_key(member) for member in members]
    prepared, problems, numbers, needed = [], {}, collections.Counter(keys), 0
    for member, key in zip(members, keys, strict=True):
        is_first = key not in problems
        if is_first:
            problems[key] = make_problem(member, train_data, eval_data, folds, chosen)
        try:
            prepared.append(prepare(member, problems[key]))
        except (ValueError, TypeError) as error:
            error.add_note(f"jfit: in member {member.number} of the sweep, with the settings {member.values}")
            raise
        if is_first:
            needed += numbers[key] * _bytes(prepared[-1].state)
            _check_memory(needed, len(members))
    evaluates = any(problem.evaluation is not None for problem in problems.values())
    monitor = monitor or ("val_loss" if evaluates else "loss")
    chunks = _chunks(prepared, chosen, members_per_call, keep_best=patience is not None)
    for problem in problems.values():
        problem.states.clear()  # the chunks have them
    trainer = _Trainer(prepared, chunks, Patience(monitor, patience), halving_of(halving), progress)
    return trainer.train()


def _bytes(state: Any) -> int:
    return sum(x.nbytes for x in jax.tree.leaves(state) if hasattr(x, "nbytes"))


def _memory_of_host() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else math.inf


def _check_memory(needed: int, members: int) -> None:
    if needed > _memory_of_host():
        raise ValueError(
            f"sweep: the states of the {members:,} members (parameters, optimizer) have {needed / 1e9:,.1f} GB, more than the "
            f"memory of this machine, {_memory_of_host() / 1e9:,.1f} GB; sweep fewer members at once, such as with n="
        )


def _chunks(prepared: Sequence[Prepared], devices: Sequence[Any], most: int | None, keep_best: bool) -> list[Chunk]:
    """Group members that train in one program, and cut groups that need too much memory."""
    if most is not None:
        positive_integer(members_per_call=most)
    groups: dict[Any, list[Prepared]] = {}
    for member in prepared:
        groups.setdefault(member.group, []).append(member)
    chunks = []
    for group in groups.values():
        size = int(most or 0) or _most_members(group[0], devices, keep_best)
        parts = -(-len(group) // size)
        even = -(-len(group) // parts)  # of equal length: one program serves all
        chunks += [Chunk(group[low : low + even], devices, keep_best) for low in range(0, len(group), even)]
    return chunks


def _most_members(member: Prepared, devices: Sequence[Any], keep_best: bool) -> int:
    """Estimate how many members fit on the devices, by their states, gradients and batches."""
    if unrolls(member.problem.model):
        return len(devices)  # XLA runs batched convolutions on CPU many times slower
    state = _bytes(member.state)
    batch = sum(x.nbytes for x in member.problem.task.probe.values())
    per_member = (4 + keep_best) * state + 8 * batch  # gradients, updates and a second state while a step runs; activations
    stats = devices[0].memory_stats() if devices[0].platform != "cpu" else None
    memory = RESIDENT_SHARE * stats["bytes_limit"] if stats else MEMBER_BYTES_CPU / len(devices)
    return max(1, min(MAX_MEMBERS, int(memory // max(per_member, 1)))) * len(devices)


class _Trainer:
    """Train chunks for all epochs, and decide which members end early."""

    def __init__(
        self, prepared: Sequence[Prepared], chunks: list[Chunk], patience: Patience, halving: Halving | None, progress: Any
    ) -> None:
        self.prepared, self.chunks, self.patience, self.halving = prepared, chunks, patience, halving
        self.histories = {m.member.number: History() for m in prepared}
        self.status: dict[int, str] = {}
        self.interrupted = False
        self._shows = progress is True or (progress == "auto" and sys.stderr.isatty())

    def train(self) -> Sweep:
        last = max(m.member.options.num_epoch for m in self.prepared)
        rungs = [] if self.halving is None else self.halving.epochs(last)
        stop = StopFlag().watching()
        with stop as flag, compiling_ahead() as ahead, counters.explained(), contextlib.suppress(Stopped):
            for end in [*rungs, last]:
                for chunk in self.chunks:
                    self._train_chunk(chunk, end, lambda: flag.set, ahead)
                    if len(self.chunks) > 1:
                        chunk.unload()
                if end != last and not flag.set:
                    self._drop(end)
        self.interrupted = flag.set
        for chunk in self.chunks:
            self._end(chunk, [m.member.number for m in chunk.members], "interrupted" if self.interrupted else "finished")
        if self._shows:
            print(file=sys.stderr)
        return self._result()

    def _train_chunk(self, chunk: Chunk, end: int, stopped: Any, ahead: Any) -> None:
        given = chunk.members[0].member.options if chunk.members else FitOptions()
        last = given.num_epoch
        while chunk.members and chunk.epoch < min(end, last) and not stopped():
            evaluate = (chunk.epoch + 1) % given.eval_every == 0 or chunk.epoch + 1 == last
            logs = chunk.train_epoch(stopped, evaluate, ahead)
            if logs is None:
                return
            self._record(chunk, logs)
        if chunk.members and chunk.epoch == last:
            self._end(chunk, [m.member.number for m in chunk.members], "finished")

    def _record(self, chunk: Chunk, logs: Sequence[Mapping[str, Any]]) -> None:
        """Add the values of an epoch to the histories, and end members whose patience is over."""
        improved, over = [], []
        for member, row in zip(chunk.members, logs, strict=True):
            number = member.member.number
            self.histories[number].add_epoch(epoch=chunk.epoch - 1, step=chunk.step, **row)
            value = number_of(row, self.patience.monitor)
            if value is None and chunk.epoch == 1:
                self._check_logged(chunk, row, self.patience.monitor)
            improved.append(self.patience.improved(number, value))
            over += [number] if self.patience.is_over(number) else []
        if chunk.keep_best and any(improved):
            chunk.update_best(improved)
        self._end(chunk, over, "stopped")
        self._show(chunk)

    def _check_logged(self, chunk: Chunk, row: Mapping[str, Any], name: str) -> None:
        every = chunk.members[0].member.options.eval_every
        if name not in row and not (name.startswith("val_") and every > 1 and chunk.problem.evaluation is not None):
            hint = "; pass eval_data= or folds=: names with val_ are evaluation values" if name.startswith("val_") else ""
            raise ValueError(f"sweep: {name!r} is not logged; the values of an epoch are {sorted(row)}{hint}")

    def _drop(self, end: int) -> None:
        """Successive halving: end all but the best members; with folds, all folds of a combination of settings together."""
        assert self.halving is not None
        groups: dict[Any, list[int]] = {}
        active = {m.member.number: (chunk, m) for chunk in self.chunks for m in chunk.members}
        for number, (_, member) in active.items():
            settings = {k: v for k, v in member.member.values.items() if k != "fold"}
            groups.setdefault(str(settings) if member.member.fold is not None else number, []).append(number)
        metric = self.halving.metric
        scores = []
        for numbers in groups.values():
            values = [self._last(number, metric) for number in numbers]
            scores.append(math.nan if not values else sum(values) / len(values))
        order, groups_in_order = ranking(scores, metric), list(groups.values())
        dropped = {n for i in order[self.halving.kept(len(order)) :] for n in groups_in_order[i]}
        for chunk in self.chunks:
            self._end(chunk, [m.member.number for m in chunk.members if m.member.number in dropped], "dropped")

    def _last(self, number: int, name: str) -> float:
        """The last value of a member; NaN if there is none."""
        rows = self.histories[number].epochs
        if rows and not any(name in row for row in rows):
            raise ValueError(f"sweep: {name!r} is not logged; the values of an epoch are {sorted(rows[-1])}")
        values = [number_of(row, name) for row in reversed(rows) if row.get(name) is not None]
        return math.nan if not values or values[0] is None else values[0]

    def _end(self, chunk: Chunk, numbers: Sequence[int], status: str) -> None:
        self.status |= dict.fromkeys(numbers, status)
        chunk.end(set(numbers))

    def _show(self, chunk: Chunk) -> None:
        if not self._shows:
            return
        best = self.patience.best
        text = f"epoch {chunk.epoch}: {sum(len(c.members) for c in self.chunks)} of {len(self.prepared)} members train"
        if best:
            number = [*best][ranking(list(best.values()), self.patience.monitor)[0]]
            values = ", ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in self._values(number).items())
            text += f"; best {self.patience.monitor} {best[number]:.4g} ({values})"
        print(f"\r{text[:158]:<158}", end="", file=sys.stderr, flush=True)

    def _values(self, number: int) -> dict[str, Any]:
        return self.prepared[number].member.values

    def _result(self) -> Sweep:
        states: dict[int, TrainState] = {n: state for chunk in self.chunks for n, state in chunk.final.items()}
        monitor, members = self.patience.monitor, []
        for prepared in self.prepared:
            number, problem = prepared.member.number, prepared.problem
            score = self.patience.best.get(number, math.nan) if self.patience.patience else self._score(number, monitor)
            parts = prepared.member.values, score, self.status[number], self.histories[number], states[number]
            members.append(Member(number, *parts, (problem.model, prepared.settings)))
        return Sweep(members, monitor, self.interrupted)

    def _score(self, number: int, monitor: str) -> float:
        values = [row[monitor] for row in self.histories[number].epochs if row.get(monitor) is not None]
        return float(values[-1]) if values else math.nan
