"""What a module is bound to: names, devices, shapes, which arrays get gradients; and how a batch becomes inputs by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jfit.data import DataBatch
from jfit.data.ndarray_iter import DataDesc
from jfit.graph import Symbol
from jfit.lowering import lower
from jfit.lowering.model import Model
from jfit.mxnet.box import unbox
from jfit.mxnet.module import descs
from jfit.mxnet.module.initial import Initial
from jfit.mxnet.module.programs import with_resting_aux
from jfit.mxnet.module.session import Session
from jfit.mxnet.seam import Arrays
from jfit.parallel.devices import Context, cpu


class Binding:
    """A graph with the names, devices and shapes that a module gives it.

    Attributes:
        symbol: the graph.
        arguments: names of all its arguments.
        data_names, label_names, state_names: names of the inputs.
        params: names of the parameters.
        aux: names of the auxiliary states.
        context: the devices as they were given.
        devices: the same as JAX's devices.
        data_shapes, label_shapes: descriptions of whole batches; empty before `bind`.
        model: the lowered graph, from `bind` on, as all below.
        requests: name of a parameter or input -> "write" or "add", for those whose gradient is kept.
        learns: parameters that an update changes.
        gammas: parameters that are exactly 1: those of a BatchNorm with fix_gamma.
        specs: shape and dtype of every argument and auxiliary state by name.
        states: arrays of the state inputs by name, which stay from batch to batch.
    """

    model: Model

    def __init__(
        self,
        symbol: Symbol,
        data_names: Sequence[str],
        label_names: Sequence[str] | None,
        state_names: Sequence[str] | None,
        fixed: Sequence[str] | None,
        context: Any,
        workloads: Sequence[float] | None,
        divide: Callable[[int, Sequence[float]], list[int]],
        logger: Any,
    ) -> None:
        self.symbol, self.logger, self._divide = symbol, logger, divide
        one = isinstance(context, Context) or not isinstance(context, (list, tuple))  # a Context is a tuple too
        self.context = [cpu() if context is None else context] if one else list(context)
        self.devices = [c.device if isinstance(c, Context) else c for c in self.context]
        self._workloads = [1] * len(self.devices) if workloads is None else list(workloads)
        if len(self._workloads) != len(self.devices):
            raise ValueError(
                f"work_load_list has {len(self._workloads)} entries, needed one for each of {len(self.devices)} devices"
            )
        check = lambda names, what, must: descs.check_names(symbol, list(names or ()), what, logger, must=must)  # noqa: E731
        self.data_names = check(data_names, "data", True)
        check(label_names, "label", False)
        self.label_names = list(label_names or ())
        self.state_names = check(state_names, "state", True)
        self._fixed = check(fixed, "fixed_param", True)
        fed = [*self.data_names, *self.label_names, *self.state_names]
        self.arguments, self.aux = symbol.list_arguments(), symbol.list_auxiliary_states()
        fed += descs.spare_labels(symbol, set(fed))
        self.params = [n for n in self.arguments if n not in fed]
        self._fed = [n for n in fed if n in self.arguments]
        self.data_shapes: list[DataDesc] = []
        self.label_shapes: list[DataDesc] = []
        self.requests: dict[str, str] = {}
        self.learns: list[str] = []
        self.gammas: list[str] = []
        self.specs: dict[str, jax.ShapeDtypeStruct] = {}
        self.states: dict[str, Any] = {}
        self._labels_before: dict[str, Any] = {}

    # -------------------------------------------------------------------------------- shapes
    def bind(self, data_shapes: Any, label_shapes: Any, grad_req: Any, inputs_need_grad: bool) -> None:
        """Fix shapes and decide which arrays get gradients; arguments as for `Module.bind`."""
        data, labels = self._described(data_shapes, label_shapes)
        descs.match_names(self.label_names if labels else [], labels, "label", self.logger, must=False)
        asked = descs.requests_of(grad_req, self.arguments, self.params, self._fixed, self.data_names, inputs_need_grad)
        self.slices(descs.rows_of_batch(data))
        shapes, _, aux_shapes = self._inferred(data, labels)
        model = lower(self.symbol, inputs=self._fed, batch_axes=descs.row_axes([*data, *labels]))
        model = with_resting_aux(model, asked)
        still = {n for n in self.params if asked[n] == "null"}
        self.model = model._replace(frozen=frozenset(model.frozen | still))
        self.gammas = [n for n in self.params if n in model.frozen and n not in still]
        self.requests = {n: r for n, r in asked.items() if r != "null" and n not in self.gammas}
        self.learns = [n for n in self.params if n in self.requests]
        dtypes = descs.dtypes_of(self.symbol, data)
        found = [*zip(self.arguments, shapes, strict=True), *zip(self.aux, aux_shapes, strict=True)]
        self.specs = {n: jax.ShapeDtypeStruct(tuple(s), dtypes[n]) for n, s in found}
        self.data_shapes, self.label_shapes = data, labels
        self.states = {n: np.zeros(self.specs[n].shape, self.specs[n].dtype) for n in self.state_names}

    def reshape(self, data_shapes: Any, label_shapes: Any) -> None:
        """Other shapes of the same arrays; states of another shape begin again."""
        data, labels = self._described(data_shapes, label_shapes)
        self.slices(descs.rows_of_batch(data))
        self.data_shapes, self.label_shapes = data, labels
        if not self.states:
            return
        shapes = dict(zip(self.arguments, self._inferred(data, labels)[0], strict=True))
        for name, value in self.states.items():
            if tuple(shapes[name]) != tuple(value.shape):
                self.specs[name] = jax.ShapeDtypeStruct(tuple(shapes[name]), np.float32)
                self.states[name] = np.zeros(shapes[name], np.float32)

    def _described(self, data_shapes: Any, label_shapes: Any) -> tuple[list[DataDesc], list[DataDesc]]:
        data, labels = descs.describe(data_shapes, "data_shapes"), descs.describe(label_shapes, "label_shapes")
        descs.match_names(self.data_names, data, "data", self.logger, must=True)
        return data, labels

    def _inferred(self, data: Sequence[DataDesc], labels: Sequence[DataDesc]) -> tuple[Any, Any, Any]:
        """Shapes of the arguments, of the outputs, and of the auxiliary states."""
        return self.symbol.infer_shape(**{d.name: d.shape for d in (*data, *labels) if d.name in self.arguments})

    @property
    def output_shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        """(name, shape) of each output of a whole batch."""
        shapes = self._inferred(self.data_shapes, self.label_shapes)[1]
        return list(zip(self.symbol.list_outputs(), [tuple(s) for s in shapes], strict=True))

    def slices(self, rows: int) -> list[int]:
        """Rows of each device, of a batch of `rows`."""
        return self._divide(rows, self._workloads)

    @property
    def rows(self) -> int:
        """Rows of a whole batch."""
        return descs.rows_of_batch(self.data_shapes)

    def initial(self, arrays: Arrays) -> Initial:
        """How the parameters are set and drawn."""
        attrs = {n.name: dict(n.attrs) for n in self.symbol.nodes() if n.op is None}
        params, aux = ({n: self.specs[n] for n in names} for names in (self.params, self.aux))
        return Initial(params, aux, attrs, self.gammas, arrays)

    def check_shared(self, session: Session) -> None:
        """The parameters of another module fit this graph.

        Raises:
            ValueError: one of them is missing there, or has another shape.
        """
        state = session.state
        assert state is not None
        for name in (*self.params, *self.aux):
            held = state.params.get(name, state.aux.get(name))
            shape = None if held is None else held.shape[1:] if session.split and name in state.params else held.shape
            if shape != self.specs[name].shape:
                found = "no such parameter" if shape is None else f"it with shape {shape}"
                raise ValueError(
                    f"parameter {name!r} has shape {self.specs[name].shape} in this network, the shared module has {found}; "
                    "networks that share parameters need the same shapes for them"
                )

    # -------------------------------------------------------------------------------- batches
    def arrays_of(self, data_batch: Any) -> tuple[list[Any], list[Any]]:
        """(data, labels) of a batch, which stay as they are although an iterator may fill its buffers again.

        Raises:
            ValueError: another number of data arrays than was bound.
        """
        data = [descs.kept(unbox(a)) for a in data_batch.data]
        if len(data) != len(self.data_shapes):
            raise ValueError(
                f"the batch holds {len(data)} data arrays, the module was bound for {[d.name for d in self.data_shapes]}"
            )
        return data, [descs.kept(unbox(a)) for a in getattr(data_batch, "label", None) or ()]

    def shown_by(self, data_batch: Any, data: Sequence[Any], labels: Sequence[Any]) -> tuple[list[DataDesc], list[DataDesc]]:
        """Descriptions of (data, labels): those that the batch brings, or the bound ones with the shapes of the arrays."""
        given = getattr(data_batch, "provide_data", None)
        shown = descs.describe(given, "provide_data") if given else descs.with_shapes(self.data_shapes, data)
        wanted = self.label_shapes or [DataDesc(n, ()) for n in self.label_names]
        given = getattr(data_batch, "provide_label", None) if labels else None
        return shown, descs.describe(given, "provide_label") if given else descs.with_shapes(wanted, labels)

    def inputs(self, shown: Any, data: Sequence[Any], labels: Sequence[Any]) -> dict[str, Any]:
        """Inputs by name, states included; `shown` are the descriptions of (data, labels)."""
        found = dict(zip([d.name for d in shown[0]], data, strict=True))
        found.update(zip([d.name for d in shown[1]], labels, strict=False))
        found.update(self.states)
        rows = descs.rows_of_batch(shown[0])
        for desc in () if labels else self.label_shapes:
            found[desc.name] = self._label_before(desc, rows)
        self._labels_before = {d.name: found[d.name] for d in self.label_shapes if d.name in found}
        return {k: v for k, v in found.items() if k in self.arguments}

    def _label_before(self, desc: DataDesc, rows: int) -> Any:
        """A batch without labels leaves those of the batch before in place, as MXNet does; zeros at first."""
        axis, before = max(DataDesc.get_batch_axis(desc.layout), 0), self._labels_before.get(desc.name)
        shape = (*desc.shape[:axis], rows, *desc.shape[axis + 1 :])
        return before if before is not None and tuple(before.shape) == shape else np.zeros(shape, desc.dtype)

    def joined(self, batches: Sequence[Any]) -> tuple[DataBatch, list[int]]:
        """(one batch of those that were cut for the devices, rows of each)."""
        if len(batches) != len(self.devices):
            raise ValueError(f"{len(batches)} pre-sliced batches for {len(self.devices)} devices; pass one for each")
        axes = self.model.batch_axes

        def whole(kind: str, shown: Sequence[DataDesc]) -> list[Any]:
            parts = [[unbox(getattr(b, kind)[i]) for b in batches] for i in range(len(shown))]
            return [descs.joined(p, axes.get(d.name, 0)) for p, d in zip(parts, shown, strict=True)]

        labels = whole("label", self.label_shapes if batches[0].label else ())
        counts = [unbox(b.data[0]).shape[axes.get(self.data_shapes[0].name, 0)] for b in batches]
        return DataBatch(whole("data", self.data_shapes), labels), counts

    def counted(self, pad: int) -> np.ndarray | None:
        """1 for each row of a batch that counts in metrics, 0 for the last `pad` ones; None where all do."""
        return (np.arange(self.rows) < self.rows - pad).astype(np.float32) if pad else None

    # -------------------------------------------------------------------------------- states
    def state_slices(self) -> list[list[Any]]:
        """For each state input, the part of each device."""
        cut, axes = np.cumsum(self.slices(self.rows))[:-1], self.model.batch_axes
        return [np.split(np.asarray(v), cut, axes.get(n, 0)) for n, v in self.states.items()]

    def set_states(self, states: Any, value: float | None) -> None:
        """Set the state inputs; arguments as for `Module.set_states`."""
        if (states is None) == (value is None):
            raise ValueError("set_states takes either states= (arrays, one for each state name) or value= (a number)")
        for name, given in zip(self.state_names, states or [value] * len(self.state_names), strict=True):
            spec = self.specs[name]
            if isinstance(given, (list, tuple)):
                given = np.concatenate([np.asarray(unbox(g)) for g in given], self.model.batch_axes.get(name, 0))
            whole = unbox(given) if value is None else np.full(spec.shape, value, spec.dtype)
            if tuple(whole.shape) != tuple(spec.shape):
                raise ValueError(f"state {name!r} has shape {tuple(whole.shape)}, the graph needs {tuple(spec.shape)}")
            self.states[name] = whole
