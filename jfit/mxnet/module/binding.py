"""Names, devices and shapes of a module's graph, gradient requests, and conversion of batches to inputs by name."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jfit import checks
from jfit.data import DataBatch
from jfit.data.ndarray_iter import DataDesc
from jfit.graph import Symbol
from jfit.lowering import lower
from jfit.lowering.groups import variable_devices, with_groups
from jfit.lowering.model import Aux, Model
from jfit.mxnet.groups import replica_groups
from jfit.mxnet.module.groups import Placement, Replicas
from jfit.mxnet.module.parameters import Parameters
from jfit.mxnet.mutable import as_array, as_input, is_constant
from jfit.ops import nearest
from jfit.parallel.contexts import Context, cpu
from jfit.programs import Made

GRAD_REQS = ("write", "add", "null")
PARAMETER_SUFFIXES = ("_weight", "_bias", "_gamma", "_beta")


class Binding:
    """The graph of a module with the names of its inputs, its devices, and, after `bind`, its shapes and its JAX function.

    Attributes:
        symbol: the graph.
        arguments: names of all its arguments.
        data_names, label_names, state_names: names of the inputs.
        params: names of the parameters.
        aux: names of the auxiliary states.
        context: the devices as passed by the user.
        devices: the same, as JAX devices.
        groups: for each of `devices`, a dict of `ctx_group` -> JAX device; empty if the whole graph runs on each of `devices`.
        data_shapes, label_shapes: `DataDesc` (name, shape, dtype, layout) of each input, for a batch before it is split over
            `devices`; empty before `bind`.
        rows: number of rows of a whole batch; like the attributes below, set by `bind`.
        counts: those of each device.
        model: the `Model`, the graph as a JAX function.
        replicas: the models of a graph with `groups`, one for each of `devices`; None without groups.
        grad_reqs: "write" or "add" for each parameter and input that gets a gradient.
        trainable: names of the parameters that updates change.
        fixed_gammas: names of the gammas of BatchNorm nodes with fix_gamma=True, which are always exactly 1.
        specs: shape and dtype of every argument and auxiliary state by name.
        states: arrays of the state inputs by name, which persist from batch to batch.
    """

    def __init__(
        self, symbol: Symbol, names: Sequence[Any], context: Any, workloads: Any, logger: Any, group2ctxs: Any
    ) -> None:
        self.symbol, self.logger = symbol, logger
        one = isinstance(context, Context) or not isinstance(context, (list, tuple))  # a Context is a tuple, too
        self.context = [cpu() if context is None else context] if one else list(context)
        devices = [c.device if isinstance(c, Context) else c for c in self.context]
        self.groups = [] if group2ctxs is None else replica_groups(symbol, group2ctxs, self.context)
        # the slices of a device that is listed twice are one slice, unless each has devices of its own for its groups
        self.devices = devices if self.groups else list(dict.fromkeys(devices))
        workloads = [1] * len(devices) if workloads is None else list(workloads)
        if len(workloads) != len(devices):
            raise ValueError(f"work_load_list has {len(workloads)} entries for {len(devices)} devices")
        if not self.groups:
            workloads = [sum(w for w, d in zip(workloads, devices, strict=True) if d == own) for own in self.devices]
        self._workloads = workloads
        self.arguments, self.aux = symbol.list_arguments(), symbol.list_auxiliary_states()
        data_names, label_names, state_names, fixed = names
        self.data_names = self._checked_names(data_names, "data")
        self.label_names = self._checked_names(label_names, "label", must=False)
        self.state_names = self._checked_names(state_names, "state")
        self._fixed = self._checked_names(fixed, "fixed_param")
        input_names = [*self.data_names, *self.label_names, *self.state_names]
        input_names += undeclared_labels(symbol, set(input_names))
        self.params = [n for n in self.arguments if n not in input_names]
        self._input_names = [n for n in input_names if n in self.arguments]
        self.data_shapes, self.label_shapes, self.trainable, self.fixed_gammas = [], [], [], []
        self.grad_reqs, self.specs, self._previous_labels = {}, {}, {}
        self.states: dict[str, Any] = {}

    def _checked_names(self, names: Sequence[str] | None, what: str, must: bool = True) -> list[str]:
        """Return the names as a list; if one is not an argument of the graph, raise a ValueError, or (must=False) log it."""
        names = list(names or ())
        for name in names:
            if name not in self.arguments:
                candidates = [a for a in self.arguments if not a.endswith(PARAMETER_SUFFIXES)]
                given = f"You created Module with Module(..., {what}_names={names}) but input with name '{name}' is not found"
                near = ", ".join(candidates) or nearest(name, self.arguments)
                self._report(f"{given} in symbol.list_arguments(). Did you mean one of: {near}?", must)
        return names

    def _match_names(self, expected: Sequence[str], descs: Sequence[DataDesc], what: str, must: bool = True) -> None:
        """Check that `descs` describes exactly the expected names; otherwise raise a ValueError, or (must=False) log it."""
        actual = [d.name for d in descs]
        if sorted(expected) != sorted(actual):
            names = f"{what}_names are {list(expected)}, the shapes are for {actual}"
            self._report(f"{what}_shapes do not match the module's names: {names}", must)

    def _report(self, problem: str, must: bool) -> None:
        if must:
            raise ValueError(problem)
        self.logger.warning(problem)

    @property
    def placement(self) -> Placement:
        """The device of each parameter and auxiliary state."""
        home = self.devices[0]
        return Placement(home, variable_devices(self.symbol, self.groups[0], home) if self.groups else {}, self.groups)

    # -------------------------------------------------------------------------------- shapes
    def bind(
        self, data_shapes: Any, label_shapes: Any, grad_req: Any, inputs_need_grad: bool, placement: Placement | None = None
    ) -> None:
        """Set input shapes and gradient requests; arguments as for `Module.bind`.

        placement: the devices of the parameters, if they are those of another module.
        """
        data, labels = self._set_shapes(data_shapes, label_shapes)
        self._match_names(self.label_names if labels else [], labels, "label", must=False)
        reqs = self._requests(grad_req, inputs_need_grad)
        shapes, _, aux_shapes = self._inferred_shapes()
        model = lower(self.symbol, inputs=self._input_names, batch_axes=row_axes([*data, *labels]))
        frozen = {n for n in self.params if reqs[n] == "null"}
        model = model._replace(frozen=frozenset(model.frozen | frozen))
        placement = placement or self.placement
        # A program has its arrays on one device, so a graph without groups runs as one with them if the parameters have some.
        groups = self.groups or placement.groups
        if not groups:
            self.model, self.replicas = with_fixed_aux(model, reqs), None
        else:
            grouped = [with_groups(model, g, d) for g, d in zip(groups, self.devices, strict=True)]
            self.replicas = Replicas([with_fixed_aux(m, reqs) for m in grouped], placement)
            self.model = self.replicas.models[0]
        self.fixed_gammas = [n for n in self.params if n in model.frozen and n not in frozen]
        self.grad_reqs = {n: r for n, r in reqs.items() if r != "null" and n not in self.fixed_gammas}
        self.trainable = [n for n in self.params if n in self.grad_reqs]
        dtypes = dtypes_of(self.symbol, data)
        named_shapes = [*zip(self.arguments, shapes, strict=True), *zip(self.aux, aux_shapes, strict=True)]
        self.specs = {n: jax.ShapeDtypeStruct(tuple(s), dtypes[n]) for n, s in named_shapes}
        self.states = {n: np.zeros(self.specs[n].shape, self.specs[n].dtype) for n in self.state_names}

    def _requests(self, grad_req: Any, inputs_need_grad: bool) -> dict[str, str]:
        """Return the gradient request of each argument: "write", "add" or "null".

        grad_req: one request for all arguments, a list in the order of the arguments, or a dict by name (default "write").
        """
        named = grad_req if isinstance(grad_req, Mapping) else {}
        unknown = [n for n in named if n not in self.arguments]
        if unknown:
            near = nearest(unknown[0], self.arguments)
            warnings.warn(f"grad_req names {unknown[0]!r}, which is not an argument; did you mean {near}?", stacklevel=4)
        base = requests_of(grad_req, self.arguments, "write")
        listed = not isinstance(grad_req, (str, Mapping))  # as in MXNet, a list overrides fixed_param_names
        free = [n for n in self.params if listed or n not in self._fixed] + self.data_names * inputs_need_grad
        return {n: base[n] if n in named or n in free else "null" for n in self.arguments}

    def reshape(self, data_shapes: Any, label_shapes: Any) -> None:
        """Change the input shapes; state inputs whose shape changes are reset to 0."""
        self._set_shapes(data_shapes, label_shapes)
        if not self.states:
            return
        shapes = dict(zip(self.arguments, self._inferred_shapes()[0], strict=True))
        for name, value in self.states.items():
            if tuple(shapes[name]) != tuple(value.shape):
                self.specs[name] = jax.ShapeDtypeStruct(tuple(shapes[name]), np.float32)
                self.states[name] = np.zeros(shapes[name], np.float32)

    def _set_shapes(self, data_shapes: Any, label_shapes: Any) -> tuple[list[DataDesc], list[DataDesc]]:
        data, labels = describe(data_shapes), describe(label_shapes)
        self._match_names(self.data_names, data, "data")
        rows = rows_of_batch(data)
        self.counts = self.slices(rows)  # raises an error if a device has no row
        self.data_shapes, self.label_shapes, self.rows = data, labels, rows
        return data, labels

    def _inferred_shapes(self) -> tuple[Any, Any, Any]:
        """Return the shapes of (arguments, outputs, auxiliary states), inferred from those of the inputs."""
        inputs = (*self.data_shapes, *self.label_shapes)
        return self.symbol.infer_shape(**{d.name: d.shape for d in inputs if d.name in self.arguments})

    @property
    def output_shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        """Return (name, shape) of each output for a whole batch."""
        return [(n, tuple(s)) for n, s in zip(self.symbol.list_outputs(), self._inferred_shapes()[1], strict=True)]

    def slices(self, rows: int) -> list[int]:
        """Return the number of rows for each device, for a batch of `rows` rows."""
        return python_slices(rows, self._workloads)

    def check_shared(self, parameters: Parameters) -> None:
        """Check that the parameters of another module have the names and shapes of this graph's.

        Raises:
            ValueError: a parameter is missing there or has a different shape.
        """
        state = parameters.state
        for name in (*self.params, *self.aux):
            array = state.params.get(name, state.aux.get(name))
            shape = None if array is None else array.shape[1:] if parameters.split and name in state.params else array.shape
            if shape != self.specs[name].shape:
                actual = "does not have it" if shape is None else f"has it with shape {shape}"
                raise ValueError(f"parameter {name!r} has shape {self.specs[name].shape} here, but the shared module {actual}")

    # -------------------------------------------------------------------------------- batches
    def arrays_of(self, data_batch: Any) -> tuple[list[Any], list[Any]]:
        """Return the (data, labels) arrays of a batch; NumPy arrays are copied, because an iterator may reuse its buffers.

        Raises:
            ValueError: the number of data arrays differs from the bound one.
        """
        data = [_input_array(a) for a in data_batch.data]
        if len(data) != len(self.data_shapes):
            names = [d.name for d in self.data_shapes]
            raise ValueError(f"the batch has {len(data)} data arrays, but the module was bound with {names}")
        labels = getattr(data_batch, "label", None) if self.label_shapes else None  # bound without labels: MXNet reads zeros
        return data, [_input_array(a) for a in labels or ()]

    def descriptions_of(
        self, data_batch: Any, data: Sequence[Any], labels: Sequence[Any]
    ) -> tuple[list[DataDesc], list[DataDesc]]:
        """Return (descriptions of data, of labels), two lists of DataDesc.

        They are those of the batch (`provide_data`), else the bound ones with the shapes of the arrays.
        """
        provided = getattr(data_batch, "provide_data", None)
        descs = describe(provided) if provided else with_shapes(self.data_shapes, data)
        provided = getattr(data_batch, "provide_label", None) if labels else None
        return descs, describe(provided) if provided else with_shapes(self.label_shapes, labels)

    def inputs(self, descs: Any, data: Sequence[Any], labels: Sequence[Any]) -> dict[str, Any]:
        """Return the inputs by name, including state inputs; `descs` is the result of `descriptions_of`."""
        inputs = dict(zip([d.name for d in descs[0]], data, strict=True))
        inputs.update(zip([d.name for d in descs[1]], labels, strict=False))
        inputs.update(self.states)
        if not labels:
            rows = rows_of_batch(descs[0])
            unbound = [n for n in self.label_names if n in self.arguments and self.grad_reqs and not self.label_shapes]
            descs = [*self.label_shapes, *(DataDesc(n, self.specs[n].shape, self.specs[n].dtype) for n in unbound)]
            inputs |= {d.name: self._previous_label(d, rows) for d in descs}
        self._previous_labels = {d.name: inputs[d.name] for d in self.label_shapes if d.name in inputs}
        return {k: v for k, v in inputs.items() if k in self.arguments}

    def _previous_label(self, desc: DataDesc, rows: int) -> Any:
        """Return the label to use for a batch without labels: that of the previous batch, as in MXNet, or zeros."""
        axis, previous = max(DataDesc.get_batch_axis(desc.layout), 0), self._previous_labels.get(desc.name)
        shape = (*desc.shape[:axis], rows, *desc.shape[axis + 1 :])
        return previous if previous is not None and tuple(previous.shape) == shape else np.zeros(shape, desc.dtype)

    def concat_batches(self, batches: Sequence[Any]) -> tuple[DataBatch, list[int]]:
        """Concatenate one batch per device to one batch; returns (batch, number of rows of each device)."""
        if len(batches) != len(self.devices):
            raise ValueError(f"{len(batches)} pre-sliced batches for {len(self.devices)} devices; pass one for each")
        axes = self.model.batch_axes

        def whole(field: str, descs: Sequence[DataDesc]) -> list[Any]:
            parts = [[as_array(getattr(b, field)[i]) for b in batches] for i in range(len(descs))]
            return [np.concatenate(p, axes.get(d.name, 0)) for p, d in zip(parts, descs, strict=True)]

        labels = whole("label", self.label_shapes if batches[0].label else ())
        counts = [as_array(b.data[0]).shape[axes.get(self.data_shapes[0].name, 0)] for b in batches]
        return DataBatch(whole("data", self.data_shapes), labels), counts

    def metric_weights(self, pad: int) -> np.ndarray | None:
        """Return the row weights for metrics, (rows,): 1, but 0 for the last `pad` rows; None if pad is 0."""
        return (np.arange(self.rows) < self.rows - pad).astype(np.float32) if pad else None

    # -------------------------------------------------------------------------------- states
    def state_slices(self) -> list[list[Any]]:
        """Return for each state input a list of numpy arrays, the rows of each device."""
        cut, axes = np.cumsum(self.counts)[:-1], self.model.batch_axes
        return [np.split(np.asarray(v), cut, axes.get(n, 0)) for n, v in self.states.items()]

    def set_states(self, states: Any, value: float | None) -> None:
        """Set the values of the state inputs; arguments as for `Module.set_states`."""
        if (states is None) == (value is None):
            raise ValueError("set_states expects either states= (an array for each state name) or value= (a number)")
        for name, state in zip(self.state_names, states or [value] * len(self.state_names), strict=True):
            spec = self.specs[name]
            if isinstance(state, (list, tuple)):
                state = np.concatenate([np.asarray(as_array(part)) for part in state], self.model.batch_axes.get(name, 0))
            whole = as_array(state) if value is None else np.full(spec.shape, value, spec.dtype)
            if tuple(whole.shape) != tuple(spec.shape):
                raise ValueError(f"state {name!r} has shape {tuple(whole.shape)}, but the graph needs {tuple(spec.shape)}")
            self.states[name] = whole


# ------------------------------------------------------------------------------------------------ rows of each device
def python_slices(rows: int, workloads: Sequence[float]) -> list[int]:
    """Split rows as MXNet's Module does: nᵢ = round(wᵢ · rows / Σ w), the remainder to the last device (10 rows: 3, 3, 4).

    Args:
        rows: number of rows in the batch.
        workloads: relative share of each device.

    Returns:
        Number of rows for each device.

    Raises:
        ValueError: a device would get no row.

    Example:
        >>> python_slices(10, [1, 1, 1]), python_slices(7, [1, 2])
        ([3, 3, 4], [2, 5])

    Source: Apache MXNet 1.9.1, executor_manager (Python's rounding: halves to even).
    """
    counts = [round(w * rows / sum(workloads)) for w in workloads]
    counts[-1] += max(rows - sum(counts), 0)
    counts = np.diff(np.minimum(np.cumsum(counts), rows), prepend=0).tolist()
    if min(counts) < 1:
        raise ValueError(f"Too many slices. Some splits are empty: {rows} rows on {len(counts)} devices are {counts}")
    return counts


# ------------------------------------------------------------------------------------------------ descriptions of arrays
def describe(shapes: Any) -> list[DataDesc]:
    """Convert DataDesc objects or (name, shape[, dtype[, layout]]) tuples to a list of DataDesc.

    Example:
        >>> describe([("data", (8, 4))])[0].shape
        (8, 4)
    """
    return [each if isinstance(each, DataDesc) else DataDesc(*each) for each in shapes or ()]


def undeclared_labels(symbol: Symbol, input_names: Collection[str]) -> list[str]:
    """Return the names of the label variables of output heads that are not declared as inputs.

    They are unused in prediction, and are not parameters.

    Example:
        >>> import jfit
        >>> undeclared_labels(jfit.sym.SoftmaxOutput(jfit.sym.Variable("data"), name="softmax"), {"data"})
        ['softmax_label']
    """
    labels: dict[str, None] = {}
    used = set()
    for node in symbol.nodes():
        for at, entry in enumerate(node.inputs):
            if entry.node.op is None and at == node.label_at:
                labels[entry.node.name] = None
            else:
                used.add(entry.node.name)
    return [name for name in labels if name not in used and name not in input_names]


def requests_of(grad_req: Any, arguments: Sequence[str], default: str) -> dict[str, str]:
    """Return a gradient request for each argument, from one for all, a list in their order, or a dict by name.

    default: the request of arguments that are not in the dict.

    Raises:
        ValueError: an unknown request, or a list of the wrong length.
    """
    if isinstance(grad_req, str):
        reqs = dict.fromkeys(arguments, grad_req)
    elif isinstance(grad_req, Mapping):
        reqs = {n: grad_req.get(n, default) for n in arguments}
    else:
        reqs = dict(zip(arguments, grad_req, strict=True))
    for name, request in reqs.items():
        checks.one_of(GRAD_REQS, **{f"grad_req of {name!r}": request})
    return reqs


def rows_of_batch(descs: Sequence[DataDesc]) -> int:
    """Return the number of rows in a batch: the size of the batch axis of the first input that has one."""
    for desc in descs:
        axis = DataDesc.get_batch_axis(desc.layout)
        if axis >= 0 and len(desc.shape) > axis:
            return desc.shape[axis]
    raise ValueError(f"none of the inputs {[d.name for d in descs]} has a batch axis")


def same_shapes(a: Sequence[DataDesc], b: Sequence[DataDesc]) -> bool:
    """Return whether two lists of descriptions have equal names and shapes."""
    return [(d.name, tuple(d.shape)) for d in a] == [(d.name, tuple(d.shape)) for d in b]


def desc_of(name: str, value: Any, layout: str | None = "NCHW") -> DataDesc:
    """Return the DataDesc of an array: its shape and dtype, with this layout."""
    return DataDesc(name, value.shape, np.dtype(value.dtype).type, layout)


def dtypes_of(symbol: Symbol, data: Sequence[DataDesc]) -> dict[str, np.dtype]:
    """Return the dtype of every argument and auxiliary state by name.

    It is inferred from declared dtypes and from floating data; float32 if unknown.
    """
    floating = {d.name: d.dtype for d in data if np.dtype(d.dtype).kind == "f" and d.name in symbol.list_arguments()}
    arguments, _, aux = symbol.infer_type(**floating)
    names = [*symbol.list_arguments(), *symbol.list_auxiliary_states()]
    inferred = zip(names, [*(arguments or [None] * len(names)), *(aux or [])], strict=False)
    return {n: np.dtype(jax.dtypes.canonicalize_dtype(t or np.float32)) for n, t in inferred}


def row_axes(descs: Sequence[DataDesc]) -> dict[str, int]:
    """Return the batch axis by input name, for inputs whose layout has the batch on another axis than 0."""
    axes = {d.name: DataDesc.get_batch_axis(d.layout) for d in descs}
    return {name: axis for name, axis in axes.items() if axis > 0}


def with_shapes(like: Sequence[DataDesc], arrays: Sequence[Any]) -> list[DataDesc]:
    """Return descriptions of `arrays`: those of `like`, or new ones where the shape differs."""
    return [d if d.shape == a.shape else desc_of(d.name, a, d.layout) for d, a in zip(like, arrays, strict=False)]


def _input_array(value: Any) -> Any:
    """Return an array of a batch as a jax array, or a copy as a NumPy array: iterators may reuse buffers before a lazy pass."""
    array = as_input(value)
    return array if isinstance(array, jax.Array) or is_constant(array) else np.array(array)


def wrapped_rows(data_batch: Any) -> int:
    """Return the number of padding rows at the end of a batch; 0 if `pad` counts rows that rolled over from another epoch."""
    return 0 if getattr(data_batch, "rolled", False) else int(getattr(data_batch, "pad", None) or 0)


# ------------------------------------------------------------------------------------------------ auxiliary states
def moving_aux(symbol: Symbol, differentiated: Collection[str]) -> frozenset[str]:
    """Return the names of the auxiliary states that a training step updates.

    They belong to operators that depend on a differentiated variable.  MXNet updates moving statistics in the backward pass,
    which skips all other operators.  The moving statistics of frozen first layers are therefore unchanged.

    Args:
        symbol: the network.
        differentiated: names of the parameters and inputs that get a gradient.

    Example:
        >>> import jfit
        >>> net = jfit.sym.BatchNorm(jfit.sym.FullyConnected(jfit.sym.Variable("x"), num_hidden=2, name="fc"), name="bn")
        >>> sorted(moving_aux(net, {"fc_weight"})), sorted(moving_aux(net, ()))
        (['bn_moving_mean', 'bn_moving_var'], [])

    Source: runs of Apache MXNet 1.9.1.
    """
    dependent: set[int] = set()
    states: set[str] = set()
    for node in symbol.nodes():  # in topological order
        if node.op is None:
            if node.name in differentiated:
                dependent.add(id(node))
        elif any(id(e.node) in dependent for e in node.inputs[: node.num_inputs]):
            dependent.add(id(node))
            states.update(e.node.name for e in node.inputs[node.num_inputs :])
    return frozenset(states)


def with_fixed_aux(model: Model, grad_reqs: Mapping[str, str]) -> Model:
    """Wrap a model so that training passes leave the auxiliary states that are not in `moving_aux` unchanged.

    Args:
        model: lowered from a graph.
        grad_reqs: argument -> "write", "add" or "null".
    """
    moving = moving_aux(model.symbol, [n for n, r in grad_reqs.items() if r != "null"])
    fixed = [n for n in model.symbol.list_auxiliary_states() if n not in moving]
    if not fixed:
        return model

    def apply(params: Any, aux: Aux, inputs: Any, **options: Any) -> Any:
        outputs, new_aux = model.apply(params, aux, inputs, **options)
        return outputs, {**new_aux, **{n: aux[n] for n in fixed if n in new_aux}}

    # equal models with equal fixed states share programs
    return model._replace(apply=Made(apply, "fixed", model.apply, fixed))
