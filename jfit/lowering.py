"""Stage 2: a graph becomes pure functions.

`lower(symbol)` walks the graph once and returns a `Model` whose `apply` runs the nodes in order on plain arrays.  Three things
travel with every array: where its batch rows are (heads and batch statistics need row weights), whether it is held
channels-last (convolutions are fastest so, and the graph says channels-first), and the name of its node (each node draws
from its own key).
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jfit.init import InitDesc, default, get
from jfit.model import Aux, Inputs, Model, Output, Params, Plan, Policy, Specs
from jfit.ops import Ctx, Op, nearest
from jfit.ops.attributes import DTYPES
from jfit.ops.rows import LOST, MaybeRows, Rows, RowsLost
from jfit.symbol.graph import Entry, GraphError, Node, Symbol, aux_nodes, topological
from jfit.symbol.infer import infer

STATE_SLOTS = ("state", "state_cell")  # begin states of recurrent operators: zeros where they are not fed


class _Value(NamedTuple):
    """One array on its way through the graph."""

    array: Any
    rows: MaybeRows
    channels_last: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape the graph means, whatever the layout."""
        s = self.array.shape
        return (s[0], s[3], s[1], s[2]) if self.channels_last else s

    def first(self) -> _Value:
        """The same array laid out as the graph says."""
        return self._replace(array=jnp.transpose(self.array, (0, 3, 1, 2)), channels_last=False) if self.channels_last else self

    def last(self) -> _Value:
        """The same 4-D array laid out channels-last."""
        return self if self.channels_last else self._replace(array=jnp.transpose(self.array, (0, 2, 3, 1)), channels_last=True)


def lower(symbol: Symbol, *, inputs: Sequence[str] | None = None, capture: str | None = None) -> Model:
    """Lower a graph to pure functions: symbol -> Model(init, apply, outputs).

    Args:
        symbol: the graph.
        inputs: names of the variables that are fed (data and labels); all others are parameters.  Default: variables whose
            name ends in `data` or `label`, label slots of loss heads, begin states of recurrent operators.
        capture: a regular expression; internal outputs whose name matches become further, plain outputs.

    Returns:
        The `Model`.  `model.apply(params, aux, inputs, train=..., key=...)` returns (outputs, new aux).

    Raises:
        GraphError: `inputs` names no variable, two different variables share a name, or nothing matches `capture`.

    Example:
        >>> import jax, jfit, numpy as np
        >>> net = jfit.sym.SoftmaxOutput(jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=3), name="softmax")
        >>> model = jfit.lower(net)
        >>> params, aux = model.init(jax.random.key(0), {"data": jax.ShapeDtypeStruct((2, 4), "float32")})
        >>> outputs, aux = model.apply(params, aux, {"data": np.ones((2, 4), "float32")})
        >>> outputs[0].shape
        (2, 3)
    """
    heads = symbol.heads
    if capture is not None:
        internals = symbol.get_internals()
        shown = {(id(h.node), h.index) for h in heads}
        extra = [
            h
            for h, name in zip(internals.heads, internals.list_outputs(), strict=True)
            if h.node.op is not None and (id(h.node), h.index) not in shown and re.search(capture, name)
        ]
        if not extra:
            raise GraphError(f"capture={capture!r} matches no internal output; they are {internals.list_outputs()[:20]}")
        heads = (*heads, *extra)
    order = topological(heads)
    data, labels = _input_names(order, heads, inputs)
    fed = (*data, *labels)
    aux_ids = aux_nodes(order)
    variables = [n for n in order if n.op is None]
    params = _unique([n for n in variables if id(n) not in aux_ids and n.name not in fed])
    aux = _unique([n for n in variables if id(n) in aux_ids])
    outputs = tuple(_output(h, i < len(symbol.heads), fed) for i, h in enumerate(heads))
    apply = _make_apply(order, heads, fed)
    operators = [n for n in order if n.op is not None]
    traits = {"convolution"} if any(n.op.family == "conv" for n in operators if n.op) else set()
    return Model(
        init=_make_init(Symbol(heads), params, aux),
        apply=apply,
        outputs=outputs,
        inputs=data,
        labels=labels,
        plan=_make_plan(Symbol(heads), params, aux, labels, apply),
        batch_axes={n.name: _batch_axis(n) for n in variables if n.name in fed and _batch_axis(n) != 0},
        frozen=frozenset(_fixed_gammas(operators)),
        traits=frozenset(traits),
        optional=frozenset(_state_names(order)),
        symbol=symbol,
    )


# ------------------------------------------------------------------------------------------------ what the variables are
def _input_names(order: list[Node], heads: Sequence[Entry], given: Sequence[str] | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(data names, label names) in graph order."""
    variables = list(dict.fromkeys(n.name for n in order if n.op is None))
    labels = set()
    for node in order:
        for slot, entry in zip(node.input_names(), node.inputs, strict=False) if node.op else ():
            if node.op and slot == node.op.label:
                labels.update(n.name for n in topological([entry]) if n.op is None)
    if given is not None:
        for name in given:
            if name not in variables:
                near = nearest(name, variables)
                raise GraphError(f"input {name!r} is no variable of the graph" + (f"; did you mean {near}?" if near else f": {variables}"))
        fed = set(given)
        labels -= _used_as_data(heads)
        return tuple(v for v in variables if v in fed and v not in labels), tuple(v for v in variables if v in fed & labels)
    used, states = _used_as_data(heads), _state_names(order)
    named = {v for v in variables if v.endswith("data") and v in used}
    labels = (labels - named) | {v for v in variables if v.endswith("label")}
    return tuple(v for v in variables if v in named or v in states), tuple(v for v in variables if v in labels)


def _state_names(order: Sequence[Node]) -> set[str]:
    """Variables in the begin-state slots of recurrent operators."""
    slots = [(s, e) for n in order if n.op and n.op.family == "rnn" for s, e in zip(n.input_names(), n.inputs, strict=False)]
    return {e.node.name for s, e in slots if s in STATE_SLOTS and e.node.op is None}


def _used_as_data(heads: Sequence[Entry]) -> set[str]:
    """Names of the variables that are reached without passing through a label slot (an autoencoder's data is both)."""
    found, seen, stack = set(), set(), [h.node for h in heads]
    while stack:
        node = stack.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if node.op is None:
            found.add(node.name)
        else:
            slots = zip(node.input_names(), node.inputs, strict=False)
            stack.extend(e.node for slot, e in slots if slot != node.op.label)
    return found


def _unique(nodes: Sequence[Node]) -> dict[str, Node]:
    found: dict[str, Node] = {}
    for node in nodes:
        other = found.setdefault(node.name, node)
        if other is not node and other.attrs.get("__shape__") != node.attrs.get("__shape__"):
            raise GraphError(f"two variables are named {node.name!r} but declare different shapes; rename one, or share one variable")
    return found


def _batch_axis(node: Node) -> int:
    """The position of N in the variable's layout; 0 where it has none."""
    return max(node.attrs.get("__layout__", "N").find("N"), 0)


def _fixed_gammas(operators: Sequence[Node]) -> list[str]:
    return [
        n.inputs[n.input_names().index("gamma")].node.name
        for n in operators
        if n.params.get("fix_gamma") and "gamma" in n.input_names()
    ]


def _output(head: Entry, visible: bool, fed: Sequence[str]) -> Output:
    """What an output means for training; its loss reads the label through the label's own little graph."""
    node, name = head.node, head.node.output_name(head.index)
    op = node.op
    if not visible or op is None or op.kind == "plain" or head.index != 0:
        return Output(name)
    if op.label is None:
        rule = op.loss
        loss = None if rule is None else lambda out, inputs: rule(node.params, out, None)
        return Output(name, op.kind, None, loss)
    entry = node.inputs[node.input_names().index(op.label)]
    leaves = [n.name for n in topological([entry]) if n.op is None]
    if op.loss is None or not set(leaves) <= set(fed):
        return Output(name, op.kind, leaves[0] if len(leaves) == 1 else None)
    read = _make_apply(topological([entry]), [entry], leaves)
    rule = op.loss

    def loss(out: Array, inputs: Inputs) -> tuple[Array, Array]:
        return rule(node.params, out, read({}, {}, inputs)[0][0])

    classes = None
    if op.name == "SoftmaxOutput":
        classes = -1 if node.params["preserve_shape"] else 1
    ignore = node.params["ignore_label"] if node.params.get("use_ignore") else None
    return Output(name, op.kind, leaves[0], loss, classes, ignore)


# ------------------------------------------------------------------------------------------------ init
def _make_init(symbol: Symbol, params: Mapping[str, Node], aux: Mapping[str, Node]):
    def init(key: Array, specs: Specs, initializer: Any = None) -> tuple[Params, Aux]:
        """Parameters and auxiliary states for inputs of these shapes; each drawn from fold_in(key, crc32(name))."""
        start = default() if initializer is None else get(initializer)
        shapes = _variable_specs(symbol, {**params, **aux}, specs)

        def make(key: Array) -> tuple[Params, Aux]:
            def one(name: str, node: Node) -> Array:
                draw = jax.random.fold_in(key, zlib.crc32(name.encode()))
                spec = shapes[name]
                return start(draw, InitDesc(name, dict(node.attrs)), spec.shape, spec.dtype)

            return {k: one(k, n) for k, n in params.items()}, {k: one(k, n) for k, n in aux.items()}

        try:
            return jax.jit(make)(key)  # one compile for all parameters
        except (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError):
            return make(key)  # an initializer of the user's that computes in numpy

    return init


def _variable_specs(symbol: Symbol, wanted: Mapping[str, Node], specs: Specs) -> dict[str, jax.ShapeDtypeStruct]:
    variables = {n.name for n in symbol.nodes() if n.op is None}
    known = {k: s.shape for k, s in specs.items() if k in variables}
    shapes, dtypes = infer(symbol, known, {k: s.dtype for k, s in specs.items() if k in variables and jnp.issubdtype(s.dtype, jnp.floating)})
    found = {}
    for name, node in wanted.items():
        shape = shapes.get((id(node), 0))
        if shape is None or 0 in shape:
            raise GraphError(
                f"the shape of {name!r} cannot be inferred from {dict(known)}"
                + (f" (known so far: {shape})" if shape else "")
                + "; give the shapes of all inputs, or shape= to the Variable, or feed it as an input"
            )
        dtype = dtypes.get((id(node), 0)) or DTYPES["float32"]
        found[name] = jax.ShapeDtypeStruct(shape, jax.dtypes.canonicalize_dtype(dtype))
    return found


def _make_plan(symbol: Symbol, params: Mapping[str, Node], aux: Mapping[str, Node], labels: Sequence[str], apply: Any):
    def plan(specs: Specs) -> Plan:
        """Output shapes, where their rows are, and whether batches may be padded; nothing is computed."""
        made = _variable_specs(symbol, {**params, **aux}, specs)
        values = ({k: made[k] for k in params}, {k: made[k] for k in aux}, dict(specs))
        axes = {n.name: _batch_axis(n) for n in symbol.nodes() if n.op is None}
        size = next(s.shape[axes.get(k, 0)] for k, s in specs.items() if s.shape)
        rows: list[MaybeRows] = []

        def run(weight, params, aux, inputs):
            key = jax.random.key(0)
            train = all(name in specs for name in labels)  # without labels only prediction can be planned
            return apply(params, aux, inputs, key=key, train=train, weight=weight, _rows_out=rows)[0]

        try:
            shapes = jax.eval_shape(run, jax.ShapeDtypeStruct((size,), jnp.float32), *values)
            return Plan(shapes, tuple(rows), paddable=True)
        except RowsLost as error:
            reason = str(error)
        rows.clear()
        shapes = jax.eval_shape(lambda *v: run(None, *v), *values)
        return Plan(shapes, tuple(rows), paddable=False, reason=reason)

    return plan


# ------------------------------------------------------------------------------------------------ apply
def _make_apply(order: Sequence[Node], heads: Sequence[Entry], fed: Sequence[str]):
    """The interpreter of a graph.  Python runs it once per trace; what remains is a pure JAX program."""
    operators = [n for n in order if n.op is not None]
    variables = {id(n): n for n in order if n.op is None}
    aux_of = aux_nodes(order)
    label_slots = {n.inputs[n.input_names().index(n.op.label)] for n in operators if n.op and n.op.label}
    labels = {id(n) for e in label_slots for n in topological([e]) if n.op is None}

    def apply(
        params: Params,
        aux: Aux,
        inputs: Inputs,
        *,
        key: Array | None = None,
        train: bool = False,
        weight: Array | None = None,
        axis_name: str | None = None,
        row_ids: Array | None = None,
        policy: Policy | None = None,
        sync_batch_stats: bool = False,
        _rows_out: list[MaybeRows] | None = None,
    ) -> tuple[tuple[Array, ...], Aux]:
        size = _batch_size(variables.values(), inputs, fed)
        if row_ids is None and size is not None:
            row_ids = jnp.arange(size)
            if axis_name is not None:
                row_ids = row_ids + jax.lax.axis_index(axis_name) * size
        values: dict[tuple[int, int], _Value | None] = {}
        for number, node in variables.items():
            values[number, 0] = _variable_value(node, params, aux, inputs, fed, size, policy if number not in labels | aux_of else None)
        new_aux = dict(aux)
        base = Ctx(train, None, weight, (), row_ids, axis_name, "", False, sync_batch_stats)
        for node in operators:
            ins = [values[id(e.node), e.index] for e in node.inputs]
            outs, moved = _run_node(node, ins, base, key, policy)
            for i, value in enumerate(outs):
                values[id(node), i] = value
            new_aux.update(moved)
        results = [values[id(h.node), h.index] for h in heads]
        if any(r is None for r in results):
            raise GraphError(f"output {heads[results.index(None)].node.name!r} is an input that was not fed; feed it by name")
        if _rows_out is not None:
            _rows_out.extend(r.rows for r in results if r is not None)
        return tuple(r.first().array for r in results if r is not None), new_aux

    return apply


def _batch_size(variables: Any, inputs: Inputs, fed: Sequence[str]) -> int | None:
    for node in variables:
        if node.name in fed and node.name in inputs and jnp.ndim(inputs[node.name]) > _batch_axis(node):
            return inputs[node.name].shape[_batch_axis(node)]
    return None


def _variable_value(
    node: Node, params: Params, aux: Aux, inputs: Inputs, fed: Sequence[str], size: int | None, policy: Policy | None
) -> _Value | None:
    if node.name in inputs and node.name in fed:
        array, axis = jnp.asarray(inputs[node.name]), _batch_axis(node)
        rows = Rows(axis, 1, array.shape[axis], 1) if array.ndim > axis and array.shape[axis] == size else None
    elif node.name in params or node.name in aux:
        array, rows = jnp.asarray(params[node.name] if node.name in params else aux[node.name]), None
    elif node.name in fed:
        return None  # the operator decides whether it can do without (labels in evaluation, begin states)
    else:
        near = nearest(node.name, [*params, *aux, *inputs])
        raise GraphError(f"parameter {node.name!r} is missing" + (f"; did you mean {near}?" if near else "; run model.init, or pass it"))
    return _Value(policy.cast(array) if policy else array, rows)


def _run_node(node: Node, ins: list[_Value | None], base: Ctx, key: Array | None, policy: Policy | None) -> tuple[list[_Value], Aux]:
    op = node.op
    assert op is not None
    ins = [_absent(node, i, ins, base.train) if v is None else v for i, v in enumerate(ins)]
    last = _wants_channels_last(op, node, ins)
    if op.layout == "channels" and last:
        ins = [ins[0].last() if ins[0] else None, *(v.first() if v else None for v in ins[1:])]
    elif last:
        ins = [v.last() if v else None for v in ins]
    else:
        ins = [v.first() if v else None for v in ins]
    arrays = [None if v is None else v.array for v in ins]
    if policy and op.kind != "plain" and jnp.issubdtype(arrays[0].dtype, jnp.floating):
        arrays[0] = arrays[0].astype(jnp.float32)
    node_key = jax.random.fold_in(key, zlib.crc32(node.name.encode())) if key is not None and op.needs_rng else None
    rows = tuple(None if v is None else v.rows for v in ins)
    ctx = Ctx(base.train, node_key, base.weight, rows, base.row_ids, base.axis_name, node.name, last, base.sync_batch_stats)
    result = _call(node, op, ctx, arrays)
    outputs, moved = result if op.aux else (result, ())
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    flagged = [_Value(o, None, last and o.ndim == 4 and (i == 0 or op.layout == "any")) for i, o in enumerate(outputs)]
    shapes = [() if v is None else v.shape for v in ins]
    found = op.rows(node.params, rows, shapes, [f.shape for f in flagged])
    names = [e.node.name for e in node.inputs[node.num_inputs :]]
    return [f._replace(rows=r) for f, r in zip(flagged, found, strict=True)], dict(zip(names, moved, strict=False))


def _call(node: Node, op: Op, ctx: Ctx, arrays: list[Any]) -> Any:
    try:
        return op.fn(ctx, node.params, *arrays)
    except RowsLost:
        raise
    except (TypeError, ValueError, IndexError) as error:
        if isinstance(error, GraphError):
            raise
        given = ", ".join(
            f"{slot} {a.dtype}{list(a.shape)}" for slot, a in zip(node.input_names(), arrays, strict=False) if a is not None
        )
        raise GraphError(f"{node.name}: {op.name} cannot take {given}: {str(error).splitlines()[0]}") from error


def _absent(node: Node, at: int, ins: list[_Value | None], train: bool) -> _Value | None:
    """What stands for an input that was not fed: zeros for begin states, nothing for labels in evaluation."""
    op, slot = node.op, node.input_names()[at]
    assert op is not None
    if slot in STATE_SLOTS and op.fill is not None and ins[0] is not None:
        shapes = op.fill(node.params, [v.shape if v is not None else None for v in ins], [None] * len(op.output_names(node.params)))
        return _Value(jnp.zeros(shapes[at] or (), ins[0].array.dtype), None)
    if slot == op.label and not train:
        return None
    if slot == op.label:
        raise GraphError(f"{node.name}: the label {node.inputs[at].node.name!r} was not fed, and training needs it")
    raise GraphError(f"{node.name}: input {node.inputs[at].node.name!r} was not fed; pass it by that name")


def _wants_channels_last(op: Op, node: Node, ins: Sequence[_Value | None]) -> bool:
    """Convolution-like operators on 4-D channels-first data run channels-last; elementwise ones follow their inputs."""
    if not ins or ins[0] is None or op.layout is None:
        return False
    present = [v for v in ins if v is not None]
    if op.layout == "any":
        return any(v.channels_last for v in present) and all(len(v.shape) == 4 for v in present)
    first = ins[0]
    batch_first = not isinstance(first.rows, Rows) or first.rows.axis == 0
    usual = node.params.get("layout") in (None, "NCHW") and node.params.get("axis", 1) == 1
    return len(first.shape) == 4 and batch_first and usual


__all__ = ["LOST", "lower"]
