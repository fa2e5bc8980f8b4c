"""BaseModule: fit, score, predict and parameter files, built on a module's bind, forward, backward and update."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from operator import attrgetter
from typing import Any, NamedTuple

import jax.numpy as jnp

from jfit import activity
from jfit.activity import Doing
from jfit.data import DataBatch
from jfit.interrupts import StopFlag, stop_flag
from jfit.mxnet import files
from jfit.mxnet import metric as metrics
from jfit.mxnet.array_types import PLAIN, ArrayTypes
from jfit.mxnet.callback import BatchEndParam, scalars
from jfit.mxnet.logs import of_worker
from jfit.mxnet.metric.base import listed
from jfit.mxnet.module.binding import wrapped_rows
from jfit.mxnet.module.initial import DEFAULT
from jfit.mxnet.mutable import as_array

Callbacks = Any  # a callback, a list of them, or None


class BindRequest(NamedTuple):
    """The arguments of `bind` after the shapes, in its order."""

    for_training: bool
    inputs_need_grad: bool
    force_rebind: bool
    shared_module: Any
    grad_req: Any


def attribute(path: str, doc: str | None = None, *steps: str) -> Any:
    """Create a property that returns the attribute at `path`, such as "binding.aux".

    doc: its docstring.  steps: what the module must have done before, as for `require`.
    """
    read, name = attrgetter(path), path.rpartition(".")[2].lstrip("_")

    def value(module: Any) -> Any:
        if steps:
            require(module, name, *steps)
        return read(module)

    return property(value, doc=doc)


class BaseModule:
    """Base class of modules: fit, score, predict and parameter files.

    Subclasses define bind, init_params, init_optimizer, forward, backward and update.  Those of jfit define `_bind`,
    `_init_params`, `_set_params` and `_init_optimizer` instead, which do not check whether it was done before.

    Attributes:
        logger: logger for messages; an argument of the constructor.
        binded: whether `bind` was called.
        for_training: whether it was bound for training.
        inputs_need_grad: whether it computes gradients of its inputs.
        params_initialized: whether its parameters have values.
        optimizer_initialized: whether it has an optimizer.
        arrays: which array and symbol types its methods return (`jfit.mxnet.array_types`).

    Example:
        >>> from jfit.mxnet.module import Module
        >>> issubclass(Module, BaseModule)
        True

    Source: Apache MXNet 1.9.1, `mxnet.module.BaseModule`.
    """

    arrays: ArrayTypes = PLAIN
    _optimizer_kept = "optimizer already initialized, ignoring."

    def __init__(self, logger: Any = logging) -> None:
        self.logger = logger
        self.binded = False
        self.for_training = False
        self.inputs_need_grad = False
        self.params_initialized = False
        self.optimizer_initialized = False
        self._symbol: Any = None
        self._flag: StopFlag | None = None  # set while fit runs: Ctrl-C was pressed
        self._fit_thread: threading.Thread | None = None  # the thread that runs fit
        self._looking = True  # whether fit looks for invalid data: in its first epoch, up to the first warning

    # -------------------------------------------------------------------------------- defined by subclasses
    symbol = attribute("_symbol", "The network, a Symbol.")

    def _not_implemented(self, name: str) -> Any:
        raise NotImplementedError(f"{type(self).__name__} does not define {name}(), which every module needs")

    def bind(
        self,
        data_shapes: Any,
        label_shapes: Any = None,
        for_training: bool = True,
        inputs_need_grad: bool = False,
        force_rebind: bool = False,
        shared_module: Any = None,
        grad_req: Any = "write",
    ) -> None:
        """Set the input shapes and which arrays get gradients.

        Args:
            data_shapes: (name, shape) pairs or DataDesc objects that describe whole batches.
            label_shapes: the same for labels, or None.
            for_training: False binds for prediction, without gradients.
            inputs_need_grad: also compute gradients of the data inputs.
            force_rebind: bind again if the module is bound, keeping the parameters.
            shared_module: a bound module whose parameters and optimizer this one shares; for `Module` only.
            grad_req: "write", "add" or "null", a list in the order of the arguments, or a dict by name.

        Raises:
            ValueError: the names differ from `data_names`, the shapes do not fit the graph, or devices outnumber rows.
            AssertionError: inputs_need_grad=True with for_training=False.
        """
        if self.binded and not force_rebind:
            self.logger.warning("Already bound, ignoring bind()")
            return
        request = BindRequest(for_training, inputs_need_grad, force_rebind, shared_module, grad_req)
        self._bind(data_shapes, label_shapes, request)
        self.for_training, self.inputs_need_grad, self.binded = for_training, inputs_need_grad, True

    def _bind(self, data_shapes: Any, label_shapes: Any, request: BindRequest) -> None:
        self._not_implemented("bind")

    def init_params(
        self,
        initializer: Any = DEFAULT,
        arg_params: Mapping[str, Any] | None = None,
        aux_params: Mapping[str, Any] | None = None,
        allow_missing: bool = False,
        force_init: bool = False,
        allow_extra: bool = False,
    ) -> None:
        """Initialize the parameters: from `arg_params` / `aux_params` where passed, else with `initializer`.

        Args:
            initializer: initializer of the parameters without a value; "default" is Uniform(0.01).
            arg_params: parameter values by name.
            aux_params: auxiliary states by name.
            allow_missing: use the initializer for names missing in `arg_params` / `aux_params`; if False, they raise.
            force_init: initialize even if the module has parameters.
            allow_extra: no effect, as in MXNet: names that the network does not have are always ignored.

        Raises:
            RuntimeError: a value is missing.
            ValueError: a shape differs.
            AssertionError: the module is not bound, or two modules of a chain have a parameter of the same name.
        """
        if self.params_initialized and not force_init:
            self._ignore_call("init_params")
            return
        assert self.binded, "call bind before initializing the parameters"
        self._init_params(initializer, arg_params, aux_params, allow_missing, force_init, allow_extra)
        self.params_initialized = True

    def _init_params(self, initializer: Any, arg_params: Any, aux_params: Any, *options: bool) -> None:
        self._not_implemented("init_params")

    def _ignore_call(self, method: str) -> None:
        """Hook for a call of `init_params` or `set_params` that is ignored, because the parameters have values."""

    def get_params(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return (parameters, auxiliary states), dicts of arrays by name."""
        return self._not_implemented("get_params")

    def init_optimizer(
        self,
        kvstore: Any = "local",
        optimizer: Any = "sgd",
        optimizer_params: Any = (("learning_rate", 0.01),),
        force_init: bool = False,
    ) -> None:
        """Set the optimizer and how gradients are reduced over devices, and in a `dist` store over processes.

        In a job of several processes all of them call it, and then `update`, the same number of times.  Parameters and
        auxiliary states become those of rank 0.

        Args:
            kvstore: "local", "device", ..., a KVStore, or None (each device updates its own parameters from its own rows).
                In a job of several processes "dist_sync", or None: each process trains a model of its own.
            optimizer: a name (gradients are then scaled by 1 / batch size, in a `dist` store by 1 / (batch size * processes)),
                or an `Optimizer` (its `rescale_grad`, default 1, is used, and its weight decay applies to all parameters, as
                in MXNet).
            optimizer_params: arguments of a named optimizer, a dict or (name, value) pairs.
            force_init: replace the optimizer if the module has one.

        Raises:
            TypeError: `optimizer` is neither a name nor an Optimizer.
            MXNetError: `compression_params` is not supported with this key-value store.
            ValueError: the store sums over the devices of this process only, but the job has several; or the processes have
                different networks.
        """
        assert self.binded and self.params_initialized, "call bind and init_params before init_optimizer"
        if self.optimizer_initialized and not force_init:
            self.logger.warning(self._optimizer_kept)
            return
        self._init_optimizer(kvstore, optimizer, optimizer_params, force_init)
        self.optimizer_initialized = True

    def _init_optimizer(self, kvstore: Any, optimizer: Any, optimizer_params: Any, force_init: bool) -> None:
        self._not_implemented("init_optimizer")

    def forward(self, data_batch: Any, is_train: bool | None = None) -> None:
        """Run the forward pass on a batch; is_train=None means training mode if the module is bound for training."""
        self._not_implemented("forward")

    def backward(self, out_grads: Any = None) -> None:
        """Run the backward pass of the last forward pass; `out_grads` are the gradients with respect to the outputs."""
        self._not_implemented("backward")

    def update(self) -> None:
        """Update the parameters with the gradients of the last backward pass."""
        self._not_implemented("update")

    def get_outputs(self, merge_multi_context: bool = True) -> list[Any]:
        """Return the outputs of the last forward pass.

        merge_multi_context=False: for each output a list with one array per device.
        """
        return self._not_implemented("get_outputs")

    def get_input_grads(self, merge_multi_context: bool = True) -> list[Any]:
        """Return the gradients with respect to the data inputs, in the form of `get_outputs`."""
        return self._not_implemented("get_input_grads")

    def update_metric(self, eval_metric: Any, labels: Any, pre_sliced: bool = False) -> None:
        """Update a metric with the outputs of the last forward pass and their labels."""
        self._not_implemented("update_metric")

    def install_monitor(self, mon: Any) -> None:
        """Attach a Monitor, which computes statistics of the module's arrays."""
        self._not_implemented("install_monitor")

    def prepare(self, data_batch: Any, sparse_row_id_fn: Any = None) -> None:
        """Hook that `fit`, `score` and `predict` call with the next batch, before its `forward`; does nothing in this class."""

    def get_states(self, merge_multi_context: bool = True) -> list[Any]:
        """Return the values of the state inputs (`state_names`); an empty list in this class."""
        return []

    def set_states(self, states: Any = None, value: Any = None) -> None:
        """Set the values of the state inputs; this class has none."""
        assert not states, f"{type(self).__name__} has no state inputs, but {len(states)} arrays were passed"

    def set_params(
        self,
        arg_params: Mapping[str, Any],
        aux_params: Mapping[str, Any],
        allow_missing: bool = False,
        force_init: bool = True,
        allow_extra: bool = False,
    ) -> None:
        """Set parameters and auxiliary states, as `init_params`; with allow_missing=True missing names keep their values.

        As in MXNet, names that the network does not have are ignored, but in a `Module` with allow_missing=True and
        allow_extra=False they raise a ValueError.
        """
        self._set_params(arg_params, aux_params, allow_missing, force_init, allow_extra)

    def _set_params(self, arg_params: Any, aux_params: Any, *options: bool) -> None:
        self.init_params(None, arg_params, aux_params, *options)

    # -------------------------------------------------------------------------------- one batch, one pass
    def forward_backward(self, data_batch: Any) -> None:
        """Run forward in training mode, then backward."""
        self.forward(data_batch, is_train=True)
        self.backward()

    def score(
        self,
        eval_data: Any,
        eval_metric: Any,
        num_batch: int | None = None,
        batch_end_callback: Callbacks = None,
        score_end_callback: Callbacks = None,
        reset: bool = True,
        epoch: int = 0,
        sparse_row_id_fn: Any = None,
    ) -> list[tuple[str, float]]:
        """Compute metrics over a data iterator; padding rows (repeated to fill the last batch) have weight 0.

        Args:
            eval_data: the iterator.
            eval_metric: name, list of names, function or EvalMetric.
            num_batch: maximum number of batches; None means all.
            batch_end_callback: called with a BatchEndParam after each batch.
            score_end_callback: called with a BatchEndParam once at the end; its `nbatch` is the number of batches.
            reset: reset the iterator first.
            epoch: epoch number passed to the callbacks.
            sparse_row_id_fn: passed to `prepare`.

        Returns:
            List of (name, value).
        """
        require(self, "score", "binded", "params_initialized")
        eval_metric = metrics.create(eval_metric)
        eval_metric.reset()
        actual_num_batch = 0
        for nbatch, eval_batch in self._evaluated(eval_data, num_batch, reset, sparse_row_id_fn):
            self._measure(eval_metric, eval_batch)
            call(batch_end_callback, BatchEndParam(epoch, nbatch, eval_metric, locals()))
            actual_num_batch += 1
            if self._flag is not None and self._flag.set:  # no stopping point of a job, whose processes may have other rows
                self._stop_if_asked()
        if score_end_callback is not None:
            call(score_end_callback, BatchEndParam(epoch, actual_num_batch, eval_metric, locals()))
        return eval_metric.get_name_value()

    def _measure(self, eval_metric: Any, batch: Any) -> None:
        if isinstance(batch, list):
            self.update_metric(eval_metric, [b.label for b in batch], pre_sliced=True)
        else:
            self.update_metric(eval_metric, batch.label)

    def _evaluated(self, data: Any, num_batch: int | None, reset: bool, row_ids: Any) -> Iterator[tuple[int, Any]]:
        """Iterate over (number, batch), each after its forward pass in evaluation mode; arguments as for `score`."""
        if reset:
            data.reset()
        for nbatch, batch in enumerate(data):
            if nbatch == num_batch:
                return
            self.prepare(batch, row_ids)
            self.forward(batch, is_train=False)
            yield nbatch, batch

    def iter_predict(
        self, eval_data: Any, num_batch: int | None = None, reset: bool = True, sparse_row_id_fn: Any = None
    ) -> Iterator[tuple[list[Any], int, Any]]:
        """Iterate over (outputs without padding rows, batch number, batch); arguments as for `predict`."""
        require(self, "iter_predict", "binded", "params_initialized")
        for nbatch, batch in self._evaluated(eval_data, num_batch, reset, sparse_row_id_fn):
            yield self._without_padding(wrapped_rows(batch)), nbatch, batch

    def _without_padding(self, pad: int) -> list[Any]:
        return [out[: out.shape[0] - pad] if pad else out for out in self.get_outputs()]

    def predict(
        self,
        eval_data: Any,
        num_batch: int | None = None,
        merge_batches: bool = True,
        reset: bool = True,
        always_output_list: bool = False,
        sparse_row_id_fn: Any = None,
    ) -> Any:
        """Compute the outputs for every row of a data iterator, in order, without padding rows.

        Args:
            eval_data: a data iterator, or an array with one batch.
            num_batch: maximum number of batches; None means all.
            merge_batches: True concatenates the batches to one array per output; False returns a list of outputs per batch.
            reset: reset the iterator first.
            always_output_list: return a list even if there is only one output.
            sparse_row_id_fn: passed to `prepare`.

        Returns:
            An array (rows, ...), a list of such arrays, or (merge_batches=False) a list of lists.

        Raises:
            ValueError: merge_batches=True, but batches have different numbers of outputs.
        """
        require(self, "predict", "binded", "params_initialized")
        if not hasattr(eval_data, "reset") and hasattr(eval_data, "shape"):
            self.forward(DataBatch([as_array(eval_data)]))
            return self.get_outputs()[0]
        batches = [outputs for outputs, _, _ in self.iter_predict(eval_data, num_batch, reset, sparse_row_id_fn)]
        if not batches or not merge_batches:
            return batches
        columns = [[jnp.asarray(as_array(out)) for out in column] for column in zip(*batches, strict=True)]
        merged = [self.arrays.wrap(jnp.concatenate(column)) for column in columns]
        return merged[0] if len(merged) == 1 and not always_output_list else merged

    # -------------------------------------------------------------------------------- fit
    def fit(
        self,
        train_data: Any,
        eval_data: Any = None,
        eval_metric: Any = "acc",
        epoch_end_callback: Callbacks = None,
        batch_end_callback: Callbacks = None,
        kvstore: Any = "local",
        optimizer: Any = "sgd",
        optimizer_params: Any = (("learning_rate", 0.01),),
        eval_end_callback: Callbacks = None,
        eval_batch_end_callback: Callbacks = None,
        initializer: Any = DEFAULT,
        arg_params: Mapping[str, Any] | None = None,
        aux_params: Mapping[str, Any] | None = None,
        allow_missing: bool = False,
        force_rebind: bool = False,
        force_init: bool = False,
        begin_epoch: int = 0,
        num_epoch: int | None = None,
        validation_metric: Any = None,
        monitor: Any = None,
        sparse_row_id_fn: Any = None,
    ) -> None:
        """Train for the epochs from `begin_epoch` to `num_epoch - 1`.

        Calls bind, init_params and init_optimizer unless that was done before; a second call of fit continues training.
        Ctrl-C stops training between two steps: the module keeps its current parameters, and KeyboardInterrupt is raised.
        In the first epoch, the first batch with nan, a label that is no class, or an index outside of its table causes a
        warning, if its arrays are in the memory of the host.

        Args:
            train_data: the iterator (with `provide_data`, `provide_label`, `reset`).
            eval_data: an iterator to score after each epoch.
            eval_metric: metric of the training data.
            epoch_end_callback: called with (epoch, symbol, arg_params, aux_params) after each epoch.
            batch_end_callback: called with a BatchEndParam after each batch; `nbatch` counts from 0.  Without it (or if all
                callbacks have an attribute `every`) one dispatch may run several steps.
            kvstore, optimizer, optimizer_params: as for `init_optimizer`.
            eval_end_callback, eval_batch_end_callback: as for `score`.
            initializer, arg_params, aux_params, allow_missing, force_init: as for `init_params`.
            force_rebind: as for `bind`.
            begin_epoch: number of the first epoch.
            num_epoch: number of the last epoch + 1; required.
            validation_metric: metric of `eval_data`; None means `eval_metric`.
            monitor: a Monitor to attach.
            sparse_row_id_fn: passed to `prepare`.

        Raises:
            AssertionError: num_epoch is None.
            KeyboardInterrupt: training was stopped by Ctrl-C.
            RuntimeError: another thread is in fit of this module.
        """
        assert num_epoch is not None, "please specify number of epochs: num_epoch="
        require(self, "fit")
        self._looking = True
        self.bind(train_data.provide_data, train_data.provide_label, for_training=True, force_rebind=force_rebind)
        if monitor is not None:
            self.install_monitor(monitor)
        requested = initializer is not DEFAULT or arg_params is not None or aux_params is not None
        if force_init or requested or not self.params_initialized:  # otherwise init_params would only warn
            self.init_params(initializer, arg_params, aux_params, allow_missing=allow_missing, force_init=force_init)
        self.init_optimizer(kvstore=kvstore, optimizer=optimizer, optimizer_params=optimizer_params)
        validation_metric = eval_metric if validation_metric is None else validation_metric
        eval_metric = metrics.create(eval_metric)
        training = Doing(activity.DEVICES, f"training in {type(self).__name__}.fit")
        with training, self._stoppable():
            for epoch in range(begin_epoch, num_epoch):
                start = time.time()
                eval_metric.reset()
                self._begin_epoch(train_data, epoch)
                results = self._fit_epoch(train_data, eval_metric, batch_end_callback, monitor, epoch, locals())
                for name, value in scalars(results):
                    self.logger.info(of_worker("Epoch[%d] Train-%s=%f"), epoch, name, value)
                self.logger.info(of_worker("Epoch[%d] Time cost=%.3f"), epoch, time.time() - start)
                self._sync_devices()
                if epoch_end_callback is not None:
                    params = self.get_params()
                    with Doing(activity.SAVING, "in an epoch_end_callback"):
                        for callback in listed(epoch_end_callback):
                            callback(epoch, self.symbol, *params)
                if eval_data is not None:
                    callbacks = (eval_batch_end_callback, eval_end_callback)
                    with Doing(activity.SAVING, "in the validation"):  # the other processes may have fewer rows
                        scored = self.score(eval_data, validation_metric, None, *callbacks, epoch=epoch)
                    for name, value in scalars(scored):
                        self.logger.info(of_worker("Epoch[%d] Validation-%s=%f"), epoch, name, value)
                self._end_epoch(train_data)
                self._stop_if_asked()

    def _begin_epoch(self, train_data: Any, epoch: int) -> None:
        """Hook that fit calls before the first batch of each epoch."""

    def _end_epoch(self, train_data: Any) -> None:
        train_data.reset()

    def _epoch_metrics(self, eval_metric: Any) -> list[tuple[str, float]]:
        """Return the (name, value) pairs that fit logs at the end of an epoch."""
        return eval_metric.get_global_name_value()

    @contextlib.contextmanager
    def _stoppable(self) -> Iterator[None]:
        """Context manager in which `score` and `fit` raise KeyboardInterrupt between two batches after Ctrl-C."""
        require(self, "fit")
        before = self._flag, self._fit_thread
        with stop_flag().watching() as flag:
            self._flag, self._fit_thread = flag, threading.current_thread()
            try:
                yield
            finally:
                self._flag, self._fit_thread = before

    def _stop_if_asked(self) -> None:
        if self._flag:
            raise KeyboardInterrupt("fit was stopped by Ctrl-C between two steps; the module keeps its current parameters")

    def _sync_devices(self) -> None:
        """Average the parameters over devices, if they differ (kvstore=None); called after each epoch."""

    def _fit_epoch(
        self, train_data: Any, eval_metric: Any, callbacks: Any, monitor: Any, epoch: int, names: dict[str, Any], first: int = 0
    ) -> list[tuple[str, float]]:
        """Train one epoch, one batch at a time, and return the metrics of the whole epoch as (name, value) pairs.

        The metrics are read before the callbacks of the last batch, which may reset them.  `first` is the number of the first
        batch (EpochRunner may have run the ones before).  `names` are the local variables of `fit`, its arguments among them,
        which callbacks find in `locals` beside those of this method.  Called in `_stoppable`.
        """
        flag = self._flag
        assert flag is not None
        results: list[tuple[str, float]] = []
        waiting = Doing(activity.DATA, f"waiting for a batch of epoch {epoch}")
        with flag.anywhere(), waiting:  # an iterator may wait for long
            stream, nbatch = iter(train_data), first
            data_batch = next(stream, None)
        while data_batch is not None:
            if monitor is not None:
                monitor.tic()
            self.forward_backward(data_batch)
            self.update()
            if self._looking:  # while the devices compute
                self._warn(self._problem_of(f"epoch {epoch}, batch {nbatch}"))
            self._measure(eval_metric, data_batch)
            with flag.anywhere(), waiting:
                following = next(stream, None)
            if following is not None:
                self.prepare(following, names.get("sparse_row_id_fn"))
            if monitor is not None:
                monitor.toc_print()
            if following is None:
                results = self._epoch_metrics(eval_metric)
            if callbacks is not None:
                with Doing(activity.SAVING, "in a batch_end_callback"):
                    call(callbacks, BatchEndParam(epoch, nbatch, eval_metric, names | locals()))
            self._stop_if_asked()
            data_batch, nbatch = following, nbatch + 1
        self._looking = False
        return results

    def _problem_of(self, where: str, data: bool = True) -> str | None:
        """Return a text that begins with `where` if the last batch has invalid values in its labels, or (data=True) data."""
        return None

    def _warn(self, problem: str | None) -> None:
        if problem is not None:
            self._looking = False
            warnings.warn(f"{problem} Training continues, as in MXNet.", stacklevel=4)

    # -------------------------------------------------------------------------------- files
    def save_params(self, fname: str) -> None:
        """Write parameters and auxiliary states to a `.params` file in MXNet's format."""
        files.save_params(fname, *self.get_params())

    def load_params(self, fname: str) -> None:
        """Read parameters and auxiliary states from a `.params` file.

        Raises:
            FormatError: the file is damaged, or has names that begin with neither `arg:` nor `aux:`.
        """
        self.set_params(*files.read_params(fname))


def call(callbacks: Callbacks, param: BatchEndParam) -> None:
    """Call one callback, a list of callbacks, or none with `param`."""
    for callback in listed(callbacks):
        callback(param)


# preconditions of methods: attribute -> the call that makes it true
_STEPS = {
    "binded": "bind(data_shapes, label_shapes)",
    "params_initialized": "init_params()",
    "optimizer_initialized": "init_optimizer()",
    "inputs_need_grad": "bind(..., inputs_need_grad=True, force_rebind=True)",
}


def require(module: Any, method: str, *steps: str) -> None:
    """Raise AssertionError, with the calls that are missing, unless the module is ready for a method.

    Args:
        module: the module.
        method: name of the method or property, for the message.
        steps: attributes that must be true: binded, params_initialized, optimizer_initialized, inputs_need_grad.

    Raises:
        AssertionError: one of them is false (the exception type that MXNet raises).
        RuntimeError: another thread is in `fit` of the module.

    Example:
        >>> import jfit
        >>> net = jfit.sym.SoftmaxOutput(jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=2), name="softmax")
        >>> jfit.Module(net).update()
        Traceback (most recent call last):
        ...
        AssertionError: Module.update: call bind(data_shapes, label_shapes), init_params(), init_optimizer() first.
    """
    thread = getattr(module, "_fit_thread", None)
    if thread is not None and thread is not threading.current_thread() and not method.endswith("_shapes"):
        problem = f"thread {thread.name!r} is in fit of this module; wait until fit has ended, or use another module"
        raise RuntimeError(f"{type(module).__name__}.{method}: {problem}")
    missing = [_STEPS[step] for step in steps if not getattr(module, step)]
    assert not missing, f"{type(module).__name__}.{method}: call {', '.join(missing)} first."
