"""FeedForward in the tradition of MXNet.jl: init_model, train with TrainingOptions, checkpoints."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jfit.mxnet import files
from jfit.mxnet import metric as metrics
from jfit.mxnet.feedforward.callbacks import AbstractBatchCallback, AbstractEpochCallback, OptimizationState, of_kind
from jfit.mxnet.feedforward.data import described, frozen_names, rows_of
from jfit.mxnet.feedforward.holder import Holder
from jfit.mxnet.feedforward.modules import JuliaFed
from jfit.mxnet.feedforward.options import TrainingOptions, decaying
from jfit.mxnet.kvstore.store import select_julia
from jfit.mxnet.module.initial import DEFAULT
from jfit.mxnet.optimizer import Optimizer
from jfit.mxnet.optimizer import create as create_optimizer
from jfit.train.interrupts import StopFlag


class JuliaTradition(Holder):
    """The methods of FeedForward that come from MXNet.jl; see there."""

    _julia_module: type[JuliaFed] = JuliaFed

    @property
    def arch(self) -> Any:
        """The network, by MXNet.jl's name."""
        return self.symbol

    def init_model(
        self, initializer: Any = DEFAULT, overwrite: bool = False, **input_shapes: Sequence[int]
    ) -> tuple[list[str], list[str], list[str]]:
        """Draw the parameters that are not there yet; one of another shape is warned of and drawn anew.

        Args:
            initializer: of the drawn ones; "default" is Uniform(0.01).
            overwrite: draw all of them.
            **input_shapes: shape of every input, labels too, the batch first: `data=(100, 784), softmax_label=(100,)`.

        Returns:
            Names of (arguments, parameters, auxiliary states).

        Source: MXNet.jl, `init_model`.
        """
        if self.symbol is None:
            raise ValueError(
                "the symbol of this model is a function of the bucket key, which the Julia tradition does not know; call "
                "fit(data) with an iterator of buckets."
            )
        module = self._julia_module(self.symbol, data_names=list(input_shapes), label_names=(), context=self.ctx[:1])
        module.bind([(name, tuple(shape)) for name, shape in input_shapes.items()], for_training=False)
        initial = module.binding.initial(module.arrays)
        kept = {} if overwrite else _fitting(self.arg_params, initial.params, module.logger)
        kept_aux = {} if overwrite else _fitting(self.aux_params, initial.aux, module.logger)
        params, aux = initial.drawn(initializer, kept, kept_aux, True, True)
        self.arg_params = {name: self.arrays.box(value) for name, value in params.items()}
        self.aux_params = {name: self.arrays.box(value) for name, value in aux.items()}
        return self.symbol.list_arguments(), list(params), list(aux)

    # -------------------------------------------------------------------------------- training
    def train(self, optimizer: Any, data: Any, **options: Any) -> None:
        """Train on an iterator, as `fit(model, optimizer, data; ...)` of MXNet.jl.

        Args:
            optimizer: an Optimizer, or a name (with `optimizer_params={...}`).  A `rescale_grad` of 0 becomes 1 / batch size
                (MXNet.jl's `scale`, whose default is 0); a name gets that always.  Weight decay is of all parameters, because
                MXNet.jl knows no rule by name.
            data: the iterator; it is reset before each epoch.
            **options: see `TrainingOptions`.

        Raises:
            AssertionError: eval_data has another batch size than data.
            TypeError: an unknown option, or a callback that is none.
            ValueError: fewer rows than devices.

        Source: MXNet.jl, `model.jl`.
        """
        opts = TrainingOptions.of(options)
        by_batch = of_kind(opts.callbacks, AbstractBatchCallback)
        by_epoch = of_kind(opts.callbacks, AbstractEpochCallback)
        rows = rows_of(data)
        if opts.eval_data is not None and rows_of(opts.eval_data) != rows:
            raise AssertionError(
                f"eval_data has batches of {rows_of(opts.eval_data)} rows and the training data of {rows}; MXNet.jl uses the "
                "same programs for both, so equal batch sizes are needed: make the iterators with one batch_size."
            )
        opts.say(1, "Start training on %s", self.ctx)
        made = _scaled(optimizer, opts.optimizer_params, rows)
        module = self._prepared(made, data, opts)
        state = OptimizationState(rows)
        for callback in by_epoch:
            callback(self, state, [])
        opts.say(2, "Start training...")
        with self._keeping(module), StopFlag().watching() as flag, decaying(made, opts.eta_decay) as begin_epoch:
            for _ in range(opts.n_epoch):
                begin_epoch()
                self._epoch(module, data, opts, state, by_batch, by_epoch, flag)
        opts.say(1, "Finish training on %s", self.ctx)

    def _prepared(self, optimizer: Optimizer, data: Any, opts: TrainingOptions) -> JuliaFed:
        """A module with parameters, optimizer and key-value store."""
        given, labels = described(data)
        opts.say(2, "Initializing parameters...")
        shapes = {d.name: d.shape for d in [*given, *labels]}
        _, names, _ = self.init_model(opts.initializer, opts.force_init, **shapes)
        by_name = isinstance(opts.kvstore, str)
        if by_name:
            opts.say(2, "Creating KVStore...")
        store, _ = select_julia(opts.kvstore, len(self.ctx), self.arg_params or {})
        if store is not None and by_name and opts.kvstore.lstrip(":") == "local":
            opts.say(2, "Auto-select kvstore type = %s", store.type)
        module = self._julia_module(
            self.symbol,
            [d.name for d in given],
            [d.name for d in labels],
            context=self.ctx,
            fixed_param_names=frozen_names(self.symbol, names),
        )
        module.bind(given, labels)
        module.init_params(None, self.arg_params, self.aux_params)
        if store is not None:
            opts.say(2, "Initializing KVStore...")
        module.init_optimizer(store, optimizer)
        return module

    def _epoch(
        self,
        module: JuliaFed,
        data: Any,
        opts: TrainingOptions,
        state: OptimizationState,
        by_batch: Sequence[Callable[[OptimizationState], Any]],
        by_epoch: Sequence[Callable[..., Any]],
        flag: StopFlag,
    ) -> None:
        """One pass, its validation, and its callbacks."""
        start, metric = time.time(), metrics.create(opts.eval_metric)
        metric.reset()
        data.reset()
        state.curr_epoch, state.curr_batch = state.curr_epoch + 1, 0
        self._pass(module, data, metric, state, by_batch, flag)
        named = metric.get_name_value()
        opts.say(2, "== Epoch %03d/%03d ==========", state.curr_epoch, opts.n_epoch)
        opts.summary("Training", named, time.time() - start)
        if opts.eval_data is not None:
            opts.summary("Validation", module.score(opts.eval_data, metric, epoch=state.curr_epoch))
        if by_epoch or state.curr_epoch == opts.n_epoch:
            self._take(module)
        for callback in by_epoch:
            callback(self, state, named)
        module._stop_if(flag)

    def _pass(
        self,
        module: JuliaFed,
        data: Any,
        metric: Any,
        state: OptimizationState,
        by_batch: Sequence[Callable[[OptimizationState], Any]],
        flag: StopFlag,
    ) -> None:
        def ended(param: Any) -> None:
            state.curr_batch, state.curr_iter = state.curr_batch + 1, state.curr_iter + 1
            for callback in by_batch:
                callback(state)

        for callback in by_batch:
            callback(state)
        optimizer = module._optimizer
        looks = bool(by_batch) or not optimizer.is_pure or not module.session.learns
        before = optimizer.num_update
        module._fit_epoch(data, metric, ended if looks else None, None, state.curr_epoch, None, flag)
        if not looks:  # nobody counted: many batches may have shared a dispatch
            state.curr_batch = optimizer.num_update - before
            state.curr_iter += state.curr_batch

    # -------------------------------------------------------------------------------- files
    def save_checkpoint(self, prefix: str, state: OptimizationState | int) -> None:
        """Write `prefix-symbol.json` and `prefix-%04d.params`, numbered by the epoch of a state, or by a number."""
        epoch = state.curr_epoch if isinstance(state, OptimizationState) else int(state)
        files.save_checkpoint(prefix, epoch, self.symbol, *self._known())

    def load_checkpoint(self, prefix: str, epoch: int, overwrite: bool = True, allow_different_arch: bool = False) -> Any:
        """Take the parameters of a checkpoint; returns the model.

        Args:
            prefix, epoch: name the files.
            overwrite: False: a model that has parameters keeps them.
            allow_different_arch: take them also where the checkpoint is of another network.

        Raises:
            AssertionError: the checkpoint is of another network.
        """
        if self.arg_params is not None and self.aux_params is not None and not overwrite:
            TrainingOptions().say(1, "the model has parameters, nothing is loaded (overwrite=True loads)")
            return self
        symbol, params, aux = files.load_checkpoint(prefix, epoch)
        if not allow_different_arch and self.symbol.tojson() != symbol.tojson():
            raise AssertionError(
                f"the checkpoint {prefix!r} is of another network than this model; build the model from "
                "FeedForward.load(prefix, epoch), or pass allow_different_arch=True to take the parameters all the same."
            )
        self._give(params, aux)
        return self


def _fitting(given: Mapping[str, Any] | None, specs: Mapping[str, Any], logger: Any) -> dict[str, Any]:
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
            stacklevel=3,
        )
    return optimizer
