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
from jfit.checks import positive_integer
from jfit.data import ArrayData
from jfit.data.shuffle import permutation
from jfit.feed.batches import BatchLayout, DeviceBatches, Settings, data_of, first_batch, labels_of, settings_of
from jfit.feed.train_data import add_class_weights, check_options, split_rows
from jfit.fit import checked_plan, resolve_optimizer
from jfit.graph import Symbol
from jfit.lowering.build import lower_with_inputs, model_and_values, split_trained
from jfit.lowering.model import Model, Plan, specs_of
from jfit.metrics.core import on_host
from jfit.optim import Optimizer
from jfit.programs import Constants
from jfit.programs.constants import is_argument, table_of
from jfit.programs.keys import read_function
from jfit.step import train_step
from jfit.step.fitting import choose_metrics, paired
from jfit.step.regularizers import by_exact_name
from jfit.step.state import TrainState, init_state, split_params
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
        model: the `Model`, bound to a batch.
        values: initial (parameters, auxiliary states) of a trained model that was passed to `sweep`, or None each.
        data: the training arrays.
        probe: inputs of the first batch.
        settings: `Settings` of the runs of the members.
        folds: (training rows, evaluation rows) of each fold, or None.
        eval_data: the evaluation arrays, or None.
        train, evaluation: the rows on the devices; None before the first member is prepared.
        plan: shapes and row layouts of the outputs, likewise.
        unweighted: the training arrays without class weights.
        recipes, states: training steps and initial states that several members share, by token.
    """

    model: Model
    values: tuple[Any, Any]
    data: ArrayData
    probe: dict[str, Any]
    settings: Settings
    folds: Folds | None
    eval_data: ArrayData | None
    unweighted: ArrayData
    train: RowSet | None = None
    evaluation: RowSet | None = None
    plan: Plan | None = None
    recipes: dict[Any, Recipe] = field(default_factory=dict)
    states: dict[Any, TrainState] = field(default_factory=dict)


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
        arguments, train = self.member.arguments, self.problem.train
        assert train is not None
        if self.member.fold is None:
            data = copy.copy(self.problem.data)
            data.seed = int(arguments["seed"])
            return data.order(epoch)
        rows = train.rows[self.member.fold]
        return rows[permutation(len(rows), int(arguments["seed"]), epoch)] if arguments["shuffle"] else rows


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
    given = member.arguments
    positive_integer(num_epoch=given["num_epoch"], micro_batches=given["micro_batches"])
    check_options(given["steps_per_epoch"], given["validation_split"], given["eval_every"], eval_data)
    settings = settings_of(
        devices=devices[:1],
        batch_size=given["batch_size"],
        eval_batch_size=given["eval_batch_size"],
        num_epoch=given["num_epoch"],
        eval_metric=given["eval_metric"],
        policy=given["policy"],
        label=given["label"],
        eval_every=given["eval_every"],
    )
    model, params, aux = split_trained(member.model, given["params"], given["aux"])
    if isinstance(model, Symbol) and isinstance(train_data, Mapping):
        model = lower_with_inputs(model, train_data)
    options = {name: given[name] for name in ("loss_weights", "loss_per_batch")}
    model, params, aux = model_and_values(model, given["loss"], params, aux, **options)
    data = data_of(
        model,
        train_data,
        given["batch_size"],
        shuffle=given["shuffle"],
        label=given["label"],
        sample_weight=given["sample_weight"],
        steps_per_epoch=given["steps_per_epoch"],
    )
    data, evaluated = split_rows(_arrays("train_data", data), given["validation_split"])
    probe = first_batch(model, data, given["batch_size"])
    model = paired(model.bound(probe), settings.metrics, probe)
    unweighted = _arrays("train_data", data)
    data = _arrays("train_data", add_class_weights(model, unweighted, given["class_weight"], train_data))
    metrics, choice = choose_metrics(settings.metrics, model, probe, labels_of(model, data))
    if host := on_host(metrics):
        raise ValueError(
            f"sweep: metric {host[0].name!r} is a function of NumPy arrays, which runs on the host, but the members train and "
            "are evaluated inside one program; write it as a jfit.metrics.Metric of JAX functions"
        )
    columns = data.columns or settings.columns
    settings = replace(settings, metrics=metrics, metric_choice=choice, inputs=specs_of(probe), columns=columns)
    if eval_data is not None:
        evaluated = _arrays("eval_data", data_of(model, eval_data, settings.eval_batch_size, label=settings.columns))
    rows = None if folds is None else fold_rows(folds, data.num_rows)
    return Problem(model, (params, aux), data, probe, settings, rows, evaluated, unweighted)


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


def _arrays(name: str, data: Any) -> ArrayData:
    if not isinstance(data, ArrayData):
        raise ValueError(
            f"sweep: {name} is an iterable of batches, but the members read rows of arrays that stay on the devices; pass "
            "arrays, such as (x, y), or train single runs with fit"
        )
    return data


def problem_key(member: MemberSettings) -> Any:
    """Members with equal keys share a `Problem`."""
    return id(member.model), tuple((k, token(v)) for k, v in member.arguments.items() if k not in PER_MEMBER)


class Recipe(NamedTuple):
    """The training step of members that differ in seed, initial values and learning rate only.

    Attributes:
        optimizer: the optimizer of the first of them; the learning rate is in the state.
        step: their training step.
        constants: the `Constants` that the step reads.
        numbers: their values, float array (numbers,).
        settings: `Settings` of the run of the first of them.
        key: what `_program_key` returns.
    """

    optimizer: Optimizer
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
    given = member.arguments
    params = dict(given["optimizer_params"] or {})
    rate, token_of_recipe = params.get("learning_rate"), _recipe_token(member, problem)
    recipe = problem.recipes.get(token_of_recipe)
    first = recipe is None
    optimizer, schedule = _optimizer(member, problem) if recipe is None else (recipe.optimizer, None)
    values = token_of_recipe, *(token(given[name]) for name in ("seed", "initializer", "params", "aux"))
    state = problem.states.get(values)
    if state is None:
        state = problem.states[values] = _initial_state(member, problem, optimizer)
    if problem.train is None:
        _place(problem, state, given["micro_batches"])
    if recipe is None:
        recipe = problem.recipes[token_of_recipe] = _recipe(member, problem, optimizer, schedule, state)
    assert problem.train is not None
    settings = recipe.settings
    if not first and _is_rate(rate) and optimizer.state_spec is not None:  # as `init_state` does with another learning rate
        state = state._replace(base_lr=np.float32(rate))
        settings = replace(settings, learning_rate=float(rate))
    layout = problem.train.of_fold(member.fold)[1]
    group = _group(member, problem, recipe, state, layout)
    return Prepared(member, problem, state, recipe, settings, layout, group)


def _is_rate(rate: Any) -> TypeGuard[float]:
    return isinstance(rate, int | float) and not isinstance(rate, bool)


def _recipe_token(member: MemberSettings, problem: Problem) -> Any:
    """Members with equal tokens have the same training step."""
    given = member.arguments
    params = dict(given["optimizer_params"] or {})
    named = isinstance(given["optimizer"], str) and given["optimizer"].lower() in optim.OPTIMIZERS
    if named and given["schedule"] is None and _is_rate(params.get("learning_rate")):
        params["learning_rate"] = "in the state"
    folds = None if problem.folds is None else _sizes(problem, member.fold)  # the length of an epoch, for schedules
    return token(params), token(given["clip_norm"]), token(given["clip_value"]), folds


def _optimizer(member: MemberSettings, problem: Problem) -> tuple[Optimizer, Any]:
    """Return (optimizer, schedule)."""
    given, batches = member.arguments, _sizes(problem, member.fold)
    params, schedule = given["optimizer_params"] or {}, given["schedule"]
    if schedule is not None:
        rate, updates = params.get("learning_rate"), batches * given["num_epoch"]
        schedule = optim.run_schedule(schedule, given["schedule_params"], rate, updates, batches)
    optimizer = resolve_optimizer(given["optimizer"], params, problem.model, schedule)
    if given["ema"] is not None:
        ema = given["ema"] if isinstance(given["ema"], Mapping) else {"decay": given["ema"]}
        optimizer = optim.ema(optimizer, **ema)
    return optimizer, schedule


def _recipe(member: MemberSettings, problem: Problem, optimizer: Optimizer, schedule: Any, state: TrainState) -> Recipe:
    given, model = member.arguments, problem.model
    trainable, _ = split_params(model, state.params, given["frozen"])
    regularizers = by_exact_name(given["regularizers"], model, trainable)
    step = train_step(
        model,
        optimizer,
        metrics=problem.settings.metrics,
        schedule=schedule,
        frozen=given["frozen"],
        micro_batches=given["micro_batches"],
        clip_norm=given["clip_norm"],
        clip_value=given["clip_value"],
        policy=problem.settings.policy,
        regularizers=regularizers,
    )
    constants = tuple(read_function(step, True)[1])
    rate = (given["optimizer_params"] or {}).get("learning_rate")
    settings = replace(
        problem.settings,
        learning_rate=float(rate) if _is_rate(rate) else optimizer.learning_rate,
        optimizer=optimizer.name,
        regularizers=regularizers,
        ignores_base_lr=schedule is not None and schedule.absolute,
    )
    key = _program_key(member, optimizer, schedule)
    return Recipe(optimizer, step, constants, table_of(constants), settings, key)


def _initial_state(member: MemberSettings, problem: Problem, optimizer: Optimizer) -> TrainState:
    given, (params, aux) = member.arguments, problem.values
    return init_state(
        problem.model,
        optimizer,
        problem.probe,
        seed=given["seed"],
        initializer=given["initializer"],
        params=given["params"] if given["params"] is not None else params,
        aux=given["aux"] if given["aux"] is not None else aux,
        metrics=problem.settings.metrics,
        frozen=given["frozen"],
    )


def _sizes(problem: Problem, fold: int | None) -> int:
    """Number of training batches per epoch."""
    size = problem.settings.batch_size
    if fold is None or problem.folds is None:
        return problem.data.num_batches(size)
    return -(-len(problem.folds[fold][0]) // size)


def _place(problem: Problem, state: TrainState, micro_batches: int) -> None:
    """Check the model for the data, and copy the arrays to the devices."""
    model, data, settings = problem.model, problem.data, problem.settings
    problem.plan = plan = checked_plan(model, data, problem.probe, state)
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
    data = problem.unweighted if folds is not None else problem.eval_data
    if data is None:
        return None
    try:
        plan = checked_plan(model, data, first_batch(model, data, size), state).in_evaluation
    except ValueError as error:
        error.add_note("jfit: this error is in eval_data; its rows must have the same shapes as the rows of the training data")
        raise
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


def _program_key(member: MemberSettings, optimizer: Optimizer, schedule: Any) -> Any:
    """Equal for steps that differ only in the numbers that a program takes as arguments."""
    given, plain = member.arguments, None
    if schedule is not None:  # without its base learning rate, which is in the state
        plain = [getattr(schedule, f.name) for f in dataclasses.fields(schedule) if f.name != "base_lr"]
    key = read_function((optimizer, plain), True)[0]
    if key is None:  # the numbers of an optimizer of the user are not known to be arguments
        key = token(given["optimizer_params"]), token(given["optimizer"]), token(given["schedule_params"])
    return key, _argument(given["clip_norm"]), _argument(given["clip_value"])


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
