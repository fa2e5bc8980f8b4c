"""Module: a symbol bound to shapes and devices, with MXNet's methods, computed by jfit's pure functions."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jfit import activity
from jfit.activity import Doing
from jfit.data import Batch
from jfit.formats.atomic import atomic_write, read_file
from jfit.graph import Symbol
from jfit.lowering.model import plan_of
from jfit.mxnet import files
from jfit.mxnet.callback import BatchEndParam
from jfit.mxnet.kvstore import store as stores
from jfit.mxnet.metric import EvalMetric
from jfit.mxnet.module.base import BaseModule, BindRequest, attribute, call, listed, require
from jfit.mxnet.module.binding import Binding, same_shapes, wrapped_rows
from jfit.mxnet.module.epochs import EpochRunner, callback_period, can_run_many_steps
from jfit.mxnet.module.initial import check_names, converted, initialize
from jfit.mxnet.module.parameters import Parameters
from jfit.mxnet.module.passes import Passes
from jfit.mxnet.module.states import States
from jfit.mxnet.module.workers import join_workers
from jfit.mxnet.mutable import MutableArray, as_array
from jfit.mxnet.optimizer import Optimizer, get_updater
from jfit.mxnet.optimizer import create as create_optimizer
from jfit.parallel import check_entry
from jfit.step.batch_check import BatchLabels
from jfit.step.reduce import all_reduce, unreduced


class Module(BaseModule):
    """A network with MXNet's methods bind, init_params, init_optimizer, forward, backward, update, fit, score and predict.

    The state is one `jfit.TrainState`, and the methods call the pure functions of `jfit.step`.  `forward(); backward();
    update()` run as one program if nothing is read in between; the numbers are the same either way.

    It has three parts: `binding` has the names, devices and shapes and converts a batch to inputs by name; `parameters` has
    the parameters and the optimizer, which several modules may share; `passes`, created by `bind`, runs the computations.

    Differences from MXNet 1.9.1: padding rows of the last batch are trained on, but have weight 0 in metrics; metrics on
    several devices are those of the whole batch; gamma of a BatchNorm with fix_gamma is exactly 1 and never changes.
    Returned arrays are jax.Array (`jfit.mx.mod.Module` returns NDArray).

    Args:
        symbol: the network.
        data_names: names of the data inputs.
        label_names: names of the labels; None or () for no labels.
        logger: logger for messages.
        context: a device (`jfit.cpu(0)`, `jax.devices()[0]`) or a list of devices, each of which gets a slice of every batch.
        work_load_list: relative share of each device; None means equal shares.
        fixed_param_names: parameters that get no gradient and no update.
        state_names: inputs whose values persist in the module from batch to batch (see `set_states`).
        group2ctxs: `ctx_group` -> device: nodes with this attribute, their parameters and optimizer state are on the device
            of their group, everything else on `context`.  A node without a group runs where its inputs are.  If `context` is a
            list, each group has a list of devices, one for each context, or one device for all; or `group2ctxs` is a list of
            dicts, one for each context.  Parameters and optimizer state are on the devices of the first context.
        compression_params: gradient compression, for kvstore "device" or "dist_sync": `{"type": "2bit", "threshold": 0.5}`
            or `{"type": "bfloat16"}`; MXNet has "2bit" only.

    Raises:
        ValueError: a name is not an argument of the symbol, or a group in `group2ctxs` has another number of devices than
            `context`.
        NotImplementedError: a network with SyncBatchNorm has `group2ctxs` and several contexts.

    Example:
        >>> import jfit, numpy as np
        >>> net = jfit.sym.SoftmaxOutput(jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=2), name="softmax")
        >>> x = np.eye(2, dtype="float32").repeat(20, axis=0)
        >>> train = jfit.NDArrayIter(x, x.argmax(1), batch_size=8)
        >>> module = jfit.Module(net)
        >>> module.fit(train, num_epoch=20, optimizer_params={"learning_rate": 1.0})
        >>> module.score(train, "acc")
        [('accuracy', 1.0)]

    Source: Apache MXNet 1.9.1, `mxnet.module.Module`.
    """

    _warns_of_scale = True  # if the rescale_grad of an Optimizer object is not 1 / batch size

    def __init__(
        self,
        symbol: Symbol,
        data_names: Sequence[str] = ("data",),
        label_names: Sequence[str] | None = ("softmax_label",),
        logger: Any = logging,
        context: Any = None,
        work_load_list: Sequence[float] | None = None,
        fixed_param_names: Sequence[str] | None = None,
        state_names: Sequence[str] | None = None,
        group2ctxs: Any = None,
        compression_params: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(logger)
        self._symbol = symbol
        names = (data_names, label_names, state_names, fixed_param_names)
        self.binding = Binding(symbol, names, context, work_load_list, logger, group2ctxs)
        self.parameters = Parameters(self.binding.devices, self.binding.params, self.arrays.mutable, self.binding.placement)
        self.passes: Passes = None  # type: ignore[assignment]
        self._compression = dict(compression_params) if compression_params else None
        self._loaded: Any = None  # (parameters, auxiliary states) of a checkpoint, for bind
        self._preload: Any = None  # file of optimizer states, for init_optimizer
        self._monitor: Any = None
        self._runner: Any = None  # EpochRunner for the data of the last fit
        self._input_check: InputCheck | None = None  # of the bound network
        self._pad = 0  # number of padding rows at the end of the last batch
        self._last_inputs: Mapping[str, Any] = {}  # its inputs by name

    # -------------------------------------------------------------------------------- properties
    data_names = attribute("binding.data_names", "Names of the data inputs.")
    label_names = attribute("binding.label_names", "Names of the labels.")
    data_shapes = attribute("binding.data_shapes", "Descriptions of the bound data.", "binded")
    label_shapes = attribute("binding.label_shapes", "Descriptions of the bound labels.", "binded")
    output_shapes = attribute("binding.output_shapes", "(name, shape) of each output for a whole batch.", "binded")
    _optimizer_kept = "optimizer already initialized, ignoring..."
    # private attributes of MXNet's Module that scripts read
    _data_names = attribute("binding.data_names")
    _label_names = attribute("binding.label_names")
    _data_shapes = attribute("binding.data_shapes")
    _label_shapes = attribute("binding.label_shapes")
    _param_names = attribute("binding.params")
    _aux_names = attribute("binding.aux")
    _context = attribute("binding.context")
    _optimizer = attribute("parameters.optimizer")
    _kvstore = attribute("parameters.kvstore")
    _update_on_kvstore = attribute("parameters.update_on_kvstore")
    _states = property(lambda self: self.parameters.updater or States(self.parameters))

    @property
    def _updater(self) -> Any:
        """The optimizer state, with `get_states`, `set_states` and `states`; None if the store updates, as in MXNet."""
        idle = self.parameters.optimizer is None or self.parameters.update_on_kvstore
        return None if idle else self._states

    @property
    def output_names(self) -> list[str]:
        """Names of the outputs."""
        return self._symbol.list_outputs()

    @property
    def state(self) -> Any:
        """The `jfit.TrainState` of this module: step, params, aux, opt_state, ...

        The next update donates its buffers: copy what you need after that.
        """
        self._settle()
        return self.parameters.state

    def _settle(self) -> None:
        """Run the backward passes that are recorded but not computed yet, so that the state includes all calls so far."""
        self.parameters.pending.settle()

    # -------------------------------------------------------------------------------- bind
    def _bind(self, data_shapes: Any, label_shapes: Any, request: BindRequest) -> None:
        check_entry(type(self).__name__, several=True)
        if self.binded:
            self._settle()
            self.binded = False
        assert request.for_training or not request.inputs_need_grad, "inputs_need_grad=True requires for_training=True"
        self.passes, self._input_check = None, None  # type: ignore[assignment]
        shared = request.shared_module
        if shared is not None:
            require(shared, "bind(shared_module=)", "binded", "params_initialized")
        parameters = self.parameters if shared is None else shared.parameters
        grad_req = request.grad_req if request.for_training else "null"
        self.binding.bind(data_shapes, label_shapes, grad_req, request.inputs_need_grad, parameters.placement)
        if shared is not None:
            self.binding.check_shared(parameters)
            self.params_initialized = True
            self.optimizer_initialized = self.optimizer_initialized or shared.optimizer_initialized
        self.parameters, self.passes = parameters, Passes(self.binding, parameters)
        if self._loaded is not None:
            parameters.set_arrays(*initialize(self.binding, None, *self._loaded, missing=False, arrays=self.arrays))
            self._loaded = None

    def reshape(self, data_shapes: Any, label_shapes: Any = None) -> None:
        """Change the input shapes in place, keeping parameters and optimizer; programs are compiled once for each shape."""
        require(self, "reshape", "binded")
        self._input_check = None
        self.binding.reshape(data_shapes, label_shapes)

    # -------------------------------------------------------------------------------- parameters
    def _ignore_call(self, method: str) -> None:
        message = f"Parameters already initialized and force_init=False. {method} call ignored."
        warnings.warn(message, stacklevel=3 if method == "init_params" else 4)

    def _init_params(self, initializer: Any, arg_params: Any, aux_params: Any, allow_missing: bool, *_: bool) -> None:
        values = initialize(self.binding, initializer, arg_params, aux_params, allow_missing, self.arrays)
        self.parameters.set_arrays(*values)

    def _set_params(self, arg_params: Any, aux_params: Any, *options: bool) -> None:
        allow_missing, force_init, allow_extra = options
        if self.params_initialized and not force_init:
            self._ignore_call("set_params")
            return
        if allow_missing and not allow_extra and self.binded:
            check_names(self.binding, arg_params, aux_params, "allow_extra")
        if not allow_missing or not self.params_initialized:
            self.init_params(None, arg_params, aux_params, *options)
            return
        self.parameters.set_arrays(*converted(self.binding, arg_params, aux_params or {}))

    def get_params(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return copies of (parameters, auxiliary states); with kvstore=None the mean over devices."""
        if self._loaded is not None:  # a checkpoint, before bind
            params, aux = ({k: self.arrays.wrap(v) for k, v in tree.items()} for tree in self._loaded)
            return params, aux
        require(self, "get_params", "binded", "params_initialized")
        self._settle()
        params, aux = self.parameters.arrays()
        wrap, binding = self.arrays.wrap, self.binding
        return {n: wrap(params[n]) for n in binding.params}, {n: wrap(aux[n]) for n in binding.aux}

    def get_states(self, merge_multi_context: bool = True) -> list[Any]:
        """Return the values of the inputs `state_names`; with merge_multi_context=False a list of slices for each."""
        require(self, "get_states", "binded", "params_initialized")
        states = list(self.binding.states.values()) if merge_multi_context else self.binding.state_slices()
        return jax.tree.map(self.arrays.wrap, states)

    def set_states(self, states: Any = None, value: float | None = None) -> None:
        """Set the state inputs from arrays (whole, or lists of slices as returned by `get_states`), or all to one number."""
        require(self, "set_states", "binded", "params_initialized")
        self.binding.set_states(states, value)

    # -------------------------------------------------------------------------------- optimizer
    def _init_optimizer(self, kvstore: Any, optimizer: Any, optimizer_params: Any, force_init: bool) -> None:
        self.parameters.pending.materialize()
        parameters, passes = self.parameters, self.passes
        store, on_store = stores.select(kvstore, len(self.binding.devices), parameters.arrays()[0])
        rows = self.binding.rows * stores.workers_of(store)
        optimizer, reduce = self._make_optimizer(optimizer, dict(optimizer_params), rows, on_store), self._reduce_of(store)
        parameters.kvstore, parameters.update_on_kvstore, parameters.names = store, on_store, list(self.binding.params)
        reduce = join_workers(parameters, store, passes.trainable, reduce)  # from here on, that over the own devices
        parameters.set_optimizer(optimizer, passes.trainable, self.binding.fixed_gammas, reduce)
        parameters.updater = None if optimizer.is_pure else get_updater(optimizer)
        self.optimizer_initialized = True
        if self._preload is not None:
            self.load_optimizer_states(self._preload)
            self._preload = None

    def _make_optimizer(self, optimizer: Any, params: dict[str, Any], rows: int, on_store: bool) -> Optimizer:
        scale, count = 1.0 / rows, len(self.binding.devices)
        if on_store:
            names: dict[int, str] = dict(enumerate(self.binding.params))
        else:
            names = {i * count + k: n for i, n in enumerate(self.binding.params) for k in range(count)}
        if isinstance(optimizer, str):
            params.setdefault("rescale_grad", scale)
            return create_optimizer(optimizer, sym=self._symbol, param_idx2name=names, **params)
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"optimizer is {optimizer!r}, expected a name or an Optimizer")
        if optimizer.rescale_grad != scale and self._warns_of_scale:
            problem = "Optimizer created manually outside Module but rescale_grad is not normalized to"
            scales = f"1.0/batch_size/num_workers ({optimizer.rescale_grad} vs. {scale})"
            warnings.warn(f"{problem} {scales}. Is this intended?", stacklevel=5)
        if not optimizer.idx2name:
            optimizer.idx2name = names
        return optimizer

    def _reduce_of(self, store: Any) -> Any:
        if store is None:
            return unreduced() if len(self.binding.devices) > 1 else all_reduce()
        if self._compression:
            store = copy.copy(store)  # another module of this store does not compress
            store.set_gradient_compression({"type": "2bit", **self._compression})
        return getattr(store, "reduce", None) or all_reduce()

    def borrow_optimizer(self, shared_module: Any) -> None:
        """Use the optimizer (state, update counts, key-value store) of a module that shares its parameters with this one.

        Raises:
            ValueError: the modules do not share parameters.
        """
        require(self, "borrow_optimizer", "binded")
        require(shared_module, "borrow_optimizer", "optimizer_initialized")
        if self.parameters is not shared_module.parameters:
            raise ValueError("borrow_optimizer needs the same parameters; bind this one with shared_module= first")
        self.optimizer_initialized = True

    def save_optimizer_states(self, fname: str) -> None:
        """Write the optimizer state to a `.states` file in MXNet's format, with the update counts needed for exact resuming."""
        require(self, "save_optimizer_states", "optimizer_initialized")
        self._settle()
        atomic_write(fname, self._states.get_states())

    def load_optimizer_states(self, fname: str) -> None:
        """Read a `.states` file of MXNet or jfit; MXNet's have no update counts, which are then unchanged."""
        require(self, "load_optimizer_states", "optimizer_initialized")
        self._settle()
        self._states.set_states(read_file(fname), fname)

    # -------------------------------------------------------------------------------- computing
    def forward(self, data_batch: Any, is_train: bool | None = None) -> None:
        """Run the forward pass on a batch; computed when the outputs are read, or together with `backward` and `update`.

        Args:
            data_batch: a DataBatch; if its shapes differ from the bound ones, the module is reshaped.  Or a list with one
                (pre-sliced) batch for each device.
            is_train: training mode; None means whether the module is bound for training.
        """
        require(self, "forward", "binded", "params_initialized")
        train = self.for_training if is_train is None else is_train
        if isinstance(data_batch, list):  # not a tuple: a batch may be a named tuple
            whole, counts = self.binding.concat_batches(data_batch)
            inputs, self._pad = self._inputs(whole), 0
        else:
            inputs, self._pad = self._inputs(data_batch), wrapped_rows(data_batch)
            counts = self.binding.counts
        self._last_inputs = inputs
        self.passes.forward(Batch(inputs, None, self.binding.metric_weights(self._pad)), counts, train)
        self._feed_monitor("outputs" if train else "eval_outputs")

    def _inputs(self, data_batch: Any) -> dict[str, Any]:
        """Return the inputs of a batch by name; reshapes the module if the batch has other shapes than the bound ones."""
        data, labels = self.binding.arrays_of(data_batch)
        descs, label_descs = self.binding.descriptions_of(data_batch, data, labels)
        if not same_shapes(descs, self.binding.data_shapes):
            self.reshape(descs, label_descs or self.binding.label_shapes)
        return self.binding.inputs((descs, label_descs), data, labels)

    def backward(self, out_grads: Any = None) -> None:
        """Run the backward pass of the last forward pass.

        Args:
            out_grads: gradient with respect to each output (or one array for a single output); None if all outputs are losses.
        """
        require(self, "backward", "binded", "params_initialized")
        assert self.for_training, "the module was bound for prediction; re-bind with for_training=True to run backward()"
        if out_grads is not None and not isinstance(out_grads, (list, tuple)):
            out_grads = [out_grads]
        heads = None if out_grads is None else [as_array(g) for g in out_grads]
        self._feed_monitor("gradients", heads)
        self.passes.backward(heads)

    def update(self) -> None:
        """Update all parameters with the gradients of the last `backward`."""
        require(self, "update", "binded", "params_initialized", "optimizer_initialized")
        self.passes.update()

    def get_outputs(self, merge_multi_context: bool = True) -> list[Any]:
        """Return the outputs of the last forward pass; with merge_multi_context=False a list of slices for each output."""
        require(self, "get_outputs", "binded", "params_initialized")
        return jax.tree.map(self.arrays.wrap, self.passes.merged() if merge_multi_context else self.passes.sliced())

    def get_input_grads(self, merge_multi_context: bool = True) -> list[Any]:
        """Return the gradients of the data inputs, None for "null"; requires `bind(inputs_need_grad=True)`."""
        require(self, "get_input_grads", "binded", "params_initialized", "inputs_need_grad")
        names = [d.name for d in self.binding.data_shapes]
        wanted = [n for n in names if n in self.passes.grad_reqs]
        gradients = jax.tree.map(self.arrays.wrap, self.passes.input_gradients(wanted, merge_multi_context))
        return [dict(zip(wanted, gradients, strict=True)).get(n) for n in names]

    def gradients(self) -> dict[str, Any]:
        """Return the gradients of the parameters by name, summed over devices, after `backward`."""
        require(self, "gradients", "binded")
        slices = {n: self.passes.gradient_slices(n) for n in self.passes.trainable}
        home = self.binding.devices[0]
        return {n: self.arrays.wrap(sum(jax.device_put(p, home) for p in parts)) for n, parts in slices.items()}

    def update_metric(self, eval_metric: Any, labels: Any, pre_sliced: bool = False) -> None:
        """Update a metric with the outputs of the last forward pass; padding rows have weight 0.

        Args:
            eval_metric: an EvalMetric.
            labels: list of label arrays, or (pre_sliced=True) a list of such lists, one for each device.
            pre_sliced: whether the labels are split over devices.
        """
        require(self, "update_metric", "binded", "params_initialized")
        if pre_sliced:
            labels = [np.concatenate([as_array(part[i]) for part in labels]) for i in range(len(labels[0]))]
        outputs = [self.arrays.wrap(out) for out in self.passes.merged()]  # user metrics may call methods of NDArray
        labels = [self.arrays.wrap(a if isinstance(a, MutableArray) else as_array(a)) for a in labels or ()]
        self._fold(eval_metric, labels, outputs, self._weights(outputs))

    def _fold(self, eval_metric: Any, labels: list[Any], outputs: list[Any], weights: Any) -> None:
        names = [d.name for d in self.binding.label_shapes] or self.binding.label_names
        named_labels = dict(zip(names, labels, strict=False))
        eval_metric.fold_dict(named_labels, dict(zip(self.output_names, outputs, strict=True)), weights)

    def _weights(self, outputs: Sequence[Any]) -> Any:
        """Return the row weights of each output; None for an output without a row axis, such as a mean loss."""
        if not self._pad:
            return None
        weight, rows = self.binding.metric_weights(self._pad), self.binding.rows
        return [weight if out.shape and out.shape[0] and out.shape[0] % rows == 0 else None for out in outputs]

    def prepare(self, data_batch: Any, sparse_row_id_fn: Any = None) -> None:
        """Do nothing; MXNet fetches the rows of sparse parameters here."""
        require(self, "prepare", "binded")

    # -------------------------------------------------------------------------------- fit, predict
    def _fit_epoch(
        self, train_data: Any, eval_metric: Any, callbacks: Any, monitor: Any, epoch: int, names: dict[str, Any], first: int = 0
    ) -> list[tuple[str, float]]:
        """Train one epoch; if data is in memory, programs gather the batches, and several steps share a dispatch.

        A callback that may look at every batch finds outputs and gradients.  Without one there are none
        after such an epoch: `get_outputs` raises until the next forward pass.
        """
        leaves, every = eval_metric.leaves(), callback_period(listed(callbacks))
        usual = lambda: self._monitor is None and self._uses_default_methods()  # noqa: E731
        plain = lambda m: m.pure and type(m).prepare is EvalMetric.prepare and not (m.output_names or m.label_names)  # noqa: E731
        many = monitor is None and usual() and all(map(plain, leaves))
        results: list[tuple[str, float]] = []
        passes = self.passes
        if many and can_run_many_steps(self.passes, train_data, [d.name for d in self.binding.label_shapes]):

            def on_batch(nbatch: int) -> bool:
                if nbatch + 1 == train_data.num_batches:  # read the metrics before a callback resets them
                    results.extend(eval_metric.get_global_name_value())
                data_batch, self._pad = train_data.batch_at(nbatch), 0
                train_data.skip(nbatch + 2 - train_data.batches_read)  # batch by batch, the next one is read before callbacks
                with Doing(activity.SAVING, "in a batch_end_callback"):
                    call(callbacks, BatchEndParam(epoch, nbatch, eval_metric, names | locals()))
                same = self.passes is passes and passes.is_one_program and not passes.parameters.passes
                return every is not None or (same and usual())

            def batch_of(nbatch: int) -> Callable[[], Batch]:
                batch = train_data.batch_at(nbatch)
                return lambda: passes.split(Batch(self._inputs(batch)), runner.counts)

            if self._looking:
                self._look_at_all(train_data, epoch)
            runner = self._runner_of(train_data, leaves, every)
            first = runner.run(leaves, on_batch, self._flag, batch_of)
            train_data.skip(first - train_data.batches_read)
            self._stop_if_asked()
        results += super()._fit_epoch(train_data, eval_metric, callbacks, monitor, epoch, names, first)
        return results or eval_metric.get_global_name_value()

    def _runner_of(self, data: Any, leaves: list[Any], every: int | None) -> EpochRunner:
        runner, metrics = self._runner, tuple(m.pure for m in leaves)
        if runner is None or (runner.data, runner.passes, runner.metrics, runner.asked) != (data, self.passes, metrics, every):
            counts = self.binding.slices(data.batch_size)
            self._runner = runner = EpochRunner(self.passes, data, counts, metrics, every)
        return runner

    def _look_at_all(self, data: Any, epoch: int) -> None:
        """Warn of the first batch of an epoch that has invalid values; `data` is an NDArrayIter with its arrays in memory."""
        check, arrays, rows = self._check(), dict([*data.sources[0], *data.sources[1]]), data.epoch_rows()
        if check.problem(arrays, "") is None:
            return
        cuts = [rows[at : at + data.batch_size] for at in range(0, len(rows), data.batch_size)]
        batches = ({k: v[cut] for k, v in arrays.items()} for cut in cuts[: data.num_batches])
        problems = (check.problem(batch, f"epoch {epoch}, batch {number}") for number, batch in enumerate(batches))
        self._warn(next(filter(None, problems), None))

    def _problem_of(self, where: str, data: bool = True) -> str | None:
        names = self.label_names + self.data_names * data
        return self._check().problem({k: v for k, v in self._last_inputs.items() if k in names}, where)

    def _check(self) -> InputCheck:
        if self._input_check is None:
            self._input_check = InputCheck(self.binding)
        return self._input_check

    def _uses_default_methods(self) -> bool:
        """Return whether neither a subclass nor an instance attribute overrides a method that `fit` calls for each batch."""
        names = ("forward", "backward", "update", "forward_backward", "update_metric", "prepare")
        inherited = all(getattr(type(self), n).__module__.startswith("jfit.") for n in names)
        return inherited and not any(n in vars(self) for n in names)

    def _sync_devices(self) -> None:
        if self.parameters.split:
            self.parameters.pending.materialize()
            self.parameters.set_arrays(*self.parameters.arrays())

    def _without_padding(self, pad: int) -> list[Any]:
        if not pad:
            return self.get_outputs()
        return [self.arrays.wrap(out) for out in self.passes.merged(without=pad)]

    # -------------------------------------------------------------------------------- monitor
    def install_monitor(self, mon: Any) -> None:
        """Attach a Monitor, which computes statistics of outputs, arguments and gradients on the steps it samples.

        On these steps a second program computes the arrays; on other steps there is no cost.  With several devices the
        monitor gets each device's arrays; if slices are uneven, shorter ones contain repeated padding rows.
        """
        require(self, "install_monitor", "binded")
        self._monitor = mon
        mon.install(self)

    def monitor_with(self, mon: Any) -> None:
        """Pass the arrays of each pass to `mon.collect`, if `mon.activated`, without attaching the module to it."""
        self._monitor = mon

    def monitored(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return (arguments, auxiliary states), dicts of arrays by name, for a Monitor."""
        self._settle()
        params, aux = self.parameters.arrays()
        values = {**self._last_inputs, **params}
        return {n: values[n] for n in self.binding.arguments if n in values}, {n: aux[n] for n in self.binding.aux}

    def _feed_monitor(self, kind: str, heads: Any = None) -> None:
        """Pass the named arrays of the current pass to the monitor, if it samples this step.

        kind: as in `Passes.captured`.  heads: gradients with respect to the outputs, if they were passed to `backward`.
        """
        mon = self._monitor
        if mon is not None and mon.activated:
            for arrays in self.passes.captured(kind, mon, heads):
                mon.collect(arrays)

    # -------------------------------------------------------------------------------- files
    def save_checkpoint(
        self, prefix: str, epoch: int, save_optimizer_states: bool = False, remove_amp_cast: bool = True
    ) -> None:
        """Write `prefix-symbol.json`, `prefix-%04d.params` and optionally `prefix-%04d.states`, in MXNet's formats."""
        files.save_checkpoint(prefix, epoch, self._symbol, *self.get_params(), remove_amp_cast=remove_amp_cast)
        if save_optimizer_states:
            self.save_optimizer_states(f"{prefix}-{epoch:04d}.states")
            logging.info('Saved optimizer state to "%s"', f"{prefix}-{epoch:04d}.states")

    @classmethod
    def load(cls, prefix: str, epoch: int, load_optimizer_states: bool = False, **kwargs: Any) -> Any:
        """Create a module from checkpoint files; call `bind` and `init_optimizer` to continue training.

        Args:
            prefix: path and first part of the file names, as in `save_checkpoint`.
            epoch: number in the file names.
            load_optimizer_states: let `init_optimizer` read `prefix-%04d.states`.
            **kwargs: further arguments of `Module`.

        Returns:
            Module.
        """
        symbol, params, aux = files.load_checkpoint(prefix, epoch)
        module = cls(cls.arrays.symbol(symbol), **kwargs)
        module._loaded = (params, aux)
        module.params_initialized = True
        if load_optimizer_states:
            module._preload = f"{prefix}-{epoch:04d}.states"
        return module


class InputCheck:
    """Look for invalid values in the inputs of a bound module, on which MXNet trains without a word.

    They are nan, labels that are no classes, and indices outside of tables.

    Args:
        binding: the graph with its bound shapes.
    """

    def __init__(self, binding: Binding) -> None:
        model = binding.model
        specs: dict[str, Any] = {name: binding.specs[name] for name in (*model.inputs, *model.labels) if name in binding.specs}
        self._axes, self._labels = model.batch_axes, BatchLabels(model, plan_of(model, specs))

    def problem(self, inputs: Mapping[str, Any], where: str) -> str | None:
        """Describe the first invalid value, or return None.

        Args:
            inputs: arrays by name.  Only those are looked at whose values the host has without waiting for a device.
            where: start of the text, such as "epoch 0, batch 3".
        """
        arrays = {name: x for name, value in inputs.items() if (x := _on_host(as_array(value))) is not None}
        for name, x in arrays.items():
            if _has_nan(x):
                rows = np.moveaxis(np.isnan(x), self._axes.get(name, 0), 0)
                row = int(np.argmax(rows.reshape(len(rows), -1).any(axis=1)))
                return f"{where}: input {name!r} has nan in row {row}; drop such rows, or replace the values."
        try:
            self._labels.check(Batch(arrays), where)
        except ValueError as error:
            return str(error)
        return None


def _on_host(value: Any) -> np.ndarray | None:
    if isinstance(value, np.ndarray):
        return value
    # A computed array on one CPU device is memory of the host, so that reading it neither waits nor copies.
    local = isinstance(value, jax.Array) and [device.platform for device in value.devices()] == ["cpu"]
    return np.asarray(value) if local and getattr(value, "is_ready")() else None  # noqa: B009 (pyright: jax hides it)


def _has_nan(x: np.ndarray) -> bool:
    if x.dtype.kind != "f":
        return False
    with np.errstate(all="ignore"):  # the sum, which needs no array of flags, is nan or infinite if one value is
        return not np.isfinite(x.sum()) and bool(np.isnan(x).any())
