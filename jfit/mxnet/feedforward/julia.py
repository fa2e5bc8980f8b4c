"""How FeedForward trains in the tradition of MXNet.jl: options, what is logged, epochs and their callbacks."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from jfit.mxnet import metric as metrics
from jfit.mxnet.feedforward.callbacks import AbstractBatchCallback, AbstractEpochCallback, OptimizationState, of_kind
from jfit.mxnet.feedforward.data import described, frozen_names, rows_of
from jfit.mxnet.kvstore.store import select_julia
from jfit.mxnet.module.initial import DEFAULT
from jfit.mxnet.optimizer import Optimizer
from jfit.mxnet.optimizer import create as create_optimizer
from jfit.ops import nearest
from jfit.train.interrupts import StopFlag

DECAYS = ("epoch", "batch")


@dataclasses.dataclass
class TrainingOptions:
    """How `FeedForward.train` trains.

    Attributes:
        initializer: of the parameters that are not there yet; "default" is Uniform(0.01).
        n_epoch: passes over the data.
        eval_data: iterator of validation data with the batch size of the training data, or None.
        eval_metric: name, list of names, function or metric; of training and validation data.
        kvstore: "local", "device", ..., a KVStore, or None; one device needs none.
        force_init: draw all parameters anew.
        callbacks: AbstractBatchCallback and AbstractEpochCallback objects.
        verbosity: 0 nothing, 1 beginning and end, 2 each step of the preparation and each epoch, 3 the metrics too.
        eta_decay: whether the optimizer's lr_scheduler counts epochs or batches, from 1.
        optimizer_params: parameters of an optimizer that is given by name.

    Raises:
        ValueError: an unknown eta_decay, or less than no epoch.

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
        if self.eta_decay not in DECAYS:
            raise ValueError(f"eta_decay is {self.eta_decay!r}, needed one of {', '.join(DECAYS)}.")
        if self.n_epoch < 0:
            raise ValueError(f"n_epoch is {self.n_epoch}, a number of passes over the data is needed.")

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> TrainingOptions:
        """The options with these names.

        Raises:
            TypeError: an unknown name; the nearest is told.

        Example:
            >>> TrainingOptions.of({"n_epoch": 3}).n_epoch
            3
        """
        known = [field.name for field in dataclasses.fields(cls)]
        for name in given:
            if name not in known:
                raise TypeError(f"train has no option {name!r}; did you mean {nearest(name, known) or known}?")
        return cls(**given)

    def say(self, level: int, message: str, *values: Any) -> None:
        """Log a message that belongs to a level of verbosity."""
        if self.verbosity >= level:
            logging.info(message, *values)

    def summary(self, title: str, named: Sequence[tuple[str, Any]], seconds: float | None = None) -> None:
        """Log the metrics of a pass, and how long it took."""
        self.say(3, "## %s summary", title)
        for name, value in named:
            self.say(3, "%18s = %.4f", name, value)
        if seconds is not None:
            self.say(3, "%18s = %.4f seconds", "time", seconds)


@contextlib.contextmanager
def decaying(optimizer: Any, eta_decay: str) -> Iterator[Callable[[], None]]:
    """Inside the block, what is yielded sets the rate of the next epoch; with "batch" the scheduler counts updates anyway.

    With "epoch" the scheduler is asked once an epoch, for the number of the epoch over all trainings of this optimizer, and
    taken off the optimizer meanwhile: within an epoch the rate is a plain number.
    """
    scheduler, rate = optimizer.lr_scheduler, optimizer.lr
    if scheduler is None or eta_decay == "batch":
        yield lambda: None
        return

    def begin_epoch() -> None:
        # kept on the optimizer, because a scheduler that has decayed cannot count from 1 again
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
        data: the iterator.
        opts: how to train.

    Raises:
        AssertionError: eval_data has another batch size than data.
        TypeError: a callback that is none.
    """

    def __init__(self, model: Any, optimizer: Any, data: Any, opts: TrainingOptions) -> None:
        self.model, self.data, self.opts = model, data, opts
        self.by_batch = of_kind(opts.callbacks, AbstractBatchCallback)
        self.by_epoch = of_kind(opts.callbacks, AbstractEpochCallback)
        rows = rows_of(data)
        if opts.eval_data is not None and rows_of(opts.eval_data) != rows:
            raise AssertionError(
                f"eval_data has batches of {rows_of(opts.eval_data)} rows and the training data of {rows}; MXNet.jl uses the "
                "same programs for both, so equal batch sizes are needed: make the iterators with one batch_size."
            )
        opts.say(1, "Start training on %s", model.ctx)
        self.optimizer, self.state = _scaled(optimizer, opts.optimizer_params, rows), OptimizationState(rows)

    def run(self) -> None:
        """All epochs; where one fails or is interrupted, the model keeps what was learned so far."""
        model, opts = self.model, self.opts
        module = self._prepared()
        for callback in self.by_epoch:
            callback(model, self.state, [])
        opts.say(2, "Start training...")
        with (
            model.keeping(module),
            StopFlag().watching() as flag,
            decaying(self.optimizer, opts.eta_decay) as begin_epoch,
        ):
            for _ in range(opts.n_epoch):
                begin_epoch()
                self._epoch(module, flag)
        opts.say(1, "Finish training on %s", model.ctx)

    def _prepared(self) -> Any:
        """A module with parameters, optimizer and key-value store."""
        model, opts = self.model, self.opts
        given, labels = described(self.data)
        opts.say(2, "Initializing parameters...")
        shapes = {d.name: d.shape for d in [*given, *labels]}
        _, names, _ = model.init_model(opts.initializer, opts.force_init, **shapes)
        by_name = isinstance(opts.kvstore, str)
        if by_name:
            opts.say(2, "Creating KVStore...")
        store, _ = select_julia(opts.kvstore, len(model.ctx), model.arg_params or {})
        if store is not None and by_name and opts.kvstore.lstrip(":") == "local":
            opts.say(2, "Auto-select kvstore type = %s", store.type)
        data_names, label_names = [d.name for d in given], [d.name for d in labels]
        frozen = frozen_names(model.symbol, names)
        module = model.julia_module(model.symbol, data_names, label_names, context=model.ctx, fixed_param_names=frozen)
        module.bind(given, labels)
        module.init_params(None, model.arg_params, model.aux_params)
        if store is not None:
            opts.say(2, "Initializing KVStore...")
        module.init_optimizer(store, self.optimizer)
        return module

    def _epoch(self, module: Any, flag: StopFlag) -> None:
        """One pass, its validation, and its callbacks."""
        opts, state = self.opts, self.state
        start, metric = time.time(), metrics.create(opts.eval_metric)
        metric.reset()
        self.data.reset()
        state.curr_epoch, state.curr_batch = state.curr_epoch + 1, 0
        self._pass(module, metric, flag)
        named = metric.get_name_value()
        opts.say(2, "== Epoch %03d/%03d ==========", state.curr_epoch, opts.n_epoch)
        opts.summary("Training", named, time.time() - start)
        if opts.eval_data is not None:
            opts.summary("Validation", module.score(opts.eval_data, metric, epoch=state.curr_epoch))
        if self.by_epoch or state.curr_epoch == opts.n_epoch:
            self.model.take(module)
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
        looks = bool(self.by_batch) or not optimizer.is_pure or not module.parameters.learns
        before = optimizer.num_update
        module._fit_epoch(self.data, metric, ended if looks else None, None, state.curr_epoch, None, flag)
        if not looks:  # nobody counted: many batches may have shared a dispatch
            state.curr_batch = optimizer.num_update - before
            state.curr_iter += state.curr_batch


def fitting(given: Mapping[str, Any] | None, specs: Mapping[str, Any], logger: Any) -> dict[str, Any]:
    """The given arrays that have the needed shapes."""
    kept = {}
    for name in [n for n in specs if n in (given or {})]:
        value = (given or {})[name]
        if tuple(value.shape) == tuple(specs[name].shape):
            kept[name] = value
        else:
            logger.warning(
                "Shape mismatch for %s: %s is there, %s is needed. It is drawn anew.",
                name,
                tuple(value.shape),
                tuple(specs[name].shape),
            )
    return kept


def _scaled(optimizer: Any, params: Mapping[str, Any], rows: int) -> Optimizer:
    """The optimizer with its rescale_grad set."""
    if isinstance(optimizer, str):
        return create_optimizer(optimizer, **{"rescale_grad": 1.0 / rows, **params})
    if params:
        raise ValueError("optimizer_params belong to an optimizer that is given by name; set them on the object.")
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"an optimizer is a name or an Optimizer; found {optimizer!r}.")
    if optimizer.rescale_grad == 0:
        optimizer.rescale_grad = 1.0 / rows
    elif optimizer.rescale_grad == 1 and rows > 1:
        warnings.warn(
            f"rescale_grad of the optimizer is 1, so the gradients of {rows} rows are added up. Pass rescale_grad=0 for "
            "1 / batch size, MXNet.jl's default.",
            stacklevel=4,
        )
    return optimizer
