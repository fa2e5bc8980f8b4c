"""gluon's blocks as models of `jfit.fit`: the graph of a block, lowered, with the block's values."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import jax

from jfit.graph.symbol import Symbol as Graph
from jfit.lowering import lower
from jfit.lowering.frameworks.adapted import Adapted, initial, one_row
from jfit.lowering.model import Model
from jfit.mxnet import symbol
from jfit.mxnet.gluon.nesting import flatten, regroup
from jfit.mxnet.ndarray.array import NDArray

NAME = "gluon"


def input_names(count: int) -> list[str]:
    """Return the names of the inputs of a block's graph.

    Example:
        >>> input_names(1), input_names(2)
        (['data'], ['data0', 'data1'])
    """
    return [f"data{i}" for i in range(count)] if count > 1 else ["data"]


def adapt(block: Any, params: Any = None, aux: Any = None, inputs: Any = None) -> Adapted:
    """Convert a HybridBlock to the arguments of `Model.from_function`.

    Parameters whose shapes are not known yet get their values when the shapes of the data are, as in a first call of the block.
    Those with grad_req "null" are not trained; they are auxiliary states.

    Args:
        block: the block, initialized.
        params: dict of initial values by name; default: those of the block.
        aux: dict of initial values of moving statistics and of other parameters with grad_req "null"; default: the block's.
        inputs: names of the inputs, if the user passed any, else None.

    Returns:
        `Adapted`.
    """
    call = block._call_arguments(inputs)
    names = (*call.inputs, *call.optional)

    def used(values: Any) -> list[Any]:
        """Return the values without those at the end that a batch does not have."""
        values = list(values)
        while values and values[-1] is None:
            values.pop()
        return values

    @functools.cache
    def lowered(present: frozenset[str]) -> tuple[Model, Any]:
        out, form = flatten(block(*used(symbol.var(n) if n in present else None for n in names)), "outputs")
        return lower(Graph(symbol.Group(out).heads), inputs=[n for n in names if n in present]), form

    def apply(params: Any, *inputs: Any, key: Any = None, train: bool = False, aux: Any = None, axis_name: Any = None) -> Any:
        batch = {name: value for name, value in zip(names, inputs, strict=False) if value is not None}
        model, form = lowered(frozenset(batch))
        own = {**params, **aux}
        outputs, new = model.apply(own, aux, batch, key=key, train=train, axis_name=axis_name)
        return regroup(outputs, form), {**aux, **new}

    def values() -> tuple[dict[str, Any], dict[str, Any]]:
        moving = set(lowered(frozenset(call.inputs))[0].symbol.list_auxiliary_states())
        trees: tuple[dict[str, Any], dict[str, Any]] = {}, {}
        for name, param in block.collect_params().items():
            trees[name in moving or param.grad_req == "null"][name] = param._reduce()
        return initial("params", NAME, trees[0], params), initial("aux", NAME, trees[1], aux)

    def init(key: Any, *specs: Any) -> tuple[Any, Any]:
        with jax.ensure_compile_time_eval():  # `init` is traced for its shapes first, but parameters keep their values
            block._deferred_infer_shape(*map(NDArray, used(one_row(specs))))
            for param in block.collect_params().values():
                param._finish_deferred_init()
        return values()

    def restore(params: Any, aux: Any) -> Any:
        new = copy.deepcopy(block)
        for name, param in new.collect_params().items():
            param.set_data((params if name in params else aux)[name])
        return new

    if any(param._deferred is not None for param in block.collect_params().values()):
        return Adapted(NAME, apply, call, restore, init=init)
    return Adapted(NAME, apply, call, restore, *values())


def as_loss(block: Any) -> Callable[[Any, Any], Any]:
    """Return the function (output, label) -> losses of a block without parameters, such as those of `mx.gluon.loss`."""
    out, _ = flatten(block(symbol.var("output"), symbol.var("label")), "outputs")
    model = lower(Graph(symbol.Group(out).heads), inputs=["output", "label"])

    def loss(output: Any, label: Any) -> Any:
        return model.apply({}, {}, {"output": output, "label": label}, train=True)[0][0]

    return loss
