"""Haiku's transformed pairs: `params` are the parameters, `state` the auxiliary state."""

from __future__ import annotations

import inspect
from typing import Any

import jax

from jfit.lowering.frameworks.adapted import Adapted, call_of, drawn_for_data, mode, one_row, unsupported_sync

NAME = "Haiku"


def adapt(module: Any, params: Any = None, aux: Any = None, inputs: Any = None) -> Adapted:
    """Convert a pair of `hk.transform` or `hk.transform_with_state` to the arguments of `Model.from_function`.

    Without values it is initialized from the data, with one row of zeros: `pair.init(key, zeros, is_training=True)`.  In
    training, `rng` is the key of the step; in evaluation it is None.  The mode is passed if the function takes `is_training`
    or another of the names of `jfit.lowering.frameworks.adapted.MODES`.

    Args:
        module: the pair (init, apply).
        params: its parameters; default: initialized from the data.
        aux: its state; default: empty if `params` is passed, or else initialized from the data.
        inputs: names of the inputs, if the user passed any, else None.

    Returns:
        `Adapted`.  Its functions raise a ValueError if `params` or `aux` have other names or shapes than those of the pair.
    """
    stateful = type(module).__name__ == "TransformedWithState"
    takes_rng = "rng" in inspect.signature(module.apply).parameters
    call = call_of(module.apply, inputs, skip=1 + stateful + takes_rng)
    if params is not None and aux is None:
        aux = {}

    def draw(train: bool, key: Any, *specs: Any) -> tuple[Any, Any]:
        args, named = call.bind(one_row(specs))
        values = jax.jit(lambda key, *args, **named: module.init(key, *args, **named, **mode(call, train)))(key, *args, **named)
        return values if stateful else (values, {})

    check, init = drawn_for_data(NAME, draw, params, aux, modes=(True,))

    def apply(params: Any, *inputs: Any, key: Any = None, train: bool = False, aux: Any = None, axis_name: Any = None) -> Any:
        if axis_name is not None:
            raise unsupported_sync(NAME, "hk.BatchNorm takes the device axis (cross_replica_axis) when it is made")
        check(*inputs)
        args, named = call.bind(inputs)
        rng = (key if train else None,) if takes_rng else ()
        result = module.apply(params, *((aux,) if stateful else ()), *rng, *args, **named, **mode(call, train))
        return result if stateful else (result, aux)

    return Adapted(NAME, apply, call, lambda params, aux: module, params, aux, init)
