"""Cost model of a graph: parameters, MACs (multiply-accumulates) and FLOPs of a forward pass.

FLOPs are counted in the jaxpr of each operator, so that no operator needs a cost rule.  A MAC is two FLOPs.  Matrix products
and convolutions are counted by their shapes, loops of known length by length times body, other floating-point primitives as
one FLOP per output element (reductions: per input element).  This underestimates matrix factorizations and eigenvalues.  Data
movement, sorting, comparisons, casts and integer arithmetic count as 0.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jfit.graph.infer import infer
from jfit.graph.nodes import Graph, GraphError, Node, aux_nodes
from jfit.ops import Attrs, Ctx, Op

# names of operator inputs that are parameters
PARAMETER_SLOTS = ("weight", "bias", "gamma", "beta", "alpha", "parameters")

# primitives without arithmetic: they move, create or cast values
FREE = frozenset((
    "argsort", "axis_index", "bitcast_convert_type", "broadcast_in_dim", "concatenate", "convert_element_type", "copy",
    "copy_p", "device_put", "dynamic_slice", "dynamic_update_slice", "expand_dims", "gather", "imag", "io_callback", "iota",
    "name", "optimization_barrier", "pad", "pure_callback", "random_bits", "random_fold_in", "random_seed", "random_split",
    "random_unwrap", "random_wrap", "real", "reduce_precision", "reshape", "rev", "scatter", "select_n", "slice", "sort",
    "split", "squeeze", "stop_gradient", "tile", "top_k", "transpose",
))  # fmt: skip
WINDOWS = ("reduce_window", "reduce_window_sum", "reduce_window_max", "reduce_window_min")


class Count(NamedTuple):
    """Cost of one operator node, or of a graph.

    Attributes:
        parameters: number of elements of its parameters and auxiliary states.
        macs: multiply-accumulates of its matrix products and convolutions.
        flops: floating-point operations of its forward pass in evaluation; a MAC is two.
    """

    parameters: int
    macs: int
    flops: int


def counts(graph: Graph, shapes: Mapping[str, Sequence[int]]) -> dict[str, Count]:
    """Count parameters, MACs and FLOPs of each operator node.

    Args:
        graph: the graph.
        shapes: shapes by variable name.

    Returns:
        Dict: node name -> `Count` for the whole batch; FLOPs of the operator's jaxpr as in `flops_of`.

    Raises:
        GraphError: a shape cannot be inferred from `shapes`.

    Example:
        >>> import jfit
        >>> counts(jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=3, name="fc"), {"data": (2, 5)})
        {'fc': Count(parameters=18, macs=30, flops=66)}
    """
    known, types = infer(graph, shapes)
    order = graph.nodes()
    for node in order:
        shape = known.get((id(node), 0))
        if shape is None or 0 in shape:
            raise GraphError(
                f"{node.name}: its shape is {shape or 'unknown'} for {dict(shapes)}; pass the shapes of all inputs"
            )
    counted = count_known(graph, known, types)
    return {n.name: counted[id(n)] for n in order if n.op is not None}


def total(graph: Graph, shapes: Mapping[str, Sequence[int]]) -> Count:
    """Count parameters, MACs and FLOPs of the whole graph; parameters shared by several nodes are counted once.

    Example:
        >>> import jfit
        >>> total(jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=3), {"data": (2, 5)})
        Count(parameters=18, macs=30, flops=66)
    """
    known, types = infer(graph, shapes)
    return total_of(graph, known, count_known(graph, known, types))


def count_known(graph: Graph, known: Mapping[Any, Any], types: Mapping[Any, Any]) -> dict[int, Count]:
    """Count parameters, MACs and FLOPs of each operator node from inferred shapes and dtypes.

    Args:
        graph: the graph.
        known: shapes as returned by `infer`.
        types: dtypes as returned by `infer`.

    Returns:
        Dict: id(node) -> `Count`; MACs and FLOPs are 0 if an input shape is unknown.
    """
    order = graph.nodes()
    params, result = parameter_nodes(order), {}
    for node in order:
        if node.op is not None:
            ins = [known.get((id(e.node), e.index)) for e in node.inputs]
            cost = Flops(0, 0)
            if all(s is not None and 0 not in s for s in ins):
                dtypes = tuple(np.dtype(types.get((id(e.node), e.index)) or np.float32).name for e in node.inputs)
                cost = _cost(node.op, _with_inferred_shape(node, known), tuple(s for s in ins if s is not None), dtypes)
            own = [s for s, e in zip(ins, node.inputs, strict=True) if s and id(e.node) in params]
            result[id(node)] = Count(sum(map(math.prod, own)), cost.macs, cost.flops)
    return result


def total_of(graph: Graph, known: Mapping[Any, Any], counted: Mapping[int, Count]) -> Count:
    """Sum the `Count`s that `count_known` returned for a graph; each parameter is counted once.  `known`: inferred shapes."""
    parameters = sum(math.prod(known.get((i, 0)) or (0,)) for i in parameter_nodes(graph.nodes()))
    return Count(parameters, sum(c.macs for c in counted.values()), sum(c.flops for c in counted.values()))


def _with_inferred_shape(node: Node, known: Mapping[Any, Any]) -> Attrs:
    """Return the attributes of a node; a constant with an unknown `shape` (None or sizes 0) gets the inferred one."""
    if "shape" in node.params and not node.inputs:
        shape = node.params["shape"]
        if shape is None or 0 in shape:
            return Attrs({**node.params, "shape": known.get((id(node), 0))})
    return node.params


def parameter_nodes(order: Sequence[Node]) -> set[int]:
    """Return the ids of the variables that are parameters (an operator input in `PARAMETER_SLOTS`) or auxiliary states."""
    ids = aux_nodes(order)
    for node in order:
        if node.op is not None:
            for name, entry in zip(node.input_names(), node.inputs, strict=False):
                if entry.node.op is None and name in PARAMETER_SLOTS:
                    ids.add(id(entry.node))
    return ids


@functools.lru_cache(maxsize=8192)
def _cost(record: Op, params: Attrs, shapes: tuple[tuple[int, ...], ...], dtypes: tuple[str, ...]) -> Flops:
    specs = [jax.ShapeDtypeStruct(s, jax.dtypes.canonicalize_dtype(t)) for s, t in zip(shapes, dtypes, strict=True)]

    def call(key: Any, *arrays: Any) -> Any:
        return _apply(record, params, key, arrays)

    return flops_of(jax.make_jaxpr(call)(jax.eval_shape(lambda: jax.random.key(0)), *specs))


def _apply(record: Op, params: Attrs, key: Any, arrays: Sequence[Any]) -> tuple[Any, ...]:
    """Run an operator in evaluation mode; the subgraphs of a loop or branch are converted to functions by `_body`."""
    if record.graphs:
        params = Attrs({**params, "graphs": tuple(_body(g.graph) for g in params.graphs)})
    return record.run(Ctx(train=False, key=key, rows=(None,) * len(arrays), plain=True), params, arrays)[0]


def _body(graph: Graph) -> Any:
    """Convert the subgraph of a loop or branch to a function on arrays with the signature `jfit.ops.control.Body`."""
    order = graph.nodes()
    names = graph.list_inputs()

    def run(ctx: Ctx, arrays: Sequence[Any], rows: Any) -> tuple[tuple[Any, ...], tuple[None, ...]]:
        known, _ = infer(graph, {n: a.shape for n, a in zip(names, arrays, strict=True)})
        variables = iter(arrays)
        values: dict[tuple[int, int], Any] = {(id(n), 0): next(variables) for n in order if n.op is None}
        for node in order:
            if node.op is not None:
                ins = [values[id(e.node), e.index] for e in node.inputs]
                outs = _apply(node.op, _with_inferred_shape(node, known), ctx.key, ins)
                values.update({(id(node), i): o for i, o in enumerate(outs)})
        return tuple(values[id(h.node), h.index] for h in graph.heads), (None,) * len(graph.heads)

    return run


# ------------------------------------------------------------------------------------------------ FLOPs of a jaxpr
class Flops(NamedTuple):
    """Floating-point operations of a program, and the multiply-accumulates (2 FLOPs each) among them."""

    flops: int
    macs: int


def flops_of(jaxpr: Any) -> Flops:
    """Count the FLOPs and MACs of one evaluation of a jaxpr.

    Args:
        jaxpr: the result of `jax.make_jaxpr(f)(...)`, or its `.jaxpr`.

    Returns:
        The FLOPs and MACs; a `while` loop is counted as one iteration, a `cond` as its most expensive branch.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> flops_of(jax.make_jaxpr(lambda a, b: jnp.tanh(a @ b))(jnp.ones((2, 5)), jnp.ones((5, 3))))
        Flops(flops=66, macs=30)
    """
    return _sum(map(_equation, getattr(jaxpr, "jaxpr", jaxpr).eqns))


def _sum(counts: Iterable[Flops], times: int = 1) -> Flops:
    counts = list(counts)
    return Flops(times * sum(c.flops for c in counts), times * sum(c.macs for c in counts))


def _equation(eqn: Any) -> Flops:
    name = eqn.primitive.name
    if name == "dot_general":
        (contracted, _), _ = eqn.params["dimension_numbers"]
        shape = eqn.invars[0].aval.shape
        return _products(_size(eqn.outvars[0]) * math.prod(shape[k] for k in contracted))
    if name == "conv_general_dilated":
        return _convolution(eqn)
    inner = [flops_of(body) for body in bodies(eqn)]
    if name == "cond":
        return max(inner)
    if inner and name not in WINDOWS and not name.startswith(("scatter", "reduce")):
        return _sum(inner, eqn.params["length"] if name == "scan" else 1)
    return Flops(_simple(name, eqn), 0)


def _simple(name: str, eqn: Any) -> int:
    """Return the FLOPs of a primitive other than products, convolutions: one per output element (reductions: input element)."""
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
    """Return kernel elements per output channel times output elements as MACs, without products by zeros of a dilated input."""
    numbers, kernel = eqn.params["dimension_numbers"], eqn.invars[1].aval.shape
    per_output = math.prod(kernel) // kernel[numbers.rhs_spec[0]]
    return _products(_size(eqn.outvars[0]) * per_output // math.prod(eqn.params["lhs_dilation"]))


def _products(macs: int) -> Flops:
    return Flops(2 * macs, macs)


def bodies(eqn: Any) -> Iterator[Any]:
    """Yield the jaxprs among the parameters of an equation (loops, branches, `custom_jvp` and `custom_vjp` functions)."""
    for key, value in eqn.params.items():
        if key not in ("jvp_jaxpr_thunk", "fwd_jaxpr_thunk", "jvp_jaxpr_fun", "bwd", "cond_jaxpr"):
            for part in value if isinstance(value, tuple | list) else (value,):
                if hasattr(getattr(part, "jaxpr", part), "eqns"):
                    yield part


def _size(variable: Any) -> int:
    return math.prod(variable.aval.shape)
