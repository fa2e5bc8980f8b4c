"""The interpreter of a graph: Python runs it once per trace, what remains is a pure JAX program.

Three things travel with every array: where its batch rows are (heads and batch statistics need row weights), whether it is
held channels-last (convolutions are fastest so, and the graph says channels-first), and the name of its node (each node
draws from its own key).
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jfit.graph.infer import infer
from jfit.graph.nodes import Entry, Graph, GraphError, Node, aux_nodes, topological
from jfit.lowering.model import Aux, Inputs, Params, Policy
from jfit.ops import Attrs, Ctx, Op, nearest
from jfit.ops.rows import MaybeLayout, RowLayout, RowsLost
from jfit.ops.rules import reason

STATE_SLOTS = ("state", "state_cell")  # begin states of recurrent operators: zeros where they are not fed
CHANNELS_FIRST, CHANNELS_LAST = (0, 3, 1, 2), (0, 2, 3, 1)  # permutations that lead there


class Value(NamedTuple):
    """One array on its way through the graph."""

    array: Any
    rows: MaybeLayout
    channels_last: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape the graph means, whatever the layout."""
        s = self.array.shape
        return (s[0], s[3], s[1], s[2]) if self.channels_last else s

    def first(self) -> Value:
        """The same array laid out as the graph says."""
        return Value(jnp.transpose(self.array, CHANNELS_FIRST), self.rows) if self.channels_last else self

    def last(self) -> Value:
        """The same 4-D array laid out channels-last."""
        return self if self.channels_last else Value(jnp.transpose(self.array, CHANNELS_LAST), self.rows, True)


class Names(NamedTuple):
    """What the variables of a graph are: `fed` ones come with each batch, all others are parameters or auxiliary states."""

    fed: Collection[str]
    labels: Collection[str] = ()  # fed, and kept in their own precision
    axes: Mapping[str, int] = {}  # where the batch axis is, if not at 0


class _Feed(NamedTuple):
    """The arrays of one call."""

    params: Params
    aux: Aux
    inputs: Inputs
    names: Names
    size: int | None  # rows of the batch
    policy: Policy | None


def make_apply(order: Sequence[Node], heads: Sequence[Entry], names: Names):
    """`apply` of a graph, see `jfit.lowering.model.ApplyFn`; `_rows_out` collects where the rows of each output are."""
    operators = [n for n in order if n.op is not None]
    variables = [n for n in order if n.op is None]
    aux_ids = aux_nodes(order)
    label_only = _label_graph(operators)
    unsized = _unsized(operators)

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
        table_rows: Mapping[str, Array] | None = None,
        _rows_out: list[MaybeLayout] | None = None,
    ) -> tuple[tuple[Array, ...], Aux]:
        size = _batch_size(variables, inputs, names)
        _check_weight(weight, size)
        if row_ids is None and size is not None:
            row_ids = jnp.arange(size)
            if axis_name is not None:
                row_ids = row_ids + jax.lax.axis_index(axis_name) * size
        feed = _Feed(params, aux, inputs, names, size, policy)
        raw = {id(n): _variable(n, feed) for n in variables}
        values: dict[tuple[int, int], Value | None] = {
            (id(n), 0): raw[id(n)] if id(n) in aux_ids or n.name in names.labels else _cast(n, raw[id(n)], feed)
            for n in variables
        }
        sizes = _sizes(unsized, heads, raw, variables, size)
        new_aux = dict(aux)
        base = Ctx(train, None, weight, (), row_ids, axis_name, "", False, sync_batch_stats)
        for node in operators:
            ins = [values[id(e.node), e.index] for e in node.inputs]
            _own_values(node, ins, raw, aux_ids, new_aux)
            if id(node) in label_only and any(v is None for v in ins):
                values.update({(id(node), i): None for i in range(len(node.op.output_names(node.params)))})  # type: ignore
                continue
            ins = [_absent(node, i, ins, train, inputs) if v is None else v for i, v in enumerate(ins)]
            rows = table_rows.get(node.inputs[1].node.name) if table_rows and len(node.inputs) > 1 else None
            ctx = base if rows is None else dataclasses.replace(base, table_rows=rows)
            outs, moved = _run(node, sizes.get(id(node), node.params), ins, ctx, key, policy)
            values.update({(id(node), i): v for i, v in enumerate(outs)})
            new_aux.update(moved)
        results = [values[id(h.node), h.index] or _missing(h.node, inputs) for h in heads]
        if _rows_out is not None:
            _rows_out.extend(r.rows for r in results)
        return tuple(r.first().array for r in results), new_aux

    return apply


# ------------------------------------------------------------------------------------------------ variables
def _label_graph(operators: Sequence[Node]) -> set[int]:
    """Ids of the operator nodes below label slots (a reshape of the label): without labels they have no value."""
    slots = {n.inputs[n.input_names().index(n.op.label)] for n in operators if n.op and n.op.label}
    return {id(n) for n in topological(slots) if n.op is not None}


def _batch_size(variables: Sequence[Node], inputs: Inputs, names: Names) -> int | None:
    for node in variables:
        axis = names.axes.get(node.name, 0)
        if node.name in names.fed and node.name in inputs and jnp.ndim(inputs[node.name]) > axis:
            return jnp.shape(inputs[node.name])[axis]
    return None


def _check_weight(weight: Array | None, size: int | None) -> None:
    if weight is not None and size is not None and weight.shape != (size,):
        raise GraphError(f"weight has shape {weight.shape}, needed ({size},): one weight for each row of the batch")


def _variable(node: Node, feed: _Feed) -> Value | None:
    """The array of a variable as it was given; None for an input that was not fed."""
    name = node.name
    if name in feed.names.fed:
        if name not in feed.inputs:
            return None  # the operator decides whether it can do without (labels in evaluation, begin states)
        array, axis = jnp.asarray(feed.inputs[name]), feed.names.axes.get(name, 0)
        whole = array.ndim > axis and array.shape[axis] == feed.size
        return Value(array, RowLayout(axis, 1, array.shape[axis], 1) if whole else None)
    for group in (feed.params, feed.aux):
        if name in group:
            return Value(jnp.asarray(group[name]), None)
    near = nearest(name, [*feed.params, *feed.aux, *feed.inputs])
    raise GraphError(f"parameter {name!r} is missing; " + (f"did you mean {near}?" if near else "run model.init, or pass it"))


def _cast(node: Node, value: Value | None, feed: _Feed) -> Value | None:
    """Bytes (images) become floats, floats the compute dtype; other integers stay, they may be ids."""
    if value is None:
        return None
    array = value.array
    if array.dtype == jnp.uint8 and node.name in feed.names.fed and "__dtype__" not in node.attrs:
        array = array.astype(jnp.float32)
    return value._replace(array=feed.policy.cast(array) if feed.policy else array)


def _own_values(node: Node, ins: list[Value | None], raw: Mapping[int, Value | None], aux_ids: set[int], new_aux: Aux) -> None:
    """A label slot reads its variable uncast even where it is data too; shared auxiliary states move node by node."""
    assert node.op is not None
    for i, (slot, entry) in enumerate(zip(node.input_names(), node.inputs, strict=True)):
        if id(entry.node) in aux_ids and entry.node.name in new_aux:
            ins[i] = Value(new_aux[entry.node.name], None)
        elif slot == node.op.label and entry.node.op is None:
            ins[i] = raw[id(entry.node)]


def _unsized(operators: Sequence[Node]) -> list[Node]:
    """Arrays made from nothing whose shape leaves something to inference."""
    made = [n for n in operators if n.op and n.op.inputs == ()]
    return [n for n in made if n.params.get("shape", ()) is None or 0 in n.params.get("shape", ())]


def _sizes(
    unsized: Sequence[Node],
    heads: Sequence[Entry],
    raw: Mapping[int, Value | None],
    variables: Sequence[Node],
    size: int | None,
) -> dict[int, Attrs]:
    """Attributes of constants whose shape the graph leaves open (begin states of unknown batch), filled by inference."""
    if not unsized:
        return {}
    given = {n.name: value.shape for n in variables if (value := raw[id(n)]) is not None}
    found = {}
    for node, shape in zip(unsized, _inferred(Graph(heads), unsized, given, size), strict=True):
        if shape is None or 0 in shape:
            raise GraphError(
                f"{node.name}: shape {node.params['shape']} leaves a size open (0), and the rest of the graph does not "
                f"tell it (known so far: {shape}); give the full shape"
            )
        found[id(node)] = Attrs({**node.params, "shape": shape})
    return found


def _inferred(symbol: Graph, nodes: Sequence[Node], given: Mapping[str, Any], size: Any) -> list[Any]:
    """Shapes of the nodes' outputs by inference, also where the number of rows is a symbol (an exported program)."""

    def at(rows: int) -> list[Any]:
        sized = {k: tuple(d if isinstance(d, int) else rows for d in shape) for k, shape in given.items()}
        known, _ = infer(symbol, sized)
        return [known.get((id(n), 0)) for n in nodes]

    if size is None or isinstance(size, int):
        return at(0)  # no size is left open
    few, many = at(2), at(3)
    # sizes grow linearly with the rows: d(2) + (rows - 2) (d(3) - d(2))
    return [
        None if a is None or b is None else tuple(x if x == y else x + (size - 2) * (y - x) for x, y in zip(a, b, strict=True))
        for a, b in zip(few, many, strict=True)
    ]


def _absent(node: Node, at: int, ins: Sequence[Value | None], train: bool, inputs: Inputs) -> Value | None:
    """What stands for an input that was not fed: zeros for begin states, nothing for labels in evaluation."""
    op, slot = node.op, node.input_names()[at]
    assert op is not None
    if slot in STATE_SLOTS and op.fill is not None and ins[0] is not None:
        outs: list[Any] = [None] * len(op.output_names(node.params))
        shapes = op.fill(node.params, [None if v is None else v.shape for v in ins], outs)
        return Value(jnp.zeros(shapes[at] or (), ins[0].array.dtype), None)
    if slot == op.label and not train:
        return None
    if slot == op.label:
        raise GraphError(f"{node.name}: the label {_source(node.inputs[at].node, inputs)!r} was not fed, and training needs it")
    return _missing(node.inputs[at].node, inputs, f"{node.name}: ")


def _source(node: Node, inputs: Inputs) -> str:
    """The variable behind a missing value: of those that were not fed a label, or the first."""
    absent = [n.name for n in topological([Entry(node, 0)]) if n.op is None and n.name not in inputs]
    return next((name for name in absent if name.endswith("label")), absent[0] if absent else node.name)


def _missing(node: Node, inputs: Inputs, where: str = "") -> Any:
    raise GraphError(f"{where}input {_source(node, inputs)!r} was not fed; feed it by that name (fed were {sorted(inputs)})")


# ------------------------------------------------------------------------------------------------ operators
def _run(
    node: Node, params: Attrs, ins: Sequence[Value | None], base: Ctx, key: Array | None, policy: Policy | None
) -> tuple[list[Value], Aux]:
    op = node.op
    assert op is not None
    last = _wants_channels_last(op, node, ins)
    ins = _laid_out(op, ins, last)
    arrays = _dtypes_met(op, [None if v is None else v.array for v in ins], policy)
    ctx = dataclasses.replace(
        base,
        key=jax.random.fold_in(key, zlib.crc32(node.name.encode())) if key is not None and op.needs_rng else None,
        rows=tuple(None if v is None else v.rows for v in ins),
        node=node.name,
        channels_last=last,
    )
    if node.subgraphs:
        params = Attrs({**params, "graphs": tuple(_function(g, policy) for g in node.subgraphs)})
    result = _call(node, op, ctx, params, arrays)
    outputs, moved = result if op.aux or node.subgraphs else (result, ())
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    if policy and op.family == "create":
        outputs = tuple(policy.cast(o) for o in outputs)
    flagged = [Value(o, None, last and o.ndim == 4 and (i == 0 or op.layout == "any")) for i, o in enumerate(outputs)]
    shapes = [() if v is None else v.shape for v in ins]
    if node.subgraphs:  # control flow tells itself where its bodies left the rows
        return [f._replace(rows=r) for f, r in zip(flagged, moved, strict=True)], {}
    found = op.rows(params, ctx.rows, shapes, [f.shape for f in flagged])
    names = [e.node.name for e in node.inputs[node.num_inputs :]]
    return [f._replace(rows=r) for f, r in zip(flagged, found, strict=True)], dict(zip(names, moved, strict=False))


def _function(body: Graph, policy: Policy | None) -> Callable[..., Any]:
    """The body of a loop or branch as `jfit.ops.control.Body`.  Auxiliary states in it stay as they are, as in MXNet."""
    order = body.nodes()
    variables, operators = [n for n in order if n.op is None], [n for n in order if n.op is not None]

    def run(
        ctx: Ctx, arrays: Sequence[Array], rows: Sequence[MaybeLayout]
    ) -> tuple[tuple[Array, ...], tuple[MaybeLayout, ...]]:
        raw: dict[int, Value | None] = {id(n): Value(a, r) for n, a, r in zip(variables, arrays, rows, strict=True)}
        values = {(at, 0): value for at, value in raw.items()}
        sizes = _sizes(_unsized(operators), body.heads, raw, variables, None)
        for node in operators:
            ins = [values[id(e.node), e.index] for e in node.inputs]
            outs, _ = _run(node, sizes.get(id(node), node.params), ins, ctx, ctx.key, policy)
            values.update({(id(node), i): v for i, v in enumerate(outs)})
        found: list[Any] = [values[id(h.node), h.index] for h in body.heads]
        return tuple(v.first().array for v in found), tuple(v.rows for v in found)

    return run


def _laid_out(op: Op, ins: Sequence[Value | None], last: bool) -> list[Value | None]:
    """Inputs in the layout the operator runs in; an operator with channels takes only its data channels-last."""
    return [
        None if v is None else v.last() if last and (i == 0 or op.layout == "any") else v.first() for i, v in enumerate(ins)
    ]


def _dtypes_met(op: Op, arrays: list[Any], policy: Policy | None) -> list[Any]:
    """Heads compute in float32; where an operator wants one dtype, integers join the floats (never weights the integers)."""
    if policy and op.kind != "plain" and arrays[0] is not None and jnp.issubdtype(arrays[0].dtype, jnp.floating):
        arrays[0] = arrays[0].astype(jnp.float32)
    floats = [a.dtype for a in arrays if a is not None and jnp.issubdtype(a.dtype, jnp.floating)]
    if floats and (op.types is None or op.family == "norm"):
        arrays = [a if a is None or jnp.issubdtype(a.dtype, jnp.floating) else a.astype(floats[0]) for a in arrays]
    return arrays


def _call(node: Node, op: Op, ctx: Ctx, params: Attrs, arrays: Sequence[Any]) -> Any:
    try:
        return op.fn(ctx, params, *arrays)
    except (RowsLost, GraphError):
        raise
    except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError) as error:
        given = ", ".join(
            f"{slot} {a.dtype}{list(a.shape)}" for slot, a in zip(node.input_names(), arrays, strict=False) if a is not None
        )
        raise GraphError(f"{node.name}: {op.name} cannot take {given or 'its attributes'}: {reason(error)}") from error
    except Exception as error:  # such as a size that an exported program leaves open: say at least where
        error.add_note(f"node {node.name!r} ({op.name})")
        raise


def _wants_channels_last(op: Op, node: Node, ins: Sequence[Value | None]) -> bool:
    """Convolution-like operators on 4-D channels-first data run channels-last; elementwise ones follow their inputs."""
    if not ins or ins[0] is None or op.layout is None:
        return False
    present = [v for v in ins if v is not None]
    if op.layout == "any":
        return any(v.channels_last for v in present) and all(len(v.shape) == 4 for v in present)
    first = ins[0]
    batch_first = not isinstance(first.rows, RowLayout) or first.rows.axis == 0
    usual = node.params.get("layout") in (None, "NCHW") and node.params.get("axis", 1) == 1
    return len(first.shape) == 4 and batch_first and usual
