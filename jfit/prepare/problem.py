"""`prepare`: from a model, data and options to a `Problem`, which has all that a training needs.

    match             model and data that fit each other                  Task
      |
    choose_optimizer  the optimizer and the schedule                      Chosen
      |
    initial_state     parameters, optimizer state, running sums           TrainState
      |
    make_step         the training step                                   step(state, batch) -> (state, out)

`fit` and `lr_find` call `prepare`; `sweep` and `cost` call its parts: members of a sweep share some, and a cost needs no data.
"""

from __future__ import annotations

import contextlib
import functools
import glob
import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax

from jfit import optim
from jfit.callbacks.intervals import EPOCH
from jfit.checkpoints.fingerprint import describe, describe_data, describe_optimizer, fingerprint
from jfit.data import ArrayData, Batch, StreamData
from jfit.data.batch import is_array, rows
from jfit.data.columns import Columns
from jfit.evaluate.scorer import Scorer, make_evaluate
from jfit.feed.auto_devices import batch_sizes, training_devices
from jfit.feed.batch_sizes import unpaddable_message
from jfit.feed.batches import Settings, data_of, first_batch, labels_of, settings_of
from jfit.feed.job_batches import agreed_plan, check_alike, num_batches_of
from jfit.feed.train_data import add_class_weights, split_rows
from jfit.graph import Symbol
from jfit.lowering.build import lower_with_inputs, model_and_values, split_trained
from jfit.lowering.coupling import warn_per_device
from jfit.lowering.model import Model, Plan, specs_of, verified_plan
from jfit.metrics.core import on_devices, on_host
from jfit.optim.averaging import average
from jfit.optim.registry import get_for
from jfit.optim.schedules import run_schedule
from jfit.optim.several import by_pattern, in_proportion
from jfit.parallel import check_unsharded
from jfit.parallel.contexts import across, is_auto
from jfit.parallel.devices import own_positions
from jfit.parallel.mesh import mesh_devices, mesh_of, on_mesh, split_devices
from jfit.prepare.options import DECIDING, REPEATED, FitOptions
from jfit.programs import Recent, check_shapes
from jfit.step import train_step
from jfit.step.batch_check import BatchLabels, check_model_labels
from jfit.step.fitting import choose_metrics, paired
from jfit.step.reduce import get as get_reduce
from jfit.step.reduce import with_local
from jfit.step.regularizers import by_exact_name
from jfit.step.state import TrainState, init_state, optimizer_of, split_params
from jfit.step.totals import norms_of, step_names, zero_totals
from jfit.step.updates import UpdatesStep, states_of

Data = ArrayData | StreamData


class Task(NamedTuple):
    """A model, and the data that it is trained and evaluated with.

    Attributes:
        model: the `Model`, bound to the structure of a batch.
        params, aux: initial values that were passed, or those of a trained model; None: drawn by the initializer.
        data: the training data, with class weights.
        unweighted: the training data without class weights.
        eval_data: the evaluation data, or None.
        probe: inputs of the first batch by name.
        metrics: metrics of training and evaluation.
        metric_choice: which metric eval_metric="auto" is for a model of a function, and why; else "".
        columns: label and feature columns of the training data, if it has named columns; else None.
        others: with updates=, the models of the updates after the first one.
    """

    model: Model
    params: Any
    aux: Any
    data: Data
    unweighted: Data
    eval_data: Data | None
    probe: dict[str, Any]
    metrics: tuple[Any, ...]
    metric_choice: str
    columns: Columns | None
    others: tuple[Model, ...] = ()


class Chosen(NamedTuple):
    """An optimizer with its schedule.

    Attributes:
        optimizer: the `Optimizer`, with the moving average of the parameters if there is one (ema=).
        resolved: the optimizer without the moving average.
        schedule: the `Schedule` of the run, with all lengths in updates; None: a constant learning rate.
        learning_rate: the base learning rate that the user passed; None: the default of the optimizer or schedule.
        parts: with updates=, the optimizer of each.
    """

    optimizer: optim.Optimizer
    resolved: optim.Optimizer
    schedule: optim.Schedule | None
    learning_rate: float | None
    parts: tuple[optim.Optimizer, ...] = ()


_first_descriptions = Recent(256)  # (argument, description at the end of a run) -> description at its start


class AtStart:
    """Descriptions of arguments before training: objects may change when they are called, such as a loss that counts its calls.

    If an object has not changed since the end of an earlier run in this process, its description is that at the start of that
    run.  So a run can be resumed in the process that trained it, with the same object, but not with one that the user changed.

    Args:
        saved: whether the run saves or reads checkpoints.  Otherwise nothing is described, which takes milliseconds.

    Attributes:
        values: descriptions by name of the argument.
    """

    def __init__(self, saved: bool) -> None:
        self._saved = saved
        self.values: dict[str, Any] = {}
        self._described: list[tuple[str, Any, Callable[[Any], Any], Any]] = []

    def add(self, name: str, value: Any, how: Callable[[Any], Any] | None = None) -> None:
        """Put the description of an argument into `values`, or the argument itself if it is not or cannot be described now."""
        self.values[name], how = value, describe if how is None else how
        if not self._saved or value is None or isinstance(value, (str, bool, int, float)):
            return
        with contextlib.suppress(Exception):  # for example because it has an array that was deleted
            description = how(value)
            description = self.values[name] = _first_descriptions.get((name, json.dumps(description))) or description
            self._described.append((name, value, how, description))

    def end(self) -> None:
        """Remember descriptions that have changed."""
        for name, value, how, description in self._described:
            with contextlib.suppress(Exception):
                now = how(value)
                if now != description:
                    _first_descriptions[name, json.dumps(now)] = description


@dataclass
class Problem:
    """All that a training needs, decided before its first step.

    Attributes:
        options: the arguments of `fit`.
        settings: devices, batch sizes, metrics and folders of the run.
        model: the `Model`, bound to the structure of a batch.
        data: the training data.
        step: the training step, `step(state, batch, axis_name=...) -> (state, StepOut)`.
        state: initial `TrainState`, on the host; None once a run has taken it (`take_state`).
        shapes: (parameters, auxiliary states) of that state, pytrees of `jax.ShapeDtypeStruct`.
        plan: shapes and row layouts of the outputs.
        eval_data: the evaluation data, or None.
        evaluate: `evaluate(state, epoch) -> {name: value}`, or None without evaluation data.
        step_names: names of the values of each step that are recorded or sent to callbacks; empty: none.
        described: descriptions of the user's objects before training, for the fingerprint of the run.

    Example:
        >>> import jfit, numpy as np
        >>> net = jfit.sym.SoftmaxOutput(jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=2), name="softmax")
        >>> data = np.eye(2, dtype="float32").repeat(8, axis=0), np.arange(2).repeat(8)
        >>> problem = prepare(net, data, None, FitOptions(batch_size=4).checked())
        >>> problem.take_state().params["fullyconnected0_weight"].shape, problem.fingerprint["batch_size"]
        ((2, 2), 4)
    """

    options: FitOptions
    settings: Settings
    model: Model
    data: Data
    step: Any
    state: TrainState | None
    shapes: tuple[Any, Any]
    plan: Plan
    eval_data: Data | None
    evaluate: Callable[[TrainState, int], Mapping[str, float]] | None
    step_names: tuple[str, ...]
    described: AtStart

    def take_state(self) -> TrainState:
        """Return the initial state, and forget it: a reference to it would keep the initial parameters in memory."""
        state, self.state = self.state, None
        assert state is not None
        return state

    @property
    def on_host(self) -> bool:
        """Whether metrics run on the host, which needs the outputs of every step."""
        return bool(on_host(self.settings.metrics))

    @functools.cached_property
    def fingerprint(self) -> dict[str, Any]:
        """Return what decides the results of the run, JSON-serializable; see `jfit.checkpoints.fingerprint`."""
        values = _named(self.options, *DECIDING) | self.described.values
        values |= {"learning_rate": self.settings.learning_rate, "reduce": self.options.reduce or "psum"}
        return fingerprint(self.model, self.data, self.shapes, self.settings.inputs, self.settings.devices, values)

    @functools.cached_property
    def repeated(self) -> dict[str, Any]:
        """The other options with which `jfit.verify` trains again, JSON-serializable."""
        return describe(_named(self.options, *REPEATED))

    def description(self) -> dict[str, Any]:
        """Return what all processes of a job must have in common, JSON-serializable."""
        options = self.options
        more = {"eval_every": str(options.eval_every), "eval_batch_size": self.settings.eval_batch_size}
        more |= {"values of steps": list(self.step_names), "own devices": own_positions(self.settings.devices)}
        more |= {"steps between events": sorted(c.every for c in options.callbacks if c.every and "step" in c.events)}
        more |= {"checkpoint": options.checkpoint is not None, "resume": bool(options.resume)}
        more |= {"eval_data": None if self.eval_data is None else describe_data(self.eval_data)}
        return self.fingerprint | self.repeated | more


def prepare(model: Any, train_data: Any, eval_data: Any, options: FitOptions) -> Problem:
    """Decide everything that a training needs before its first step.

    Args:
        model, train_data, eval_data: the arguments of `fit`.
        options: the other arguments, checked; its `callbacks` are `Callback`s.

    Returns:
        `Problem`.

    Raises:
        ValueError: the data does not match the model, is empty, or has invalid labels, row weights or row indices; the model
            has no loss or no parameters to train; or an option does not fit them.

    Example:
        >>> import jfit, jax, numpy as np
        >>> net = jfit.sym.SoftmaxOutput(jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=2), name="softmax")
        >>> x, y = np.eye(2, dtype="float32").repeat(8, axis=0), np.arange(2).repeat(8)
        >>> problem = prepare(net, (x, y), None, FitOptions(batch_size=16).checked())
        >>> state, out = jax.jit(problem.step)(problem.take_state(), {"data": x, "softmax_label": y})
        >>> int(state.step)
        1
    """
    rule, described = get_reduce(options.reduce), AtStart(options.saves)
    described.add("loss", options.loss)
    described.add("schedule", options.schedule)
    settings = run_settings(options)
    mesh = None
    if options.mesh is not None or options.shard is not None:
        mesh = mesh_of(options.mesh, options.shard, options.devices, options.reduce)
    task = match(model, train_data, eval_data, options, settings.metrics)
    model, data, probe, metrics = task.model, task.data, task.probe, on_devices(task.metrics)
    count_batches = data.num_batches if isinstance(data, ArrayData) else functools.partial(num_batches_of, data)
    num_batches = count_batches(options.batch_size)
    chosen = choose_optimizer(options, model, num_batches)
    described.add("optimizer", chosen.resolved, describe_optimizer)
    state = initial_state(options, task, chosen.optimizer)
    settings = with_task(settings, task, chosen)
    if task.eval_data is None:
        settings = replace(settings, eval_every=EPOCH)
    if mesh is not None:
        parts = rows_of_parts(model, data, probe, options)
        settings = replace(settings, devices=mesh_devices(mesh, options.shard, state, parts))
    else:
        check_unsharded("params", state.params)
        check_unsharded("aux", state.aux)
    trainable, _ = split_params(model, state.params, options.frozen)
    if options.regularizers:
        settings = replace(settings, regularizers=by_exact_name(options.regularizers, model, trainable))
    described.add("regularizers", dict(settings.regularizers))
    models = [model, *task.others]
    plans = [checked_plan(each, data, probe, state) for each in models]
    plan = next((each for each in plans if not each.paddable), plans[0])
    plan = plan._replace(convolutions=any(each.convolutions for each in plans))
    if jax.process_count() > 1:
        plan = agreed_plan(plan)
    if is_auto(options.devices):
        sizes = batch_sizes(data, options.batch_size)
        devices = training_devices(model, plan, sizes, options.micro_batches, rule)
        settings = replace(settings, devices=across(devices))
    if plan.coupled or plan.of_loss:
        warn_per_device(plan, len(settings.devices), synced=options.sync_batch_stats, slices=rule.slices)
    host_metrics = on_host(task.metrics)
    check_host_metrics(host_metrics, options.micro_batches)
    logs_steps = options.log_every or any("step_log" in callback.events for callback in options.callbacks)
    names = step_names(metrics, (*model.logged, *norms_of(options.log))) if logs_steps else ()
    placed = model if mesh is None else on_mesh(model, settings.devices)
    more = {"outputs": bool(host_metrics), "batch_metrics": bool(names)}
    if options.updates is None:
        step = make_step(options, placed, chosen, settings, **more)
    else:
        step = make_updates(options, models, chosen, settings, trainable, **more)
        state = state._replace(metrics=zero_totals(metrics, step.logged, model.num_losses))
    if rule.sharded:
        settings = replace(settings, devices=split_devices(settings.devices, step))
    evaluate = _evaluation(task, options, settings, state)
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (state.params, state.aux))
    state = with_local(state, rule, trainable, len(settings.devices))
    options = replace(options, params=None, aux=None, sample_weight=None)  # a run does not keep the arrays of the user
    if options.log_every is not None:
        options = replace(options, log_every=options.log_every.in_steps("log_every", num_batches))
    return Problem(options, settings, model, data, step, state, shapes, plan, task.eval_data, evaluate, names, described)


def run_settings(options: FitOptions) -> Settings:
    """Convert the options that a run keeps to `Settings`; devices="auto" is decided later, when the model is known."""
    same = _named(options, "batch_size", "eval_batch_size", "eval_metric", "policy")
    settings = settings_of(devices=None if is_auto(options.devices) else options.devices, **same)
    directory, checkpoint = (None if folder is None else str(folder) for folder in (options.directory, options.checkpoint))
    length = _named(options, "num_epoch", "num_steps", "eval_every")
    return replace(settings, **length, directory=directory, checkpoint=checkpoint)


def _named(options: FitOptions, *names: str) -> dict[str, Any]:
    """Return some options by name, for a function whose arguments have the same names."""
    return {name: getattr(options, name) for name in names}


def match(model: Any, train_data: Any, eval_data: Any, options: FitOptions, metrics: Sequence[Any]) -> Task:
    """Convert model and data, and adapt the model and the metrics to the data.

    Args:
        model, train_data, eval_data: the arguments of `fit`.
        options: the other arguments.
        metrics: the metrics, as `jfit.metrics.get` returns them.
    """
    model, params, aux = split_trained(model, options.params, options.aux)
    if isinstance(model, Symbol) and isinstance(train_data, Mapping):
        model = lower_with_inputs(model, train_data)
    of_losses = _named(options, "loss_weights", "loss_per_batch", "gather_outputs", "row_axes")
    rest = [model_and_values(model, update.loss, params, aux, **of_losses)[0] for update in (options.updates or ())[1:]]
    model, params, aux = model_and_values(model, options.loss, params, aux, **of_losses)
    if rest:
        model.structure.share_batches([other.structure for other in rest])
    try:
        of_data = _named(options, "shuffle", "seed", "label", "sample_weight", "steps_per_epoch")
        of_data["endless"] = options.num_steps is not None
        data = data_of(model, train_data, options.batch_size, **of_data, timeout=options.data_timeout, others=rest)
    except ValueError as error:
        if may_be_labels(eval_data, train_data):
            third = "The third argument of fit is evaluation data; if they are x and y, pass them as a pair: fit(model, (x, y))"
            raise ValueError(f"{error} {third}") from None
        raise
    if options.validation_split is not None:
        data, eval_data = split_rows(data, options.validation_split)
    in_job = jax.process_count() > 1
    if in_job:
        check_alike(data)
    probe = first_batch(model, data, options.batch_size)
    model = paired(model.bound(probe), metrics, probe)
    unweighted = data
    if options.class_weight is not None:
        data = add_class_weights(model, data, options.class_weight, train_data)
    metrics, choice = choose_metrics(metrics, model, probe, labels_of(model, data))
    columns = Columns.of(options.label) if data.columns is None and options.label is not None else data.columns
    if eval_data is not None:
        size = options.eval_batch_size or options.batch_size
        eval_data = data_of(model, eval_data, size, label=columns, timeout=options.data_timeout)
        if in_job:
            check_alike(eval_data, "evaluation data")
    others = tuple([other.bound(probe) for other in rest])
    return Task(model, params, aux, data, unweighted, eval_data, probe, metrics, choice, columns, others)


def choose_optimizer(options: FitOptions, model: Model, num_batches: int | None) -> Chosen:
    """Make the optimizer and the schedule of a run.

    Args:
        options: the arguments of `fit`.
        model: the model to train; the `lr_mult` and `wd_mult` attributes of its graph become parameters of the optimizer.
        num_batches: number of training batches per epoch; None if it is not known.
    """
    rate, schedule = (options.optimizer_params or {}).get("learning_rate"), options.schedule
    passed = _passed_rate(options.optimizer, rate, schedule, options.schedule_params)
    if schedule is not None:
        updates = options.num_steps or (num_batches and num_batches * options.num_epoch)
        schedule = run_schedule(schedule, options.schedule_params, rate, updates, num_batches)
    resolve, parts = functools.partial(resolve_optimizer, model=model, schedule=schedule), ()
    if options.updates is None:
        resolved = resolve(options.optimizer, options.optimizer_params)
    else:
        parts = tuple(in_proportion([resolve(update.optimizer, update.optimizer_params) for update in options.updates]))
        resolved = states_of(options.updates, [optimizer_of(part, model) for part in parts])
    average = resolved if options.ema is None else optim.ema(resolved, **_ema_options(options.ema))
    return Chosen(average, resolved, schedule, passed, parts)


def resolve_optimizer(
    optimizer: Any, optimizer_params: Mapping[str, Any] | None, model: Model, schedule: Any = None
) -> optim.Optimizer:
    """Make the optimizer from the arguments of `fit`, with the `lr_mult` and `wd_mult` attributes of the graph's variables."""
    params = dict(optimizer_params or {})
    if isinstance(optimizer, Mapping):
        if unknown := [name for name in params if name not in optimizer or not isinstance(params[name], Mapping)]:
            expected = f"with a dict of optimizers, expected a dict of parameters for each of {list(optimizer)}"
            example = f"{{{next(iter(optimizer))!r}: {{'learning_rate': 0.01}}}}"
            raise ValueError(f"optimizer_params has {unknown[0]!r}; {expected}, such as {example}")
        return by_pattern({p: resolve_optimizer(o, params.get(p), model, schedule) for p, o in optimizer.items()})
    attrs = {} if model.symbol is None else model.symbol.attr_dict()
    for kind in ("lr_mult", "wd_mult"):
        multipliers = {n: float(a[f"__{kind}__"]) for n, a in attrs.items() if f"__{kind}__" in a}
        if multipliers and isinstance(optimizer, str) and optimizer.lower() in optim.OPTIMIZERS:
            params.setdefault(kind, multipliers)
        elif multipliers:
            reason = "only jfit optimizers by name support them"
            warnings.warn(f"the {kind} attributes of {', '.join(multipliers)} are ignored: {reason}", stacklevel=3)
    if schedule is not None and isinstance(optimizer, str) and "learning_rate" not in params:
        base = optim.as_schedule(schedule).base_lr
        if base is not None:
            params["learning_rate"] = base
    return get_for(model.symbol is not None, optimizer, **params)


def _passed_rate(optimizer: Any, learning_rate: Any, schedule: Any, schedule_params: Any) -> float | None:
    """The base learning rate that the user passed to `fit`; None for the default of the optimizer or schedule."""
    if not isinstance(optimizer, str):
        return None if isinstance(optimizer, Mapping) else optim.get(optimizer).learning_rate
    if learning_rate is None:
        learning_rate = (schedule_params or {}).get("base_lr", getattr(schedule, "base_lr", None))
    return None if learning_rate is None or callable(learning_rate) else float(learning_rate)


def _ema_options(ema: Any) -> dict[str, Any]:
    """The arguments of `jfit.optim.ema`."""
    options = dict(ema) if isinstance(ema, Mapping) else {"decay": ema}
    if unknown := [repr(name) for name in options if name not in ("decay", "debias")]:
        raise ValueError(f"ema has {', '.join(unknown)}; expected a dict with 'decay' and 'debias', as jfit.optim.ema has them")
    return {"decay": 0.999, "debias": True} | options


def initial_state(options: FitOptions, task: Task, optimizer: optim.Optimizer) -> TrainState:
    """Draw or take the initial parameters, and initialize the optimizer and the running sums."""
    given = {"params": task.params, "aux": task.aux, "metrics": on_devices(task.metrics)}
    same = _named(options, "seed", "initializer", "frozen", "log", "policy")
    state = init_state(task.model, optimizer, task.probe, **given, **same)
    check_trainable(task.model, state)
    return state


def make_step(options: FitOptions, model: Model, chosen: Chosen, settings: Settings, **more: Any) -> Any:
    """Make the training step, `jfit.train_step`, with all options that it has.

    Args:
        options: the arguments of `fit`.
        model: the `Model`, on the mesh of the run if there is one.
        chosen: optimizer and schedule.
        settings: with metrics, policy and regularizers.
        **more: other arguments of `train_step`.
    """
    names = ("frozen", "micro_batches", "clip_norm", "clip_value", "sync_batch_stats", "reduce", "log", "remat")
    return train_step(
        model,
        chosen.optimizer,
        metrics=on_devices(settings.metrics),
        schedule=chosen.schedule,
        policy=settings.policy,
        regularizers=settings.regularizers,
        skip_nonfinite=options.nan == "skip",
        **_named(options, *names),
        **more,
    )


def make_updates(
    options: FitOptions, models: Sequence[Model], chosen: Chosen, settings: Settings, trainable: Mapping[str, Any], **more: Any
) -> UpdatesStep:
    """Make the training step of several updates.

    Args:
        options, chosen, settings: as for `make_step`.
        models: the model of each update, with its loss.
        trainable: the parameters that are not frozen, by name.
        **more: other arguments of the `train_step` of the first update.
    """
    updates, steps = options.updates or (), list[Any]()
    kept = [options.frozen] if isinstance(options.frozen, str) else options.frozen
    for update, model, part in zip(updates, models, chosen.parts, strict=True):
        selected = update.select(list(trainable))
        others = [glob.escape(name) for name in trainable if name not in selected]
        own = {name: function for name, function in settings.regularizers.items() if name in selected}
        of_update = replace(settings, regularizers=own, metrics=() if steps else settings.metrics)
        schedule = chosen.schedule if part.takes_rate or not chosen.resolved.takes_rate else None
        choice = chosen._replace(optimizer=part, schedule=schedule)
        limited = replace(options, frozen=(*kept, *others))
        steps.append(make_step(limited, model, choice, of_update, **{} if steps else more))
    ema = None if options.ema is None else functools.partial(average, **_ema_options(options.ema))
    return UpdatesStep(tuple(steps), tuple(u.name for u in updates), tuple(u.every for u in updates), ema)


def with_task(settings: Settings, task: Task, chosen: Chosen) -> Settings:
    """Return settings with what the data, the metrics and the optimizer decided."""
    return replace(
        settings,
        metrics=task.metrics,
        metric_choice=task.metric_choice,
        learning_rate=chosen.learning_rate,
        inputs=specs_of(task.probe),
        optimizer=chosen.resolved.name,
        ignores_base_lr=chosen.schedule is not None and chosen.schedule.absolute,
        columns=task.columns,
    )


def _evaluation(task: Task, options: FitOptions, settings: Settings, state: TrainState) -> Any:
    """Return `evaluate(state, epoch) -> {name: value}`, or None.  Shapes are checked now, before training.

    Args:
        task: model and data.
        options: the arguments of `fit`.
        settings: devices, metrics, batch size and mixed-precision policy.
        state: initial state; only its shapes and dtypes are used.
    """
    data, size, model = task.eval_data, settings.eval_batch_size, task.model
    if data is None:
        return None
    scorer = Scorer(model, settings.metrics, settings.devices, size, settings.policy, settings.regularizers)
    probe = first_batch(model, data, size)
    with in_eval_data():
        plan = checked_plan(model, data, probe, state).in_evaluation
        totals = zero_totals(scorer.metrics, model.logged, model.num_losses)
        check_shapes(scorer.step, state.params, state.aux, totals, dict(probe))
    devices, last = len(settings.devices), data.num_rows % size if isinstance(data, ArrayData) else 0
    if isinstance(data, ArrayData) and not plan.paddable and last % devices:  # otherwise raised by the first evaluation
        raise ValueError(f"eval_data: {unpaddable_message(last, devices, plan.coupled)}")
    resident = task.data.nbytes if isinstance(task.data, ArrayData) else 0
    return make_evaluate(scorer, data, paddable=plan.paddable, on_device=options.data_on_device, resident=resident)


# ------------------------------------------------------------------------------------------------ checks before compilation
def checked_plan(model: Model, data: ArrayData | StreamData, probe: Mapping[str, Any], state: TrainState) -> Plan:
    """Infer the shapes of the model for the first batch, and check its heads and the labels before anything is compiled.

    Args:
        model: the `Model` to train.
        data: the training data.  Labels and row indices of all rows are checked if it is an `ArrayData`, else those of the
            first batch.
        probe: inputs of the first batch by name.
        state: parameters and auxiliary states, to test on `probe` whether rows affect each other where that is in question.

    Returns:
        Plan: shapes and row layouts of the outputs.

    Raises:
        ValueError: no output is a loss head, a label is not a valid class index, or an index is not in its table.
    """
    plan = verified_plan(model, state.params, state.aux, probe)
    check_heads(model)
    labels = labels_of(model, data)
    if labels is not None:
        mapped = data.mapped if isinstance(data, ArrayData) else set()  # they are checked when they are read
        check_model_labels(model, {k: v for k, v in labels.items() if k not in mapped}, plan)
    elif isinstance(data, ArrayData):  # labels on disk: the others are checked when they are read
        BatchLabels(model).check(Batch(dict(probe)), "the first batch")
    else:
        BatchLabels(model).check(data.peek(0), "batch 0 of epoch 0")
    return plan


def check_heads(model: Model) -> None:
    """Raise a ValueError if no output of a model is a loss head."""
    if model.joint_loss is None and all(o.kind == "plain" for o in model.outputs):
        remedy = "add a SoftmaxOutput, a RegressionOutput or MakeLoss, or pass a function as model with loss="
        raise ValueError(f"none of the outputs {[o.name for o in model.outputs]} is a loss head; {remedy}")


def check_trainable(model: Model, state: TrainState) -> None:
    if model.symbol is None and not any(jax.numpy.issubdtype(x.dtype, jax.numpy.inexact) for x in state.params.values()):
        dtypes = {name: str(x.dtype) for name, x in list(state.params.items())[:10]}
        raise ValueError(f"none of the parameters {dtypes} is floating-point, so there is nothing to train; convert them")


def check_host_metrics(metrics: Sequence[Any], micro_batches: int) -> None:
    if metrics and micro_batches > 1:
        problem = f"metric {metrics[0].name!r} runs on the host, which gets no outputs of micro_batches={micro_batches}"
        raise ValueError(f"{problem}; write it as a jfit.metrics.Metric of JAX functions, or set micro_batches=1")


def rows_of_parts(model: Model, data: Any, probe: Mapping[str, Any], options: FitOptions) -> dict[str, int]:
    """Numbers of rows that are split over the axis "data" of a mesh, by a description for error messages."""
    in_arrays, batch_size, eval_batch_size = isinstance(data, ArrayData), options.batch_size, options.eval_batch_size
    micro_batches = options.micro_batches
    size = batch_size if in_arrays else rows(Batch(dict(probe)), model.batch_axes)
    what = f"a batch (batch_size={batch_size})" if in_arrays else "the first batch"
    if micro_batches > 1 and size % micro_batches == 0:
        what, size = f"each of the {micro_batches} micro-batches of {what}", size // micro_batches
    evaluated = {} if eval_batch_size is None else {f"an evaluation batch (eval_batch_size={eval_batch_size})": eval_batch_size}
    return {what: size} | evaluated


def may_be_labels(data: Any, inputs: Any) -> bool:
    """Whether data is an array or a list of numbers with as many rows as `inputs`, and so may be their labels."""
    flat = isinstance(data, list) and bool(data) and not hasattr(data[0], "__len__")
    if not (flat or (is_array(data) and getattr(data, "ndim", 0))) or isinstance(inputs, tuple | Mapping):
        return False
    return hasattr(inputs, "__len__") and len(data) == len(inputs)


@contextlib.contextmanager
def in_eval_data() -> Iterator[None]:
    """Context manager that adds to a ValueError that it is about the evaluation data."""
    try:
        yield
    except ValueError as error:
        error.add_note("jfit: this error is in eval_data; its rows must have the same shapes as the rows of the training data")
        raise
