"""Module: a symbol bound to shapes and devices, with MXNet's methods and jfit's engine below them."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

import jax

from jfit.data import Batch
from jfit.data.ndarray_iter import DataDesc
from jfit.graph import Symbol
from jfit.mxnet import files
from jfit.mxnet.callback import BatchEndParam
from jfit.mxnet.kvstore import store as stores
from jfit.mxnet.module.base import BaseModule, call, listed, require
from jfit.mxnet.module.binding import Binding, joined, python_slices, same, wrapped_rows
from jfit.mxnet.module.epochs import EpochRunner, looks_every, runs_whole
from jfit.mxnet.module.initial import DEFAULT
from jfit.mxnet.module.parameters import Parameters
from jfit.mxnet.module.passes import Passes
from jfit.mxnet.module.states import load_states_into, save_states_of
from jfit.mxnet.mutable import as_array
from jfit.mxnet.optimizer import Optimizer, get_updater
from jfit.mxnet.optimizer import create as create_optimizer
from jfit.step.reduce import all_reduce, two_bit, unreduced
from jfit.train.interrupts import StopFlag


class Module(BaseModule):
    """A network with bind, init_params, init_optimizer, forward, backward, update, and the fit and score of `BaseModule`.

    The state is one `jfit.TrainState`, and the methods call the pure functions of `jfit.step`.  `forward(); backward();
    update()` run as one program if nothing is read in between; the numbers are the same either way.

    It has three parts.  `binding` knows names, devices and shapes, and makes inputs by name of a batch; `parameters` holds the
    parameters and the optimizer, which modules may share; `passes` computes, from `bind` on.

    Args:
        symbol: the network.
        data_names: names of the data inputs.
        label_names: names of the labels; None or () for none.
        logger: where log lines go.
        context: a device (`jfit.cpu(0)`, `jax.devices()[0]`) or a list of them: each gets a slice of every batch.
        work_load_list: relative share of each device.
        fixed_param_names: parameters without gradient and update.
        state_names: inputs that the module keeps itself (see `set_states`).
        group2ctxs: accepted; all groups share the devices of `context`.
        compression_params: `{"type": "2bit", "threshold": 0.5}`, for kvstore "device".

    Where it differs from MXNet 1.9.1: rows that an iterator wrapped around train, but never count in metrics; metrics of
    several devices are those of the whole batch; gamma of a BatchNorm with fix_gamma is exactly 1 and never changes; unknown
    names in `set_params` raise.  Arrays are jax.Array (`jfit.mx.mod.Module` gives NDArray).

    Raises:
        ValueError: a name that the symbol does not have.

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

    _divide = staticmethod(python_slices)
    _make_store = staticmethod(stores.create)

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
        self.binding = Binding(symbol, *names, context, work_load_list, self._divide, logger)
        self.parameters = Parameters(self.binding.devices, self.binding.params, self.arrays.mutable)
        self.passes: Passes = None  # type: ignore[assignment]
        self._compression = dict(compression_params) if compression_params else None
        self._loaded: Any = None  # (parameters, auxiliary states) of a checkpoint, until bind
        self._preload: Any = None  # a file of optimizer states that init_optimizer reads
        self._monitor: Any = None
        self._runner: Any = None  # EpochRunner over the data that fit saw last
        self._pad = 0  # rows at the end of the last batch that do not count

    # -------------------------------------------------------------------------------- what it is
    # what scripts read of MXNet's Module
    _data_names = property(attrgetter("binding.data_names"))
    _label_names = property(attrgetter("binding.label_names"))
    _data_shapes = property(attrgetter("binding.data_shapes"))
    _label_shapes = property(attrgetter("binding.label_shapes"))
    _param_names = property(attrgetter("binding.params"))
    _aux_names = property(attrgetter("binding.aux"))
    _context = property(attrgetter("binding.context"))
    _optimizer = property(attrgetter("parameters.optimizer"))
    _kvstore = property(attrgetter("parameters.kvstore"))
    _update_on_kvstore = property(attrgetter("parameters.update_on_kvstore"))

    @property
    def data_names(self) -> list[str]:
        """Names of the data inputs."""
        return self.binding.data_names

    @property
    def label_names(self) -> list[str]:
        """Names of the labels."""
        return self.binding.label_names

    @property
    def output_names(self) -> list[str]:
        """Names of the outputs."""
        return self._symbol.list_outputs()

    @property
    def data_shapes(self) -> list[DataDesc]:
        """Descriptions of the bound data."""
        require(self, "data_shapes", "binded")
        return self.binding.data_shapes

    @property
    def label_shapes(self) -> list[DataDesc]:
        """Descriptions of the bound labels."""
        require(self, "label_shapes", "binded")
        return self.binding.label_shapes

    @property
    def output_shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        """(name, shape) of each output of a whole batch."""
        require(self, "output_shapes", "binded")
        return self.binding.output_shapes

    @property
    def state(self) -> Any:
        """The `jfit.TrainState` of this module, for research code: step, params, aux, opt_state ...

        The next update gives its buffers up: copy what should stay.
        """
        self._settle()
        return self.parameters.state

    def _settle(self) -> None:
        """Run pending passes, so that the state is that of all calls so far."""
        if self.passes is not None:
            self.passes.flush()

    # -------------------------------------------------------------------------------- bind
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
        """Fix shapes and decide which arrays get gradients.

        Args:
            data_shapes: (name, shape) pairs or DataDesc, of whole batches.
            label_shapes: the same for labels, or None.
            for_training: False: no gradients at all.
            inputs_need_grad: also gradients of the data.
            force_rebind: bind again, keeping the parameters.
            shared_module: a bound module whose parameters and optimizer this one shares.
            grad_req: "write", "add" or "null", a list in the order of the arguments, or a dict by name.

        Raises:
            ValueError: shapes for other names than `data_names`, shapes that do not fit the graph, or more devices than rows.
        """
        if force_rebind and self.binded:
            self._settle()
            self.binded = False
        if self.binded:
            self.logger.warning("Already bound, ignoring bind()")
            return
        if not for_training and inputs_need_grad:
            raise AssertionError("inputs_need_grad=True needs for_training=True: without training there are no gradients")
        self.passes = None  # type: ignore[assignment]
        parameters = self.parameters if shared_module is None else _parameters_of(shared_module)
        self.binding.bind(data_shapes, label_shapes, grad_req if for_training else "null", inputs_need_grad)
        if shared_module is not None:
            self.binding.check_shared(parameters)
        self.parameters, self.passes = parameters, Passes(self.binding, parameters)
        self.params_initialized = self.params_initialized or shared_module is not None
        self.for_training, self.inputs_need_grad, self.binded = for_training, inputs_need_grad, True
        if self._loaded is not None:
            params, aux = self._loaded
            parameters.set_arrays(*self.binding.initial(self.arrays).drawn(None, params, aux, False, True))
            self._loaded = None
        if shared_module is not None and shared_module.optimizer_initialized:
            self.optimizer_initialized = True

    def reshape(self, data_shapes: Any, label_shapes: Any = None) -> None:
        """Bind to other shapes of the same arrays; parameters and optimizer stay, programs compile once per shape."""
        require(self, "reshape", "binded")
        self.binding.reshape(data_shapes, label_shapes)

    # -------------------------------------------------------------------------------- parameters
    def init_params(
        self,
        initializer: Any = DEFAULT,
        arg_params: Mapping[str, Any] | None = None,
        aux_params: Mapping[str, Any] | None = None,
        allow_missing: bool = False,
        force_init: bool = False,
        allow_extra: bool = False,
    ) -> None:
        """Set parameters from `arg_params` / `aux_params`, and draw what they lack.

        Args:
            initializer: of the missing ones (and of all, where no values are given); "default" is Uniform(0.01).
            arg_params: values by name.
            aux_params: auxiliary states by name.
            allow_missing: names that the given values lack are drawn; otherwise they raise.
            force_init: do it though there are parameters already.
            allow_extra: unknown names are ignored; otherwise they raise (MXNet ignores them silently).

        Raises:
            RuntimeError: a value is missing.
            ValueError: an unknown name, or a shape that does not fit.
        """
        if self.params_initialized and not force_init:
            warnings.warn("Parameters already initialized and force_init=False. init_params call ignored.", stacklevel=2)
            return
        assert self.binded, "call bind before initializing the parameters"
        self.passes.hold_outputs()
        found = self.binding.initial(self.arrays).drawn(initializer, arg_params, aux_params, allow_missing, allow_extra)
        self.parameters.set_arrays(*found)
        self.params_initialized = True

    def set_params(
        self,
        arg_params: Mapping[str, Any],
        aux_params: Mapping[str, Any],
        allow_missing: bool = False,
        force_init: bool = True,
        allow_extra: bool = False,
    ) -> None:
        """Set parameters; with allow_missing those that are not given keep their values."""
        if self.params_initialized and not force_init:
            warnings.warn("Parameters already initialized and force_init=False. set_params call ignored.", stacklevel=2)
            return
        if not allow_missing or not self.params_initialized:
            self.init_params(None, arg_params, aux_params, allow_missing, force_init, allow_extra)
            return
        self.passes.hold_outputs()
        now, aux = self.parameters.arrays()
        given = self.binding.initial(self.arrays).checked(arg_params, aux_params, allow_extra)
        self.parameters.set_arrays({**now, **given[0]}, {**aux, **given[1]})

    def get_params(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """(parameters, auxiliary states): copies; the mean over devices where each has its own."""
        require(self, "get_params", "binded", "params_initialized")
        self._settle()
        params, aux = self.parameters.arrays()
        box, held = self.arrays.wrap, self.binding
        return {n: box(params[n]) for n in held.params}, {n: box(aux[n]) for n in held.aux}

    def get_states(self, merge_multi_context: bool = True) -> list[Any]:
        """The arrays of `state_names`; with merge_multi_context=False one list of slices for each."""
        require(self, "get_states", "binded", "params_initialized")
        if merge_multi_context:
            return [self.arrays.wrap(v) for v in self.binding.states.values()]
        return [[self.arrays.wrap(p) for p in parts] for parts in self.binding.state_slices()]

    def set_states(self, states: Any = None, value: float | None = None) -> None:
        """Set the state inputs: from arrays (whole, or lists of slices as `get_states` gives them), or all to one number."""
        require(self, "set_states", "binded", "params_initialized")
        self.binding.set_states(states, value)

    # -------------------------------------------------------------------------------- optimizer
    def init_optimizer(
        self,
        kvstore: Any = "local",
        optimizer: Any = "sgd",
        optimizer_params: Any = (("learning_rate", 0.01),),
        force_init: bool = False,
    ) -> None:
        """Choose the optimizer and how gradients are added over devices.

        Args:
            kvstore: "local", "device", ..., a KVStore, or None (each device learns from its own rows).
            optimizer: a name (gradients are then scaled by 1 / batch size) or an `Optimizer` (its own `rescale_grad`, 1 by
                default, holds, and its weight decay applies to all parameters, as in MXNet).
            optimizer_params: parameters of a named optimizer, a dict or (name, value) pairs.
            force_init: replace an optimizer that is there.
        """
        assert self.binded and self.params_initialized, "call bind and init_params before init_optimizer"
        if self.optimizer_initialized and not force_init:
            self.logger.warning("optimizer already initialized, ignoring...")
            return
        self._settle()
        parameters, passes = self.parameters, self.passes
        params, _ = parameters.arrays()
        store, on_store = self._select(kvstore, params)
        rows = self.binding.rows
        made = self._make_optimizer(optimizer, dict(optimizer_params), rows, on_store)
        parameters.kvstore, parameters.update_on_kvstore, parameters.names = store, on_store, list(self.binding.params)
        parameters.set_optimizer(made, passes.learns, self.binding.gammas, self._reduce_of(store))
        parameters.updater = None if made.is_pure else get_updater(made)
        self.optimizer_initialized = True
        if self._preload is not None:
            self.load_optimizer_states(self._preload)
            self._preload = None

    def _select(self, kvstore: Any, params: dict[str, Any]) -> tuple[Any, bool]:
        """(key-value store or None, whether it updates)."""
        return stores.select(kvstore, len(self.binding.devices), params, make=self._make_store)

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
            raise TypeError(f"an optimizer is a name or an Optimizer; found {optimizer!r}")
        if optimizer.rescale_grad != scale:
            warnings.warn(
                "Optimizer created manually outside Module but rescale_grad is not normalized to 1.0/batch_size/num_workers "
                f"({optimizer.rescale_grad} vs. {scale}). Is this intended?",
                stacklevel=4,
            )
        if not optimizer.idx2name:
            optimizer.idx2name = names
        return optimizer

    def _reduce_of(self, store: Any) -> Any:
        if self._compression and store is not None:
            if "device" not in store.type:
                raise ValueError(f"Gradient compression is not supported for this type of kvstore: {store.type}; use 'device'")
            kind = self._compression.get("type", "2bit")
            if kind != "2bit":
                raise ValueError(f"compression_params has type {kind!r}; '2bit' is what there is")
            return two_bit(float(self._compression.get("threshold", 0.5)))
        return unreduced() if store is None and len(self.binding.devices) > 1 else all_reduce()

    def borrow_optimizer(self, shared_module: Any) -> None:
        """Use the optimizer (state, counters, key-value store) of another module, which shares its parameters with this one.

        Raises:
            ValueError: they share none; optimizer state belongs to parameters.
        """
        require(self, "borrow_optimizer", "binded")
        require(shared_module, "borrow_optimizer", "optimizer_initialized")
        if self.parameters is not shared_module.parameters:
            raise ValueError(
                "borrow_optimizer takes the optimizer of a module with the same parameters, and these two have parameters of "
                "their own; bind this one with shared_module= that one first"
            )
        self.optimizer_initialized = True

    def save_optimizer_states(self, fname: str) -> None:
        """Write the optimizer state as MXNet's `.states`, with update counts, so that resuming equals continuing."""
        require(self, "save_optimizer_states", "optimizer_initialized")
        self._settle()
        save_states_of(self.parameters, fname)

    def load_optimizer_states(self, fname: str) -> None:
        """Read `.states` of MXNet or jfit; MXNet's hold no update counts, which then stay as they are."""
        require(self, "load_optimizer_states", "optimizer_initialized")
        self._settle()
        load_states_into(self.parameters, fname)

    # -------------------------------------------------------------------------------- computing
    def forward(self, data_batch: Any, is_train: bool | None = None) -> None:
        """Compute the outputs of a batch (when they are asked for, or with `backward` and `update`).

        Args:
            data_batch: a DataBatch; other shapes than the bound ones are taken as a reshape.  A list holds one batch for each
                device, sliced before.
            is_train: default: whether the module is bound for training.
        """
        require(self, "forward", "binded", "params_initialized")
        train = self.for_training if is_train is None else is_train
        if isinstance(data_batch, list):  # a batch may be a named tuple
            whole, counts = self.binding.joined(data_batch)
            inputs, self._pad = self._inputs(whole), 0
        else:
            inputs, self._pad = self._inputs(data_batch), wrapped_rows(data_batch)
            counts = self.binding.slices(self.binding.rows)
        self.passes.forward(Batch(inputs, None, self.binding.counted(self._pad)), counts, train)
        self._watch("outputs" if train else "eval_outputs")

    def _inputs(self, data_batch: Any) -> dict[str, Any]:
        """Inputs by name; adapts the bound shapes where the batch has others."""
        data, labels = self.binding.arrays_of(data_batch)
        shown, shown_labels = self.binding.shown_by(data_batch, data, labels)
        if not same(shown, self.binding.data_shapes):
            self.reshape(shown, shown_labels or self.binding.label_shapes)
        return self.binding.inputs((shown, shown_labels), data, labels)

    def backward(self, out_grads: Any = None) -> None:
        """Gradients of the last forward pass.

        Args:
            out_grads: gradient of each output (an array for a single one); not needed where all outputs are losses.
        """
        require(self, "backward", "binded", "params_initialized")
        assert self.for_training, "the module was bound for prediction; re-bind with for_training=True to run backward()"
        if out_grads is not None and not isinstance(out_grads, (list, tuple)):
            out_grads = [out_grads]
        heads = None if out_grads is None else [as_array(g) for g in out_grads]
        self._watch("gradients", *([] if heads is None else [heads]))
        self.passes.backward(heads)

    def update(self) -> None:
        """One update of all parameters with the gradients of the last `backward`."""
        require(self, "update", "binded", "params_initialized", "optimizer_initialized")
        self.passes.update()

    def get_outputs(self, merge_multi_context: bool = True) -> list[Any]:
        """Outputs of the last forward pass; with merge_multi_context=False one list of slices for each output."""
        require(self, "get_outputs", "binded", "params_initialized")
        if merge_multi_context:
            return [self.arrays.wrap(out) for out in self.passes.merged()]
        return [[self.arrays.wrap(piece) for piece in pieces] for pieces in self.passes.sliced()]

    def get_input_grads(self, merge_multi_context: bool = True) -> list[Any]:
        """Gradients of the data inputs; needs `bind(inputs_need_grad=True)`."""
        require(self, "get_input_grads", "binded", "params_initialized", "inputs_need_grad")
        names = [d.name for d in self.binding.data_shapes]
        if merge_multi_context:
            return [self.arrays.wrap(self.passes.whole_input_gradient(name)) for name in names]
        return [[self.arrays.wrap(part) for part in self.passes.input_gradient(name)] for name in names]

    def gradients(self) -> dict[str, Any]:
        """Gradients of the parameters, summed over the devices' rows, by name; after `backward`."""
        require(self, "gradients", "binded")
        slices = {n: self.passes.gradient_slices(n) for n in self.passes.learns}
        home = self.binding.devices[0]
        return {n: self.arrays.wrap(sum(jax.device_put(p, home) for p in parts)) for n, parts in slices.items()}

    def update_metric(self, eval_metric: Any, labels: Any, pre_sliced: bool = False) -> None:
        """Add the last batch to a metric; rows that an iterator wrapped around do not count.

        Args:
            eval_metric: an EvalMetric.
            labels: list of label arrays (with pre_sliced, a list of such lists, one for each device).
        """
        require(self, "update_metric", "binded", "params_initialized")
        if pre_sliced:
            labels = [joined([as_array(part[i]) for part in labels], 0) for i in range(len(labels[0]))]
        outputs = [self.arrays.wrap(out) for out in self.passes.merged()]  # a metric of the user's calls methods of the box
        names = [d.name for d in self.binding.label_shapes] or self.binding.label_names
        shown = dict(zip(names, [self.arrays.wrap(as_array(a)) for a in labels or ()], strict=False))
        eval_metric.fold_dict(shown, dict(zip(self.output_names, outputs, strict=True)), self._weights(outputs))

    def _weights(self, outputs: Sequence[Any]) -> Any:
        """Row weights for each output; None for one that has no rows, such as the mean of a loss, which counts as it is."""
        if not self._pad:
            return None
        weight, rows = self.binding.counted(self._pad), self.binding.rows
        return [weight if out.shape and out.shape[0] and out.shape[0] % rows == 0 else None for out in outputs]

    def prepare(self, data_batch: Any, sparse_row_id_fn: Any = None) -> None:
        """Prepare for a batch, as MXNet fetches sparse rows; it does nothing here."""
        require(self, "prepare", "binded")

    # -------------------------------------------------------------------------------- fit, predict
    def _fit_epoch(
        self,
        train_data: Any,
        eval_metric: Any,
        callbacks: Any,
        monitor: Any,
        epoch: int,
        row_ids: Any,
        flag: StopFlag,
        first: int = 0,
    ) -> list[tuple[str, float]]:
        """One pass; full batches of arrays in memory in few dispatches where nobody looks between them.

        Of such a pass no outputs and gradients are kept: `get_outputs` asks for a forward pass first.
        """
        leaves, every = eval_metric.leaves(), looks_every(listed(callbacks))
        whole = every is not None and monitor is None and self._monitor is None and self._own_methods()
        whole = whole and all(m.pure and not m.output_names and not m.label_names for m in leaves)
        found: list[tuple[str, float]] = []
        first = 0
        if whole and runs_whole(self.passes, train_data, [d.name for d in self.binding.label_shapes]):

            def look(nbatch: int) -> None:
                if nbatch + 1 == train_data.num_batches:  # before a callback resets anything
                    found.extend(eval_metric.get_global_name_value())
                call(callbacks, BatchEndParam(epoch, nbatch, eval_metric, {"self": self, "nbatch": nbatch, "epoch": epoch}))

            train_data.skip(self._runner_of(train_data, leaves, every or 0).run(leaves, look, flag))
            self._stop_if(flag)
            first = train_data.batches_read
        found += super()._fit_epoch(train_data, eval_metric, callbacks, monitor, epoch, row_ids, flag, first)
        return found or eval_metric.get_global_name_value()

    def _runner_of(self, data: Any, leaves: list[Any], every: int) -> EpochRunner:
        runner, metrics = self._runner, tuple(m.pure for m in leaves)
        if runner is None or (runner.data, runner.passes, runner.metrics, runner.every) != (data, self.passes, metrics, every):
            counts = self.binding.slices(data.batch_size)
            self._runner = runner = EpochRunner(self.passes, data, counts, metrics, every)
        return runner

    def _own_methods(self) -> bool:
        """False where a subclass, or an attribute, replaces a method that `fit` calls for each batch."""
        names = ("forward", "backward", "update", "forward_backward", "update_metric", "prepare")
        own = all(getattr(type(self), n).__module__.startswith("jfit.") for n in names)
        return own and not any(n in vars(self) for n in names)

    def _sync_devices(self) -> None:
        if self.parameters.split:
            self._settle()
            self.parameters.set_arrays(*self.parameters.arrays())

    def _without_padding(self, pad: int) -> list[Any]:
        if not pad:
            return self.get_outputs()
        return [self.arrays.wrap(out) for out in self.passes.merged(without=pad)]

    # -------------------------------------------------------------------------------- monitor
    def install_monitor(self, mon: Any) -> None:
        """Let a Monitor see outputs, arguments and gradients; while it is idle it costs nothing.

        An active one makes a second program run beside the step.  With several devices it sees each device's arrays; where
        slices are uneven, those of the shorter ones hold repeated rows.
        """
        require(self, "install_monitor", "binded")
        self._monitor = mon
        mon.install(self)

    def monitored(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """(arguments, auxiliary states) by name, for a Monitor."""
        params, aux = self.parameters.arrays()
        known = {**self.passes.whole_inputs(), **params}
        return {n: known[n] for n in self.binding.arguments if n in known}, {n: aux[n] for n in self.binding.aux}

    def _watch(self, kind: str, *heads: Any) -> None:
        """Hand the arrays of the pass at hand to a monitor that is active."""
        mon = self._monitor
        if mon is None or not mon.active:
            return
        for found in self.passes.captured(kind, mon, heads):
            mon.collect(found)

    # -------------------------------------------------------------------------------- files
    def save_checkpoint(
        self, prefix: str, epoch: int, save_optimizer_states: bool = False, remove_amp_cast: bool = True
    ) -> None:
        """Write `prefix-symbol.json`, `prefix-%04d.params` and, if wanted, `prefix-%04d.states`, all readable by MXNet."""
        files.save_checkpoint(prefix, epoch, self._symbol, *self.get_params(), remove_amp_cast=remove_amp_cast)
        if save_optimizer_states:
            name = f"{prefix}-{epoch:04d}.states"
            self.save_optimizer_states(name)
            logging.info('Saved optimizer state to "%s"', name)

    @classmethod
    def load(cls, prefix: str, epoch: int, load_optimizer_states: bool = False, **kwargs: Any) -> Any:
        """A module from checkpoint files; `bind` and `init_optimizer` it, then go on.

        Args:
            prefix, epoch: name the files, as in `save_checkpoint`.
            load_optimizer_states: read `.states` in `init_optimizer`.
            **kwargs: as for `Module`.
        """
        symbol, params, aux = files.load_checkpoint(prefix, epoch)
        module = cls(cls.arrays.symbol(symbol), **kwargs)
        module._loaded = (params, aux)
        module.params_initialized = True
        if load_optimizer_states:
            module._preload = f"{prefix}-{epoch:04d}.states"
        return module


def _parameters_of(module: Any) -> Parameters:
    """The parameters and the optimizer of a module that shares them."""
    if not (module.binded and module.params_initialized):
        raise ValueError("shared_module is not bound or has no parameters yet; bind it and call init_params first")
    return module.parameters
