"""`fit`: prepares a training, and runs it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Never

import jax

from jfit import allocator
from jfit.callbacks import Callback
from jfit.callbacks.intervals import Every
from jfit.checkpoints.same_run import check_same
from jfit.checks import nearest
from jfit.parallel import check_entry
from jfit.prepare import FitOptions, prepare
from jfit.run import Run
from jfit.step.updates import Update


def fit(
    model: Any,
    train_data: Any,
    eval_data: Any = None,
    *,
    batch_size: int = 32,
    num_epoch: int | None = None,
    num_steps: int | None = None,
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
    eval_every: int | str | Every = 1,
    shuffle: bool = True,
    seed: int = 0,
    steps_per_call: int | str = "auto",
    callbacks: Sequence[Any] = (),
    checkpoint: str | Path | Callback | None = None,
    checkpoint_every: int | str | Every = "epoch",
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
    row_axes: Any = 0,
    eval_batch_size: int | None = None,
    directory: str | Path | None = None,
    progress: bool | str = "auto",
    data_on_device: bool | str = "auto",
    sync_batch_stats: bool = False,
    ema: Any = None,
    log_every: int | str | Every | None = None,
    log: str | Sequence[str] = (),
    regularizers: Mapping[str, Callable[[Any], Any]] | None = None,
    reduce: Any = None,
    shard: Mapping[str, Any] | None = None,
    mesh: Any = None,
    data_timeout: float | None = None,
    nan: str = "warn",
    updates: Sequence[Update] | None = None,
    remat: str | Sequence[str] = "none",
    **unknown: Never,
) -> Run:
    """Train a model by gradient descent on mini-batches, and return a `Run`.

    Each step updates the parameters θ from one batch: θ ← θ − η · u(Σᵢ wᵢ ∇ℓᵢ / Σᵢ wᵢ), where ℓᵢ is the loss of row i, wᵢ its
    row weight (default 1), u the update rule of the optimizer and η the learning rate.

    Args:
        model: a `Symbol` whose outputs include a loss head (such as SoftmaxOutput), a `jfit.Model`, a model returned by
            `jfit.load`, a `Run` (its parameters and auxiliary states are the initial values), a pure function
            `apply(params, x) -> output` together with `loss` and `params`, or a module of Flax (nnx or linen), Equinox, Haiku
            or Keras, or a HybridBlock of `jfit.mx.gluon`, together with `loss`.  `run.model` is then a trained copy of the
            module.
        train_data: training data: `(x, y)` or `(x, y, weight)` with arrays whose axis 0 is the batch axis (`weight`: array of
            shape (rows,), finite, at least 0; for a function also (rows, positions), weights of the positions of the label,
            such as tokens, in the loss and the metrics); a dict of arrays by input name, labels included; a DataFrame; an
            iterable of batches of these forms; or rows, such as a torch or Hugging Face `Dataset`, or an iterable of single
            rows (see `jfit.data.Rows`).  Columns and keys that neither the model nor its loss takes are not used, which is
            logged. In a job of several processes, all pass the same arrays or data set of rows, and each reads the rows of its
            own devices; an iterable yields the rows of its process, and `batch_size` counts the rows of all. For a function,
            `x` and `y` may be pytrees of arrays: several arguments as a list or a dict by name, a single argument as any dict,
            tuple or NamedTuple, and labels any pytree; a dict of losses takes them in the structure of the outputs.
        eval_data: evaluation data in the same forms, scored as `eval_every` says.  Default: no evaluation.
        batch_size: number of rows per step over all devices.  An iterable of batches determines its own batch sizes.
        num_epoch: total number of epochs.  A resumed run trains only the epochs that are left.  Default: 10, without
            `num_steps`.
        num_steps: total number of steps (one batch each), instead of `num_epoch`.  Training may end within an epoch, which then
            has its row in the history and its "epoch_end" event; if training goes on later, the row is replaced at the end of
            the epoch.  An endless iterable needs no `steps_per_epoch`: it is one epoch.  Schedules are as long as the run.
        optimizer: name such as "sgd", "adam" or "lion", a `jfit.optim` optimizer, or an optax gradient transformation,
            which sees the parameters of a function as the pytree that they are (`optax.masked`, labels, masks).  A name means
            optax's optimizer for functions and modules, and MXNet's for graphs, see docs/optimizers.md.  A dict of a parameter
            name or glob pattern -> one of these has several optimizers; the first pattern that matches a name counts, and every
            trainable parameter needs one ("*" matches all).  `run.base_lr` is then the learning rate of the first optimizer by
            name, and those of the others keep their ratio to it, also under a `schedule`.
        optimizer_params: dict of the parameters of a named optimizer, such as {"learning_rate": 0.1, "momentum": 0.9}: those of
            optax for functions and modules, with `lr_mult` and `multi_precision`.  With a dict of optimizers, a dict of pattern
            -> such a dict.
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
        steps_per_epoch: number of batches per epoch; required for endless iterables without `num_steps`.  Arrays, iterables
            with a length and callables `f(epoch)` start again in every epoch; for other iterables an epoch begins where the
            last one ended.
        validation_split: fraction of the rows of arrays, the last ones before shuffling, that are evaluation data instead of
            training data.  Not with `eval_data` or iterables.
        eval_every: number of epochs between two evaluations, or `jfit.every(steps=500)`: after step 500, 1000, ...  A plain
            number counts epochs also with `num_steps`.  The end of training is always evaluated.
        shuffle: whether to shuffle arrays, and data sets of rows with `__len__` and `__getitem__`, before every epoch, by a
            permutation that depends only on `seed` and the epoch.  Memory maps larger than 1 GiB are shuffled in blocks.  Other
            iterables are read in their own order.
        seed: integer seed of the initial parameters, the shuffling and random operators such as Dropout.
        steps_per_call: number of steps per dispatch (call of a compiled program), or "auto".  The parameters are bitwise
            the same for every number; a reported loss may differ in its last bit.  On a CPU, a model that computes
            convolutions, in the network or in the loss, ignores this and runs one step per dispatch.  (Convolutions that only
            the backward rule of a `jax.custom_vjp` computes are not noticed: their bits may depend on the number.)
        callbacks: list of `jfit.callbacks` and of functions of one `jfit.callbacks.Event`.
        checkpoint: folder in which to save checkpoints, locked until training ends; or `jfit.callbacks.checkpointing(folder,
            ...)`, which has more options.  Checkpoints of an earlier run in this folder are moved to its subfolder
            `earlier-<n>`, unless this run resumes from them.  These are kept until you delete them; a log line has their number
            and size.  Default: no checkpoints.
        checkpoint_every: "epoch", the number of steps between two checkpoints, or `jfit.every(epochs=2)`.  The state at the end
            is saved in any case.  States of 16 MiB and more are written while training goes on; `fit` returns when the last
            one is on the disk.
        checkpoint_best: name of a logged value such as "val_loss" or "val_accuracy": the checkpoint of the evaluation or epoch
            with its best value is kept too, for `jfit.Run.load(checkpoint, which="best")`.  The run that `fit` returns has the
            last parameters; `jfit.callbacks.early_stopping` restores the best ones.
        resume: True to continue from the newest checkpoint in `checkpoint`, or another folder of checkpoints, or a checkpoint,
            which must exist.  If the folder has no checkpoint, training starts from the beginning.  Checkpoints of a folder
            with nan or infinite parameters or auxiliary states are left out, with a warning, and moved to `earlier-<n>`.  A
            learning rate other than the one that the earlier run was given replaces the learning rate in the checkpoint.  Other
            differences in model, optimizer, settings or data raise an error; other versions of libraries or devices are logged.
        resume_with: names of the arguments that may differ from those of the earlier run, such as ["batch_size", "seed"], or
            "any".  `num_epoch`, `num_steps` and the learning rate may always differ.
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
            has a dynamic loss scale: steps with a gradient that is not finite change nothing (see `jfit.Policy`).
        params: dict of initial parameters by name; the others are initialized.  For a function: the full pytree, whose
            structure `run.params` has too.  For a module, default: its own values, or initialized from the first batch.
        aux: dict of initial auxiliary states (BatchNorm moving statistics) by name; for a function, a pytree.
        loss: only if `model` is a function or a module, and then required: a function `loss(output, label)` that returns the
            loss of each row, or of each value of a row (such as each token), or the name of one of `jfit.losses`, such as
            "cross_entropy". `jfit.losses.get(name, ignore_index=-100)` has options.  For several outputs a dict of these by
            output name, such as {"a": "cross_entropy", "b": fn}: the losses are summed, and logged as "a_loss", "b_loss".
            `loss(outputs, batch)` gets the inputs by argument name, and all arrays of data that is a dict by name, and needs no
            labels; parameters named `params`, `aux` and `step` after that get the parameters, the auxiliary states that the
            model returned for this batch, and the number of steps before this one (`state.step`).  A loss may return (losses,
            dict of values to log).  See `jfit.Model.from_function`.
        loss_weights: factors of the losses of a dict, by output name.  Default: 1.
        loss_per_batch: whether the loss returns one scalar for the batch instead of the loss of each row.  Its gradient is the
            gradient of the step; batches are never padded, and row weights and micro-batches are not supported.  The arrays of
            a batch of an iterable may have different numbers of rows, as those of a graph do; such a batch needs one device.
        gather_outputs: on several devices, compute the loss of a function from the outputs and labels of all devices, so that a
            loss that combines rows, such as a contrastive loss, is that of one device.  Default: from the rows of each device.
        row_axes: which arrays in the batches of a function have rows, on axis 0.  Default: 0, all of them.  {"mask": None}: the
            arrays of this name have none (the name of an argument, the path of a leaf such as "x/mask" or "mask", or a glob
            pattern).  Every batch and every device has these arrays whole, and they are not padded.  A pytree of 0 and None
            with the structure of the argument works too, as `in_axes` of `jax.vmap`; for several arguments, a tuple of these.
            None means that no array of a batch has rows, and requires `loss_per_batch=True`.
        eval_batch_size: number of rows per evaluation batch.  Default: `batch_size`.
        directory: folder for files written by callbacks, available to them as `run.directory`.
        progress: "auto" shows a progress bar and a table of the epochs in terminals and notebooks only, True always, False
            never.
        data_on_device: whether to keep all training and evaluation arrays in the memory of every device; "auto" does so if
            they fit (30% of the memory of an accelerator; 2 GiB divided by the number of devices on CPU).
        sync_batch_stats: whether BatchNorm computes its statistics over the rows of all devices, instead of separately on
            each device as MXNet does.
        ema: decay of an exponential moving average of the parameters, such as 0.999; or a dict of the arguments of
            `jfit.optim.ema`, such as {"decay": 0.999, "debias": False}.  By default the bias towards the initial parameters is
            corrected, as in `optax.ema`; with debias=False the average starts from them.  The average of the trainable
            parameters is updated in every step.  Evaluation, `run.score`, `run.predict` and `run.params` use it;
            `run.raw_params` are the parameters without averaging.  Moving statistics (BatchNorm) are those of training.
            Default: no average.
        log_every: record loss, learning rate, metrics of the batch and the values that its loss logs of every k-th step in
            `run.history.steps` (see `jfit.callbacks.Event` for callbacks with "step_log" events); `jfit.every(epochs=2)` is the
            last step of every second epoch.  They are read some dispatches later, without waiting for the devices.  Metrics
            that run on the host, or are arrays, are left out.  Each recorded step adds about 100 bytes to the checkpoints.
            Default: no steps are recorded.
        log: names of further values of the steps, computed on the devices: "grad_norm", the global 2-norm of the mean gradient
            before clipping and weight decay, and "update_norm", that of the change of the parameters.  "step_log" events and
            `run.history.steps` have those of the step, "log" events and the rows of epochs their means over the steps.  "lr"
            is accepted too; the learning rate is logged in any case where it is known.  Default: none.
        regularizers: dict of a parameter name or glob pattern -> function of one parameter that returns a scalar, such as
            {"*_weight": jfit.regularizers.l2(1e-4)}.  Their sum is added to the mean loss of each batch: to the gradient
            (before clipping), and to the reported losses of training, evaluation and `run.score`; `jfit.score` and runs of
            `Run.load` report the loss without them.  Frozen parameters have none.  Default: no regularizers.
        reduce: how the devices reduce their gradients: "psum" (their sum), "sharded" (the same sum; each device has and
            updates its part of the optimizer state), "sharded_parameters" (parameters are split too), "ordered" (a sum in a
            fixed order, so that the bits do not depend on the number of devices), "bfloat16" or "2bit" (fewer bytes, see
            docs/scaling.md), or a `jfit.step.reduce.Reduce`.  Default: "psum".
        shard: split parameters over the axes of `mesh` (tensor parallelism): dict of a parameter name or glob pattern -> the
            name of a mesh axis, a tuple of names or None for each dimension, such as {"fc*_weight": ("model", None)}; or a
            `jax.sharding.PartitionSpec`.  A later pattern replaces an earlier one.  The optimizer state of a parameter is split
            as the parameter is, everything else is replicated.  The numbers are those of one device, up to rounding: batch
            statistics are those of the whole batch.  `run.params` are arrays that are split over the devices; checkpoints have
            whole arrays, unless `checkpoint` is `checkpointing(folder, split=True)`.  Not with `reduce`.  Default: parameters
            are replicated.
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
        updates: list of `jfit.Update`, each with its own parameters, loss and optimizer, which every step runs one after the
            other: for GANs, actor and critic, and other alternating updates of functions and modules.  They replace `loss`,
            `loss_weights`, `optimizer` and `optimizer_params`; `log`, `shard`, `mesh` and a `reduce` other than "psum" and
            "bfloat16" are not supported with them.  Default: one update of all parameters.
        remat: what the backward pass computes again instead of keeping it in memory (rematerialization, `jax.checkpoint`), see
            docs/training.md.  "none": nothing, but the nodes that MXNet's mirroring selects (the attribute `force_mirroring`,
            the environment variable MXNET_BACKWARD_DO_MIRROR).  "full": a graph keeps the arrays at about √n places of its n
            nodes, and computes those between two of them again; of a function, the whole forward pass runs again.  A name or
            glob pattern of nodes, or a list of these, such as ["*_relu*", "*_bn*"]: the outputs of these nodes.  For a function
            they are names given by `jax.ad_checkpoint.checkpoint_name`: all is computed again but named values that do not
            match.

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
    given = {name: value for name, value in locals().items() if name not in ("model", "train_data", "eval_data", "unknown")}
    check_entry("jfit.fit", several=True)
    if unknown:
        raise TypeError(f"fit() got an unexpected keyword argument {_instead(next(iter(unknown)))}")
    options = FitOptions(**given).checked(eval_data)
    allocator.trim()  # memory that the caller has freed, such as that of arrays from which the data were made
    problem = prepare(model, train_data, eval_data, options)
    if jax.process_count() > 1:
        check_same(problem.description)
    run = Run.of(problem)
    run.open_folder(options.checkpoint, options.resume, options.resume_with)
    try:
        return run.go()
    finally:
        allocator.trim()


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
