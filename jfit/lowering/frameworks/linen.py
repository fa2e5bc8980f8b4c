"""Flax linen modules: the collection "params" are the parameters, all other collections the auxiliary state."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax

from jfit.lowering.arguments import Arguments
from jfit.lowering.frameworks.adapted import MODES, Adapted, call_of, drawn_for_data, mode, one_row, require_norms
from jfit.programs import key_of_structure

NAME = "Flax linen"
# layers with two modes -> the argument that sets the mode, True in evaluation
FLAGS = {"Dropout": "deterministic", "BatchNorm": "use_running_average"}


def adapt(module: Any, params: Any = None, aux: Any = None, inputs: Any = None) -> Adapted:
    """Convert a `flax.linen.Module` to the arguments of `Model.from_function`.

    Without values it is initialized from the data, with one row of zeros: `module.init(key, zeros, train=False)`.  In training,
    the other collections are mutable, and the random stream "dropout" has the key of the step; all other streams share a key
    that is derived from it.

    Args:
        module: the module; if it is bound, its variables are the initial values.
        params: the collection "params", or a dict of all collections; default: initialized from the data.
        aux: dict of the other collections; default: none if `params` is passed, or else initialized from the data.
        inputs: names of the inputs, if the user passed any, else None.

    Returns:
        `Adapted`.  Its functions raise a ValueError if `params` or `aux` have other names or shapes than those of the module.
    """
    from flax import linen
    from flax.core import unfreeze

    if module.scope is not None:
        module, bound = module.unbind()
        params = bound if params is None else params
    call = call_of(module.__call__, inputs)
    if params is not None:
        params = unfreeze(params)
        if aux is None and isinstance(params, Mapping) and "params" in params:
            aux = {name: values for name, values in params.items() if name != "params"}
            params = params["params"]
        aux = {} if aux is None else aux
    aux = None if aux is None else unfreeze(aux)

    inits = {train: jax.jit(functools.partial(module.init, **mode(call, train))) for train in (False, True)}

    def draw(train: bool, key: Any, *specs: Any) -> tuple[Any, Any]:
        args, named = call.bind(one_row(specs))
        variables = dict(inits[train](key, *args, **named))
        return variables.pop("params", {}), variables

    check, init = drawn_for_data(NAME, draw, params, aux, modes=(False, True))

    def apply(params: Any, *inputs: Any, key: Any = None, train: bool = False, aux: Any = None, axis_name: Any = None) -> Any:
        if axis_name is not None:
            require_norms(NAME, "batch statistics (collection 'batch_stats')", aux.get("batch_stats"))
        check(*inputs)
        rngs = {"dropout": key, "params": jax.random.fold_in(key, 1)} if train and key is not None else None
        args, named = call.bind(inputs)
        run = functools.partial(module.apply, {"params": params, **aux}, *args, rngs=rngs, **named, **mode(call, train))
        with linen.intercept_methods(_interceptor(module, call, axis_name)):
            if not train or not aux:
                return run(), aux
            output, updates = run(mutable=list(aux))
        return output, {**aux, **updates}

    def restore(params: Any, aux: Any) -> Any:
        return module.bind({"params": params, **aux})

    return Adapted(NAME, apply, call, restore, params, aux, init, key_of_structure(module))


def _interceptor(module: Any, call: Arguments, axis_name: str | None) -> Callable[..., Any]:
    """Return an interceptor of the calls of layers, which sets the device axis of BatchNorm and checks the modes of layers."""

    from flax import linen

    def intercept(next_call: Callable[..., Any], args: Any, kwargs: Any, context: Any) -> Any:
        layer = context.module
        kind = next((name for name in FLAGS if isinstance(layer, getattr(linen, name))), None)
        if kind is None or context.method_name != "__call__":
            return next_call(*args, **kwargs)
        if not mode(call, True) and layer is not module:
            passed = kwargs.get(FLAGS[kind], args[1] if len(args) > 1 else None)
            if (getattr(layer, FLAGS[kind]) if passed is None else passed) is not True:
                raise ValueError(_no_mode(module, layer, FLAGS[kind]))
        if kind == "BatchNorm" and axis_name is not None:
            object.__setattr__(layer, "axis_name", axis_name)  # `apply` works on copies of the layers
        return next_call(*args, **kwargs)

    return intercept


def _no_mode(module: Any, layer: Any, flag: str) -> str:
    kind = type(layer).__name__
    usage = f"def __call__(self, x, train: bool): ... nn.{kind}(..., {flag}=not train)(x)"
    return (
        f"{type(module).__name__} has the layer {layer.name!r} ({kind}), but its __call__ takes no argument for the mode; "
        f"add one of {', '.join(MODES)}, as in {usage}"
    )
