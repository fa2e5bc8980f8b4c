"""What the members of a sweep share: model, data on the devices, metrics and folds; and what is each member's own."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeGuard

import jax
import numpy as np

from jfit import optim
from jfit.data import ArrayData, StreamData
from jfit.data.shuffle import permutation
from jfit.feed.batches import BatchLayout, DeviceBatches, Settings, first_batch
from jfit.lowering.model import Model, Plan
from jfit.metrics.core import on_host
from jfit.optim import Optimizer
from jfit.prepare.checks import checked_plan, in_eval_data
from jfit.prepare.optimizer import Chosen, choose_optimizer
from jfit.prepare.options import FitOptions
from jfit.prepare.problem import Task, initial_state, make_step, match, run_settings, with_task
from jfit.programs import Constants
from jfit.programs.constants import is_argument, table_of
from jfit.programs.keys import read_function
from jfit.step.regularizers import by_exact_name
from jfit.step.state import TrainState, split_params
from jfit.tools.sweep.settings import PER_MEMBER, MemberSettings, token

Folds = Sequence[tuple[np.ndarray, np.ndarray]]  # (row indices to train with, row indices to evaluate) of each fold


class RowSet(NamedTuple):
    """Some rows of a data set on the devices, which are read in batches.

    Attributes:
        arrays: input name -> array (rows, ...) on the devices, the whole data set.
        weight: row weights (rows,) on the devices, or None.
        rows: indices of the rows of each fold; a list of one array without folds.
        layout: sizes of the batches, for the first fold.
    """

    arrays: Mapping[str, Any]
    weight: Any
    rows: Sequence[np.ndarray]
    layout: BatchLayout

    def of_fold(self, fold: int | None) -> tuple[np.ndarray, BatchLayout]:
        """Return (row indices, sizes of the batches) of a fold."""
        rows = self.rows[fold or 0]
        size, most = self.layout.batch_size, -(-len(rows) // self.layout.batch_size)
        count = min(self.layout.num_batches, most) if fold is None else most
        last = min(len(rows), count * size) - (count - 1) * size
        return rows, self.layout._replace(num_batches=count, last_size=last)


@dataclass
class Problem:
    """What members with the same model, batch size and data share.

    Attributes:
        task: model and data, of arrays.
        settings: `Settings` of the runs of the members.
        folds: (training rows, evaluation rows) of each fold, or None.
        train, evaluation: the rows on the devices; None before the first member is prepared.
        plan: shapes and row layouts of the outputs, likewise.
        recipes, states: training steps and initial states that several members share, by token.
    """

    task: Task
    settings: Settings
    folds: Folds | None
    train: RowSet | None = None
    evaluation: RowSet | None = None
    plan: Plan | None = None
    recipes: dict[Any, Recipe] = field(default_factory=dict)
    states: dict[Any, TrainState] = field(default_factory=dict)

    @property
    def model(self) -> Model:
        return self.task.model

    @property
    def data(self) -> ArrayData:
        return _arrays(self.task.data)


@dataclass
class Prepared:
    """A member that is ready to train.

    Attributes:
        member: its settings.
        problem: what it shares with others.
        state: initial `TrainState`; None while it trains.
        recipe: its training step.
        settings: `Settings` of its run.
        layout: sizes of its training batches.
        group: members with equal values train in one program.
    """

    member: MemberSettings
    problem: Problem
    state: TrainState | None
    recipe: Recipe
    settings: Settings
    layout: BatchLayout
    group: Any

    def order(self, epoch: int) -> np.ndarray:
        """Row indices of an epoch in the order in which `fit` reads them, int32."""
        options, train = self.member.options, self.problem.train
        assert train is not None
        if self.member.fold is None:
            data = copy.copy(self.problem.data)
            data.seed = int(options.seed)
            return data.order(epoch)
        rows = train.rows[self.member.fold]
        return rows[permutation(len(rows), int(options.seed), epoch)] if options.shuffle else rows


def make_problem(member: MemberSettings, train_data: Any, eval_data: Any, folds: Any, devices: Any) -> Problem:
    """Convert model and data of a member, as `fit` does.

    Args:
        member: the first member with this model and data.
        train_data, eval_data: the arguments of `sweep`.
        folds: the argument of `sweep`.
        devices: list of `jax.Device`.

    Raises:
        ValueError: the data is an iterable of batches, or a metric is a function of NumPy arrays.
    """
    options = member.options.checked(eval_data)
    settings = replace(run_settings(options), devices=devices[:1])
    task = match(member.model, train_data, eval_data, options, settings.metrics)
    if host := on_host(task.metrics):
        raise ValueError(
            f"sweep: metric {host[0].name!r} is a function of NumPy arrays, which runs on the host, but the members train and "
            "are evaluated inside one program; write it as a jfit.metrics.Metric of JAX functions"
        )
    _check_arrays(train_data=task.data, eval_data=task.eval_data)
    problem = Problem(task, replace(settings, metrics=task.metrics), None)
    if folds is not None:
        problem.folds = fold_rows(folds, problem.data.num_rows)
    return problem


def checked_folds(folds: Any) -> int | list[Any] | None:
    """Convert the argument `folds` of `sweep` to an int, a list, or None.

    Raises:
        ValueError: it is neither a number nor an iterable, or it has no items.
    """
    if folds is None or isinstance(folds, int):
        return folds
    if isinstance(folds, np.integer):
        return int(folds)
    pairs = list(folds) if isinstance(folds, Iterable) and not isinstance(folds, str | Mapping) else []
    if not pairs:
        raise ValueError(
            f"sweep: folds is {folds!r}; expected a number of folds, or a list of (training rows, evaluation rows) with at "
            "least one item, such as list(KFold(5).split(x)) of scikit-learn"
        )
    return pairs


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
    if isinstance(folds, int):
        if not 2 <= folds <= rows:
            raise ValueError(f"sweep: folds is {folds}; expected a number from 2 to the number of rows, {rows}")
        parts = [np.sort(part) for part in np.array_split(permutation(rows, 0, 0), folds)]
        return [(np.setdiff1d(np.arange(rows, dtype=np.int32), part), part) for part in parts]
    pairs = [tuple(np.asarray(part) for part in pair) for pair in folds]
    for pair in pairs:
        good = len(pair) == 2 and all(p.ndim == 1 and p.size and np.issubdtype(p.dtype, np.integer) for p in pair)
        if not good or any(p.min() < 0 or p.max() >= rows for p in pair):
            raise ValueError(
                f"sweep: folds has an item that is no pair of arrays of row indices from 0 to {rows - 1}; expected a number of "
                "folds, or a list of (training rows, evaluation rows), such as list(KFold(5).split(x)) of scikit-learn"
            )
    return [(train.astype(np.int32), test.astype(np.int32)) for train, test in pairs]


def _arrays(data: ArrayData | StreamData) -> ArrayData:
    assert isinstance(data, ArrayData)  # `make_problem` has checked it
    return data


def _check_arrays(**data: Any) -> None:
    for name, value in data.items():
        if value is not None and not isinstance(value, ArrayData):
            raise ValueError(
                f"sweep: {name} is an iterable of batches, but the members read rows of arrays that stay on the devices; pass "
                "arrays, such as (x, y), or train single runs with fit"
            )


def problem_key(member: MemberSettings) -> Any:
    """Members with equal keys share a `Problem`."""
    names = [field.name for field in dataclasses.fields(FitOptions) if field.name not in PER_MEMBER]
    return id(member.model), tuple((name, token(getattr(member.options, name))) for name in names)


class Recipe(NamedTuple):
    """The training step of members that differ in seed, initial values and learning rate only.

    Attributes:
        chosen: optimizer and schedule of the first of them; the learning rate is in the state.
        step: their training step.
        constants: the `Constants` that the step reads.
        numbers: their values, float array (numbers,).
        settings: `Settings` of the run of the first of them.
        key: what `_program_key` returns.
    """

    chosen: Chosen
    step: Any
    constants: tuple[Constants, ...]
    numbers: np.ndarray
    settings: Settings
    key: Any


def prepare(member: MemberSettings, problem: Problem) -> Prepared:
    """Make the initial state and the training step of a member, as `fit` does.

    Args:
        member: its settings.
        problem: what it shares with others; data and plan are completed by the first member.
    """
    options = member.options
    rate, token_of_recipe = (options.optimizer_params or {}).get("learning_rate"), _recipe_token(member, problem)
    recipe = problem.recipes.get(token_of_recipe)
    first = recipe is None
    chosen = choose_optimizer(options, problem.model, _num_batches(problem, member.fold)) if recipe is None else recipe.chosen
    values = token_of_recipe, *(token(getattr(options, name)) for name in ("seed", "initializer", "params", "aux"))
    state = problem.states.get(values)
    if state is None:
        state = problem.states[values] = _initial_state(member, problem, chosen.optimizer)
    if problem.train is None:
        _place(problem, state, options.micro_batches)
    if recipe is None:
        recipe = problem.recipes[token_of_recipe] = _recipe(member, problem, chosen, state)
    assert problem.train is not None
    settings = recipe.settings
    if not first and _is_rate(rate) and chosen.optimizer.state_spec is not None:  # as `init_state` with another learning rate
        state = state._replace(base_lr=np.float32(rate))
        settings = replace(settings, learning_rate=float(rate))
    layout = problem.train.of_fold(member.fold)[1]
    group = _group(member, problem, recipe, state, layout)
    return Prepared(member, problem, state, recipe, settings, layout, group)


def _is_rate(rate: Any) -> TypeGuard[float]:
    return isinstance(rate, int | float) and not isinstance(rate, bool)


def _recipe_token(member: MemberSettings, problem: Problem) -> Any:
    """Members with equal tokens have the same training step."""
    options = member.options
    params = dict(options.optimizer_params or {})
    named = isinstance(options.optimizer, str) and options.optimizer.lower() in optim.OPTIMIZERS
    if named and options.schedule is None and _is_rate(params.get("learning_rate")):
        params["learning_rate"] = "in the state"
    folds = None if problem.folds is None else _num_batches(problem, member.fold)  # the length of an epoch, for schedules
    return token(params), token(options.clip_norm), token(options.clip_value), folds


def _recipe(member: MemberSettings, problem: Problem, chosen: Chosen, state: TrainState) -> Recipe:
    options, model = member.options, problem.model
    trainable, _ = split_params(model, state.params, options.frozen)
    settings = with_task(problem.settings, problem.task, chosen)
    settings = replace(settings, regularizers=by_exact_name(options.regularizers, model, trainable))
    if settings.learning_rate is None:
        settings = replace(settings, learning_rate=chosen.resolved.learning_rate)
    step = make_step(options, model, chosen, settings)
    constants = tuple(read_function(step, True)[1])
    key = _program_key(member, chosen)
    return Recipe(chosen, step, constants, table_of(constants), settings, key)


def _initial_state(member: MemberSettings, problem: Problem, optimizer: Optimizer) -> TrainState:
    options, task = member.options, problem.task
    params = task.params if options.params is None else options.params
    return initial_state(options, task._replace(params=params, aux=task.aux if options.aux is None else options.aux), optimizer)


def _num_batches(problem: Problem, fold: int | None) -> int:
    """Number of training batches per epoch."""
    size = problem.settings.batch_size
    if fold is None or problem.folds is None:
        return problem.data.num_batches(size)
    return -(-len(problem.folds[fold][0]) // size)


def _place(problem: Problem, state: TrainState, micro_batches: int) -> None:
    """Check the model for the data, and copy the arrays to the devices."""
    model, data, settings = problem.model, problem.data, problem.settings
    problem.plan = plan = checked_plan(model, data, problem.task.probe, state)
    options: dict[str, Any] = {"micro_batches": micro_batches, "paddable": plan.paddable, "reason": plan.coupled}
    if problem.folds is None:
        batches = DeviceBatches(model, data, settings.devices, settings.batch_size, **options)
        everything = np.arange(data.num_rows, dtype=np.int32)
        problem.train = RowSet(batches.arrays, batches.weight, [everything], batches.layout)
    else:
        if data.steps_per_epoch is not None:
            raise ValueError(
                "sweep: steps_per_epoch= and folds= are both passed; the epochs of folds have all rows, leave one out"
            )
        batches = DeviceBatches(model, data, settings.devices, settings.batch_size, **{**options, "paddable": True})
        layout = batches.layout._replace(paddable=plan.paddable)
        problem.train = RowSet(batches.arrays, batches.weight, [train for train, _ in problem.folds], layout)
    problem.evaluation = _evaluation(problem, state)


def _evaluation(problem: Problem, state: TrainState) -> RowSet | None:
    model, size, folds = problem.model, problem.settings.eval_batch_size, problem.folds
    data = problem.task.unweighted if folds is not None else problem.task.eval_data
    if data is None:
        return None
    data = _arrays(data)
    with in_eval_data():
        plan = checked_plan(model, data, first_batch(model, data, size), state).in_evaluation
    rows = [np.arange(data.num_rows, dtype=np.int32)] if folds is None else [test for _, test in folds]
    if not plan.paddable and any(len(r) % size for r in rows):
        raise ValueError(
            f"sweep: the evaluation data has {len(rows[0])} rows, which cannot be padded to batches of {size} rows: "
            f"{plan.coupled or 'the model mixes the rows of a batch'}; choose an eval_batch_size that divides this number"
        )
    if folds is not None and problem.train is not None:
        arrays, weight = problem.train.arrays, problem.train.weight
        if data.weight is not problem.data.weight:  # evaluation has no class weights
            weight = None if data.weight is None else jax.numpy.asarray(data.weight)
        layout = BatchLayout(model, 1, size, size, size, 1, plan.paddable)
        return RowSet(arrays, weight, rows, layout)
    batches = DeviceBatches(model, data, problem.settings.devices, size)
    return RowSet(batches.arrays, batches.weight, rows, batches.layout._replace(paddable=plan.paddable))


def _program_key(member: MemberSettings, chosen: Chosen) -> Any:
    """Equal for steps that differ only in the numbers that a program takes as arguments."""
    options, schedule, plain = member.options, chosen.schedule, None
    if schedule is not None:  # without its base learning rate, which is in the state
        plain = [getattr(schedule, f.name) for f in dataclasses.fields(schedule) if f.name != "base_lr"]
    key = read_function((chosen.optimizer, plain), True)[0]
    if key is None:  # the numbers of an optimizer of the user are not known to be arguments
        key = token(options.optimizer_params), token(options.optimizer), token(options.schedule_params)
    return key, _argument(options.clip_norm), _argument(options.clip_value)


def _group(member: MemberSettings, problem: Problem, recipe: Recipe, state: TrainState, layout: BatchLayout) -> Any:
    """Return a key: members of the sweep (runs) whose keys are equal train together in one compiled program."""
    shapes = tuple((x.shape, x.dtype) for x in jax.tree.leaves(state))
    evaluation = problem.evaluation
    batches = _batches(layout), None if evaluation is None else _batches(evaluation.of_fold(member.fold)[1])
    names = tuple(c.names for c in recipe.constants)
    return id(problem), recipe.key, shapes, jax.tree.structure(state), batches, names


def _batches(layout: BatchLayout) -> tuple[int, Any]:
    """What has to be equal for members of a program: the number of batches, and the kind of the last one."""
    return layout.num_batches, layout.last_size == layout.batch_size if layout.paddable else layout.last_size


def _argument(value: Any) -> Any:
    return "number" if is_argument(value) else token(value)
