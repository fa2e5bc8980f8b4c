"""A symbol bound to names, shapes and devices, and its parameters: the first half of Module."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jfit.data import Batch, DataBatch
from jfit.data.ndarray_iter import DataDesc
from jfit.graph import Symbol
from jfit.lowering import lower
from jfit.mxnet.box import unbox
from jfit.mxnet.module import descs
from jfit.mxnet.module.parameters import ParameterModule
from jfit.mxnet.module.passes import Passes
from jfit.mxnet.module.programs import Programs
from jfit.mxnet.module.resting import with_resting_aux
from jfit.mxnet.module.session import Session
from jfit.mxnet.module.slicing import python_slices
from jfit.mxnet.optimizer import Optimizer
from jfit.parallel.devices import Context, cpu


class BoundModule(ParameterModule):
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
        session.cell = self.arrays.cell
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
            if shared_module is not None:
                self._check_shared()
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

    def _check_shared(self) -> None:
        """What is shared fits this graph."""
        state = self._session.state
        assert state is not None
        for name in (*self._param_names, *self._aux_names):
            held = state.params.get(name, state.aux.get(name))
            shape = None if held is None else held.shape[1:] if self._session.split and name in state.params else held.shape
            if shape != self._specs[name].shape:
                found = "no such parameter" if shape is None else f"it with shape {shape}"
                raise ValueError(
                    f"parameter {name!r} has shape {self._specs[name].shape} in this network, the shared module has {found}; "
                    "networks that share parameters need the same shapes for them"
                )

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
        found = [*zip(self._arguments, shapes, strict=True), *zip(self._aux_names, aux_shapes, strict=True)]
        dtypes = descs.dtypes_of(self._symbol, data)
        self._specs = {n: jax.ShapeDtypeStruct(tuple(s), dtypes[n]) for n, s in found}
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
