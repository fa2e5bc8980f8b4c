"""Control flow: loops and branches whose bodies are graphs of their own.

A record of this family gets its bodies as `attrs.graphs`: objects that infer shapes and dtypes, and are functions
`graph(ctx, arrays, rows) -> (outputs, rows of the outputs)` once the graph is lowered.  How inputs of the node reach the
inputs of a body is told by lists of positions; they are attributes, as in symbol.json.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from jfit.ops.attributes import Attrs, integer, shape
from jfit.ops.context import Ctx
from jfit.ops.registry import MaybeShape, operator
from jfit.ops.rows import LOST, MaybeLayout, RowLayout
from jfit.ops.rules import unify

Shapes = list[MaybeShape]
# a body, lowered: (context, arrays, where their rows are) -> (outputs, where their rows are)
Body = Callable[[Ctx, Sequence[Array], Sequence[MaybeLayout]], tuple[tuple[Array, ...], tuple[MaybeLayout, ...]]]


def _names(bodies: int) -> Callable[[Attrs], tuple[str, ...]]:
    return lambda attrs: tuple(f"data{i}" for i in range(attrs.num_args - bodies))


def _outputs(*locs: tuple[str, ...]) -> Callable[[Attrs], tuple[str, ...]]:
    """Names of the outputs; refuses positions (`locs` of each body) that lead nowhere, before anything follows them."""

    def names(attrs: Attrs) -> tuple[str, ...]:
        count = attrs.num_args - len(locs)
        for keys, graph in zip(locs, attrs.get("graphs", ()), strict=False):
            found = [at for key in keys for at in attrs[key]]
            if len(found) != graph.inputs or not all(0 <= at < count for at in found):
                raise ValueError(f"{', '.join(keys)}: {found}, needed {graph.inputs} positions among the {count} inputs")
        graphs, states = attrs.get("graphs", ()), attrs.get("in_state_locs", attrs.get("func_var_locs"))
        if any(g.outputs != attrs.num_outputs for g in graphs[1:] or graphs):
            found = [g.outputs for g in graphs]
            raise ValueError(f"num_outputs is {attrs.num_outputs}, needed {found}, as many as the bodies have outputs")
        if states is not None and len(states) != attrs.num_outputs - attrs.num_out_data:
            raise ValueError(f"{len(states)} states and num_out_data {attrs.num_out_data}, needed {attrs.num_outputs} together")
        if not all(0 <= at < len(attrs.func_input_locs) for at in attrs.get("func_var_locs", ())):
            raise ValueError(f"func_var_locs is {attrs.func_var_locs}, needed positions in func_input_locs")
        return ("output",) if attrs.num_outputs == 1 else tuple(f"output{i}" for i in range(attrs.num_outputs))

    return names


def _through(graph: Any, locs: Sequence[int], known: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    """Shapes after a body that takes the inputs at `locs`: (all inputs, its outputs)."""
    found, made = graph.shapes([known[at] for at in locs], outs)
    known = list(known)
    for at, new in zip(locs, found, strict=True):
        known[at] = unify([known[at], new], "a loop hands it to its body")
    return known, made


def _dtypes(graph: Any, locs: Sequence[int], ins: list[Any]) -> tuple[list[Any], list[Any]]:
    """Dtypes after a body: (all inputs, its outputs)."""
    found, made = graph.types([ins[at] for at in locs])
    ins = list(ins)
    for at, new in zip(locs, found, strict=True):
        ins[at] = new if ins[at] is None else ins[at]
    return ins, made


def _at_step(ctx: Ctx, step: Array) -> Ctx:
    """The context of one step of a loop: its own random numbers."""
    return ctx if ctx.key is None else dataclasses.replace(ctx, key=jax.random.fold_in(ctx.key, step))


def _rows_of(graph: Body, ctx: Ctx, arrays: Sequence[Any], rows: Sequence[MaybeLayout]) -> list[MaybeLayout]:
    """Where the rows of a body's outputs are; nothing is computed."""
    found: list[MaybeLayout] = []

    def run(*values: Array) -> tuple[Array, ...]:
        outs, after = graph(ctx, values, rows)
        found.extend(after)
        return outs

    jax.eval_shape(run, *arrays)
    return found


def _settled(
    graph: Body, ctx: Ctx, arrays: Sequence[Any], rows: Sequence[MaybeLayout], states: Sequence[int], first: int
) -> tuple[list[MaybeLayout], list[MaybeLayout]]:
    """Rows that stay the same from step to step: (of the body's inputs, of its outputs).

    A state that begins as a constant has rows from the first step on; one whose rows move has none that can be told.
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


def _stacked(rows: MaybeLayout) -> MaybeLayout:
    """Rows after the steps became a new first axis."""
    return rows._replace(axis=rows.axis + 1) if isinstance(rows, RowLayout) else rows


def _like(new: Array, old: Array, which: int) -> Array:
    if new.shape != old.shape:
        raise ValueError(
            f"loop state {which} has shape {old.shape} before a step and {new.shape} after it; a state keeps its shape: "
            "reshape it in the body"
        )
    return new.astype(old.dtype)


# ------------------------------------------------------------------------------------------------ foreach
def _foreach_order(attrs: Attrs) -> list[int]:
    """For each input of the body: which input of the node feeds it (data, then states, then what the body reads)."""
    placed = (*attrs.in_data_locs, *attrs.in_state_locs, *attrs.remain_locs)
    if sorted(placed) != list(range(attrs.num_args - 1)):
        raise ValueError(
            f"in_data_locs, in_state_locs and remain_locs are {placed}, needed each of {attrs.num_args - 1} inputs"
        )
    return sorted(range(len(placed)), key=placed.__getitem__)


def _slice_shape(data: MaybeShape) -> MaybeShape:
    """The shape of one step of the data; a step of a vector is an array of one number, as in MXNet."""
    return None if data is None else data[1:] or (1,)


def _foreach_shapes(attrs: Attrs, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    count, order = len(attrs.in_data_locs), _foreach_order(attrs)
    states = range(count, count + len(attrs.in_state_locs))
    steps: Shapes = [_slice_shape(s) for s in ins[:count]]
    kept: Shapes = [unify([ins[at], out], "a state keeps its shape") for at, out in zip(states, outs[attrs.num_out_data :])]  # noqa: B905
    heads: Shapes = [None if o is None else o[1:] for o in outs[: attrs.num_out_data]]
    found, made = _through(attrs.graphs[0], order, [*steps, *kept, *ins[states.stop :]], [*heads, *kept])
    length = max([s[0] for s in (*ins[:count], *outs[: attrs.num_out_data]) if s], default=0)
    data = [_joined(old, new, length) for old, new in zip(ins[:count], found[:count], strict=True)]
    stacked = [None if o is None else (length, *o) for o in made[: attrs.num_out_data]]
    return [*data, *found[count:]], [*stacked, *made[attrs.num_out_data :]]


def _joined(data: MaybeShape, step: MaybeShape, length: int) -> MaybeShape:
    if step is None or (data is not None and len(data) == 1):
        return data
    return unify([data, (length, *step)], "the loop takes one step of it at a time")


def _foreach_types(attrs: Attrs, ins: list[Any]) -> tuple[list[Any], list[Any]]:
    return _dtypes(attrs.graphs[0], _foreach_order(attrs), ins)


@operator(
    "_foreach",
    inputs=_names(1),
    outputs=_outputs(("in_data_locs", "in_state_locs", "remain_locs")),
    variadic="num_args",
    graphs=("body",),
    attrs={
        "num_args": integer(),
        "num_outputs": integer(),
        "num_out_data": integer(),
        "in_state_locs": shape(),
        "in_data_locs": shape(),
        "remain_locs": shape(),
    },
    shapes=_foreach_shapes,
    types=_foreach_types,
    needs_rng=True,
)
def foreach(ctx, attrs, *arrays):
    """yₜ, sₜ₊₁ = body(xₜ, sₜ, ...) for each entry xₜ of the first axis; returns all y, stacked, and the last s."""
    count, order, body = len(attrs.in_data_locs), _foreach_order(attrs), attrs.graphs[0]
    data, states, rest = (
        arrays[:count],
        arrays[count : count + len(attrs.in_state_locs)],
        arrays[count + len(attrs.in_state_locs) :],
    )
    if len({d.shape[:1] for d in data}) != 1 or not data[0].ndim:
        raise ValueError(f"the data have {[d.shape[:1] for d in data]} steps, needed the same first axis; slice or pad them")
    slices = [jax.ShapeDtypeStruct(_slice_shape(d.shape), d.dtype) for d in data]
    rows = [_unstacked(r) for r in ctx.rows[:count]] + list(ctx.rows[count:])
    inner = [[*slices, *states, *rest][at] for at in order]
    rows, after = _settled(body, ctx, inner, [rows[at] for at in order], attrs.in_state_locs, attrs.num_out_data)

    def step(carry, xs):
        number, now = xs[0], [x.reshape(s.shape) for x, s in zip(xs[1:], slices, strict=True)]
        outs, _ = body(_at_step(ctx, number), [[*now, *carry, *rest][at] for at in order], rows)
        new = [_like(n, o, i) for i, (n, o) in enumerate(zip(outs[attrs.num_out_data :], carry, strict=True))]
        return new, outs[: attrs.num_out_data]

    last, stacked = lax.scan(step, list(states), (jnp.arange(data[0].shape[0]), *data))
    return (*stacked, *last), [*map(_stacked, after[: attrs.num_out_data]), *after[attrs.num_out_data :]]


def _unstacked(rows: MaybeLayout) -> MaybeLayout:
    """Rows of one step of the data; LOST where the loop walks over the batch."""
    if not isinstance(rows, RowLayout):
        return rows
    return rows._replace(axis=rows.axis - 1) if rows.axis else LOST


# ------------------------------------------------------------------------------------------------ while_loop
def _loop_inputs(attrs: Attrs) -> list[int]:
    """For each loop variable: which input of the node holds its first value."""
    return [attrs.func_input_locs[at] for at in attrs.func_var_locs]


def _while_shapes(attrs: Attrs, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    known, at = list(ins), _loop_inputs(attrs)
    for place, out in zip(at, outs[attrs.num_out_data :], strict=True):
        known[place] = unify([known[place], out], "a loop variable keeps its shape")
    known, _ = _through(attrs.graphs[0], attrs.cond_input_locs, known, [None])
    heads: Shapes = [None if o is None else o[1:] for o in outs[: attrs.num_out_data]]
    known, made = _through(attrs.graphs[1], attrs.func_input_locs, known, [*heads, *(known[place] for place in at)])
    stacked = [None if o is None else (attrs.max_iterations, *o) for o in made[: attrs.num_out_data]]
    return known, [*stacked, *made[attrs.num_out_data :]]


def _while_types(attrs: Attrs, ins: list[Any]) -> tuple[list[Any], list[Any]]:
    ins, _ = _dtypes(attrs.graphs[0], attrs.cond_input_locs, ins)
    return _dtypes(attrs.graphs[1], attrs.func_input_locs, ins)


@operator(
    "_while_loop",
    inputs=_names(2),
    outputs=_outputs(("cond_input_locs",), ("func_input_locs",)),
    variadic="num_args",
    graphs=("cond", "func"),
    attrs={
        "num_args": integer(),
        "num_outputs": integer(),
        "num_out_data": integer(),
        "max_iterations": integer(),
        "cond_input_locs": shape(),
        "func_input_locs": shape(),
        "func_var_locs": shape(),
    },
    shapes=_while_shapes,
    types=_while_types,
    needs_rng=True,
)
def while_loop(ctx, attrs, *arrays):
    """yₜ, vₜ₊₁ = func(vₜ) while cond(vₜ) and t < max_iterations; returns y, stacked and followed by zeros, and the last v."""
    cond, func = attrs.graphs
    at, first = _loop_inputs(attrs), attrs.num_out_data
    given = [arrays[k] for k in attrs.func_input_locs]
    rows, after = _settled(func, ctx, given, [ctx.rows[k] for k in attrs.func_input_locs], attrs.func_var_locs, first)
    tested = list(ctx.rows)
    for place, var in zip(at, attrs.func_var_locs, strict=True):
        tested[place] = rows[var]

    def step(carry, number):
        running, values = carry
        now, own = list(arrays), _at_step(ctx, number)
        for place, value in zip(at, values, strict=True):
            now[place] = value
        (test,), _ = cond(own, [now[k] for k in attrs.cond_input_locs], [tested[k] for k in attrs.cond_input_locs])
        running = running & (_scalar(test, "cond of a while_loop") != 0)

        def run(values):
            outs, _ = func(own, [now[k] for k in attrs.func_input_locs], rows)
            new = [_like(n, o, i) for i, (n, o) in enumerate(zip(outs[first:], values, strict=True))]
            return new, tuple(outs[:first])

        shapes = jax.eval_shape(run, values)[1]
        zeros = tuple(jnp.zeros(s.shape, s.dtype) for s in shapes)
        # a branch, no mask: what does not run cannot bring NaN into the gradient
        values, outs = lax.cond(running, run, lambda values: (values, zeros), values)
        return (running, values), outs

    start = (jnp.asarray(True), [arrays[place] for place in at])
    (_, last), stacked = lax.scan(step, start, jnp.arange(attrs.max_iterations))
    return (*stacked, *last), [*map(_stacked, after[:first]), *after[first:]]


def _scalar(test: Array, what: str) -> Array:
    if test.size != 1:
        raise ValueError(f"{what} has shape {test.shape}, needed one number; reduce it, for instance by sum")
    return test.reshape(())


# ------------------------------------------------------------------------------------------------ cond
def _cond_shapes(attrs: Attrs, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    test, then, other = attrs.graphs
    known, _ = _through(test, attrs.cond_input_locs, ins, [None])
    known, made = _through(then, attrs.then_input_locs, known, outs)
    known, more = _through(other, attrs.else_input_locs, known, outs)
    return known, [unify([a, b], "both branches give the same outputs") for a, b in zip(made, more, strict=True)]


def _cond_types(attrs: Attrs, ins: list[Any]) -> tuple[list[Any], list[Any]]:
    test, then, other = attrs.graphs
    ins, _ = _dtypes(test, attrs.cond_input_locs, ins)
    ins, made = _dtypes(then, attrs.then_input_locs, ins)
    ins, more = _dtypes(other, attrs.else_input_locs, ins)
    return ins, [b if a is None else a for a, b in zip(made, more, strict=True)]


@operator(
    "_cond",
    inputs=_names(3),
    outputs=_outputs(("cond_input_locs",), ("then_input_locs",), ("else_input_locs",)),
    variadic="num_args",
    graphs=("cond", "then_branch", "else_branch"),
    attrs={
        "num_args": integer(),
        "num_outputs": integer(),
        "cond_input_locs": shape(),
        "then_input_locs": shape(),
        "else_input_locs": shape(),
    },
    shapes=_cond_shapes,
    types=_cond_types,
    needs_rng=True,
)
def cond(ctx, attrs, *arrays):
    """y = then(x) where test(x) is not 0, else other(x); only the branch that is taken runs."""
    test, then, other = attrs.graphs

    def part(graph: Body, locs: Sequence[int]) -> tuple[Callable[..., tuple[Array, ...]], list[MaybeLayout]]:
        rows = [ctx.rows[k] for k in locs]
        found = _rows_of(graph, ctx, [arrays[k] for k in locs], rows)
        return lambda *values: tuple(graph(ctx, [values[k] for k in locs], rows)[0]), found

    chosen, _ = part(test, attrs.cond_input_locs)
    (first, rows), (second, more) = part(then, attrs.then_input_locs), part(other, attrs.else_input_locs)
    for i, (a, b) in enumerate(zip(jax.eval_shape(first, *arrays), jax.eval_shape(second, *arrays), strict=True)):
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            raise ValueError(
                f"output {i} is {a.dtype}{list(a.shape)} in one branch and {b.dtype}{list(b.shape)} in the other; both "
                "branches give the same shapes and dtypes: reshape or cast one"
            )
    outs = lax.cond(_scalar(chosen(*arrays)[0], "pred of a cond") != 0, first, second, *arrays)
    return outs, [b if a is None else a if b is None or a == b else LOST for a, b in zip(rows, more, strict=True)]
