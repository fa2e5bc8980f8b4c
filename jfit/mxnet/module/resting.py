"""Which auxiliary states a backward pass moves, by the gradients that were asked for."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from jfit.graph import Symbol
from jfit.lowering.model import Aux, Model


def moving_aux(symbol: Symbol, wanted: Collection[str]) -> frozenset[str]:
    """Auxiliary states of the operators below which a gradient is wanted: MXNet moves them in the backward pass.

    Where nothing below an operator wants a gradient, its backward pass does not run, and its moving statistics rest: those
    of a frozen stem stay what they were.

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


def with_resting_aux(model: Model, requests: Mapping[str, str]) -> Model:
    """A model whose training passes leave those auxiliary states alone that MXNet's backward pass does not reach.

    Args:
        model: lowered from a graph.
        requests: argument -> "write", "add" or "null".
    """
    moving = moving_aux(model.symbol, [n for n, r in requests.items() if r != "null"])
    resting = [n for n in model.symbol.list_auxiliary_states() if n not in moving]
    if not resting:
        return model

    def apply(params: Any, aux: Aux, inputs: Any, **how: Any) -> Any:
        outputs, moved = model.apply(params, aux, inputs, **how)
        return outputs, {**moved, **{n: aux[n] for n in resting if n in moved}}

    return model._replace(apply=apply)
