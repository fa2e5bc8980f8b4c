"""`fit`: checks its arguments, builds the model, the training step and the data sources, and trains a `Run`."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Never

import jax
import numpy as np

from jfit import optim
from jfit.callbacks import Callback, as_callback, check_replicas, checkpointing
from jfit.callbacks import progress as progress_bar
from jfit.checkpoints import checkpoint as checkpoints
from jfit.checkpoints import locks
from jfit.checkpoints.agreement import from_main
from jfit.checkpoints.fingerprint import AtStart, allowed_names, describe, describe_data, describe_optimizer, fingerprint
from jfit.checkpoints.same_run import check_same_run
from jfit.checkpoints.saved import check_name
from jfit.checks import nearest, one_of, positive_integer
from jfit.data import ArrayData, Batch, StreamData
from jfit.data.adapters import MOST_ROWS
from jfit.data.batch import is_array, rows
from jfit.distributed import num_processes
from jfit.evaluate.scorer import Scorer, make_evaluate
from jfit.feed.auto_devices import batch_sizes, is_auto, training_devices
from jfit.feed.batch_sizes import unpaddable_message
from jfit.feed.batches import Settings, data_of, first_batch, labels_of, settings_of
from jfit.feed.job_batches import agreed_plan, check_alike, num_batches_of
from jfit.feed.labels import BatchLabels, check_model_labels
from jfit.feed.train_data import add_class_weights, check_options, set_timeout, split_rows
from jfit.graph import Symbol
from jfit.loop.dispatch import DispatchSpec, auto_steps_per_call
from jfit.loop.loop import make_dispatcher
from jfit.loop.nonfinite import POLICIES
from jfit.loop.profiling import StepProfiler
from jfit.loop.step_log import step_names
from jfit.lowering.build import lower_with_inputs, model_and_values, split_trained
from jfit.lowering.coupling import verified_plan, warn_per_device
from jfit.lowering.model import Model, Plan, specs_of
from jfit.metrics.core import on_devices, on_host
from jfit.optim.core import check_numbers
from jfit.parallel import check_entry, check_unsharded, place, with_local, with_shards
from jfit.parallel.contexts import across, own_positions
from jfit.parallel.mesh import mesh_devices, mesh_of, on_mesh
from jfit.programs import check_shapes
from jfit.run import Run
from jfit.step import train_step
from jfit.step.fitting import choose_metrics, paired
from jfit.step.reduce import get as get_reduce
from jfit.step.regularizers import by_exact_name
from jfit.step.state import TrainState, init_state, split_params
from jfit.step.totals import zero_totals

MAPPED_CALL_BYTES = 32 << 20  # maximum size of the batches of a dispatch if the data is on the disk, with steps_per_call="auto"


def fit(
    model: Any,
    train_data: Any,
    eval_data: Any = None,
    *,
    batch_size: int = 32,
    num_epoch: int = 10,
    optimizer: Any = "sgd",
    optimizer_params: Mapping[str, Any] | None = None,
    eval_metric: Any = "auto",
    initializer: Any = None,
    devices: Any = None,
    label: str | Sequence[str] | None = None,
    sample_weight: Any = None,
    class_weight: Mapping[int, float] | None = None,
    steps_per_epoch: int | None = None,
    validation_split: float | None = None,
    eval_every: int = 1,
    shuffle: bool = True,
    seed: int = 0,
    steps_per_call: int | str = "auto",
    callbacks: Sequence[Any] = (),
    checkpoint: str | Path | None = None,
    checkpoint_every: int | str = "epoch",
    checkpoint_best: str | None = None,
    resume: bool | str | Path | None = None,
    resume_with: str | Sequence[str] = (),
    schedule: Any = None,
    schedule_params: Mapping[str, Any] | None = None,
    frozen: Sequence[str] = (),
    micro_batches: int = 1,
    clip_norm: float | None = None,
    clip_value: float | None = None,
    policy: Any = None,
    params: Any = None,
    aux: Any = None,
    loss: Any = None,
    loss_weights: Any = None,
    loss_per_batch: bool = False,
    gather_outputs: bool = False,
    eval_batch_size: int | None = None,
    directory: str | Path | None = None,
    progress: bool | str = "auto",
    data_on_device: bool | str = "auto",
    sync_batch_stats: bool = False,
    ema: Any = None,
    log_every: int | None = None,
    profile: tuple[int, int] | None = None,
    regularizers: Mapping[str, Callable[[Any], Any]] | None = None,
    reduce: Any = None,
    shard: Mapping[str, Any] | None = None,
    mesh: Any = None,
    data_timeout: float | None = None,
    nan: str = "warn",
    **unknown: Never,
) -> Run:
    """Train a model by gradient descent on mini-batches, and return a `Run`.

    Each step updates the parameters θ from one batch: θ ← θ − η · u(Σᵢ wᵢ ∇ℓᵢ / Σᵢ wᵢ), where ℓᵢ is the loss of row i, wᵢ its
    row weight (default 1), u the update rule of the optimizer and η the learning rate.

    Args:
        model: a `Symbol` whose outputs include a loss head (such as SoftmaxOutput), a `jfit.Model`, a model returned by
            `jfit.load`, a `Run` (its parameters and auxiliary states are the initial values), a pure function
            `apply(params, x) -> output` together with `loss` and `params`, or a module of Flax (nnx or linen), Equinox, Haiku
            or Keras together with `loss`.  `run.model` is then a trained copy of the module.
        train_data: training data: `(x, y)` or `(x, y, weight)` with arrays whose axis 0 is the batch axis (`weight`: array of
            shape (rows,), finite, at least 0; for a function also (rows, positions), weights of the positions of the label,
            such as tokens, in the loss and the metrics); a dict of arrays by input name, labels included; a DataFrame; an
            iterable of batches of these forms; or rows, such as a torch or Hugging Face `Dataset`, or an iterable of single
            rows (see `jfit.data.Rows`).  Columns and keys that the model does not take are not used, which is logged.
            In a job of several processes, all pass the same arrays or data set of rows, and each reads the rows of its own
            devices; an iterable yields the rows of its process, and `batch_size` counts the rows of all.
            For a function, `x` and `y` may be pytrees of arrays: several arguments as a list or a dict by name, a single
            argument as any dict, tuple or NamedTuple, and labels in the structure of the outputs.
        eval_data: evaluation data in the same forms, scored after every epoch.  Default: no evaluation.
        batch_size: number of rows per step over all devices.  An iterable of batches determines its own batch sizes.
        num_epoch: total number of epochs.  A resumed run trains only the epochs that are left.
        optimizer: name such as "sgd", "adam" or "lion", a `jfit.optim` optimizer, or an optax gradient transformation,
            which sees the parameters of a function as the pytree that they are (`optax.masked`, labels, masks).
        optimizer_params: dict of the parameters of a named optimizer, such as {"learning_rate": 0.1, "momentum": 0.9}.
        eval_metric: metric of training and evaluation: "auto", a name, a `jfit.metrics.Metric`, a function
            `f(label, output) -> float` of NumPy arrays, a list of these, or None.  A function runs on the host while the
            devices compute the next batches, and limits each dispatch to one step.  "auto" is "acc" for a graph ("mse" if its
            heads are regressions).  For a function it is "acc", "mse" over all rows, or None, chosen from the loss and the
            labels; `run.settings.metric_choice` says which and why.  A dict by output name, such as {"a": "acc", "b": "mse"},
            has metrics of single outputs of a function, named "a_accuracy" and "b_mse".
        initializer: name or `jfit.init` initializer of the parameters.  Default: Xavier.
        devices: None (the default device), a number of devices, "all", "auto", a device, or a list of devices.  Every batch is
            split evenly over the devices; BatchNorm then has statistics per device (see `sync_batch_stats`).  "auto" is all
            local accelerators.  On a CPU it is one device, or, if the model has convolutions, one per core of those that were
            configured before JAX started; if there is only one, a log line says how.  "auto" uses fewer devices if batches
            cannot be split evenly over them.  In a job of several processes, these are the devices of each; None is all.
        label: name of the label column, or list of names, if the data has named columns: a DataFrame, a dict of columns, or
            rows or batches that are dicts.  The other columns of a DataFrame are stacked to one float32 array (rows, columns),
            or, if the model has several inputs, become the inputs of their names.
        sample_weight: row weights of arrays, an array of shape (rows,): the same as `(x, y, weight)`.  Weights of an iterable
            are in its batches.
        class_weight: dict class -> weight, which multiplies the row weights of the training data.  Labels are class indices or
            one-hot; every class that occurs needs a weight.  Loss and metrics of training are weighted, evaluation is not.
        steps_per_epoch: number of batches per epoch; required for endless iterables.  Arrays, iterables with a length and
            callables `f(epoch)` start again in every epoch; for other iterables an epoch begins where the last one ended.
        validation_split: fraction of the rows of arrays, the last ones before shuffling, that are evaluation data instead of
            training data.  Not with `eval_data` or iterables.
        eval_every: number of epochs between two evaluations; the last epoch is always evaluated.
        shuffle: whether to shuffle arrays, and data sets of rows with `__len__` and `__getitem__`, before every epoch, by a
            permutation that depends only on `seed` and the epoch.  Memory maps larger than 1 GiB are shuffled in blocks.  Other
            iterables are read in their own order.
        seed: integer seed of the initial parameters, the shuffling and random operators such as Dropout.
        steps_per_call: number of steps per dispatch (call of a compiled program), or "auto".  The parameters are bitwise
            the same for every number; a reported loss may differ in its last bit.  On CPU, models with convolutions always run
            one step per dispatch.
        callbacks: list of `jfit.callbacks` and of functions of one `jfit.callbacks.Event`.
        checkpoint: folder in which to save checkpoints, locked until training ends.  Checkpoints of an earlier run in this
            folder are moved to its subfolder `earlier-<n>`, unless this run resumes from them.  These are kept until you delete
            them; a log line has their number and size.  Default: no checkpoints.
        checkpoint_every: "epoch", or the number of steps between two checkpoints.  The state at the end is saved in any case.
        checkpoint_best: name of a logged value such as "val_loss" or "val_accuracy": the checkpoint of the epoch with its best
            value is kept too, for `jfit.Run.load(checkpoint, which="best")`.  `jfit.callbacks.checkpointing` has more options.
            States of 16 MiB and more are written while training goes on; `fit` returns when the last one is on the disk.
        resume: True to continue from the newest checkpoint in `checkpoint`, or another folder of checkpoints, or a checkpoint,
            which must exist.  If the folder has no checkpoint, training starts from the beginning.  Checkpoints of a folder
            with nan or infinite parameters or auxiliary states are left out, with a warning, and moved to `earlier-<n>`.  A
            learning rate other than the one that the earlier run was given replaces the learning rate in the checkpoint.  Other
            differences in model, optimizer, settings or data raise an error; other versions of libraries or devices are logged.
        resume_with: names of the arguments that may differ from those of the earlier run, such as ["batch_size", "seed"], or
            "any".  `num_epoch` and the learning rate may always differ.
        schedule: learning-rate schedule: a name such as "cosine", "poly" or "factor", a `jfit.optim` schedule, or an optax
            schedule (a function of the number of updates).  Default: a constant learning rate.
        schedule_params: dict of the parameters of a named schedule.  Defaults: `base_lr` is the learning rate of the
            optimizer, `max_update` the total number of updates of the run.  A length is a number of updates, a fraction of the
            run (0.5), or `jfit.optim.epochs(n)`; with {"unit": "epoch"} numbers are epochs.
        frozen: names or glob patterns (such as "conv*") of parameters to keep at their initial values.
        micro_batches: number of equal parts of a batch whose gradients are computed one after the other and summed, to save
            memory.  The update is the same up to rounding, except for models with batch statistics (BatchNorm) or with loss
            heads that normalize over the batch (normalization="batch" or "valid"): they see one part at a time.  Dropout and
            other random numbers of rows are those of the whole batch in graphs, Equinox modules, and functions that take
            `row_ids`.  Other modules and functions have another `key`, and so other masks, in each part.  Each part updates
            `aux`.
        clip_norm: maximum global 2-norm of the mean gradient; a larger gradient is scaled down.  Default: no limit.
        clip_value: clip each element of the mean gradient to [-clip_value, clip_value].  Default: no clipping.
        policy: mixed precision: a compute dtype such as "bfloat16", or a `jfit.Policy`.  Parameters stay float32.  "float16"
            needs a scaled loss, and raises an error.
        params: dict of initial parameters by name; the others are initialized.  For a function: the full pytree, whose
            structure `run.params` has too.  For a module, default: its own values, or initialized from the first batch.
        aux: dict of initial auxiliary states (BatchNorm moving statistics) by name; for a function, a pytree.
        loss: only if `model` is a function or a module, and then required: a function `loss(output, label)` that returns the
            loss of each row, or the name of one of `jfit.losses`, such as "cross_entropy".
            `jfit.losses.get(name, ignore_index=-100)` has options.  For several outputs a dict of these by output name, such as
            {"a": "cross_entropy", "b": fn}: the losses are summed, and logged as "a_loss", "b_loss".  `loss(outputs, batch)`
            gets the inputs by argument name and needs no labels; parameters named `params` and `aux` after that get the
            parameters and the new auxiliary states.  A loss may return (losses, dict of values to log).  See
            `jfit.Model.from_function`.
        loss_weights: factors of the losses of a dict, by output name.  Default: 1.
        loss_per_batch: whether the loss returns one scalar for the batch instead of the loss of each row.  Its gradient is the
            gradient of the step; batches are never padded, and row weights and micro-batches are not supported.
        gather_outputs: on several devices, compute the loss of a function from the outputs and labels of all devices, so that a
            loss that combines rows, such as a contrastive loss, is that of one device.  Default: from the rows of each device.
        eval_batch_size: number of rows per evaluation batch.  Default: `batch_size`.
        directory: folder for files written by callbacks, available to them as `run.directory`.
        progress: "auto" shows a progress bar and a table of the epochs in terminals and notebooks only, True always, False
            never.
        data_on_device: whether to keep all training and evaluation arrays in the memory of every device; "auto" does so if
            they fit (30% of the memory of an accelerator; 2 GiB divided by the number of devices on CPU).
        sync_batch_stats: whether BatchNorm computes its statistics over the rows of all devices, instead of separately on
            each device as MXNet does.
        ema: decay of an exponential moving average of the parameters, such as 0.999; or a dict of the arguments of
            `jfit.optim.ema`, which has the formula.  The average of the trainable parameters is updated in every step.
            Evaluation, `run.score`, `run.predict` and `run.params` use it; `run.raw_params` are the parameters without
            averaging.  Moving statistics (BatchNorm) are those of training.  Default: no average.
        log_every: record loss, learning rate and metrics of the batch of every k-th step in `run.history.steps` (see
            `jfit.callbacks.Event` for callbacks with "step_log" events).  They are read some dispatches later, without waiting
            for the devices.  Metrics that run on the host, or are arrays, are left out.  Each recorded step adds about 100
            bytes to the checkpoints.  Default: no steps are recorded.
        profile: (start, stop): trace the steps after `start` updates up to `stop` updates with JAX's profiler, into the
            subfolder "profile" of `directory`, which is then required.  Default: no trace.
        regularizers: dict of a parameter name or glob pattern -> function of one parameter that returns a scalar, such as
            {"*_weight": jfit.regularizers.l2(1e-4)}.  Their sum is added to the mean loss of each batch: to the gradient
            (before clipping), and to the reported losses of training, evaluation and `run.score`; `jfit.score` and runs of
            `Run.load` report the loss without them.  Frozen parameters have none.  Default: no regularizers.
        reduce: how the devices reduce their gradients: "psum" (their sum), "sharded" (the same sum; each device has and
            updates its part of the optimizer state), "sharded_parameters" (parameters are split too), "ordered" (a sum in a
            fixed order, so that the bits do not depend on the number of devices), "bfloat16", "2bit" or "1bit" (fewer bytes,
            see docs/scaling.md), or a `jfit.step.reduce.Reduce`.  Default: "psum".
        shard: split parameters over the axes of `mesh` (tensor parallelism): dict of a parameter name or glob pattern -> the
            name of a mesh axis, a tuple of names or None for each dimension, such as {"fc*_weight": ("model", None)}; or a
            `jax.sharding.PartitionSpec`.  A later pattern replaces an earlier one.  The optimizer state of a parameter is split
            as the parameter is, everything else is replicated.  The numbers are those of one device, up to rounding: batch
            statistics are those of the whole batch.  `run.params` are arrays that are split over the devices; checkpoints have
            whole arrays.  Not with `reduce`.  Default: parameters are replicated.
        mesh: `jax.sharding.Mesh` with named axes, or a dict of names and sizes such as {"data": 2, "model": 4}, for a mesh over
            `devices` (default: as many local devices).  Batches are split over the axis named "data", if there is one;
            `batch_size` is a multiple of its size.  Default with `shard`: all local devices along the one axis that it names.
        data_timeout: maximum number of seconds to wait for a batch of an iterable; if it takes longer, a checkpoint is saved
            (with `checkpoint=`) and `jfit.data.DataTimeout` raised.  Default: no limit; a wait is logged after 60 seconds.
        nan: what to do if a loss is nan or infinite.  "warn": warn once and train on.  "skip": leave parameters, auxiliary
            states and optimizer state unchanged in a step whose loss, or any of these, would not be finite.  "stop": stop with
            the last finite state that was kept.  "rollback": go back to it and train on with the next batches; after three
            times, stop.  "stop" and "rollback" keep a copy on the host at the start of each epoch and with each checkpoint.
            Losses are read about twice per second (in a job of several processes, but for "warn", at the end of an epoch),
            without waiting for the devices, so that some steps run after the first bad one.  The warning
            (`jfit.loop.nonfinite.NonFiniteLoss`) names the step and, except for "warn" and iterables,
            from a replay of the step, the first input, node (or, for a function, line of code) or gradient that is not finite.

    Returns:
        Run: the trained model, with `state`, `params`, `history`, `score()`, `predict()`, `save()` and `plot()`.  After Ctrl-C
        it holds the state of the last finished step, and `run.interrupted` is True.  A second Ctrl-C raises KeyboardInterrupt;
        `jfit.last_run()` then returns the run.

    Raises:
        ValueError: invalid argument, data that does not match the inputs of the model, empty data, or invalid labels, row
            weights or row indices of tables.  For JAX arrays of an iterable it comes some steps after their batch.
        TypeError: unsupported type of the model, the data or a callback, or an argument that does not exist.
        FolderInUse: another run saves its checkpoints in the folder `checkpoint` (a RuntimeError).
        OSError: the folder `checkpoint` cannot be written, the last checkpoint could not be, or the folder `resume` does not
            exist (FileNotFoundError).
        DataTimeout: a batch took longer than `data_timeout`.
        SystemExit: with `checkpoint=`, SIGTERM ended the process: the step was finished, a checkpoint saved, the callbacks got
            "fit_end", and the exit code is 143.  A second SIGTERM ends the process at once.  Not if a handler of SIGTERM is
            installed, nor outside the main thread.
        Exception: exceptions of callbacks, data iterators and metric functions are re-raised; `jfit.last_run()` then returns
            the run with the state of the last finished step.

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
    check_entry("jfit.fit", several=True)
    if unknown:
        raise TypeError(f"fit() got an unexpected keyword argument {_instead(next(iter(unknown)))}")
    positive_integer(num_epoch=num_epoch)
    positive_integer(micro_batches=micro_batches, most=MOST_ROWS)
    check_numbers({k: v for k, v in (optimizer_params or {}).items() if k == "learning_rate"})
    check_options(steps_per_epoch, validation_split, eval_every, eval_data, data_timeout)
    settings = settings_of(
        devices=None if is_auto(devices) else devices,
        batch_size=batch_size,
        eval_batch_size=eval_batch_size,
        num_epoch=num_epoch,
        eval_metric=eval_metric,
        policy=policy,
        directory=directory,
        checkpoint=checkpoint,
        label=label,
        eval_every=eval_every,
        data_timeout=data_timeout,
    )
    rule = get_reduce(reduce)
    mesh = mesh_of(mesh, shard, devices, reduce) if mesh is not None or shard is not None else None
    one_of(POLICIES, nan=nan)
    if log_every is not None:
        positive_integer(log_every=log_every)
    profiler = None if profile is None else StepProfiler(profile, directory)
    callbacks = _callbacks(callbacks, progress, checkpoint, checkpoint_every, checkpoint_best)

    # model and data
    at_start = AtStart(bool(resume) or any(c.name.startswith("checkpointing") for c in callbacks))
    passed: dict[str, Any] = {"loss": at_start.describe("loss", loss), "schedule": at_start.describe("schedule", schedule)}
    model, params, aux = split_trained(model, params, aux)
    if isinstance(model, Symbol) and isinstance(train_data, Mapping):
        model = lower_with_inputs(model, train_data)
    options = {"loss_weights": loss_weights, "loss_per_batch": loss_per_batch, "gather_outputs": gather_outputs}
    model, params, aux = model_and_values(model, loss, params, aux, **options)
    try:
        data = data_of(
            model,
            train_data,
            batch_size,
            shuffle=shuffle,
            seed=seed,
            label=label,
            sample_weight=sample_weight,
            steps_per_epoch=steps_per_epoch,
        )
    except ValueError as error:
        if _is_label(eval_data, train_data):
            raise ValueError(
                f"{error} The third argument of fit is evaluation data, but it has as many rows as the second; if they are x "
                "and y, pass them as a pair: fit(model, (x, y))"
            ) from None
        raise
    set_timeout(data, data_timeout)
    data, held_back = split_rows(data, validation_split)
    check_alike(data)
    batches = num_batches_of(data, batch_size)
    probe = first_batch(model, data, batch_size)
    model = paired(model.bound(probe), settings.metrics, probe)
    data = add_class_weights(model, data, class_weight, train_data)

    # optimizer, schedule, metrics
    passed |= {"optimizer_params": optimizer_params, "schedule_params": schedule_params}
    learning_rate = (optimizer_params or {}).get("learning_rate")
    rate = _passed_rate(optimizer, learning_rate, schedule, schedule_params)
    if schedule is not None:
        schedule = optim.run_schedule(schedule, schedule_params, learning_rate, batches and batches * num_epoch, batches)
    settings = replace(settings, ignores_base_lr=schedule is not None and schedule.absolute)
    optimizer = resolve_optimizer(optimizer, optimizer_params, model, schedule)
    has_objects = not optimizer.takes_rate  # of the user: an optax transformation
    passed["optimizer"] = at_start.describe("optimizer", optimizer, describe_optimizer) if has_objects else optimizer
    passed |= {"learning_rate": rate, "ema": ema, "loss_weights": loss_weights}
    if ema is not None:
        optimizer = _with_average(optimizer, ema)
    chosen, choice = choose_metrics(settings.metrics, model, probe, labels_of(model, data))
    settings = replace(
        settings,
        metrics=chosen,
        metric_choice=choice,
        learning_rate=rate,
        inputs=specs_of(probe),
        optimizer=optimizer.name,
        columns=data.columns or settings.columns,
    )
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
    _check_trainable(model, state)
    if mesh is not None:
        parts = _rows_of_parts(model, data, probe, batch_size, eval_batch_size, micro_batches)
        settings = replace(settings, devices=mesh_devices(mesh, shard, state, parts))
    else:
        check_unsharded("params", state.params)
        check_unsharded("aux", state.aux)
    regularizers = by_exact_name(regularizers, model, split_params(model, state.params, frozen)[0])
    settings = replace(settings, regularizers=regularizers)
    passed["regularizers"] = at_start.describe("regularizers", dict(regularizers))
    plan = agreed_plan(checked_plan(model, data, probe, state))
    if is_auto(devices):
        sizes = batch_sizes(data, batch_size)
        chosen_devices = training_devices(model, plan, (state.params, state.aux, probe), sizes, micro_batches, rule)
        settings = replace(settings, devices=across(chosen_devices))
    warn_per_device(plan, len(settings.devices), synced=sync_batch_stats, slices=rule.slices)
    _check_host_metrics(host_metrics, micro_batches)
    names = step_names(metrics) if log_every or any("step_log" in c.events for c in callbacks) else ()
    step = train_step(
        on_mesh(model, settings.devices),
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
        batch_metrics=bool(names),
        regularizers=regularizers,
        reduce=rule,
        skip_nonfinite=nan == "skip",
    )

    # dispatches and evaluation
    per_call = 1 if host_metrics else _steps_per_call(steps_per_call, data, model, state.params, batch_size, callbacks)
    host = bool(host_metrics)
    passed |= {"batch_size": batch_size, "micro_batches": micro_batches, "seed": seed, "shuffle": shuffle, "frozen": frozen}
    passed |= {"clip_norm": clip_norm, "clip_value": clip_value, "policy": policy}
    passed |= {"steps_per_epoch": steps_per_epoch, "class_weight": class_weight, "sync_batch_stats": sync_batch_stats}
    passed |= {"reduce": "psum" if reduce is None else reduce, "gather_outputs": gather_outputs}
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (state.params, state.aux))
    spec = DispatchSpec(
        model, step, settings.devices, batch_size, micro_batches, per_call, return_outputs=host, step_names=names
    )
    dispatcher = make_dispatcher(data, spec, paddable=plan.paddable, reason=plan.coupled, on_device=data_on_device)
    eval_data = eval_data if held_back is None else held_back
    if eval_data is not None:
        eval_data = data_of(model, eval_data, settings.eval_batch_size, label=settings.columns)
    evaluate = None if eval_data is None else _evaluation(model, eval_data, settings, state, data, data_on_device)
    state = with_local(state, rule, split_params(model, state.params, frozen)[0], len(settings.devices))
    run = Run(model, settings, place(with_shards(state, step, len(settings.devices)), settings.devices))
    del state  # otherwise this reference would keep the initial parameters in memory
    run.attach(dispatcher, callbacks, evaluate, log_every, profiler, nan)
    others = {"num_epoch": num_epoch, "eval_metric": eval_metric, "loss_per_batch": loss_per_batch, "label": label}
    others |= {
        "validation_split": validation_split,
        "steps_per_call": steps_per_call,
        "data_on_device": data_on_device,
        "nan": nan,
    }
    of_run = functools.cache(lambda: fingerprint(model, data, shapes, settings.inputs, settings.devices, passed))
    if resume_with:
        allowed_names(resume_with, of_run())
    run.set_fingerprint(of_run, lambda: describe(others))
    more = {"eval_every": eval_every, "eval_batch_size": settings.eval_batch_size, "values of steps": list(names)}
    more |= {"steps between events": sorted(c.every for c in callbacks if c.every and "step" in c.events)}
    more |= {"own devices": own_positions(settings.devices)}
    more |= {"checkpoint": checkpoint is not None, "resume": bool(resume)}
    check_same_run(run, lambda: {**more, "eval_data": None if eval_data is None else describe_data(eval_data)})
    _prepare_folder(run, checkpoint, resume, resume_with)
    try:
        return run.go()
    finally:
        at_start.end()


# without `unknown`, which only improves the error message for an unknown name
_signature = inspect.signature(fit)
fit.__dict__["__signature__"] = _signature.replace(parameters=list(_signature.parameters.values())[:-1])
# argument of Keras, MXNet and optimizers -> what `fit` has in its place
_INSTEAD = {"epochs": "num_epoch", "y": "train_data=(x, y)", "validation_data": "eval_data"}
_INSTEAD |= {"validation_batch_size": "eval_batch_size", "validation_freq": "eval_every", "verbose": "progress"}
_INSTEAD |= {"metrics": "eval_metric", "arg_params": "params", "aux_params": "aux", "ctx": "devices", "context": "devices"}
_INSTEAD |= dict.fromkeys(("batch_end_callback", "epoch_end_callback"), "callbacks")
_INSTEAD |= {k: f"optimizer_params={{{k!r}: ...}}" for k in ("learning_rate", "momentum", "wd", "weight_decay")}
_INSTEAD |= {"lr": _INSTEAD["learning_rate"]}


def _instead(name: str) -> str:
    """The end of the error message for an unknown argument of `fit`."""
    near = _INSTEAD.get(name) or nearest(name, inspect.signature(fit).parameters)
    return f"{name!r}" + (f"; use {near}" if name in _INSTEAD else f"; did you mean {near}?" if near else "")


def _is_label(data: Any, inputs: Any) -> bool:
    """Whether data is an array or a list of numbers with as many rows as `inputs`, and so may be their labels."""
    flat = isinstance(data, list) and bool(data) and not hasattr(data[0], "__len__")
    if not (flat or (is_array(data) and getattr(data, "ndim", 0))) or isinstance(inputs, tuple | Mapping):
        return False
    return hasattr(inputs, "__len__") and len(data) == len(inputs)


def _prepare_folder(run: Run, checkpoint: Any, resume: Any, resume_with: str | Sequence[str]) -> None:
    """Lock the folder of checkpoints, resume from it or another one, and move the checkpoints of another run aside."""
    source = checkpoint if resume is True else None if resume is False else resume
    try:
        if checkpoint is not None:
            from_main(lambda: locks.acquire(checkpoint, run), "locking the folder of checkpoints")  # `Run.go` releases it
        if source is not None:
            check_name(source, "resume")
        left_out = run.resume_from(source, resume_with) if resume else False
        if checkpoint is not None and (source is None or Path(source).resolve() != Path(checkpoint).resolve()):
            # otherwise those of an earlier run with more steps would be read as the newest
            checkpoints.set_aside(checkpoint)
        elif checkpoint is not None and left_out:
            checkpoints.set_aside(checkpoint, after=run.position["step"])
    except BaseException:
        locks.release(run)
        raise


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


def _evaluation(
    model: Model, data: ArrayData | StreamData, settings: Settings, state: TrainState, train: Any, on_device: Any
) -> Any:
    """Return `evaluate(state, epoch) -> {name: value}`.  Shapes are checked now, before training.

    Args:
        model: the `Model` that is trained.
        data: the evaluation data of `fit`.
        settings: devices, metrics, batch size and mixed-precision policy.
        state: initial state; only its shapes and dtypes are used.
        train: the training data, whose size is subtracted from the device memory.
        on_device: the argument `data_on_device` of `fit`.
    """
    size, metrics = settings.eval_batch_size, settings.metrics
    set_timeout(data, settings.data_timeout)
    check_alike(data, "evaluation data")
    probe = first_batch(model, data, size)
    scorer = Scorer(model, metrics, settings.devices, size, settings.policy, settings.regularizers)
    try:
        plan = checked_plan(model, data, probe, state).in_evaluation
        totals = zero_totals(scorer.metrics, model.logged, model.num_losses)
        check_shapes(scorer.step, state.params, state.aux, totals, dict(probe))
    except ValueError as error:
        error.add_note("jfit: this error is in eval_data; its rows must have the same shapes as the rows of the training data")
        raise
    devices, last = len(settings.devices), data.num_rows % size if isinstance(data, ArrayData) else 0
    if isinstance(data, ArrayData) and not plan.paddable and last % devices:  # otherwise raised by the first evaluation
        raise ValueError(f"eval_data: {unpaddable_message(last, devices, plan.coupled)}")
    resident = train.nbytes if isinstance(train, ArrayData) else 0
    return make_evaluate(scorer, data, paddable=plan.paddable, on_device=on_device, resident=resident)


def resolve_optimizer(
    optimizer: Any, optimizer_params: Mapping[str, Any] | None, model: Model, schedule: Any = None
) -> optim.Optimizer:
    """Make the optimizer from the arguments of `fit`, with the `lr_mult` and `wd_mult` attributes of the graph's variables."""
    params = dict(optimizer_params or {})
    attrs = {} if model.symbol is None else model.symbol.attr_dict()
    for kind in ("lr_mult", "wd_mult"):
        multipliers = {n: float(a[f"__{kind}__"]) for n, a in attrs.items() if f"__{kind}__" in a}
        if multipliers and isinstance(optimizer, str) and optimizer.lower() in optim.OPTIMIZERS:
            params.setdefault(kind, multipliers)
        elif multipliers:
            warnings.warn(
                f"the {kind} attributes of {', '.join(multipliers)} are ignored: only jfit optimizers by name support them",
                stacklevel=3,
            )
    if schedule is not None and isinstance(optimizer, str) and "learning_rate" not in params:
        base = optim.as_schedule(schedule).base_lr
        if base is not None:
            params["learning_rate"] = base
    resolved = optim.get(optimizer, **params)
    if schedule is not None and not resolved.takes_rate:
        raise ValueError(
            "schedule= needs an optimizer by name, because an optax instance has its own learning rate; pass the schedule to "
            "the optax constructor instead, as in optax.adam(schedule)"
        )
    return resolved


def _passed_rate(optimizer: Any, learning_rate: Any, schedule: Any, schedule_params: Any) -> float | None:
    """The base learning rate that the user passed to `fit`; None for the default of the optimizer or schedule."""
    if not isinstance(optimizer, str):
        return optim.get(optimizer).learning_rate
    if learning_rate is None:
        learning_rate = (schedule_params or {}).get("base_lr", getattr(schedule, "base_lr", None))
    return None if learning_rate is None or callable(learning_rate) else float(learning_rate)


def _check_host_metrics(metrics: Sequence[Any], micro_batches: int) -> None:
    if metrics and micro_batches > 1:
        raise ValueError(
            f"metric {metrics[0].name!r} runs on the host and needs the outputs of a whole batch, but with micro_batches="
            f"{micro_batches} they are not kept; write it as a jfit.metrics.Metric of JAX functions, or set micro_batches=1"
        )


def _steps_per_call(
    steps: int | str, data: Any, model: Model, params: Mapping[str, Any], batch_size: int, callbacks: Sequence[Any]
) -> int:
    if steps == "auto":
        maximum = auto_steps_per_call(model, params, batch_size) if isinstance(data, ArrayData) else 1
        if isinstance(data, ArrayData) and data.mapped:  # the host then reads the batches of one dispatch only
            maximum = int(np.clip(MAPPED_CALL_BYTES * data.num_rows // (data.nbytes * batch_size), 1, maximum))
    elif isinstance(steps, bool) or not isinstance(steps, (int, np.integer)) or steps < 1:
        raise ValueError(f'steps_per_call is {steps!r}; expected "auto" or an integer of at least 1')
    else:
        maximum = int(steps)
    # A dispatch must not contain more steps than there are between two "step" events of a callback.
    return min([maximum, *(c.every for c in callbacks if c.every and "step" in c.events)])


def _rows_of_parts(
    model: Model, data: Any, probe: Mapping[str, Any], batch_size: int, eval_batch_size: int | None, micro_batches: int
) -> dict[str, int]:
    """Numbers of rows that are split over the axis "data" of a mesh, by a description for error messages."""
    is_array = isinstance(data, ArrayData)
    size = batch_size if is_array else rows(Batch(dict(probe)), model.batch_axes)
    what = f"a batch (batch_size={batch_size})" if is_array else "the first batch"
    if micro_batches > 1 and size % micro_batches == 0:
        what, size = f"each of the {micro_batches} micro-batches of {what}", size // micro_batches
    evaluated = {} if eval_batch_size is None else {f"an evaluation batch (eval_batch_size={eval_batch_size})": eval_batch_size}
    return {what: size} | evaluated


def check_heads(model: Model) -> None:
    """Raise a ValueError if no output of a model is a loss head."""
    if model.joint_loss is None and all(o.kind == "plain" for o in model.outputs):
        raise ValueError(
            f"none of the outputs {[o.name for o in model.outputs]} is a loss head, so there is no gradient to train with; add "
            "a SoftmaxOutput, a RegressionOutput or MakeLoss to the network, or pass a function as model with loss="
        )


def _with_average(optimizer: optim.Optimizer, ema: Any) -> optim.Optimizer:
    options = ema if isinstance(ema, Mapping) else {"decay": ema}
    if unknown := [repr(name) for name in options if name not in ("decay", "debias")]:
        raise ValueError(f"ema has {', '.join(unknown)}; expected a dict with 'decay' and 'debias', as jfit.optim.ema has them")
    return optim.ema(optimizer, **options)


def _check_trainable(model: Model, state: TrainState) -> None:
    if model.symbol is None and not any(jax.numpy.issubdtype(x.dtype, jax.numpy.inexact) for x in state.params.values()):
        dtypes = {name: str(x.dtype) for name, x in list(state.params.items())[:10]}
        raise ValueError(
            f"none of the parameters {dtypes} is floating-point, so there is nothing to train; convert them, as in "
            "jax.tree.map(lambda x: x.astype('float32'), params)"
        )


def _callbacks(callbacks: Any, progress: bool | str, checkpoint: Any, every: int | str, best: str | None) -> list[Any]:
    sequence = [callbacks] if callable(callbacks) or isinstance(callbacks, Callback) else callbacks
    converted = [as_callback(c) for c in sequence]
    if checkpoint is not None:
        options = {} if best is None else {"keep_best": 1, "monitor": best}
        converted.append(checkpointing(checkpoint, every=every, **options))
    elif best is not None:
        raise ValueError(f"checkpoint_best={best!r} needs checkpoint=, the folder of the checkpoints")
    if progress:
        converted.insert(0, progress_bar(force=progress is True))
    if num_processes() > 1 and not any(c.name == "check_replicas" for c in converted):
        converted.append(check_replicas())
    # Checkpointing is the last callback, so that a checkpoint has the states of the others after the same event.
    return sorted(converted, key=lambda c: c.name.startswith("checkpointing"))
