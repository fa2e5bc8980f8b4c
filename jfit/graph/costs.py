"""What a graph holds and costs: parameters, multiply-adds, floating-point operations of a forward pass.

FLOPs are read from the jaxpr of each operator, so that no operator needs a rule of its own.

A multiplication and the addition that follows it are two FLOPs.  Matrix products and convolutions are counted by their
shapes, loops of known length by their body, everything else that computes floats by the size of what it makes (reductions
by the size of what they take).  That is too little for factorizations and eigenvalues, whose work depends on their method.
Moving, reordering, comparing and casting are free, and so are integers.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jfit.graph.infer import infer
from jfit.graph.nodes import Graph, GraphError, Node, aux_nodes
from jfit.ops import Attrs, Ctx, Op

PARAMETER_SLOTS = ("weight", "bias", "gamma", "beta", "parameters")

# primitives that move values or make them up, whatever their dtype
FREE = frozenset((
    "argsort", "axis_index", "bitcast_convert_type", "broadcast_in_dim", "concatenate", "convert_element_type", "copy",
    "copy_p", "device_put", "dynamic_slice", "dynamic_update_slice", "expand_dims", "gather", "imag", "io_callback", "iota",
    "name", "optimization_barrier", "pad", "pure_callback", "random_bits", "random_fold_in", "random_seed", "random_split",
    "random_unwrap", "random_wrap", "real", "reduce_precision", "reshape", "rev", "scatter", "select_n", "slice", "sort",
    "split", "squeeze", "stop_gradient", "tile", "top_k", "transpose",
))  # fmt: skip
WINDOWS = ("reduce_window", "reduce_window_sum", "reduce_window_max", "reduce_window_min")


class Count(NamedTuple):
    """Numbers of one node.

    Attributes:
        parameters: values in its parameters and auxiliary states.
        macs: multiplications with their additions in matrix products and convolutions.
        flops: floating-point operations of its forward pass in evaluation; a MAC is two of them.
    """

    parameters: int
    macs: int
    flops: int


def counts(graph: Graph, shapes: Mapping[str, Sequence[int]]) -> dict[str, Count]:
    """Parameters, MACs and FLOPs of each operator node, by node name.

    Args:
        graph: the graph.
        shapes: shapes by variable name.

    Returns:
        A `Count` for each operator; FLOPs are those of the operator's own program (see `flops_of`), for the whole batch.

    Raises:
        GraphError: the shapes do not say the shapes of everything.

    Example:
        >>> import jfit
        >>> counts(jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=3, name="fc"), {"data": (2, 5)})
        {'fc': Count(parameters=18, macs=30, flops=66)}
    """
    known, types = infer(graph, shapes)
    order = graph.nodes()
    for node in order:
        found = known.get((id(node), 0))
        if found is None or 0 in found:
            raise GraphError(
                f"{node.name}: its shape is {found or 'unknown'} for {dict(shapes)}, and what it costs depends on it; "
                "give the shapes of all inputs"
            )
    counted = count_known(graph, known, types)
    return {n.name: counted[id(n)] for n in order if n.op is not None}


def total(graph: Graph, shapes: Mapping[str, Sequence[int]]) -> Count:
    """The numbers of the whole graph; parameters that several nodes share count once.

    Example:
        >>> import jfit
        >>> total(jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=3), {"data": (2, 5)})
        Count(parameters=18, macs=30, flops=66)
    """
    known, types = infer(graph, shapes)
    return total_of(graph, known, count_known(graph, known, types))


def count_known(graph: Graph, known: Mapping[Any, Any], types: Mapping[Any, Any]) -> dict[int, Count]:
    """A `Count` for each operator node by its id, from inferred shapes and dtypes; 0 where shapes are unknown."""
    order = graph.nodes()
    unseen, found = hidden(order), {}
    for node in order:
        if node.op is not None:
            ins = [known.get((id(e.node), e.index)) for e in node.inputs]
            cost = Flops(0, 0)
            if all(s is not None and 0 not in s for s in ins):
                dtypes = tuple(np.dtype(types.get((id(e.node), e.index)) or np.float32).name for e in node.inputs)
                cost = _cost(node.op, _sized(node, known), tuple(s for s in ins if s is not None), dtypes)
            found[id(node)] = Count(_held(node, known, unseen), cost.macs, cost.flops)
    return found


def total_of(graph: Graph, known: Mapping[Any, Any], counted: Mapping[int, Count]) -> Count:
    """The sum over a graph; each parameter once."""
    held = sum(math.prod(known.get((i, 0)) or (0,)) for i in hidden(graph.nodes()))
    return Count(held, sum(c.macs for c in counted.values()), sum(c.flops for c in counted.values()))


def _held(node: Node, known: Mapping[Any, Any], unseen: set[int]) -> int:
    own = [known.get((id(e.node), e.index)) for e in node.inputs if id(e.node) in unseen]
    return sum(math.prod(s) for s in own if s)


def _sized(node: Node, known: Mapping[Any, Any]) -> Attrs:
    """The attributes; where a constant's shape is open, or some sizes of it, with the one that inference found."""
    if "shape" in node.params and not node.inputs:
        shape = node.params["shape"]
        if shape is None or 0 in shape:
            return Attrs({**node.params, "shape": known.get((id(node), 0))})
    return node.params


def hidden(order: Sequence[Node]) -> set[int]:
    """Ids of parameters and auxiliary states: variables that fill a slot other than data and label of some operator."""
    found = aux_nodes(order)
    for node in order:
        if node.op is not None and not node.op.variadic:
            for name, entry in zip(node.input_names(), node.inputs, strict=True):
                if entry.node.op is None and name in PARAMETER_SLOTS:
                    found.add(id(entry.node))
    return found


@functools.lru_cache(maxsize=8192)
def _cost(record: Op, params: Attrs, shapes: tuple[tuple[int, ...], ...], dtypes: tuple[str, ...]) -> Flops:
    specs = [jax.ShapeDtypeStruct(s, jax.dtypes.canonicalize_dtype(t)) for s, t in zip(shapes, dtypes, strict=True)]

    def call(key: Any, *arrays: Any) -> Any:
        return _applied(record, params, key, arrays)

    return flops_of(jax.make_jaxpr(call)(jax.eval_shape(lambda: jax.random.key(0)), *specs))


def _applied(record: Op, params: Attrs, key: Any, arrays: Sequence[Any]) -> tuple[Any, ...]:
    """The outputs of an operator in evaluation; loops and branches run their bodies."""
    if record.graphs:
        params = Attrs({**params, "graphs": tuple(_body(g.graph) for g in params.graphs)})
    result = record.fn(Ctx(train=False, key=key, rows=(None,) * len(arrays)), params, *arrays)
    outputs = result[0] if record.aux or record.graphs else result
    return outputs if isinstance(outputs, tuple) else (outputs,)


def _body(graph: Graph) -> Any:
    """The body of a loop or branch as a function of its variables, as `jfit.ops.control.Body`."""
    order = graph.nodes()
    names = graph.list_inputs()

    def run(ctx: Ctx, arrays: Sequence[Any], rows: Any) -> tuple[tuple[Any, ...], tuple[None, ...]]:
        known, _ = infer(graph, {n: a.shape for n, a in zip(names, arrays, strict=True)})
        fed = iter(arrays)
        values: dict[tuple[int, int], Any] = {(id(n), 0): next(fed) for n in order if n.op is None}
        for node in order:
            if node.op is not None:
                ins = [values[id(e.node), e.index] for e in node.inputs]
                outs = _applied(node.op, _sized(node, known), ctx.key, ins)
                values.update({(id(node), i): o for i, o in enumerate(outs)})
        return tuple(values[id(h.node), h.index] for h in graph.heads), (None,) * len(graph.heads)

    return run


# ------------------------------------------------------------------------------------------------ FLOPs of a jaxpr
class Flops(NamedTuple):
    """Floating-point operations, and how many pairs of multiplication and addition of products and convolutions are in them."""

    flops: int
    macs: int

    def times(self, count: int) -> Flops:
        """The same, done `count` times."""
        return Flops(self.flops * count, self.macs * count)

    def plus(self, other: Flops) -> Flops:
        """Both together."""
        return Flops(self.flops + other.flops, self.macs + other.macs)


def flops_of(jaxpr: Any) -> Flops:
    """What one evaluation of a jaxpr costs.

    Args:
        jaxpr: what `jax.make_jaxpr(f)(...)` returns, or its `.jaxpr`.

    Returns:
        The FLOPs and MACs; a `while` loop counts as one pass, a `cond` as its dearest branch.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> flops_of(jax.make_jaxpr(lambda a, b: jnp.tanh(a @ b))(jnp.ones((2, 5)), jnp.ones((5, 3))))
        Flops(flops=66, macs=30)
    """
    return functools.reduce(Flops.plus, map(_equation, getattr(jaxpr, "jaxpr", jaxpr).eqns), Flops(0, 0))


def _equation(eqn: Any) -> Flops:
    name = eqn.primitive.name
    if name == "dot_general":
        (contracted, _), _ = eqn.params["dimension_numbers"]
        shape = eqn.invars[0].aval.shape
        return _products(_size(eqn.outvars[0]) * math.prod(shape[k] for k in contracted))
    if name == "conv_general_dilated":
        return _convolution(eqn)
    inner = [flops_of(part) for part in _inner(eqn)]
    if name == "cond":
        return max(inner)
    if inner and name not in WINDOWS and not name.startswith(("scatter", "reduce")):
        return functools.reduce(Flops.plus, inner).times(eqn.params["length"] if name == "scan" else 1)
    return Flops(_simple(name, eqn), 0)


def _simple(name: str, eqn: Any) -> int:
    """FLOPs of a primitive without products: one for each float it makes, or takes where it reduces."""
    if name in FREE or not any(jnp.issubdtype(v.aval.dtype, jnp.floating) for v in eqn.outvars):
        return 0
    if name in WINDOWS:
        return _size(eqn.outvars[0]) * math.prod(eqn.params["window_dimensions"])
    if name.startswith(("reduce_", "cum", "arg")) or name == "reduce":
        return _size(eqn.invars[0])
    if name.startswith("scatter"):
        return _size(eqn.invars[2])
    if name.startswith("select_and"):
        return _size(eqn.invars[0])
    return sum(_size(v) for v in eqn.outvars)


def _convolution(eqn: Any) -> Flops:
    """Each output takes the kernel's values for its group; zeros that a transposed convolution puts in are not multiplied."""
    numbers, kernel = eqn.params["dimension_numbers"], eqn.invars[1].aval.shape
    taken = math.prod(kernel) // kernel[numbers.rhs_spec[0]]
    return _products(_size(eqn.outvars[0]) * taken // math.prod(eqn.params["lhs_dilation"]))


def _products(macs: int) -> Flops:
    return Flops(2 * macs, macs)


def _inner(eqn: Any) -> Iterator[Any]:
    """The jaxprs inside an equation (loops, branches, functions with their own derivative)."""
    for key, value in eqn.params.items():
        if key not in ("jvp_jaxpr_thunk", "fwd_jaxpr_thunk", "jvp_jaxpr_fun", "bwd", "cond_jaxpr"):
            for part in value if isinstance(value, tuple | list) else (value,):
                if hasattr(getattr(part, "jaxpr", part), "eqns"):
                    yield part


def _size(variable: Any) -> int:
    return math.prod(variable.aval.shape)
