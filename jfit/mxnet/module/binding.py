"""What a module is bound to: names, devices, shapes, which arrays get gradients; and how a batch becomes inputs by name."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jfit.data import DataBatch
from jfit.data.ndarray_iter import DataDesc
from jfit.graph import Symbol
from jfit.lowering import lower
from jfit.lowering.model import Aux, Model
from jfit.mxnet.array_types import ArrayTypes
from jfit.mxnet.module.initial import Initial
from jfit.mxnet.module.parameters import Parameters
from jfit.mxnet.mutable import as_array
from jfit.ops import nearest
from jfit.parallel.devices import Context, cpu

REQUESTS = ("write", "add", "null")
PARAMETER_ENDINGS = ("_weight", "_bias", "_gamma", "_beta")


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
        check = lambda names, what, must: check_names(symbol, list(names or ()), what, logger, must=must)  # noqa: E731
        self.data_names = check(data_names, "data", True)
        check(label_names, "label", False)
        self.label_names = list(label_names or ())
        self.state_names = check(state_names, "state", True)
        self._fixed = check(fixed, "fixed_param", True)
        fed = [*self.data_names, *self.label_names, *self.state_names]
        self.arguments, self.aux = symbol.list_arguments(), symbol.list_auxiliary_states()
        fed += spare_labels(symbol, set(fed))
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
        match_names(self.label_names if labels else [], labels, "label", self.logger, must=False)
        asked = requests_of(grad_req, self.arguments, self.params, self._fixed, self.data_names, inputs_need_grad)
        self.slices(rows_of_batch(data))
        shapes, _, aux_shapes = self._inferred(data, labels)
        model = lower(self.symbol, inputs=self._fed, batch_axes=row_axes([*data, *labels]))
        model = with_fixed_aux(model, asked)
        frozen = {n for n in self.params if asked[n] == "null"}
        self.model = model._replace(frozen=frozenset(model.frozen | frozen))
        self.gammas = [n for n in self.params if n in model.frozen and n not in frozen]
        self.requests = {n: r for n, r in asked.items() if r != "null" and n not in self.gammas}
        self.learns = [n for n in self.params if n in self.requests]
        dtypes = dtypes_of(self.symbol, data)
        found = [*zip(self.arguments, shapes, strict=True), *zip(self.aux, aux_shapes, strict=True)]
        self.specs = {n: jax.ShapeDtypeStruct(tuple(s), dtypes[n]) for n, s in found}
        self.data_shapes, self.label_shapes = data, labels
        self.states = {n: np.zeros(self.specs[n].shape, self.specs[n].dtype) for n in self.state_names}

    def reshape(self, data_shapes: Any, label_shapes: Any) -> None:
        """Bind other shapes of the same arrays; state inputs whose shape changes are reset to 0."""
        data, labels = self._described(data_shapes, label_shapes)
        self.slices(rows_of_batch(data))
        self.data_shapes, self.label_shapes = data, labels
        if not self.states:
            return
        shapes = dict(zip(self.arguments, self._inferred(data, labels)[0], strict=True))
        for name, value in self.states.items():
            if tuple(shapes[name]) != tuple(value.shape):
                self.specs[name] = jax.ShapeDtypeStruct(tuple(shapes[name]), np.float32)
                self.states[name] = np.zeros(shapes[name], np.float32)

    def _described(self, data_shapes: Any, label_shapes: Any) -> tuple[list[DataDesc], list[DataDesc]]:
        data, labels = describe(data_shapes, "data_shapes"), describe(label_shapes, "label_shapes")
        match_names(self.data_names, data, "data", self.logger, must=True)
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
        return rows_of_batch(self.data_shapes)

    def initial(self, arrays: ArrayTypes) -> Initial:
        """How the parameters are set and drawn."""
        attrs = {n.name: dict(n.attrs) for n in self.symbol.nodes() if n.op is None}
        params, aux = ({n: self.specs[n] for n in names} for names in (self.params, self.aux))
        return Initial(params, aux, attrs, self.gammas, arrays)

    def check_shared(self, parameters: Parameters) -> None:
        """Check that the parameters of another module fit this graph.

        Raises:
            ValueError: one of them is missing there, or has another shape.
        """
        state = parameters.state
        assert state is not None
        for name in (*self.params, *self.aux):
            array = state.params.get(name, state.aux.get(name))
            shape = None if array is None else array.shape[1:] if parameters.split and name in state.params else array.shape
            if shape != self.specs[name].shape:
                found = "no such parameter" if shape is None else f"it with shape {shape}"
                raise ValueError(
                    f"parameter {name!r} has shape {self.specs[name].shape} in this network, the shared module has {found}; "
                    "networks that share parameters need the same shapes for them"
                )

    # -------------------------------------------------------------------------------- batches
    def arrays_of(self, data_batch: Any) -> tuple[list[Any], list[Any]]:
        """(data, labels) of a batch; numpy arrays are copied, because an iterator may fill its buffers again.

        Raises:
            ValueError: another number of data arrays than was bound.
        """
        data = [kept(as_array(a)) for a in data_batch.data]
        if len(data) != len(self.data_shapes):
            raise ValueError(
                f"the batch holds {len(data)} data arrays, the module was bound for {[d.name for d in self.data_shapes]}"
            )
        return data, [kept(as_array(a)) for a in getattr(data_batch, "label", None) or ()]

    def shown_by(self, data_batch: Any, data: Sequence[Any], labels: Sequence[Any]) -> tuple[list[DataDesc], list[DataDesc]]:
        """Descriptions of (data, labels): the batch's own (`provide_data`), or the bound ones with the shapes of the arrays."""
        given = getattr(data_batch, "provide_data", None)
        shown = describe(given, "provide_data") if given else with_shapes(self.data_shapes, data)
        wanted = self.label_shapes or [DataDesc(n, ()) for n in self.label_names]
        given = getattr(data_batch, "provide_label", None) if labels else None
        return shown, describe(given, "provide_label") if given else with_shapes(wanted, labels)

    def inputs(self, shown: Any, data: Sequence[Any], labels: Sequence[Any]) -> dict[str, Any]:
        """Inputs by name, states included; `shown` are the descriptions of (data, labels)."""
        found = dict(zip([d.name for d in shown[0]], data, strict=True))
        found.update(zip([d.name for d in shown[1]], labels, strict=False))
        found.update(self.states)
        rows = rows_of_batch(shown[0])
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
        """(one batch from pre-sliced batches, one for each device; rows of each)."""
        if len(batches) != len(self.devices):
            raise ValueError(f"{len(batches)} pre-sliced batches for {len(self.devices)} devices; pass one for each")
        axes = self.model.batch_axes

        def whole(kind: str, shown: Sequence[DataDesc]) -> list[Any]:
            parts = [[as_array(getattr(b, kind)[i]) for b in batches] for i in range(len(shown))]
            return [joined(p, axes.get(d.name, 0)) for p, d in zip(parts, shown, strict=True)]

        labels = whole("label", self.label_shapes if batches[0].label else ())
        counts = [as_array(b.data[0]).shape[axes.get(self.data_shapes[0].name, 0)] for b in batches]
        return DataBatch(whole("data", self.data_shapes), labels), counts

    def counted(self, pad: int) -> np.ndarray | None:
        """Metric weights (rows,): 1, and 0 for the last `pad` rows; None where pad is 0."""
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
                given = np.concatenate([np.asarray(as_array(g)) for g in given], self.model.batch_axes.get(name, 0))
            whole = as_array(given) if value is None else np.full(spec.shape, value, spec.dtype)
            if tuple(whole.shape) != tuple(spec.shape):
                raise ValueError(f"state {name!r} has shape {tuple(whole.shape)}, the graph needs {tuple(spec.shape)}")
            self.states[name] = whole


# ------------------------------------------------------------------------------------------------ rows of each device
def python_slices(rows: int, workloads: Sequence[float]) -> list[int]:
    """nᵢ = round(wᵢ · rows / Σ w), what is missing goes to the last device: 10 rows on 3 devices are 3, 3, 4.

    The split of MXNet's Module and Python FeedForward.

    Args:
        rows: rows of the batch.
        workloads: relative share of each device.

    Raises:
        ValueError: a device would get no row.

    Example:
        >>> python_slices(10, [1, 1, 1]), python_slices(7, [1, 2])
        ([3, 3, 4], [2, 5])

    Source: Apache MXNet 1.9.1, executor_manager (Python's rounding: halves to even).
    """
    total = sum(workloads)
    counts = [round(w * rows / total) for w in workloads]
    if sum(counts) < rows:
        counts[-1] += rows - sum(counts)
    found, begin = [], 0
    for count in counts:
        end = min(begin + count, rows)
        found.append(end - begin)
        begin = end
    return _checked(found, rows)


def first_slices(rows: int, devices: int) -> list[int]:
    """rows // devices each, what is left goes one by one to the first: 10 rows on 3 devices are 4, 3, 3.

    The split of MXNet.jl and of gluon.

    Example:
        >>> first_slices(10, 3)
        [4, 3, 3]

    Source: MXNet.jl `_split_inputs`; gluon `split_data(even_split=False)`.
    """
    each, extra = divmod(rows, devices)
    return _checked([each + (i < extra) for i in range(devices)], rows)


def _checked(counts: list[int], rows: int) -> list[int]:
    if min(counts) < 1:
        raise ValueError(
            f"Too many slices. Some splits are empty: {rows} rows on {len(counts)} devices give {counts}; every device needs "
            "a row: use fewer devices, a larger batch, or another work_load_list"
        )
    return counts


# ------------------------------------------------------------------------------------------------ descriptions of arrays
def describe(shapes: Any, what: str) -> list[DataDesc]:
    """Descriptions from DataDesc objects or (name, shape[, dtype[, layout]]) tuples.

    Raises:
        ValueError: something that is neither.

    Example:
        >>> describe([("data", (8, 4))], "data_shapes")[0].shape
        (8, 4)
    """
    found = []
    for each in shapes or ():
        if isinstance(each, DataDesc):
            found.append(each)
        elif isinstance(each, Sequence) and not isinstance(each, str) and 2 <= len(each) <= 4 and isinstance(each[0], str):
            found.append(DataDesc(each[0], tuple(each[1]), *each[2:]))
        else:
            raise ValueError(f"{what} holds {each!r}; needed (name, shape) pairs or DataDesc objects, one for each input")
    return found


def check_names(symbol: Symbol, names: Sequence[str], what: str, logger: logging.Logger, *, must: bool) -> list[str]:
    """The names that the graph has as arguments.

    Raises:
        ValueError: (with must=True) a name is no argument; candidates are listed.  Otherwise it is a warning in the log.
    """
    arguments = symbol.list_arguments()
    for name in names:
        if name in arguments:
            continue
        candidates = [a for a in arguments if not a.endswith(PARAMETER_ENDINGS)]
        message = (
            f"You created Module with Module(..., {what}_names={list(names)}) but input with name '{name}' is not found in "
            f"symbol.list_arguments(). Did you mean one of: {', '.join(candidates) or nearest(name, arguments)}?"
        )
        if must:
            raise ValueError(message)
        logger.warning(message)
    return [n for n in names if n in arguments]


def spare_labels(symbol: Symbol, fed: Collection[str]) -> list[str]:
    """Labels of loss heads that nobody declared as inputs: prediction does without them, and they are no parameters.

    Example:
        >>> import jfit
        >>> spare_labels(jfit.sym.SoftmaxOutput(jfit.sym.Variable("data"), name="softmax"), {"data"})
        ['softmax_label']
    """
    labels: dict[str, None] = {}
    used = set()
    for node in symbol.nodes():
        if node.op is None:
            continue
        for slot, entry in zip(node.input_names(), node.inputs, strict=False):
            if entry.node.op is None and slot == node.op.label:
                labels[entry.node.name] = None
            else:
                used.add(entry.node.name)
    return [name for name in labels if name not in used and name not in fed]


def match_names(expected: Sequence[str], given: Sequence[DataDesc], what: str, logger: logging.Logger, *, must: bool) -> None:
    """Check that shapes are given for exactly the expected names.

    Raises:
        ValueError: (with must=True) they are not.  Otherwise it is a warning in the log.
    """
    actual = [d.name for d in given]
    if sorted(expected) == sorted(actual):
        return
    message = f"{what}_shapes do not match the names of the module: {what}_names are {list(expected)}, shapes are for {actual}"
    if must:
        raise ValueError(message)
    logger.warning(message)


def requests_of(
    grad_req: Any, arguments: Sequence[str], params: Sequence[str], fixed: Sequence[str], data: Sequence[str], wanted: bool
) -> dict[str, str]:
    """argument -> "write", "add" or "null".

    Args:
        grad_req: one word for all, a list in the order of the arguments, or a dict by name (others: write).
        arguments: all arguments of the graph.
        params: those that are parameters.
        fixed: parameters that never learn.
        data: data inputs.
        wanted: whether data inputs want a gradient.

    Raises:
        ValueError: an unknown word, a list of another length, or an unknown name.

    Example:
        >>> requests_of("write", ["data", "w"], ["w"], [], ["data"], False)
        {'data': 'null', 'w': 'write'}
    """
    base: dict[str, str]
    if isinstance(grad_req, str):
        base = dict.fromkeys(arguments, grad_req)
    elif isinstance(grad_req, Mapping):
        unknown = [n for n in grad_req if n not in arguments]
        if unknown:
            raise ValueError(
                f"grad_req names {unknown[0]!r}, which is no argument; did you mean {nearest(unknown[0], arguments)}?"
            )
        base = {**dict.fromkeys(arguments, "write"), **grad_req}
    else:
        if len(grad_req) != len(arguments):
            raise ValueError(f"grad_req lists {len(grad_req)} words, needed one for each of the {len(arguments)} arguments")
        base = dict(zip(arguments, grad_req, strict=True))
    found = {}
    for name in arguments:
        if base[name] not in REQUESTS:
            raise ValueError(f"grad_req of {name!r} is {base[name]!r}, needed one of {', '.join(REQUESTS)}")
        given = isinstance(grad_req, Mapping) and name in grad_req
        listed = not isinstance(grad_req, (str, Mapping))  # a list says it of each parameter, fixed or not, as in MXNet
        if name in params:
            found[name] = "null" if name in fixed and not (given or listed) else base[name]
        elif name in data:
            found[name] = base[name] if wanted or given else "null"
        else:
            found[name] = base[name] if given else "null"
    return found


def rows_of_batch(descs: Sequence[DataDesc]) -> int:
    """Rows of a whole batch: the size of the batch axis of the first description that has one."""
    for desc in descs:
        axis = DataDesc.get_batch_axis(desc.layout)
        if axis >= 0 and len(desc.shape) > axis:
            return desc.shape[axis]
    raise ValueError(f"none of the inputs {[d.name for d in descs]} has a batch axis; give shapes with the batch first")


def same(a: Sequence[DataDesc], b: Sequence[DataDesc]) -> bool:
    """Whether two lists describe the same arrays."""
    return [(d.name, tuple(d.shape)) for d in a] == [(d.name, tuple(d.shape)) for d in b]


def desc_of(name: str, value: Any, like: DataDesc | None) -> DataDesc:
    """The description of an array that takes the place of a bound one."""
    layout = "NCHW" if like is None else like.layout
    return DataDesc(name, tuple(value.shape), np.dtype(value.dtype).type, layout)


def dtypes_of(symbol: Symbol, data: Sequence[DataDesc]) -> dict[str, np.dtype]:
    """Dtype of every argument and auxiliary state: as declared, or as follows from floating data; float32 where unknown."""
    given = {d.name: d.dtype for d in data if np.dtype(d.dtype).kind == "f" and d.name in symbol.list_arguments()}
    arguments, _, aux = symbol.infer_type(**given)
    names = [*symbol.list_arguments(), *symbol.list_auxiliary_states()]
    found = zip(names, [*(arguments or [None] * len(names)), *(aux or [])], strict=False)
    return {n: np.dtype(jax.dtypes.canonicalize_dtype(t or np.float32)) for n, t in found}


def row_axes(found: Sequence[DataDesc]) -> dict[str, int]:
    """Where the rows are, for inputs whose layout puts them elsewhere than first."""
    axes = {d.name: DataDesc.get_batch_axis(d.layout) for d in found}
    return {name: axis for name, axis in axes.items() if axis > 0}


def with_shapes(like: Sequence[DataDesc], arrays: Sequence[Any]) -> list[DataDesc]:
    """The bound descriptions with the shapes of arrays."""
    return [desc_of(d.name, a, d) for d, a in zip(like, arrays, strict=False)]


def kept(array: Any) -> Any:
    """A copy of a numpy array: an iterator may fill its buffer again before the pass is computed."""
    return array.copy() if isinstance(array, np.ndarray) else array


def joined(parts: Sequence[Any], axis: int) -> Any:
    """Slices of several devices as one array."""
    return np.concatenate([np.asarray(p) for p in parts], axis)


def wrapped_rows(data_batch: Any) -> int:
    """Rows at the end of a batch that an iterator wrapped around."""
    return int(getattr(data_batch, "wrapped", getattr(data_batch, "pad", None)) or 0)


# ------------------------------------------------------------------------------------------------ auxiliary states
def moving_aux(symbol: Symbol, wanted: Collection[str]) -> frozenset[str]:
    """Auxiliary states of the operators below which a gradient is wanted: MXNet moves them in the backward pass.

    Where nothing below an operator wants a gradient, its backward pass does not run, and its moving statistics are
    unchanged: those of frozen first layers keep their values.

    Args:
        symbol: the network.
        wanted: names of the parameters and inputs whose gradient is kept.

    Example:
        >>> import jfit
        >>> net = jfit.sym.BatchNorm(jfit.sym.FullyConnected(jfit.sym.Variable("x"), num_hidden=2, name="fc"), name="bn")
        >>> sorted(moving_aux(net, {"fc_weight"})), sorted(moving_aux(net, ()))
        (['bn_moving_mean', 'bn_moving_var'], [])

    Source: runs of Apache MXNet 1.9.1.
    """
    reached: set[int] = set()
    found: set[str] = set()
    for node in symbol.nodes():  # inputs come before their users
        if node.op is None:
            if node.name in wanted:
                reached.add(id(node))
        elif any(id(e.node) in reached for e in node.inputs[: node.num_inputs]):
            reached.add(id(node))
            found.update(e.node.name for e in node.inputs[node.num_inputs :])
    return frozenset(found)


def with_fixed_aux(model: Model, requests: Mapping[str, str]) -> Model:
    """A model whose training passes do not change the auxiliary states that MXNet's backward pass does not reach.

    Args:
        model: lowered from a graph.
        requests: argument -> "write", "add" or "null".
    """
    moving = moving_aux(model.symbol, [n for n, r in requests.items() if r != "null"])
    unmoved = [n for n in model.symbol.list_auxiliary_states() if n not in moving]
    if not unmoved:
        return model

    def apply(params: Any, aux: Aux, inputs: Any, **how: Any) -> Any:
        outputs, moved = model.apply(params, aux, inputs, **how)
        return outputs, {**moved, **{n: aux[n] for n in unmoved if n in moved}}

    return model._replace(apply=apply)
