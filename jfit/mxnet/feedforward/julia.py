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
from jfit.data.ndarray_iter import DataDesc
from jfit.graph import Symbol
from jfit.mxnet import metric as metrics
from jfit.mxnet.feedforward.callbacks import AbstractBatchCallback, AbstractEpochCallback, OptimizationState
from jfit.mxnet.logs import of_worker
from jfit.mxnet.module.binding import describe, rows_of_batch
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
        ValueError: an unknown eta_decay.

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


def train(model: Any, optimizer: Any, data: Any, opts: TrainingOptions) -> None:
    """Train a model; if an epoch raises or is interrupted, the model keeps the parameters trained so far.

    Args:
        model: the FeedForward.
        optimizer: a name or an Optimizer.
        data: data iterator.
        opts: options.

    Raises:
        AssertionError: the batch sizes of eval_data and data differ.
        TypeError: an invalid callback or optimizer.
    """
    by_batch, by_epoch = _callbacks(opts.callbacks)
    rows = _batch_size(data)
    eval_rows = rows if opts.eval_data is None else _batch_size(opts.eval_data)
    assert eval_rows == rows, f"eval_data has batches of {eval_rows} rows, the training data of {rows}; pass equal batches."
    opts.log(1, "Start training on %s", model.ctx)
    optimizer, state = _with_rescale_grad(optimizer, opts.optimizer_params, rows), OptimizationState(rows)
    module = _training_module(model, optimizer, data, opts)

    def batch_ended(param: Any) -> None:
        done = param.nbatch + 1
        state.curr_batch, state.curr_iter = done, state.curr_iter + done - state.curr_batch
        for callback in by_batch:
            callback(state)

    if not by_batch:
        vars(batch_ended)["every"] = 1 << 30  # so that several batches may share one dispatch, see `callback_period`
    for callback in by_epoch:
        callback(model, state, [])
    opts.log(2, "Start training...")
    with model.keep_params(module), module._stoppable(), epoch_schedule(optimizer, opts.eta_decay) as begin_epoch:
        for state.curr_epoch in range(1, opts.n_epoch + 1):
            begin_epoch()
            start, metric, state.curr_batch = time.time(), metrics.create(opts.eval_metric), 0
            metric.reset()
            data.reset()
            for callback in by_batch:
                callback(state)
            module._fit_epoch(data, metric, batch_ended, None, state.curr_epoch)
            named = metric.get_name_value()
            opts.log(2, "== Epoch %03d/%03d ==========", state.curr_epoch, opts.n_epoch)
            opts.summary("Training", named, time.time() - start)
            if opts.eval_data is not None:
                opts.summary("Validation", module.score(opts.eval_data, metric, epoch=state.curr_epoch))
            if by_epoch:
                model.copy_params_from(module)
            for callback in by_epoch:
                callback(model, state, named)
            module._stop_if_asked()
    opts.log(1, "Finish training on %s", model.ctx)


def _training_module(model: Any, optimizer: Optimizer, data: Any, opts: TrainingOptions) -> Any:
    """Create a bound module with parameters, optimizer and key-value store."""
    inputs, labels = descriptions(data)
    opts.log(2, "Initializing parameters...")
    _, names, _ = model.init_model(opts.initializer, opts.force_init, **{d.name: d.shape for d in [*inputs, *labels]})
    if isinstance(opts.kvstore, str):
        opts.log(2, "Creating KVStore...")
    input_names = [[d.name for d in descs] for descs in (inputs, labels)]
    frozen = frozen_names(model.symbol, names)
    module = model.julia_module(model.symbol, *input_names, context=model.ctx, fixed_param_names=frozen)
    module.bind(inputs, labels)
    module.init_params(None, model.arg_params, model.aux_params)
    module.init_optimizer(opts.kvstore, optimizer)
    if module._kvstore is not None:
        if opts.kvstore in ("local", ":local"):
            opts.log(2, "Auto-select kvstore type = %s", module._kvstore.type)
        opts.log(2, "Initializing KVStore...")
    return module


def descriptions(data: Any) -> tuple[list[DataDesc], list[DataDesc]]:
    """Return two lists of DataDesc: the data and the labels of an iterator."""
    return describe(data.provide_data), describe(data.provide_label)


def _batch_size(data: Any) -> int:
    return int(getattr(data, "batch_size", 0) or rows_of_batch(descriptions(data)[0]))


def _callbacks(callbacks: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Return the (batch, epoch) callbacks; raise TypeError for one that is neither."""
    for callback in callbacks:
        if not isinstance(callback, (AbstractBatchCallback, AbstractEpochCallback)):
            raise TypeError(f"callbacks has {callback!r}; wrap functions with every_n_batch(f, n) or every_n_epoch(f, n).")
    by_batch = [callback for callback in callbacks if isinstance(callback, AbstractBatchCallback)]
    return by_batch, [callback for callback in callbacks if isinstance(callback, AbstractEpochCallback)]


def frozen_names(symbol: Symbol, params: Sequence[str]) -> list[str]:
    """Return the names of the parameters that attributes of the network freeze.

    The attributes are `weight_grad="freeze"` (or the full parameter name + `_grad`) of an operator, and `grad="freeze"` of a
    variable.

    Example:
        >>> import jfit
        >>> net = jfit.sym.FullyConnected(jfit.sym.Variable("x"), num_hidden=2, name="fc", attr={"bias_grad": "freeze"})
        >>> frozen_names(net, ["fc_weight", "fc_bias"])
        ['fc_bias']

    Source: MXNet.jl, `model.jl`.
    """
    frozen: set[str] = set()
    for node in symbol.nodes():
        for key, value in node.attrs.items():
            if value != "freeze" or not (key == "grad" or key.endswith("_grad")):
                continue
            name = node.name if key == "grad" else key[: -len("_grad")]
            matches = {name, f"{node.name}_{name}"} & set(params)
            if not matches and node.op is not None:
                logging.warning('attribute %s="freeze" of %s matches no parameter and freezes nothing', key, node.name)
            frozen |= matches
    return [name for name in params if name in frozen]


def _with_rescale_grad(optimizer: Any, params: Mapping[str, Any], rows: int) -> Optimizer:
    """Return the optimizer (created if `optimizer` is a name), with rescale_grad = 1 / rows if it is 0 or not specified.

    An Optimizer object is changed in place.
    """
    if isinstance(optimizer, str):
        return create_optimizer(optimizer, **{"rescale_grad": 1.0 / rows, **params})
    if params:
        raise ValueError("optimizer_params are only for an optimizer given by name; pass them to the object's constructor.")
    if optimizer.rescale_grad == 0:
        optimizer.rescale_grad = 1.0 / rows
    elif optimizer.rescale_grad == 1 and rows > 1:
        problem = f"rescale_grad of the optimizer is 1, so the gradients of {rows} rows are summed"
        warnings.warn(f"{problem}. Pass rescale_grad=0 for 1 / batch size, MXNet.jl's default.", stacklevel=4)
    return optimizer
