"""`fit`: checks its arguments, builds model, step, dispatcher and evaluation, and starts a `Run`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jfit import optim
from jfit.data import ArrayData, StreamData, check_labels
from jfit.graph import Symbol
from jfit.lowering.build import lower_with_inputs, model_and_values, split_trained
from jfit.lowering.model import Model, Plan, specs_of
from jfit.metrics.core import on_devices, on_host
from jfit.parallel import place
from jfit.step import train_step
from jfit.step.state import TrainState, init_state
from jfit.step.totals import sized_for, zero_totals
from jfit.train import checkpoint as checkpoints
from jfit.train.batches import Settings, data_of, first_batch, settings_of
from jfit.train.callbacks import Callback, as_callback, checkpointing
from jfit.train.callbacks import progress as progress_bar
from jfit.train.evaluate import Scorer, make_evaluate
from jfit.train.loop import DispatchSpec, auto_steps_per_call, make_dispatcher
from jfit.train.run import Run


def fit(
    model: Any,
    train_data: Any,
    eval_data: Any = None,
    *,
    batch_size: int = 32,
    num_epoch: int = 10,
    optimizer: Any = "sgd",
    optimizer_params: Mapping[str, Any] | None = None,
    eval_metric: Any = "acc",
    initializer: Any = None,
    devices: Any = None,
    shuffle: bool = True,
    seed: int = 0,
    steps_per_call: int | str = "auto",
    callbacks: Sequence[Any] = (),
    checkpoint: str | Path | None = None,
    checkpoint_every: int | str = "epoch",
    resume: bool | str | Path | None = None,
    schedule: Any = None,
    schedule_params: Mapping[str, Any] | None = None,
    frozen: Sequence[str] = (),
    micro_batches: int = 1,
    clip_norm: float | None = None,
    clip_value: float | None = None,
    policy: Any = None,
    params: Any = None,
    aux: Any = None,
    loss: Callable[..., Any] | None = None,
    eval_batch_size: int | None = None,
    directory: str | Path | None = None,
    progress: bool | str = "auto",
    data_on_device: bool | str = "auto",
    sync_batch_stats: bool = False,
) -> Run:
    """θ ← θ − η · u( Σᵢ wᵢ ∇ℓᵢ / Σᵢ wᵢ ), batch after batch, epoch after epoch.

    Args:
        model: a Symbol, a Model, what `jfit.load` gives, or a pure function `apply(params, x)` with `loss=` and `params=`.
        train_data: `(x, y)`, a dict of arrays by input name (rows on axis 0), or anything iterable over batches;
            `(x, y, weight)` with one finite weight of at least 0 per row.
        eval_data: the same, scored after every epoch; its batches may have another size.
        batch_size: rows of a global batch, over all devices.
        num_epoch: epochs in all (with `resume`, the finished ones count).
        optimizer: a name ("sgd", "adam", "lion", ...), a `jfit.optim` optimizer or any optax transformation.
        optimizer_params: its parameters where it is a name, such as {"learning_rate": 0.1, "momentum": 0.9}.
        eval_metric: name, `jfit.metrics.Metric`, function `(label, output)` of numpy arrays, or a list of these; of training
            and evaluation.  A function runs on the host a few batches behind the devices; steps then go one a dispatch.
        initializer: name or `jfit.init` initializer of the parameters.
        devices: None (one device), a number, "all" or a list of devices; the batch is split over them.
        shuffle: read arrays in a new order every epoch, a function of (seed, epoch).
        seed: fixes initial values, orders and dropout.
        steps_per_call: updates in one dispatch, same bits as one by one (on CPU, nets with convolutions run one);
            "auto" chooses.
        callbacks: `jfit.callbacks` or functions of one event.
        checkpoint: folder for checkpoints; an earlier run's are moved into `earlier-<n>` there unless this run resumes.
        checkpoint_every: "epoch" or a number of steps.
        resume: True or a folder: go on from the newest checkpoint there, if there is one.
        schedule: learning-rate schedule: name ("cosine", "poly", "factor", ...), `jfit.optim` schedule, or an optax schedule
            (a function of the count).
        schedule_params: its parameters where it is a name; base_lr is the optimizer's learning rate and max_update all
            updates of the run unless given.  Lengths are updates, `jfit.optim.epochs(30)`, parts of the run (0.5), or counted
            in {"unit": "epoch"}.
        frozen: names or glob patterns of parameters that do not learn.
        micro_batches: the batch in so many parts with added gradients: less memory, and the same update where neither batch
            statistics nor a normalised loss head (normalization="batch" or "valid") look at the whole batch.
        clip_norm: bound on the global 2-norm of the mean gradient.
        clip_value: bound on each value of the mean gradient.
        policy: "bfloat16" or a `Policy`: compute dtype with float32 parameters.
        params: initial values by name (for a function: its whole parameter tree).
        aux: the same for auxiliary states.
        loss: per-example loss `loss(output, label)`, with a function as model.
        eval_batch_size: rows of an evaluation batch; default batch_size.
        directory: where callbacks put files, kept in the run.
        progress: "auto": a bar and a table of epochs where someone looks (terminal, notebook); True: everywhere; False: none.
        data_on_device: keep arrays on the devices; "auto": where they fit.
        sync_batch_stats: batch statistics over all devices, not per device as MXNet.

    Returns:
        A `Run`: `.state`, `.params`, `.history`, `.score()`, `.predict()`, `.save()`, `.plot()`.  After Ctrl-C it holds the
        last good state and `.interrupted` is True; after an exception it is `jfit.last_run()`.

    Raises:
        ValueError: what does not fit, in a sentence: names, shapes, labels, devices, empty data.

    Example:
        >>> import jfit, numpy as np
        >>> x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
        >>> y = (x[:, 0] > 0).astype("float32")
        >>> net = jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=2)
        >>> net = jfit.sym.SoftmaxOutput(net, name="softmax")
        >>> run = jfit.fit(net, (x, y), num_epoch=5, optimizer_params={"learning_rate": 0.5}, progress=False)
        >>> run.score((x, y))["accuracy"] > 0.9
        True
    """
    # settings
    _positive(
        batch_size=batch_size,
        num_epoch=num_epoch,
        micro_batches=micro_batches,
        eval_batch_size=batch_size if eval_batch_size is None else eval_batch_size,
    )
    settings = settings_of(
        devices=devices,
        batch_size=batch_size,
        eval_batch_size=eval_batch_size,
        num_epoch=num_epoch,
        eval_metric=eval_metric,
        policy=policy,
        directory=directory,
        checkpoint=checkpoint,
    )
    callbacks = _callbacks(callbacks, progress, checkpoint, checkpoint_every)

    # model and data
    model, params, aux = split_trained(model, params, aux)
    if isinstance(model, Symbol) and isinstance(train_data, Mapping):
        model = lower_with_inputs(model, train_data)
    model, params, aux = model_and_values(model, loss, params, aux)
    data = data_of(model, train_data, batch_size, shuffle=shuffle, seed=seed)
    batches = data.num_batches(batch_size)
    probe = first_batch(model, data, batch_size)

    # optimizer, schedule, metrics
    learning_rate = (optimizer_params or {}).get("learning_rate")
    if schedule is not None:
        schedule = optim.run_schedule(schedule, schedule_params, learning_rate, batches and batches * num_epoch, batches)
    optimizer = resolve_optimizer(optimizer, optimizer_params, model, schedule)
    settings = replace(settings, metrics=sized_for(settings.metrics, model, probe))
    metrics, host_metrics = on_devices(settings.metrics), on_host(settings.metrics)

    # state and step
    state = init_state(
        model,
        optimizer,
        probe,
        seed=seed,
        initializer=initializer,
        params=params,
        aux=aux,
        metrics=metrics,
        frozen=frozen,
    )
    plan = checked_plan(model, data, probe)
    _check_host_metrics(host_metrics, micro_batches)
    step = train_step(
        model,
        optimizer,
        metrics=metrics,
        schedule=schedule,
        frozen=frozen,
        micro_batches=micro_batches,
        clip_norm=clip_norm,
        clip_value=clip_value,
        policy=settings.policy,
        sync_batch_stats=sync_batch_stats,
        outputs=bool(host_metrics),
    )

    # batches to the step, epochs of batches
    per_call = 1 if host_metrics else _steps_per_call(steps_per_call, data, model, state.params, batch_size, callbacks)
    spec = DispatchSpec(model, step, settings.devices, batch_size, micro_batches, per_call, return_outputs=bool(host_metrics))
    dispatcher = make_dispatcher(data, spec, paddable=plan.paddable, on_device=data_on_device)
    evaluate = _evaluation(model, eval_data, settings, state, data, data_on_device)
    run = Run(model, settings, place(state, settings.devices))
    del state  # the run's own; a second reference would keep the first parameters in memory
    run.attach(dispatcher, callbacks, evaluate)
    source = checkpoint if resume is True else resume or None
    if resume:
        run.resume_from(source)
    if checkpoint is not None and (source is None or Path(source) != Path(checkpoint)):
        checkpoints.set_aside(checkpoint)  # an earlier run's: its higher steps would be taken for newer
    return run.go()


def checked_plan(model: Model, data: ArrayData | StreamData, probe: Mapping[str, Any]) -> Plan:
    """The plan for the data's shapes; labels and heads are looked at before anything is compiled."""
    plan = model.plan(specs_of(probe))
    _check_heads(model)
    _check_labels(model, data.arrays if isinstance(data, ArrayData) else probe, plan)
    return plan


def _evaluation(model: Model, eval_data: Any, settings: Settings, state: TrainState, train: Any, on_device: Any) -> Any:
    """`(state, epoch) -> logs`, or None without evaluation data, whose first batch is tried on the shapes before training."""
    if eval_data is None:
        return None
    size, metrics = settings.eval_batch_size, settings.metrics
    data = data_of(model, eval_data, size)
    probe = first_batch(model, data, size)
    scorer = Scorer(model, metrics, settings.devices, size, settings.policy)
    try:
        plan = checked_plan(model, data, probe)
        jax.eval_shape(scorer.step, state.params, state.aux, zero_totals(scorer.metrics), dict(probe))
    except ValueError as error:
        error.add_note("jfit: this is about eval_data; its rows need the shapes that the training data has")
        raise
    resident = train.nbytes if isinstance(train, ArrayData) else 0
    return make_evaluate(scorer, data, paddable=plan.paddable, on_device=on_device, resident=resident)


def resolve_optimizer(
    optimizer: Any, optimizer_params: Mapping[str, Any] | None, model: Model, schedule: Any = None
) -> optim.Optimizer:
    """The optimizer that `fit` was asked for, with the multipliers that the graph's variables carry."""
    params = dict(optimizer_params or {})
    attrs = {} if model.symbol is None else model.symbol.attr_dict()
    for kind in ("lr_mult", "wd_mult"):
        of_graph = {n: float(a[f"__{kind}__"]) for n, a in attrs.items() if f"__{kind}__" in a}
        if of_graph and isinstance(optimizer, str) and optimizer.lower() in optim.OPTIMIZERS:
            params.setdefault(kind, of_graph)
        elif of_graph:
            warnings.warn(
                f"the graph sets {kind} for {', '.join(of_graph)}, but only jfit's optimizers by name take it: it is ignored",
                stacklevel=3,
            )
    if schedule is not None and isinstance(optimizer, str) and "learning_rate" not in params:
        base = optim.as_schedule(schedule).base_lr
        if base is not None:
            params["learning_rate"] = base
    resolved = optim.get(optimizer, **params)
    if schedule is not None and not resolved.takes_rate:
        raise ValueError(
            "schedule= needs an optimizer by name: an optax instance keeps its own learning rate; give the schedule to its "
            "constructor instead, as in optax.adam(schedule)"
        )
    return resolved


def _check_host_metrics(metrics: Sequence[Any], micro_batches: int) -> None:
    if metrics and micro_batches > 1:
        raise ValueError(
            f"metric {metrics[0].name!r} runs on the host and needs the outputs of a whole batch, but micro_batches="
            f"{micro_batches} keeps none; write it as a jfit.metrics.Metric of jax functions, or set micro_batches=1"
        )


def _steps_per_call(
    steps: int | str, data: Any, model: Model, params: Mapping[str, Any], batch_size: int, callbacks: Sequence[Any]
) -> int:
    if steps == "auto":
        most = auto_steps_per_call(model, params, batch_size) if isinstance(data, ArrayData) else 1
    elif isinstance(steps, bool) or not isinstance(steps, (int, np.integer)) or steps < 1:
        raise ValueError(f'steps_per_call is {steps!r}; needed "auto" or a whole number of at least 1')
    else:
        most = int(steps)
    # a call never runs past a step that a callback waits for
    return min([most, *(c.every for c in callbacks if c.every and "step" in c.events)])


def _check_labels(model: Model, arrays: Mapping[str, Any], plan: Plan) -> None:
    """Class numbers outside the head's classes are an error before training, where the labels are at hand."""
    for out, shape in zip(model.outputs, plan.shapes, strict=True):
        if out.class_axis is None or out.label is None or out.label not in arrays:
            continue
        labels = arrays[out.label]
        if labels.ndim == len(shape.shape) and labels.shape[1:] == shape.shape[1:]:
            continue  # soft labels: a distribution per row
        check_labels(labels, shape.shape[out.class_axis], out.label, out.ignore_label)


def _check_heads(model: Model) -> None:
    if all(o.kind == "plain" for o in model.outputs):
        raise ValueError(
            f"the outputs {[o.name for o in model.outputs]} are no loss heads, so there is nothing to learn from; end the "
            "network in SoftmaxOutput, a RegressionOutput or MakeLoss, or pass a function with loss="
        )


def _callbacks(callbacks: Any, progress: bool | str, checkpoint: Any, every: int | str) -> list[Any]:
    listed = [callbacks] if callable(callbacks) or isinstance(callbacks, Callback) else callbacks
    pure = [as_callback(c) for c in listed]
    if checkpoint is not None:
        pure.append(checkpointing(checkpoint, every=every))
    if progress:
        pure.insert(0, progress_bar(force=progress is True))
    # a checkpoint holds the states that the other callbacks have after the same event
    return sorted(pure, key=lambda c: c.name == "checkpointing")


def _positive(**values: Any) -> None:
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
            raise ValueError(f"{name} is {value!r}; needed a whole number of at least 1")
