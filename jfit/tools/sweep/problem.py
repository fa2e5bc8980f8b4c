"""What the members of a sweep share: model, data on the devices, metrics and folds; and what is each member's own."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from jfit import counters
from jfit.data import ArrayData
from jfit.data.arrays import permutation
from jfit.feed.batches import BatchLayout, DeviceBatches, Settings, first_batch
from jfit.history.table import History
from jfit.metrics.core import on_host
from jfit.parallel import place
from jfit.prepare.problem import (
    Task,
    checked_plan,
    choose_optimizer,
    in_eval_data,
    initial_state,
    make_step,
    match,
    run_settings,
    with_task,
)
from jfit.programs import Constants, read_key, table_of
from jfit.step.regularizers import by_exact_name
from jfit.step.state import TrainState, split_params
from jfit.step.train import UpdateRule
from jfit.tools.sweep.settings import MemberSettings, token

Folds = Sequence[tuple[np.ndarray, np.ndarray]]  # (row indices to train with, row indices to evaluate) of each fold


class RowSet(NamedTuple):
    """Some rows of a data set on the devices, which are read in batches.

    Attributes:
        arrays: input name -> array (rows, ...) on the devices, the whole data set.
        weight: row weights (rows,) on the devices, or None.
        rows: indices of the rows of each fold; a list of one array without folds.
        layout: sizes of the batches without folds.
    """

    arrays: Mapping[str, Any]
    weight: Any
    rows: Sequence[np.ndarray]
    layout: BatchLayout

    def of_fold(self, fold: int | None) -> tuple[np.ndarray, BatchLayout]:
        """Return (row indices, sizes of the batches) of a fold."""
        if fold is None:
            return self.rows[0], self.layout
        rows, size = self.rows[fold], self.layout.batch_size
        count = -(-len(rows) // size)
        return rows, self.layout._replace(num_batches=count, last_size=len(rows) - (count - 1) * size)


@dataclass
class Shared:
    """What members with the same model, batch size and data share.

    Attributes:
        task: model and data, of arrays.
        settings: `Settings` of the runs of the members.
        devices: list of devices over which the members are split.
        folds: (training rows, evaluation rows) of each fold, or None.
        train, evaluation: the rows on the devices; None before the first member is prepared.
    """

    task: Task
    settings: Settings
    devices: Sequence[Any]
    folds: Folds | None
    train: RowSet | None = None
    evaluation: RowSet | None = None


@dataclass
class Trial:
    """A member, from its settings to its result.

    Attributes:
        given: its settings.
        shared: what it shares with others.
        settings: `Settings` of its run.
        state: its `TrainState`, on the host.
        best_state: with patience, the state of its best epoch.
        step: training step.
        constants: the `Constants` that the step reads.
        numbers: their values, float array (numbers,).
        group: members with equal values train in one program.
        layout: sizes of its training batches.
        history: losses and metrics of its epochs.
        status: why it ended before its last epoch, "stopped" or "dropped"; else "".
        stopping: state of `jfit.callbacks.early_stopping`, whose "run" this object is.
        improved: whether the last epoch is the best one so far.
    """

    given: MemberSettings
    shared: Shared
    settings: Settings
    state: TrainState
    best_state: TrainState
    step: Any
    constants: tuple[Constants, ...]
    numbers: np.ndarray
    group: Any
    layout: BatchLayout
    history: History = field(default_factory=History)
    status: str = ""
    stopping: Any = None
    improved: bool = False

    @property
    def trains(self) -> bool:
        """Whether it has epochs to train."""
        return not self.status and len(self.history) < self.given.options.num_epoch

    def snapshot(self) -> None:
        """Called by `early_stopping`; the copy of the state stays on the devices."""

    def set_best(self, _: None) -> None:
        """Keep the state of the current epoch as the best one so far; `early_stopping` calls it."""
        self.improved = True

    def stop(self, _: str) -> None:
        """Called by `early_stopping` if the last epochs were not better than the best one."""
        self.status = "stopped"

    def last_value(self, name: str) -> float:
        """The last value of this name in the history; NaN if there is none."""
        values = [row[name] for row in self.history.epochs if row.get(name) is not None]
        return float(values[-1]) if values else math.nan

    @property
    def order_key(self) -> Any:
        """Members with equal keys read the rows in the same order."""
        return self.given.fold, self.given.options.seed if self.given.options.shuffle else None

    def order(self, epoch: int) -> tuple[np.ndarray, BatchLayout]:
        """Return (row indices of an epoch in the order in which `fit` reads them, sizes of the batches)."""
        options, fold, train = self.given.options, self.given.fold, self.shared.train
        assert train is not None
        if fold is None:
            data = copy.copy(_arrays(self.shared.task.data))
            data.seed = int(options.seed)
            return data.order(epoch), self.layout
        rows = train.rows[fold]
        return rows[permutation(len(rows), int(options.seed), epoch)] if options.shuffle else rows, self.layout


def share(given: MemberSettings, train_data: Any, eval_data: Any, folds: Any, devices: Sequence[Any]) -> Shared:
    """Convert model and data of a member, as `fit` does.

    Args:
        given: the first member with this model and data.
        train_data, eval_data: the arguments of `sweep`.
        folds: the argument of `sweep`.
        devices: list of `jax.Device`.

    Raises:
        ValueError: the data is an iterable of batches, or a metric is a function of NumPy arrays.
    """
    settings = replace(run_settings(given.options), devices=list(devices[:1]))
    task = match(given.model, train_data, eval_data, given.options, settings.metrics)
    if host := on_host(task.metrics):
        raise ValueError(f"sweep: metric {host[0].name!r} runs on the host; write it as a jfit.metrics.Metric of JAX functions")
    for name, data in (("train_data", task.data), ("eval_data", task.eval_data)):
        if data is not None and not isinstance(data, ArrayData):
            raise ValueError(f"sweep: {name} is an iterable of batches; pass arrays, such as (x, y), or call fit")
    rows = None if folds is None else fold_rows(folds, _arrays(task.data).num_rows)
    return Shared(task, replace(settings, metrics=task.metrics), devices, rows)


def listed_folds(folds: Any) -> tuple[Any, int]:
    """Convert the argument `folds` of `sweep`; return it and the number of folds, 0 for None.

    Raises:
        ValueError: it is neither a number nor an iterable, or it has no items.
    """
    if folds is None or isinstance(folds, int | np.integer):
        return folds, int(folds or 0)
    pairs = list(folds) if isinstance(folds, Iterable) and not isinstance(folds, str | Mapping) else []
    if not pairs:
        raise _wrong_folds(f"is {folds!r}")
    return pairs, len(pairs)


def fold_rows(folds: Any, rows: int) -> Folds:
    """Return (row indices to train with, row indices to evaluate) of each fold.

    Args:
        folds: number of folds, from 2 to `rows`: the rows are permuted with a fixed seed and cut into this number of parts,
            whose sizes differ by at most one row; each part is evaluated by one fold, which trains with the other rows.  Or an
            iterable of pairs of index arrays (training rows, evaluation rows), such as scikit-learn's `KFold(5).split(x)`.
        rows: number of rows of the data.

    Raises:
        ValueError: the number of folds or a row index is out of range, or an index array of a fold is empty.
    """
    if isinstance(folds, int | np.integer):
        if not 2 <= folds <= rows:
            raise ValueError(f"sweep: folds is {folds}; expected a number from 2 to the number of rows, {rows}")
        parts = [np.sort(part) for part in np.array_split(permutation(rows, 0, 0), folds)]
        return [(np.setdiff1d(np.arange(rows, dtype=np.int32), part), part) for part in parts]
    pairs = [tuple(np.asarray(part) for part in pair) for pair in folds]
    for pair in pairs:
        good = len(pair) == 2 and all(p.ndim == 1 and p.size and np.issubdtype(p.dtype, np.integer) for p in pair)
        if not good or any(p.min() < 0 or p.max() >= rows for p in pair):
            raise _wrong_folds(f"has an item that is no pair of arrays of row indices from 0 to {rows - 1}")
    return [(train.astype(np.int32), test.astype(np.int32)) for train, test in pairs]


def _wrong_folds(found: str) -> ValueError:
    expected = "a number, or (training rows, evaluation rows) of at least one fold, such as list(KFold(5).split(x))"
    return ValueError(f"sweep: folds {found}; expected {expected}")


def _arrays(data: Any) -> ArrayData:
    assert isinstance(data, ArrayData)  # `share` has checked it
    return data


def prepare(given: MemberSettings, shared: Shared) -> Trial:
    """Make the initial state and the training step of a member, as `fit` does.

    Args:
        given: its settings.
        shared: what it shares with others; its rows are put on the devices with the first member.
    """
    options, task = given.options, shared.task
    size, data = shared.settings.batch_size, _arrays(task.data)
    rows = None if shared.folds is None else len(shared.folds[given.fold or 0][0])
    chosen = choose_optimizer(options, task.model, data.num_batches(size) if rows is None else -(-rows // size))
    values = {name: getattr(options, name) for name in ("params", "aux") if getattr(options, name) is not None}
    state = initial_state(options, task._replace(**values), chosen.optimizer)
    if shared.train is None:
        shared.train = _train_rows(shared, state, options.micro_batches)
        shared.evaluation = _eval_rows(shared, state, shared.train)
    trainable, _ = split_params(task.model, state.params, options.frozen)
    settings = with_task(shared.settings, task, chosen)
    settings = replace(settings, regularizers=by_exact_name(options.regularizers, task.model, trainable))
    step = make_step(options, task.model, chosen, settings)
    constants, layout = read_key(step, arguments=True).constants, shared.train.of_fold(given.fold)[1]
    state = counters.read(state)  # sync: before training
    batches = [_batches(rows, given.fold) for rows in (shared.train, shared.evaluation)]
    group = id(shared), _program_key(given, step.rule), *batches
    return Trial(given, shared, settings, state, state, step, constants, table_of(constants), group, layout)


def _train_rows(shared: Shared, state: TrainState, micro_batches: int) -> RowSet:
    """Check the model for the training data, and copy the arrays to the devices."""
    model, data, folds, size = shared.task.model, _arrays(shared.task.data), shared.folds, shared.settings.batch_size
    if folds is not None and data.steps_per_epoch is not None:
        raise ValueError("sweep: steps_per_epoch= and folds= are both passed; the epochs of folds have all rows, leave one out")
    plan = checked_plan(model, data, shared.task.probe, state)
    options: dict[str, Any] = {"micro_batches": micro_batches, "reason": plan.coupled}
    batches = DeviceBatches(model, data, shared.devices[:1], size, paddable=plan.paddable or folds is not None, **options)
    rows = [np.arange(data.num_rows, dtype=np.int32)] if folds is None else [train for train, _ in folds]
    return _row_set(batches, rows, plan.paddable, shared)


def _eval_rows(shared: Shared, state: TrainState, train: RowSet) -> RowSet | None:
    """Check the model for the evaluation data, and copy the arrays to the devices; with folds, they are there."""
    model, size, folds = shared.task.model, shared.settings.eval_batch_size, shared.folds
    data = shared.task.unweighted if folds is not None else shared.task.eval_data
    if data is None:
        return None
    data = _arrays(data)
    with in_eval_data():
        plan = checked_plan(model, data, first_batch(model, data, size), state).in_evaluation
    rows = [np.arange(data.num_rows, dtype=np.int32)] if folds is None else [test for _, test in folds]
    if not plan.paddable and any(len(r) % size for r in rows):
        problem = f"{len(rows[0])} rows cannot be padded to batches of {size}: {plan.coupled or 'the model mixes rows'}"
        raise ValueError(f"sweep: the evaluation data: {problem}; choose an eval_batch_size that divides this number")
    if folds is None:
        return _row_set(DeviceBatches(model, data, shared.devices[:1], size), rows, plan.paddable, shared)
    weight = None if data.weight is None else place(data.weight, shared.devices)  # without class weights
    return RowSet(train.arrays, weight, rows, BatchLayout(model, 1, size, size, size, 1, plan.paddable))


def _row_set(batches: DeviceBatches, rows: list[np.ndarray], paddable: bool, shared: Shared) -> RowSet:
    """Copy the arrays, which are on the first device, to all devices."""
    arrays = batches.arrays, batches.weight
    arrays, weight = place(arrays, shared.devices) if len(shared.devices) > 1 else arrays
    return RowSet(arrays, weight, rows, batches.layout._replace(paddable=paddable))


def _program_key(given: MemberSettings, rule: UpdateRule) -> Any:
    """Equal for steps of a `Shared` that differ only in the numbers that a program takes as arguments."""
    key, is_complete, _ = read_key(rule, arguments=True)
    if is_complete:
        return key
    # the numbers of an optimizer of the user are not known to be arguments
    return token(given.options.optimizer_params), read_key(rule.limits, arguments=True).value


def _batches(rows: RowSet | None, fold: int | None) -> Any:
    """What has to be equal for members of a program: the number of batches, and the kind of the last one."""
    if rows is None:
        return None
    layout = rows.of_fold(fold)[1]
    return layout.num_batches, layout.last_size == layout.batch_size if layout.paddable else layout.last_size
