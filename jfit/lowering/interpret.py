"""Interpret a graph: `make_apply` returns a pure function that runs the nodes in topological order under `jax.jit`.

The loop over nodes is Python and runs once per trace.  Each intermediate `Value` is an array with two static facts: its
`RowLayout` (on which axis the batch rows are, which output heads such as SoftmaxOutput and batch statistics need to apply row
weights) and whether it is stored channels-last.  MXNet graphs are channels-first (NCHW); convolutions run faster channels-last,
so the interpreter transposes where an operator needs it and not at every node.  A node that draws random numbers uses
`fold_in(key, crc32(node name))`.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jfit.graph.infer import infer
from jfit.graph.nodes import Entry, Graph, GraphError, Node, aux_nodes, topological
from jfit.lowering.model import Aux, Inputs, Params, Policy
from jfit.lowering.remat import Part, Remat, cut, run_part, saved_only, tagged
from jfit.lowering.rolling.find import MIN_PACKS, MIN_STEPS
from jfit.lowering.rolling.program import OPERATOR_ERRORS, Program, plan_program, run_program
from jfit.lowering.rolling.run import NotRollable
from jfit.lowering.taps import Point, Tap
from jfit.lowering.values import Value
from jfit.ops import Attrs, Ctx, Op, nearest
from jfit.ops.axis import Axis, axis_index
from jfit.ops.rows import MaybeLayout, RowLayout, RowsLost
from jfit.ops.rules import reason
from jfit.platforms import platform_of

STATE_SLOTS = ("state", "state_cell")  # names of the initial-state inputs of recurrent operators; zeros if not passed


class InputNames(NamedTuple):
    """Names of the variables that each batch provides; all other variables are parameters or auxiliary states."""

    inputs: Collection[str]  # data and labels
    labels: Collection[str] = ()  # the labels among them; they are not cast to the compute dtype
    axes: Mapping[str, int] = {}  # batch axes other than 0


class StageInput(NamedTuple):
    """What a part of a graph gets from the other parts, if the graph is cut in stages (see `jfit.lowering.groups`).

    Attributes:
        values: what other stages computed, by the id of the variable that stands in their place; None for a label that was not
            passed.
        size: batch size.
        attributes: attributes of the operators without inputs, with complete shapes, by the id of the node.
    """

    values: Mapping[int, Value | None]
    size: int | None
    attributes: Mapping[int, Attrs]


@dataclasses.dataclass(frozen=True)
class Interpretation:
    """What a call of `apply` does in addition to computing the outputs.

    Attributes:
        rows: list to which the `RowLayout`s of the outputs (where their batch rows are) are appended, for `Model.plan`.
        stage: the nodes are a part of a graph, which gets this from the other parts; the outputs are `Value`s, None for a label
            that was not passed.
        tap: called with each variable and each output of a node (see `jfit.lowering.taps`); repeated blocks run node by node.
    """

    rows: list[MaybeLayout] | None = None
    stage: StageInput | None = None
    tap: Tap | None = None


class _Arguments(NamedTuple):
    """The arrays of one call of `apply`."""

    params: Params
    aux: Aux
    inputs: Inputs
    names: InputNames
    size: int | None  # batch size
    policy: Policy | None


def make_apply(order: Sequence[Node], heads: Sequence[Entry], names: InputNames, *, roll: bool = False):
    """Make the `apply` function (see `jfit.lowering.model.ApplyFn`) of the graph with the outputs `heads`.

    Args:
        order: the nodes of the graph in topological order.
        heads: the outputs of the graph.
        names: names of the inputs, labels and batch axes.
        roll: whether repeated blocks, such as the time steps of an unrolled recurrent network, run as one `lax.scan`.

    Returns:
        `apply`, with four arguments more than `ApplyFn`.  `table_rows` is a dict of parameter name -> sorted row indices: the
        array in `params` has only these rows of the embedding table (see `Model.tables`).  `loss_scale` is the factor of all
        gradients: heads ignore the incoming gradient, so that a factor of the objective has no effect.  `remat`
        says what the backward pass of a training pass computes again (see `jfit.lowering.remat`).  `how` is an
        `Interpretation`.
    """
    operators = [n for n in order if n.op is not None]
    variables = [n for n in order if n.op is None]
    aux_ids = aux_nodes(order)
    label_ids = _label_operators(operators)
    graph, open_shapes = Graph(heads), open_constants(operators)

    @functools.cache  # at the first trace: many models are lowered only to look at them
    def repeated(convolutions: bool) -> Program | None:
        if not roll or len(operators) < MIN_STEPS * MIN_PACKS:
            return None
        return plan_program(order, heads, names.inputs, label_ids | {id(n) for n in open_shapes}, convolutions)

    @functools.cache
    def parts(remat: Remat, mirror: str | None) -> list[Part]:
        return cut(operators, heads, remat)

    def apply(
        params: Params,
        aux: Aux,
        inputs: Inputs,
        *,
        key: Array | None = None,
        train: bool = False,
        weight: Array | None = None,
        axis_name: Axis = None,
        row_ids: Array | None = None,
        policy: Policy | None = None,
        sync_batch_stats: bool = False,
        micro_batch: Any = None,
        table_rows: Mapping[str, Array] | None = None,
        loss_scale: Array | None = None,
        remat: Remat = "none",
        how: Interpretation = Interpretation(),
    ) -> tuple[tuple[Any, ...], Aux]:
        stage, tap = how.stage, how.tap
        size = batch_size(variables, inputs, names) if stage is None else stage.size
        if weight is not None and size is not None and weight.shape != (size,):
            raise GraphError(f"weight has shape {weight.shape}, expected ({size},): one weight per row of the batch")
        if row_ids is None and size is not None:
            row_ids = jnp.arange(size)
            if axis_name is not None:
                row_ids = row_ids + axis_index(axis_name) * size
        arguments = _Arguments(params, aux, inputs, names, size, policy)
        passed = {} if stage is None else stage.values
        uncast = {id(n): passed[id(n)] if id(n) in passed else _variable(n, arguments) for n in variables}
        # (id(node), output index) -> value; None for a label that was not passed and for everything computed from it
        values: dict[tuple[int, int], Value | None] = {
            (id(n), 0): uncast[id(n)] if id(n) in aux_ids or n.name in names.labels else _cast(n, uncast[id(n)], arguments)
            for n in variables
        }
        if tap is not None:
            for n in variables:
                values[id(n), 0] = _tapped_variable(n, values[id(n), 0], names, id(n) in aux_ids, tap)
        shapes = _shapes(variables, uncast)
        attributes = attributes_with_shapes(open_shapes, graph, shapes, size) if stage is None else stage.attributes
        new_aux = dict(aux)
        shared: dict[str, Any] = {"sync_batch_stats": sync_batch_stats, "micro_batch": micro_batch, "loss_scale": loss_scale}
        base = Ctx(train, None, weight, (), row_ids, axis_name, **shared)

        def run(node: Node, ins: Sequence[Value | None], name_hash: Any = None) -> list[Value | None]:
            if isinstance(name_hash, jax.Array) and node.op.needs_rng and not _draws_alike(key):  # type: ignore[union-attr]
                raise NotRollable
            ins = list(ins)
            _replace_labels_and_aux(node, ins, uncast, aux_ids, new_aux)
            if id(node) in label_ids and any(v is None for v in ins):
                return [None] * len(node.op.output_names(node.params))  # type: ignore[union-attr]
            ins = [_missing_input(node, i, ins, train, inputs) if v is None else v for i, v in enumerate(ins)]
            rows = table_rows.get(node.inputs[1].node.name) if table_rows and len(node.inputs) > 1 else None
            ctx = base if rows is None else dataclasses.replace(base, table_rows=rows)
            outs, updated = _run(node, attributes.get(id(node), node.params), ins, ctx, key, policy, name_hash)
            new_aux.update(updated)
            return list(outs) if tap is None else _tapped(node, outs, tap)

        def run_tagged(again: Collection[int], node: Node, *args: Any) -> list[Value | None]:
            return tagged(node, run(node, *args), again)

        def run_inside(part: Part, values: Any) -> None:
            _run_in_order(part.nodes, values, functools.partial(run_tagged, part.again))

        pieces = parts(remat, os.environ.get("MXNET_BACKWARD_DO_MIRROR")) if train and tap is None else []
        program = repeated(platform_of() != "cpu") if tap is None else None  # on CPU, convolutions in loops are slow
        if program is None:
            for part in pieces or [Part(operators)]:
                if part.again:
                    run_part(part, values, new_aux, run_inside)
                else:
                    _run_in_order(part.nodes, values, run)
            outs = [values[id(h.node), h.index] for h in heads]
        elif pieces:  # only in loops, whose steps save the most
            again = frozenset().union(*[part.again for part in pieces])
            outs = list(map(run_program(program, values, functools.partial(run_tagged, again), saved_only).get, heads))
        else:
            outs = list(map(run_program(program, values, run).get, heads))
        if stage is not None:
            return tuple(outs), new_aux
        results = [v or raise_missing(h.node, inputs) for v, h in zip(outs, heads, strict=True)]
        if how.rows is not None:
            how.rows.extend(r.rows for r in results)
        return tuple(r.array for r in _in_layout(results, itertools.repeat(False))), new_aux

    return apply


# ------------------------------------------------------------------------------------------------ taps
def _tapped_variable(node: Node, value: Value | None, names: InputNames, is_aux: bool, tap: Tap) -> Value | None:
    if value is None:
        return None
    kind = "auxiliary state" if is_aux else "input" if node.name in names.inputs else "parameter"
    return value._replace(array=tap(Point(node.name, "", kind, rows=value.rows), value.array))


def _tapped(node: Node, outs: Sequence[Value], tap: Tap) -> list[Value | None]:
    assert node.op is not None
    inputs, operator = tuple(entry_name(e) for e in node.inputs), node.op.name
    return [
        v._replace(array=tap(Point(entry_name(Entry(node, i)), operator, "node", inputs, "", v.rows), v.array))
        for i, v in enumerate(outs)
    ]


def entry_name(entry: Entry) -> str:
    """Name of the array for taps: that of the node, or of the output for the second and later outputs."""
    return entry.node.output_name(entry.index) if entry.index else entry.node.name


# ------------------------------------------------------------------------------------------------ variables
def _label_operators(operators: Sequence[Node]) -> set[int]:
    """Return the ids of the operators that compute labels (such as a reshape), skipped when the label is not passed."""
    labels = {n.inputs[n.label_at] for n in operators if n.label_at is not None}
    return {id(n) for n in topological(labels) if n.op is not None}


def batch_size(variables: Sequence[Node], inputs: Inputs, names: InputNames) -> int | None:
    """Return the size of the batch axis of the first input that has one; None if there is none."""
    for node in variables:
        axis = names.axes.get(node.name, 0)
        if node.name in names.inputs and node.name in inputs and jnp.ndim(inputs[node.name]) > axis:
            return jnp.shape(inputs[node.name])[axis]
    return None


def _draws_alike(key: Array | None) -> bool:
    """Return whether a generator draws the same numbers for a key alone and in an array of keys, as loops over steps need."""
    return key is None or str(jax.random.key_impl(key)).startswith("threefry")


def _variable(node: Node, arguments: _Arguments) -> Value | None:
    """Return the array passed for a variable, in its original dtype; None for an input that was not passed."""
    name = node.name
    if name in arguments.names.inputs:
        if name not in arguments.inputs:
            return None  # labels (in evaluation) and initial states are optional: see _missing_input
        array, axis = jnp.asarray(arguments.inputs[name]), arguments.names.axes.get(name, 0)
        has_rows = array.ndim > axis and array.shape[axis] == arguments.size
        return Value(array, RowLayout(axis, 1, array.shape[axis], 1) if has_rows else None)
    for group in (arguments.params, arguments.aux):
        if name in group:
            return Value(jnp.asarray(group[name]), None)
    near = nearest(name, [*arguments.params, *arguments.aux, *arguments.inputs])
    raise GraphError(f"parameter {name!r} is missing; " + (f"did you mean {near}?" if near else "run model.init, or pass it"))


def _cast(node: Node, value: Value | None, arguments: _Arguments) -> Value | None:
    """Cast uint8 inputs (images) to float32, then floats to the compute dtype; other integers may be ids and are kept."""
    if value is None:
        return None
    array = value.array
    if array.dtype == jnp.uint8 and node.name in arguments.names.inputs and "__dtype__" not in node.attrs:
        array = array.astype(jnp.float32)
    return value._replace(array=arguments.policy.cast(array) if arguments.policy else array)


def _replace_labels_and_aux(
    node: Node, ins: list[Value | None], uncast: Mapping[int, Value | None], aux_ids: set[int], new_aux: Aux
) -> None:
    """Replace in `ins`, the inputs of a node, labels by arrays that are not cast and auxiliary states by their latest update.

    `uncast`: node id -> value of each variable before the cast to the compute dtype (a variable may be both data and label).
    """
    for i, entry in enumerate(node.inputs):
        if id(entry.node) in aux_ids and entry.node.name in new_aux:
            ins[i] = Value(new_aux[entry.node.name], None)
        elif i == node.label_at and entry.node.op is None:
            ins[i] = uncast[id(entry.node)]


def open_constants(operators: Sequence[Node]) -> list[Node]:
    """Return the operators without inputs, such as `_zeros`, whose `shape` is None or contains an unknown size (0)."""
    constants = [n for n in operators if n.op and n.op.inputs == ()]
    return [n for n in constants if n.params.get("shape", ()) is None or 0 in n.params.get("shape", ())]


def _shapes(variables: Sequence[Node], values: Mapping[int, Value | None]) -> dict[str, Any]:
    return {n.name: value.array.shape for n in variables if (value := values[id(n)]) is not None}


def attributes_with_shapes(
    nodes: Sequence[Node], graph: Graph, shapes: Mapping[str, Any], size: int | None
) -> dict[int, Attrs]:
    """Return the attributes of `open_constants` (initial states of unknown batch size) with inferred shapes, by node id."""
    if not nodes:
        return {}
    attributes = {}
    for node, shape in zip(nodes, _inferred_shapes(graph, nodes, shapes, size), strict=True):
        if shape is None or 0 in shape:
            raise GraphError(f"{node.name}: shape {node.params['shape']} has an unknown size 0; pass the full shape")
        attributes[id(node)] = Attrs({**node.params, "shape": shape})
    return attributes


def _inferred_shapes(symbol: Graph, nodes: Sequence[Node], shapes: Mapping[str, Any], size: Any) -> list[Any]:
    """Infer the shapes of the first outputs of `nodes` from those of the variables; the batch size `size` may be symbolic."""

    def at(rows: int) -> list[Any]:
        concrete = {k: tuple(d if isinstance(d, int) else rows for d in shape) for k, shape in shapes.items()}
        known, _ = infer(symbol, concrete)
        return [known.get((id(n), 0)) for n in nodes]

    if size is None or isinstance(size, int):
        return at(0)  # every size is an int: the argument is not used
    two, three = at(2), at(3)
    # A size d is linear in the number of rows: d(rows) = d(2) + (rows - 2) (d(3) - d(2)).
    return [
        None if a is None or b is None else tuple(x if x == y else x + (size - 2) * (y - x) for x, y in zip(a, b, strict=True))
        for a, b in zip(two, three, strict=True)
    ]


def _missing_input(node: Node, at: int, ins: Sequence[Value | None], train: bool, inputs: Inputs) -> Value | None:
    """Return the value of input number `at`, which was not passed: zeros for an initial state, None for an unneeded label."""
    op, slot = node.op, node.input_names()[at]
    assert op is not None
    if slot in STATE_SLOTS and op.fill is not None and ins[0] is not None:
        outs: list[Any] = [None] * len(op.output_names(node.params))
        shapes = op.fill(node.params, [None if v is None else _shape(v) for v in ins], outs)
        return Value(jnp.zeros(shapes[at] or (), ins[0].array.dtype), None)
    if slot == op.label and not train:
        return None
    if slot == op.label:
        raise GraphError(f"{node.name}: label {_source(node.inputs[at].node, inputs)!r} is missing, and training needs it")
    return raise_missing(node.inputs[at].node, inputs, f"{node.name}: ")


def _source(node: Node, inputs: Inputs) -> str:
    """Return the name of a variable that `node` depends on and that was not passed: a label if there is one, else the first."""
    missing = [n.name for n in topological([Entry(node, 0)]) if n.op is None and n.name not in inputs]
    return next((name for name in missing if name.endswith("label")), missing[0] if missing else node.name)


def raise_missing(node: Node, inputs: Inputs, where: str = "") -> Any:
    """Raise the error that an input which `node` depends on was not passed."""
    raise GraphError(f"{where}input {_source(node, inputs)!r} is missing; pass it in inputs (found {sorted(inputs)})")


# ------------------------------------------------------------------------------------------------ operators
def _run(
    node: Node,
    params: Attrs,
    ins: Sequence[Value | None],
    base: Ctx,
    key: Array | None,
    policy: Policy | None,
    name_hash: Any = None,
) -> tuple[list[Value], Aux]:
    """Run one node; returns (its outputs, the new auxiliary states by name).

    `params` are the parsed attributes, `ins` the inputs, `base` is the context without the fields that differ between nodes.
    `name_hash`: crc32 of the name whose random numbers are drawn, uint32; None: of the node's own name.
    """
    op = node.op
    assert op is not None
    last = _runs_channels_last(op, node, ins)
    # weights of convolutions stay as they are
    ins = _in_layout(ins, [last and (i == 0 or op.layout == "any") for i in range(len(ins))])
    arrays = _promoted(op, [None if v is None else v.array for v in ins], policy, base.loss_scale)
    name_hash = zlib.crc32(node.name.encode()) if name_hash is None else name_hash
    ctx = dataclasses.replace(
        base,
        train=base.train and "__predict__" not in node.attrs,
        key=jax.random.fold_in(key, name_hash) if key is not None and op.needs_rng else None,
        rows=tuple(None if v is None else v.rows for v in ins),
        node=node.name,
        channels_last=last,
    )
    if node.subgraphs:
        params = Attrs({**params, "graphs": tuple(_body_function(g, policy) for g in node.subgraphs)})
    outputs, extra = _call(node, op, ctx, params, arrays)
    if policy and op.family == "create":
        outputs = tuple(policy.cast(o) for o in outputs)
    values = [Value(o, None, last and o.ndim == 4 and (i == 0 or op.layout == "any")) for i, o in enumerate(outputs)]
    shapes = [() if v is None else _shape(v) for v in ins]
    if node.subgraphs:  # where the batch rows are depends on the bodies: loops and branches return it
        return [v._replace(rows=r) for v, r in zip(values, extra, strict=True)], {}
    layouts = op.rows(params, ctx.rows, shapes, [_shape(v) for v in values])
    names = [e.node.name for e in node.inputs[node.num_inputs :]]
    return [v._replace(rows=r) for v, r in zip(values, layouts, strict=True)], dict(zip(names, extra, strict=False))


def _run_in_order(operators: Sequence[Node], values: dict[Any, Any], run: Callable[..., Sequence[Value | None]]) -> None:
    """Call `run(node, inputs)` of each operator, and add its outputs to `values`, by (id(node), output index)."""
    for node in operators:
        outs = run(node, [values[id(e.node), e.index] for e in node.inputs])
        values.update({(id(node), i): v for i, v in enumerate(outs)})


def _body_function(body: Graph, policy: Policy | None) -> Callable[..., Any]:
    """Convert the subgraph of a loop or branch to a function on arrays with the signature `jfit.ops.control.Body`.

    As in MXNet, it does not update auxiliary states.
    """
    order = body.nodes()
    variables, operators = [n for n in order if n.op is None], [n for n in order if n.op is not None]

    def run(
        ctx: Ctx, arrays: Sequence[Array], rows: Sequence[MaybeLayout]
    ) -> tuple[tuple[Array, ...], tuple[MaybeLayout, ...]]:
        arguments: dict[int, Value | None] = {id(n): Value(a, r) for n, a, r in zip(variables, arrays, rows, strict=True)}
        values: dict[Any, Any] = {(at, 0): value for at, value in arguments.items()}
        attributes = attributes_with_shapes(open_constants(operators), body, _shapes(variables, arguments), None)

        def run_node(node: Node, ins: Sequence[Value | None]) -> list[Value]:
            return _run(node, attributes.get(id(node)) or node.params, ins, ctx, ctx.key, policy)[0]

        _run_in_order(operators, values, run_node)
        results: list[Any] = [values[id(h.node), h.index] for h in body.heads]
        return tuple(v.array for v in _in_layout(results, itertools.repeat(False))), tuple(v.rows for v in results)

    return run


def _shape(value: Value) -> tuple[int, ...]:
    """Shape of the array with channels first, as in the graph."""
    s = value.array.shape
    return (s[0], s[3], s[1], s[2]) if value.channels_last else s


def _in_layout(values: Sequence[Any], channels_last: Iterable[bool]) -> list[Any]:
    """Transpose the arrays of values to channels-last where that is true, the others to channels-first."""
    return [v.transposed() if v and v.channels_last != last else v for v, last in zip(values, channels_last, strict=False)]


@jax.custom_vjp
def _with_scaled_gradient(x: Array, scale: Array) -> Array:
    """Return x; its gradient is multiplied by the scale."""
    return x


_with_scaled_gradient.defvjp(lambda x, scale: (x, scale), lambda scale, g: (g * scale.astype(g.dtype), jnp.zeros_like(scale)))


def _promoted(op: Op, arrays: list[Any], policy: Policy | None, scale: Array | None) -> list[Any]:
    """Cast the data of output heads and losses to float32, and integers to the dtype of the floats if all must be equal."""
    if policy and op.kind != "plain" and arrays[0] is not None and jnp.issubdtype(arrays[0].dtype, jnp.floating):
        arrays[0] = arrays[0].astype(jnp.float32)
    if scale is not None and op.kind != "plain":
        is_float = [a is not None and jnp.issubdtype(a.dtype, jnp.floating) for a in arrays]
        arrays = [_with_scaled_gradient(a, scale) if f else a for a, f in zip(arrays, is_float, strict=True)]
    floats = [a.dtype for a in arrays if a is not None and jnp.issubdtype(a.dtype, jnp.floating)]
    if floats and (op.types is None or op.family == "norm"):
        arrays = [a if a is None or jnp.issubdtype(a.dtype, jnp.floating) else a.astype(floats[0]) for a in arrays]
    return arrays


def _call(node: Node, op: Op, ctx: Ctx, params: Attrs, arrays: Sequence[Any]) -> tuple[tuple[Any, ...], Sequence[Any]]:
    try:
        return op.run(ctx, params, arrays)
    except Exception as error:
        if isinstance(error, RowsLost | GraphError) or not isinstance(error, OPERATOR_ERRORS):
            error.add_note(f"node {node.name!r} ({op.name})")  # such as to JAX's errors about symbolic sizes
            raise
        named = zip(node.input_names(), arrays, strict=False)
        inputs = ", ".join(f"{slot} {a.dtype}{list(a.shape)}" for slot, a in named if a is not None)
        hint = "; convolutions need JFIT_CONV_FORMS=0 for jax.jvp on CPU" if "forward-mode" in str(error) else ""
        raise GraphError(f"{node.name}: {op.name} cannot take {inputs or 'its attributes'}: {reason(error)}{hint}") from error


def _runs_channels_last(op: Op, node: Node, ins: Sequence[Value | None]) -> bool:
    """Return whether to run channels-last: convolutions of 4-D NCHW data, and elementwise operators on their outputs."""
    if not ins or ins[0] is None or op.layout is None:
        return False
    present = [v for v in ins if v is not None]
    if op.layout == "any":
        return any(v.channels_last for v in present) and all(v.array.ndim == 4 for v in present)
    first = ins[0]
    batch_first = not isinstance(first.rows, RowLayout) or first.rows.axis == 0
    channels_first = node.params.get("layout") in (None, "NCHW") and node.params.get("axis", 1) == 1
    return first.array.ndim == 4 and batch_first and channels_first
