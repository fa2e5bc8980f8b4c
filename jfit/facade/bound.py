"""A symbol bound to names, shapes and devices, and its parameters: the first half of Module."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jfit.data import Batch, DataBatch
from jfit.data.ndarray_iter import DataDesc
from jfit.devices import Context, cpu
from jfit.facade import descs
from jfit.facade.base_module import BaseModule
from jfit.facade.box import unbox
from jfit.facade.initial import DEFAULT, Initial
from jfit.facade.optimizer import Optimizer
from jfit.facade.passes import Passes
from jfit.facade.programs import Programs
from jfit.facade.resting import with_resting_aux
from jfit.facade.session import Session
from jfit.facade.slicing import python_slices
from jfit.lowering import lower
from jfit.symbol import Symbol


class BoundModule(BaseModule):
    """What a Module is, before it has an optimizer: names, shapes, parameters, and how a batch becomes inputs by name."""

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
        one = isinstance(context, Context) or not isinstance(context, (list, tuple))  # a Context is a tuple too
        given = [cpu() if context is None else context] if one else list(context)
        self._context = given
        self._devices = [c.device if isinstance(c, Context) else c for c in given]
        self._workloads = [1] * len(given) if work_load_list is None else list(work_load_list)
        if len(self._workloads) != len(given):
            raise ValueError(f"work_load_list has {len(self._workloads)} entries, needed one for each of {len(given)} devices")
        check = lambda names, what, must: descs.check_names(symbol, list(names or ()), what, logger, must=must)  # noqa: E731
        self._data_names = check(data_names, "data", True)
        check(label_names, "label", False)
        self._label_names = list(label_names or ())
        self._state_names = check(state_names, "state", True)
        self._fixed = check(fixed_param_names, "fixed_param", True)
        fed = {*self._data_names, *self._label_names, *self._state_names}
        self._arguments = symbol.list_arguments()
        self._spare_labels = descs.spare_labels(symbol, fed)
        self._param_names = [n for n in self._arguments if n not in fed and n not in self._spare_labels]
        self._aux_names = symbol.list_auxiliary_states()
        self._group2ctxs = group2ctxs
        self._compression = dict(compression_params) if compression_params else None
        self._session = self._new_session()
        self._loaded: Any = None  # (parameters, auxiliary states) of a checkpoint, until bind
        self._preload: Any = None  # a file of optimizer states that init_optimizer reads
        self._states: dict[str, Any] = {}
        self._labels_before: dict[str, Any] = {}
        self._monitor: Any = None
        self._captures: dict[Any, Any] = {}
        self._runner: Any = None  # EpochRunner over the data that fit saw last
        self._data_shapes: list[DataDesc] = []
        self._label_shapes: list[DataDesc] = []
        self._requests: dict[str, str] = {}
        self._passes: Passes = None  # type: ignore[assignment]
        self._pad = 0

    def _new_session(self) -> Session:
        session = Session(self._devices)
        session.cell = self._box_cell
        session.names = list(self._param_names)
        return session

    # -------------------------------------------------------------------------------- what it is
    @property
    def data_names(self) -> list[str]:
        """Names of the data inputs."""
        return self._data_names

    @property
    def label_names(self) -> list[str]:
        """Names of the labels."""
        return self._label_names

    @property
    def output_names(self) -> list[str]:
        """Names of the outputs."""
        return self._symbol.list_outputs()

    @property
    def data_shapes(self) -> list[DataDesc]:
        """Descriptions of the bound data."""
        assert self.binded
        return self._data_shapes

    @property
    def label_shapes(self) -> list[DataDesc]:
        """Descriptions of the bound labels."""
        assert self.binded
        return self._label_shapes

    @property
    def output_shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        """(name, shape) of each output of a whole batch."""
        assert self.binded
        known = {d.name: d.shape for d in [*self._data_shapes, *self._label_shapes] if d.name in self._arguments}
        _, shapes, _ = self._symbol.infer_shape(**known)
        return list(zip(self.output_names, [tuple(s) for s in shapes], strict=True))

    @property
    def state(self) -> Any:
        """The `jfit.TrainState` of this module, for research code: step, params, aux, opt_state ...

        The next update gives its buffers up: copy what should stay.
        """
        self._settle()
        return self._session.state

    @property
    def _optimizer(self) -> Optimizer:
        return self._session.optimizer  # type: ignore[return-value]

    @property
    def _kvstore(self) -> Any:
        return self._session.kvstore

    @property
    def _update_on_kvstore(self) -> bool:
        return self._session.update_on_kvstore

    def _slices(self, rows: int) -> list[int]:
        """Rows of each device."""
        return python_slices(rows, self._workloads)

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
        if force_rebind:
            self._unbind()
        if self.binded:
            self.logger.warning("Already bound, ignoring bind()")
            return
        data, labels = descs.describe(data_shapes, "data_shapes"), descs.describe(label_shapes, "label_shapes")
        descs.match_names(self._data_names, data, "data", self.logger, must=True)
        descs.match_names(self._label_names if labels else [], labels, "label", self.logger, must=False)
        if not for_training and inputs_need_grad:
            raise AssertionError("inputs_need_grad=True needs for_training=True: without training there are no gradients")
        request = grad_req if for_training else "null"
        self._requests = descs.requests_of(
            request, self._arguments, self._param_names, self._fixed, self._data_names, inputs_need_grad and for_training
        )
        before = self._session
        try:
            if shared_module is not None:
                self._session = self._shared_session(shared_module)
            self._make_programs(data, labels)
        except BaseException:
            self._session = before
            raise
        self.params_initialized = self.params_initialized or shared_module is not None
        self.for_training, self.inputs_need_grad, self.binded = for_training, inputs_need_grad, True
        if self._loaded is not None:
            params, aux = self._loaded
            self._session.set_arrays(*self._initial.drawn(None, params, aux, False, True))
            self._loaded = None
        if shared_module is not None and shared_module.optimizer_initialized:
            self.optimizer_initialized = True

    def _shared_session(self, shared_module: Any) -> Session:
        if not (shared_module.binded and shared_module.params_initialized):
            raise ValueError("shared_module is not bound or has no parameters yet; bind it and call init_params first")
        return shared_module._session

    def _unbind(self) -> None:
        if self.binded:
            self._settle()
        self.binded = False
        self._passes = None  # type: ignore[assignment]

    def _make_programs(self, data: list[DataDesc], labels: list[DataDesc]) -> None:
        rows = descs.rows_of_batch(data)
        self._slices(rows)
        known = {d.name: d.shape for d in [*data, *labels] if d.name in self._arguments}
        shapes, _, aux_shapes = self._symbol.infer_shape(**known)
        given = (*self._data_names, *self._label_names, *self._state_names, *self._spare_labels)
        fed = [n for n in given if n in self._arguments]
        model = lower(self._symbol, inputs=fed, batch_axes=descs.row_axes([*data, *labels]))
        model = with_resting_aux(model, self._requests)
        still = {n for n in self._param_names if self._requests[n] == "null"}
        model = model._replace(frozen=frozenset(model.frozen | still))
        self._fixed_gammas = [n for n in self._param_names if n in model.frozen and n not in still]
        requests = {n: r for n, r in self._requests.items() if r != "null" and n not in self._fixed_gammas}
        learns = [n for n in self._param_names if n in requests]
        self._specs = {
            n: jax.ShapeDtypeStruct(tuple(s), np.float32)
            for n, s in [*zip(self._arguments, shapes, strict=True), *zip(self._aux_names, aux_shapes, strict=True)]
        }
        self._passes = Passes(Programs(model, self._session), self._param_names, self._aux_names, requests, learns)
        self._data_shapes, self._label_shapes = data, labels
        self._states = {n: np.zeros(self._specs[n].shape, self._specs[n].dtype) for n in self._state_names}

    def reshape(self, data_shapes: Any, label_shapes: Any = None) -> None:
        """Bind to other shapes of the same arrays; parameters and optimizer stay, programs compile once per shape."""
        assert self.binded
        data, labels = descs.describe(data_shapes, "data_shapes"), descs.describe(label_shapes, "label_shapes")
        descs.match_names(self._data_names, data, "data", self.logger, must=True)
        self._slices(descs.rows_of_batch(data))
        self._data_shapes, self._label_shapes = data, labels
        if self._state_names:
            known = {d.name: d.shape for d in [*data, *labels] if d.name in self._arguments}
            shapes = dict(zip(self._arguments, self._symbol.infer_shape(**known)[0], strict=True))
            for name, value in self._states.items():
                if tuple(shapes[name]) != tuple(value.shape):  # states of another batch size begin again
                    self._specs[name] = jax.ShapeDtypeStruct(tuple(shapes[name]), np.float32)
                    self._states[name] = np.zeros(shapes[name], np.float32)

    # -------------------------------------------------------------------------------- parameters
    @property
    def _initial(self) -> Initial:
        """Setting and drawing parameters, over this module's specs."""
        attrs = {n.name: dict(n.attrs) for n in self._symbol.nodes() if n.op is None}
        params = {n: self._specs[n] for n in self._param_names}
        aux = {n: self._specs[n] for n in self._aux_names}
        return Initial(params, aux, attrs, self._fixed_gammas, self._box_cell)

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
        self._passes.hold_outputs()
        found = self._initial.drawn(initializer, arg_params, aux_params, allow_missing, allow_extra)
        self._session.set_arrays(*self._merged_with_shared(*found))
        self.params_initialized = True

    def _merged_with_shared(self, params: dict[str, Any], aux: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Modules that share a session may have parameters that this one lacks."""
        if self._session.state is None or set(self._session.state.params) <= set(params):
            return params, aux
        old, old_aux = self._session.arrays()
        return {**old, **params}, {**old_aux, **aux}

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
        self._passes.hold_outputs()
        now, aux = self._session.arrays()
        given = self._initial.checked(arg_params, aux_params, allow_extra)
        self._session.set_arrays({**now, **given[0]}, {**aux, **given[1]})

    def get_params(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """(parameters, auxiliary states): copies; the mean over devices where each has its own."""
        assert self.binded and self.params_initialized
        self._settle()
        params, aux = self._session.arrays()
        return {n: self._box(params[n]) for n in self._param_names}, {n: self._box(aux[n]) for n in self._aux_names}

    def get_states(self, merge_multi_context: bool = True) -> list[Any]:
        """The arrays of `state_names`; with merge_multi_context=False one list of slices for each."""
        assert self.binded and self.params_initialized
        if merge_multi_context:
            return [self._box(self._states[n]) for n in self._state_names]
        counts = self._slices(descs.rows_of_batch(self._data_shapes))
        cut = [np.cumsum(counts)[:-1]] * len(self._state_names)
        axes = [self._passes.programs.model.batch_axes.get(n, 0) for n in self._state_names]
        parts = [np.split(np.asarray(self._states[n]), at, a) for n, at, a in zip(self._state_names, cut, axes, strict=True)]
        return [[self._box(p) for p in part] for part in parts]

    def set_states(self, states: Any = None, value: float | None = None) -> None:
        """Set the state inputs: from arrays (whole, or lists of slices as `get_states` gives them), or all to one number."""
        assert self.binded and self.params_initialized
        if (states is None) == (value is None):
            raise ValueError("set_states takes either states= (arrays, one for each state name) or value= (a number)")
        for name, given in zip(self._state_names, states or [value] * len(self._state_names), strict=True):
            spec = self._specs[name]
            if isinstance(given, (list, tuple)):
                axis = self._passes.programs.model.batch_axes.get(name, 0)
                given = np.concatenate([np.asarray(unbox(g)) for g in given], axis)
            whole = unbox(given) if value is None else np.full(spec.shape, value, spec.dtype)
            if tuple(whole.shape) != tuple(spec.shape):
                raise ValueError(f"state {name!r} has shape {tuple(whole.shape)}, the graph needs {tuple(spec.shape)}")
            self._states[name] = whole

    # -------------------------------------------------------------------------------- batches
    def _fed(self, data_batch: Any) -> tuple[Batch, list[int], int]:
        """(batch by input name, rows of each device, padded rows at its end)."""
        inputs = self._arrays(data_batch)
        rows = descs.rows_of_batch(self._data_shapes)
        pad = int(getattr(data_batch, "wrapped", getattr(data_batch, "pad", None)) or 0)
        counts = self._slices(rows)
        counted = None
        if pad:
            counted = (np.arange(rows) < rows - pad).astype(np.float32)
        return Batch(inputs, None, counted), counts, pad

    def _arrays(self, data_batch: DataBatch) -> dict[str, Any]:
        """Inputs by name; adapts the bound shapes where the batch has others."""
        data = [descs.kept(unbox(a)) for a in data_batch.data]
        labels = [descs.kept(unbox(a)) for a in getattr(data_batch, "label", None) or ()]
        if len(data) != len(self._data_shapes):
            raise ValueError(
                f"the batch holds {len(data)} data arrays, the module was bound for {[d.name for d in self._data_shapes]}"
            )
        given = getattr(data_batch, "provide_data", None)
        shown = descs.describe(given, "provide_data") if given else descs.with_shapes(self._data_shapes, data)
        wanted = self._label_shapes or [DataDesc(n, ()) for n in self._label_names]
        given = getattr(data_batch, "provide_label", None) if labels else None
        shown_labels = descs.describe(given, "provide_label") if given else descs.with_shapes(wanted, labels)
        if not descs.same(shown, self._data_shapes):
            self.reshape(shown, shown_labels or self._label_shapes)
        inputs = dict(zip([d.name for d in shown], data, strict=True))
        inputs.update(zip([d.name for d in shown_labels], labels, strict=False))
        inputs.update(self._states)
        rows = descs.rows_of_batch(shown)
        for desc in () if labels else self._label_shapes:
            inputs[desc.name] = self._label_before(desc, rows)
        self._labels_before = {d.name: inputs[d.name] for d in self._label_shapes if d.name in inputs}
        return {k: v for k, v in inputs.items() if k in self._arguments}

    def _label_before(self, desc: DataDesc, rows: int) -> Any:
        """A batch without labels leaves those of the batch before in place, as MXNet does; zeros at first."""
        axis, before = max(DataDesc.get_batch_axis(desc.layout), 0), self._labels_before.get(desc.name)
        shape = (*desc.shape[:axis], rows, *desc.shape[axis + 1 :])
        return before if before is not None and tuple(before.shape) == shape else np.zeros(shape, desc.dtype)

    def _joined(self, batches: Sequence[DataBatch]) -> tuple[Batch, list[int], int]:
        if len(batches) != len(self._devices):
            raise ValueError(f"{len(batches)} pre-sliced batches for {len(self._devices)} devices; pass one for each")
        axes = self._passes.programs.model.batch_axes
        data = [descs.joined([unbox(b.data[i]) for b in batches], axes.get(d.name, 0)) for i, d in enumerate(self._data_shapes)]
        labels = [
            descs.joined([unbox(b.label[i]) for b in batches], axes.get(d.name, 0))
            for i, d in enumerate(self._label_shapes if batches[0].label else ())
        ]
        first = self._data_shapes[0]
        counts = [unbox(b.data[0]).shape[axes.get(first.name, 0)] for b in batches]
        return Batch(self._arrays(DataBatch(data, labels))), counts, 0

    def _settle(self) -> None:
        """Run what still waits, so that the session's state is that of all calls so far."""
        if self._passes is not None:
            self._passes.flush()
