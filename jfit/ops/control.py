"""Control flow operators: loops (`_foreach`, `_while_loop`) and branches (`_cond`) whose bodies are subgraphs.

The bodies of a node are `attrs.graphs`, a tuple of subgraphs that infer shapes and dtypes.  In a lowered graph each is also a
function `graph(ctx, arrays, rows) -> (outputs, their RowLayouts)`, where a `RowLayout` says where the batch rows are.
Attributes such as `in_data_locs` map the inputs of a body to those of the node: they are lists of positions, the same as in
MXNet's symbol.json.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from jfit.ops.attributes import Attrs, integer, shape
from jfit.ops.context import Ctx
from jfit.ops.registry import MaybeShape, operator
from jfit.ops.rows import LOST, MaybeLayout
from jfit.ops.rules import drop_axes, insert_axis, numbered_outputs, unify

Shapes = list[MaybeShape]
# a lowered body: (context, inputs, their layouts) -> (outputs, their layouts); a layout says where the batch rows are
Body = Callable[[Ctx, Sequence[Array], Sequence[MaybeLayout]], tuple[tuple[Array, ...], tuple[MaybeLayout, ...]]]


def _names(bodies: int) -> Callable[[Attrs], tuple[str, ...]]:
    return lambda attrs: tuple(f"data{i}" for i in range(attrs.num_args - bodies))


def _outputs(*locs: tuple[str, ...]) -> Callable[[Attrs], tuple[str, ...]]:
    """Return the function that names the outputs; it also checks that the attributes, of a file perhaps, fit the bodies.

    `locs` has a tuple for each body: the names of the attributes that list the positions of its inputs among the node's inputs.
    """

    def names(attrs: Attrs) -> tuple[str, ...]:
        count, graphs = attrs.num_args - len(locs), attrs.get("graphs", ())
        places = [[at for key in keys for at in attrs[key]] for keys in locs]
        states, variables = attrs.get("in_state_locs", attrs.get("func_var_locs")), attrs.get("func_var_locs", ())
        fits = (
            all(
                len(each) == graph.inputs and set(each) <= set(range(count))
                for each, graph in zip(places, graphs, strict=False)
            )
            and all(graph.outputs == attrs.num_outputs for graph in graphs[1:] or graphs)
            and (states is None or len(states) == attrs.num_outputs - attrs.num_out_data)
            and all(0 <= at < len(attrs.func_input_locs) for at in variables)
        )
        if not fits:
            bodies = [f"{graph.inputs} inputs and {graph.outputs} outputs" for graph in graphs]
            values = {key: value for key, value in attrs.items() if key != "graphs"}
            raise ValueError(f"its attributes do not fit the bodies, which have {', '.join(bodies)}: {values}")
        return numbered_outputs(attrs.num_outputs)

    return names


def _body_shapes(graph: Any, locs: Sequence[int], ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    """Infer the shapes of (all inputs of the node, the outputs of a body).

    The body `graph` takes the inputs at the positions `locs`.  `ins` are the known shapes of the node's inputs, `outs` those of
    the body's outputs.
    """
    body_ins, body_outs = graph.shapes([ins[at] for at in locs], outs)
    ins = list(ins)
    for at, new in zip(locs, body_ins, strict=True):
        ins[at] = unify([ins[at], new], "the node passes it to its body")
    return ins, body_outs


def _dtypes(graph: Any, locs: Sequence[int], ins: list[Any]) -> tuple[list[Any], list[Any]]:
    """Infer the dtypes of (all inputs of the node, the outputs of a body); `ins` and `locs` as in `_body_shapes`."""
    body_ins, body_outs = graph.types([ins[at] for at in locs])
    ins = list(ins)
    for at, new in zip(locs, body_ins, strict=True):
        ins[at] = new if ins[at] is None else ins[at]
    return ins, body_outs


def _at_step(ctx: Ctx, step: Array) -> Ctx:
    """Return the context of one iteration: the iteration number is folded into the PRNG key."""
    return ctx if ctx.key is None else dataclasses.replace(ctx, key=jax.random.fold_in(ctx.key, step))


def _rows_of(graph: Body, ctx: Ctx, arrays: Sequence[Any], rows: Sequence[MaybeLayout]) -> list[MaybeLayout]:
    """Return where the batch rows are in the outputs of the body `graph` (`RowLayout`s), by tracing it."""
    layouts: list[MaybeLayout] = []

    def run(*values: Array) -> tuple[Array, ...]:
        outs, out_rows = graph(ctx, values, rows)
        layouts.extend(out_rows)
        return outs

    jax.eval_shape(run, *arrays)
    return layouts


def _fixed_point(
    graph: Body, ctx: Ctx, arrays: Sequence[Any], rows: Sequence[MaybeLayout], states: Sequence[int], first: int
) -> tuple[list[MaybeLayout], list[MaybeLayout]]:
    """Find for each loop state a `RowLayout` (where its batch rows are) that is correct in every iteration.

    A state that starts as a constant (layout None) and depends on the batch after the first iteration has its later layout.  If
    the layout changes in any other way, it is LOST: the rows cannot be distinguished in all iterations.

    Args:
        graph: the body of the loop.
        ctx: context to trace the body with.
        arrays: inputs of the body.
        rows: layouts of these inputs before the first iteration.
        states: positions of the states among the body's inputs.
        first: position of the first state among the body's outputs; all outputs after it are states.

    Returns:
        (layouts of the body's inputs, layouts of the body's outputs).
    """
    rows = list(rows)
    for _ in range(2 * len(states) + 1):
        outs = _rows_of(graph, ctx, arrays, rows)
        before = list(rows)
        for at, new in zip(states, outs[first:], strict=True):
            if new is not None and new != rows[at]:
                rows[at] = new if rows[at] is None else LOST
        if rows == before:
            break
    return rows, [*outs[:first], *(rows[at] for at in states)]


def _like(new: Array, old: Array, which: int) -> Array:
    if new.shape != old.shape:
        raise ValueError(f"loop state {which} has shape {old.shape}, and {new.shape} after an iteration; reshape it")
    return new.astype(old.dtype)


_operator = functools.partial(operator, variadic="num_args", needs_rng=True)


# ------------------------------------------------------------------------------------------------ foreach
def _foreach_order(attrs: Attrs) -> list[int]:
    """Return for each input of the body the position of its value in the node's inputs (data, then states, then the rest)."""
    placed = (*attrs.in_data_locs, *attrs.in_state_locs, *attrs.remain_locs)
    if sorted(placed) != list(range(attrs.num_args - 1)):
        raise ValueError(f"in_data_locs, in_state_locs, remain_locs are {placed}, expected 0 to {attrs.num_args - 2} once each")
    return sorted(range(len(placed)), key=placed.__getitem__)


COUNTS = dict.fromkeys(("num_args", "num_outputs", "num_out_data"), integer())


def _slice_shape(data: MaybeShape) -> MaybeShape:
    """Return the shape of one slice along the first axis; a slice of a vector has shape (1,), as in MXNet."""
    return None if data is None else data[1:] or (1,)


def _foreach_shapes(attrs: Attrs, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    count, order = len(attrs.in_data_locs), _foreach_order(attrs)
    states = range(count, count + len(attrs.in_state_locs))
    steps: Shapes = [_slice_shape(s) for s in ins[:count]]
    state_shapes: Shapes = [
        unify([ins[at], out], "a state keeps its shape") for at, out in zip(states, outs[attrs.num_out_data :], strict=False)
    ]
    heads: Shapes = [None if o is None else o[1:] for o in outs[: attrs.num_out_data]]
    inferred, body_outs = _body_shapes(
        attrs.graphs[0], order, [*steps, *state_shapes, *ins[states.stop :]], [*heads, *state_shapes]
    )
    length = max([s[0] for s in (*ins[:count], *outs[: attrs.num_out_data]) if s], default=0)
    data = [_joined(old, new, length) for old, new in zip(ins[:count], inferred[:count], strict=True)]
    stacked = [None if o is None else (length, *o) for o in body_outs[: attrs.num_out_data]]
    return [*data, *inferred[count:]], [*stacked, *body_outs[attrs.num_out_data :]]


def _joined(data: MaybeShape, step: MaybeShape, length: int) -> MaybeShape:
    if step is None or (data is not None and len(data) == 1):
        return data
    return unify([data, (length, *step)], "the loop passes one slice of it to each iteration")


@_operator(
    "_foreach",
    inputs=_names(1),
    outputs=_outputs(("in_data_locs", "in_state_locs", "remain_locs")),
    graphs=("body",),
    attrs=COUNTS | dict.fromkeys(("in_state_locs", "in_data_locs", "remain_locs"), shape()),
    shapes=_foreach_shapes,
    types=lambda attrs, ins: _dtypes(attrs.graphs[0], _foreach_order(attrs), ins),
)
def foreach(ctx, attrs, *arrays):
    """yₜ, sₜ₊₁ = body(xₜ, sₜ, ...) for each slice xₜ along the first axis; the outputs are all y, stacked, and the last s."""
    count, order, body = len(attrs.in_data_locs), _foreach_order(attrs), attrs.graphs[0]
    end = count + len(attrs.in_state_locs)  # of the states
    data, states, rest = arrays[:count], arrays[count:end], arrays[end:]
    slices = [jax.ShapeDtypeStruct(_slice_shape(d.shape), d.dtype) for d in data]
    rows = [drop_axes(r, (0,)) for r in ctx.rows[:count]] + list(ctx.rows[count:])
    inner = [[*slices, *states, *rest][at] for at in order]
    rows, out_rows = _fixed_point(body, ctx, inner, [rows[at] for at in order], attrs.in_state_locs, attrs.num_out_data)

    def step(carry, xs):
        number, now = xs[0], [x.reshape(s.shape) for x, s in zip(xs[1:], slices, strict=True)]
        outs, _ = body(_at_step(ctx, number), [[*now, *carry, *rest][at] for at in order], rows)
        new = [_like(n, o, i) for i, (n, o) in enumerate(zip(outs[attrs.num_out_data :], carry, strict=True))]
        return new, outs[: attrs.num_out_data]

    last, stacked = lax.scan(step, list(states), (jnp.arange(data[0].shape[0]), *data))
    stacked_rows = [insert_axis(r, 0) for r in out_rows[: attrs.num_out_data]]
    return (*stacked, *last), [*stacked_rows, *out_rows[attrs.num_out_data :]]


# ------------------------------------------------------------------------------------------------ while_loop
def _loop_inputs(attrs: Attrs) -> list[int]:
    """Return for each loop variable the position of its initial value in the node's inputs."""
    return [attrs.func_input_locs[at] for at in attrs.func_var_locs]


def _while_shapes(attrs: Attrs, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    ins, at = list(ins), _loop_inputs(attrs)
    for place, out in zip(at, outs[attrs.num_out_data :], strict=True):
        ins[place] = unify([ins[place], out], "a loop variable keeps its shape")
    ins, _ = _body_shapes(attrs.graphs[0], attrs.cond_input_locs, ins, [None])
    heads: Shapes = [None if o is None else o[1:] for o in outs[: attrs.num_out_data]]
    ins, body_outs = _body_shapes(attrs.graphs[1], attrs.func_input_locs, ins, [*heads, *(ins[place] for place in at)])
    stacked = [None if o is None else (attrs.max_iterations, *o) for o in body_outs[: attrs.num_out_data]]
    return ins, [*stacked, *body_outs[attrs.num_out_data :]]


def _while_types(attrs: Attrs, ins: list[Any]) -> tuple[list[Any], list[Any]]:
    ins, _ = _dtypes(attrs.graphs[0], attrs.cond_input_locs, ins)
    return _dtypes(attrs.graphs[1], attrs.func_input_locs, ins)


@_operator(
    "_while_loop",
    inputs=_names(2),
    outputs=_outputs(("cond_input_locs",), ("func_input_locs",)),
    graphs=("cond", "func"),
    attrs={**COUNTS, "max_iterations": integer()}
    | dict.fromkeys(("cond_input_locs", "func_input_locs", "func_var_locs"), shape()),
    shapes=_while_shapes,
    types=_while_types,
)
def while_loop(ctx, attrs, *arrays):
    """yₜ, vₜ₊₁ = func(vₜ) while cond(vₜ) and t < max_iterations; outputs y, stacked and padded with zeros, and the last v."""
    cond, func = attrs.graphs
    at, first = _loop_inputs(attrs), attrs.num_out_data
    func_ins = [arrays[k] for k in attrs.func_input_locs]
    rows, out_rows = _fixed_point(func, ctx, func_ins, [ctx.rows[k] for k in attrs.func_input_locs], attrs.func_var_locs, first)
    node_rows = list(ctx.rows)  # the loop variables have the layouts that hold in every iteration
    for place, var in zip(at, attrs.func_var_locs, strict=True):
        node_rows[place] = rows[var]

    def step(carry, number):
        running, values = carry
        now, step_ctx = list(arrays), _at_step(ctx, number)
        for place, value in zip(at, values, strict=True):
            now[place] = value
        (test,), _ = cond(step_ctx, [now[k] for k in attrs.cond_input_locs], [node_rows[k] for k in attrs.cond_input_locs])
        running = running & (test.reshape(()) != 0)

        def run(values):
            outs, _ = func(step_ctx, [now[k] for k in attrs.func_input_locs], rows)
            new = [_like(n, o, i) for i, (n, o) in enumerate(zip(outs[first:], values, strict=True))]
            return new, tuple(outs[:first])

        shapes = jax.eval_shape(run, values)[1]
        zeros = tuple(jnp.zeros(s.shape, s.dtype) for s in shapes)
        # lax.cond and not jnp.where: iterations after the end must not put NaN into the gradient
        values, outs = lax.cond(running, run, lambda values: (values, zeros), values)
        return (running, values), outs

    start = (jnp.asarray(True), [arrays[place] for place in at])
    (_, last), stacked = lax.scan(step, start, jnp.arange(attrs.max_iterations))
    return (*stacked, *last), [*(insert_axis(r, 0) for r in out_rows[:first]), *out_rows[first:]]


# ------------------------------------------------------------------------------------------------ cond
def _cond_shapes(attrs: Attrs, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    test, then, other = attrs.graphs
    ins, _ = _body_shapes(test, attrs.cond_input_locs, ins, [None])
    ins, then_outs = _body_shapes(then, attrs.then_input_locs, ins, outs)
    ins, else_outs = _body_shapes(other, attrs.else_input_locs, ins, outs)
    return ins, [unify([a, b], "both branches return equal shapes") for a, b in zip(then_outs, else_outs, strict=True)]


def _cond_types(attrs: Attrs, ins: list[Any]) -> tuple[list[Any], list[Any]]:
    test, then, other = attrs.graphs
    ins, _ = _dtypes(test, attrs.cond_input_locs, ins)
    ins, then_outs = _dtypes(then, attrs.then_input_locs, ins)
    ins, else_outs = _dtypes(other, attrs.else_input_locs, ins)
    return ins, [b if a is None else a for a, b in zip(then_outs, else_outs, strict=True)]


@_operator(
    "_cond",
    inputs=_names(3),
    outputs=_outputs(("cond_input_locs",), ("then_input_locs",), ("else_input_locs",)),
    graphs=("cond", "then_branch", "else_branch"),
    attrs=dict.fromkeys(("num_args", "num_outputs"), integer())
    | dict.fromkeys(("cond_input_locs", "then_input_locs", "else_input_locs"), shape()),
    shapes=_cond_shapes,
    types=_cond_types,
)
def cond(ctx, attrs, *arrays):
    """y = then(x) if test(x) is not 0, else other(x); only the selected branch runs."""
    test, then, other = attrs.graphs

    def part(graph: Body, locs: Sequence[int]) -> tuple[Callable[..., tuple[Array, ...]], list[MaybeLayout]]:
        rows = [ctx.rows[k] for k in locs]
        out_rows = _rows_of(graph, ctx, [arrays[k] for k in locs], rows)
        return lambda *values: tuple(graph(ctx, [values[k] for k in locs], rows)[0]), out_rows

    predicate, _ = part(test, attrs.cond_input_locs)
    (first, rows), (second, other_rows) = part(then, attrs.then_input_locs), part(other, attrs.else_input_locs)
    outs = lax.cond(predicate(*arrays)[0].reshape(()) != 0, first, second, *arrays)
    return outs, [b if a is None else a if b is None or a == b else LOST for a, b in zip(rows, other_rows, strict=True)]
