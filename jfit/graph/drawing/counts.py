"""What the nodes of a graph hold and cost: parameters, multiply-adds, floating-point operations of a forward pass."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jfit.graph.drawing.flops import Flops, flops_of
from jfit.graph.drawing.parts import hidden
from jfit.graph.infer import infer
from jfit.graph.symbol import GraphError, Node, Symbol
from jfit.ops import Attrs, Ctx, Op


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


def counts(symbol: Symbol, shapes: Mapping[str, Sequence[int]]) -> dict[str, Count]:
    """Parameters, MACs and FLOPs of each operator node, by node name.

    Args:
        symbol: the graph.
        shapes: shapes by variable name.

    Returns:
        A `Count` for each operator; FLOPs are those of the operator's own program (`jfit.graph.drawing.flops`), for the
        whole batch.

    Raises:
        GraphError: the shapes do not say the shapes of everything.

    Example:
        >>> import jfit
        >>> counts(jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=3, name="fc"), {"data": (2, 5)})
        {'fc': Count(parameters=18, macs=30, flops=66)}
    """
    known, types = infer(symbol, shapes)
    order = symbol.nodes()
    for node in order:
        found = known.get((id(node), 0))
        if found is None or 0 in found:
            raise GraphError(
                f"{node.name}: its shape is {found or 'unknown'} for {dict(shapes)}, and what it costs depends on it; "
                "give the shapes of all inputs"
            )
    counted = count_known(symbol, known, types)
    return {n.name: counted[id(n)] for n in order if n.op is not None}


def total(symbol: Symbol, shapes: Mapping[str, Sequence[int]]) -> Count:
    """The numbers of the whole graph; parameters that several nodes share count once.

    Example:
        >>> import jfit
        >>> total(jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=3), {"data": (2, 5)})
        Count(parameters=18, macs=30, flops=66)
    """
    known, types = infer(symbol, shapes)
    return total_of(symbol, known, count_known(symbol, known, types))


def parameter_counts(symbol: Symbol, shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Number of parameter and auxiliary values of each operator node, by node name.

    Example:
        >>> import jfit
        >>> parameter_counts(jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=3, name="fc"), {"data": (2, 5)})
        {'fc': 18}
    """
    known, _ = infer(symbol, shapes)
    order = symbol.nodes()
    unseen = hidden(order)
    return {n.name: _held(n, known, unseen) for n in order if n.op is not None}


def count_known(symbol: Symbol, known: Mapping[Any, Any], types: Mapping[Any, Any]) -> dict[int, Count]:
    """A `Count` for each operator node by its id, from inferred shapes and dtypes; 0 where shapes are unknown."""
    order = symbol.nodes()
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


def total_of(symbol: Symbol, known: Mapping[Any, Any], counted: Mapping[int, Count]) -> Count:
    """The sum over a graph; each parameter once."""
    held = sum(math.prod(known.get((i, 0)) or (0,)) for i in hidden(symbol.nodes()))
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


@functools.lru_cache(maxsize=8192)
def _cost(record: Op, params: Attrs, shapes: tuple[tuple[int, ...], ...], dtypes: tuple[str, ...]) -> Flops:
    specs = [jax.ShapeDtypeStruct(s, jax.dtypes.canonicalize_dtype(t)) for s, t in zip(shapes, dtypes, strict=True)]

    def call(key: Any, *arrays: Any) -> Any:
        return _applied(record, params, key, arrays)

    return flops_of(jax.make_jaxpr(call)(jax.eval_shape(lambda: jax.random.key(0)), *specs))


def _applied(record: Op, params: Attrs, key: Any, arrays: Sequence[Any]) -> tuple[Any, ...]:
    """The outputs of an operator in evaluation; loops and branches run their bodies."""
    if record.graphs:
        params = Attrs({**params, "graphs": tuple(_body(g.symbol) for g in params.graphs)})
    result = record.fn(Ctx(train=False, key=key, rows=(None,) * len(arrays)), params, *arrays)
    outputs = result[0] if record.aux or record.graphs else result
    return outputs if isinstance(outputs, tuple) else (outputs,)


def _body(graph: Symbol) -> Any:
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
