"""FeedForward.train, with MXNet.jl's options, log lines, epochs and callbacks."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from jfit import checks
from jfit.interrupts import StopFlag, stop_flag
from jfit.mxnet import metric as metrics
from jfit.mxnet.feedforward.callbacks import AbstractBatchCallback, AbstractEpochCallback, OptimizationState, callbacks_of
from jfit.mxnet.feedforward.data import batch_size_of, descriptions, frozen_names
from jfit.mxnet.kvstore.store import select_julia
from jfit.mxnet.logs import of_worker
from jfit.mxnet.module.initial import DEFAULT
from jfit.mxnet.optimizer import Optimizer
from jfit.mxnet.optimizer import create as create_optimizer


@dataclasses.dataclass
class TrainingOptions:
    """Options of `FeedForward.train`.

    Attributes:
        initializer: initializer of missing parameters; "default" is Uniform(0.01).
        n_epoch: number of passes over the data.
        eval_data: iterator of validation data with the batch size of the training data, or None.
        eval_metric: name, list of names, function or metric, for training and validation data.
        kvstore: "local", "device", ..., a KVStore, or None; one device needs none.
        force_init: initialize all parameters, also existing ones.
        callbacks: AbstractBatchCallback and AbstractEpochCallback objects.
        verbosity: what to log: 0 nothing, 1 begin and end, 2 also setup and epochs, 3 also metrics.
        eta_decay: argument of the optimizer's lr_scheduler, from 1: number of the "epoch" or of the "batch".
        optimizer_params: arguments of an optimizer given by name.

    Raises:
        ValueError: an unknown eta_decay, or a negative n_epoch.

    Example:
        >>> TrainingOptions().n_epoch, TrainingOptions(eta_decay="batch").verbosity
        (10, 3)

    Source: MXNet.jl, `TrainingOptions`.
    """

    initializer: Any = DEFAULT
    n_epoch: int = 10
    eval_data: Any = None
    eval_metric: Any = "acc"
    kvstore: Any = "local"
    force_init: bool = False
    callbacks: Sequence[Any] = ()
    verbosity: int = 3
    eta_decay: str = "epoch"
    optimizer_params: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        self.eta_decay = self.eta_decay.lstrip(":")
        checks.one_of(("epoch", "batch"), eta_decay=self.eta_decay)
        checks.at_least_0(n_epoch=self.n_epoch)

    def log(self, level: int, message: str, *values: Any) -> None:
        """Log a message if the option `verbosity` is at least `level`."""
        if self.verbosity >= level:
            logging.info(of_worker(message), *values)

    def summary(self, title: str, named: Sequence[tuple[str, Any]], seconds: float | None = None) -> None:
        """Log the metrics of a pass over data, and its time in seconds."""
        self.log(3, "## %s summary", title)
        for name, value in named:
            self.log(3, "%18s = %.4f", name, value)
        if seconds is not None:
            self.log(3, "%18s = %.4f seconds", "time", seconds)


@contextlib.contextmanager
def epoch_schedule(optimizer: Any, eta_decay: str) -> Iterator[Callable[[], None]]:
    """Context manager that evaluates the optimizer's lr_scheduler once per epoch, as MXNet.jl does.

    It yields a function to call before each epoch, which sets the learning rate of that epoch.  The scheduler's argument is
    the number of epochs over all trainings of this optimizer.  Inside the block the optimizer has no scheduler, so the
    learning rate is constant within an epoch.  With eta_decay="batch" nothing is changed.
    """
    scheduler, rate = optimizer.lr_scheduler, optimizer.lr
    if scheduler is None or eta_decay == "batch":
        yield lambda: None
        return

    def begin_epoch() -> None:
        # stored on the optimizer: a scheduler that has decayed returns wrong rates if the count restarts at 1
        optimizer.epochs_begun = getattr(optimizer, "epochs_begun", 0) + 1
        optimizer.lr = float(scheduler(optimizer.epochs_begun))

    optimizer.lr_scheduler = None
    try:
        yield begin_epoch
    finally:
        optimizer.lr_scheduler, optimizer.lr = scheduler, rate


class JuliaTraining:
    """One call of `FeedForward.train`.

    Args:
        model: the FeedForward.
        optimizer: a name or an Optimizer.
        data: data iterator.
        opts: options.

    Raises:
        AssertionError: the batch sizes of eval_data and data differ.
        TypeError: an invalid callback or optimizer.
    """

    def __init__(self, model: Any, optimizer: Any, data: Any, opts: TrainingOptions) -> None:
        self.model, self.data, self.opts = model, data, opts
        self.by_batch = callbacks_of(opts.callbacks, AbstractBatchCallback)
        self.by_epoch = callbacks_of(opts.callbacks, AbstractEpochCallback)
        rows = batch_size_of(data)
        if opts.eval_data is not None and (eval_rows := batch_size_of(opts.eval_data)) != rows:
            raise AssertionError(f"eval_data has batches of {eval_rows} rows, the training data of {rows}; pass equal ones.")
        opts.log(1, "Start training on %s", model.ctx)
        self.optimizer, self.state = _with_rescale_grad(optimizer, opts.optimizer_params, rows), OptimizationState(rows)

    def run(self) -> None:
        """Train all epochs; if an epoch raises or is interrupted, the model keeps the parameters trained so far."""
        model, opts = self.model, self.opts
        module = self._training_module()
        for callback in self.by_epoch:
            callback(model, self.state, [])
        opts.log(2, "Start training...")
        with (
            model.keep_params_on_error(module),
            stop_flag().watching() as flag,
            epoch_schedule(self.optimizer, opts.eta_decay) as begin_epoch,
        ):
            for _ in range(opts.n_epoch):
                begin_epoch()
                self._epoch(module, flag)
        opts.log(1, "Finish training on %s", model.ctx)

    def _training_module(self) -> Any:
        """Create a bound module with parameters, optimizer and key-value store."""
        model, opts = self.model, self.opts
        inputs, labels = descriptions(self.data)
        opts.log(2, "Initializing parameters...")
        _, names, _ = model.init_model(opts.initializer, opts.force_init, **{d.name: d.shape for d in [*inputs, *labels]})
        by_name = isinstance(opts.kvstore, str)
        if by_name:
            opts.log(2, "Creating KVStore...")
        store, _ = select_julia(opts.kvstore, len(model.ctx), model.arg_params)
        if store is not None and by_name and opts.kvstore.lstrip(":") == "local":
            opts.log(2, "Auto-select kvstore type = %s", store.type)
        input_names = [[d.name for d in descs] for descs in (inputs, labels)]
        frozen = frozen_names(model.symbol, names)
        module = model.julia_module(model.symbol, *input_names, context=model.ctx, fixed_param_names=frozen)
        module.bind(inputs, labels)
        module.init_params(None, model.arg_params, model.aux_params)
        if store is not None:
            opts.log(2, "Initializing KVStore...")
        module.init_optimizer(store, self.optimizer)
        return module

    def _epoch(self, module: Any, flag: StopFlag) -> None:
        """Train one epoch, validate, and call the epoch callbacks."""
        opts, state = self.opts, self.state
        start, metric = time.time(), metrics.create(opts.eval_metric)
        metric.reset()
        self.data.reset()
        state.curr_epoch, state.curr_batch = state.curr_epoch + 1, 0
        self._pass(module, metric, flag)
        named = metric.get_name_value()
        opts.log(2, "== Epoch %03d/%03d ==========", state.curr_epoch, opts.n_epoch)
        opts.summary("Training", named, time.time() - start)
        if opts.eval_data is not None:
            opts.summary("Validation", module.score(opts.eval_data, metric, epoch=state.curr_epoch))
        if self.by_epoch or state.curr_epoch == opts.n_epoch:
            self.model.copy_params_from(module)
        for callback in self.by_epoch:
            callback(self.model, state, named)
        module._stop_if(flag)

    def _pass(self, module: Any, metric: Any, flag: StopFlag) -> None:
        state, optimizer = self.state, self.optimizer

        def ended(param: Any) -> None:
            state.curr_batch, state.curr_iter = state.curr_batch + 1, state.curr_iter + 1
            for callback in self.by_batch:
                callback(state)

        for callback in self.by_batch:
            callback(state)
        per_batch = bool(self.by_batch) or not optimizer.is_pure or not module.parameters.trainable
        before = optimizer.num_update
        module._fit_epoch(self.data, metric, ended if per_batch else None, None, state.curr_epoch, None, flag)
        if not per_batch:  # without a batch callback several batches may share one dispatch, so count updates instead
            state.curr_batch = optimizer.num_update - before
            state.curr_iter += state.curr_batch


def matching_params(
    params: Mapping[str, Any] | None, names: Sequence[str], specs: Mapping[str, Any], logger: Any
) -> dict[str, Any]:
    """Return the parameters of these names that have the shapes in `specs`; warn about the others, which are initialized."""
    matches = {}
    for name, value in (params or {}).items():
        found, expected = tuple(value.shape), tuple(specs[name].shape) if name in names else None
        if found == expected:
            matches[name] = value
        elif expected is not None:
            logger.warning("Shape mismatch for %s: found %s, expected %s. It is initialized again.", name, found, expected)
    return matches


def _with_rescale_grad(optimizer: Any, params: Mapping[str, Any], rows: int) -> Optimizer:
    """Return the optimizer (created if `optimizer` is a name), with rescale_grad = 1 / rows if it is 0 or not specified.

    An Optimizer object is changed in place.
    """
    if isinstance(optimizer, str):
        return create_optimizer(optimizer, **{"rescale_grad": 1.0 / rows, **params})
    if params:
        raise ValueError("optimizer_params are only for an optimizer given by name; pass them to the object's constructor.")
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"an optimizer is a name or an Optimizer; found {optimizer!r}.")
    if optimizer.rescale_grad == 0:
        optimizer.rescale_grad = 1.0 / rows
    elif optimizer.rescale_grad == 1 and rows > 1:
        warnings.warn(
            f"rescale_grad of the optimizer is 1, so the gradients of {rows} rows are summed. Pass rescale_grad=0 for "
            "1 / batch size, MXNet.jl's default.",
            stacklevel=4,
        )
    return optimizer
