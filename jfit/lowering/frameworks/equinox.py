"""Equinox modules: their floating-point arrays are the parameters; they take one example and are mapped over the batch."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import jax

from jfit.lowering.frameworks.adapted import Adapted, call_of, initial, mode, require_norms
from jfit.programs import key_of_structure

NAME = "Equinox"


def adapt(module: Any, params: Any = None, aux: Any = None, inputs: Any = None) -> Adapted:
    """Convert an Equinox module, or a pair (module, state), to the arguments of `Model.from_function`.

    The module is called for one row; `jax.vmap` maps it over the batch, with the axis name of its BatchNorm layers ("batch" if
    it has none).  If its call takes `key`, row i of a step gets fold_in(key, i), where `key` is the key of the step,
    so that random numbers do not depend on the number of devices.

    Args:
        module: the module, or (module, state) from `equinox.nn.make_with_state`.
        params: initial parameters, as `equinox.filter(module, equinox.is_inexact_array)` returns them; default: those of
            the module.
        aux: initial `equinox.nn.State`; default: that of the pair.
        inputs: names of the inputs, if the user passed any, else None.

    Returns:
        `Adapted`.
    """
    import equinox as eqx

    net, state = module if isinstance(module, tuple) else (module, ())
    own_params, static = eqx.partition(net, eqx.is_inexact_array)
    stateful = isinstance(module, tuple)
    call = call_of(net.__call__, inputs, {"key", "state"} if stateful else {"key"})
    if stateful and "state" not in call.names and inputs is None:
        call = call._replace(inputs=call.inputs[:-1])  # the last argument is the state
    takes_key = "key" in call.names and "key" not in call.inputs
    axis: Hashable = next((norm.axis_name for norm in _norms(eqx)(net)), "batch")

    def apply(
        params: Any, *inputs: Any, row_ids: Any, key: Any = None, train: bool = False, aux: Any = None, axis_name: Any = None
    ) -> Any:
        model = eqx.nn.inference_mode(eqx.combine(params, static), not train)
        if axis_name is not None:
            model = _synchronized(eqx, model, (axis, axis_name))

        def one(key: Any, state: Any, row: Any, named: Any) -> Any:
            options: dict[str, Any] = {**mode(call, train), **named, **({"key": key} if takes_key else {})}
            if not stateful:
                return model(*row, **options), state
            return model(*row, state=state, **options) if "state" in call.names else model(*row, state, **options)

        keys = None
        if train and key is not None and takes_key:
            keys = jax.vmap(jax.random.fold_in, (None, 0))(key, row_ids)
        axes = (None if keys is None else 0, None, 0, 0)
        try:
            return jax.vmap(one, axes, (0, None), axis_name=axis)(keys, aux, *call.bind(inputs))
        except ValueError as error:
            if not stateful or "out_axes" not in str(error):
                raise
            remedy = f"all rows share one; combine them with jax.lax.pmean(value, {axis!r})"
            raise ValueError(f"the state that {type(net).__name__} returns depends on the row, but {remedy}") from error

    def restore(params: Any, aux: Any) -> Any:
        model = eqx.nn.inference_mode(eqx.combine(params, static))
        return (model, aux) if stateful else model

    values = initial("params", NAME, own_params, params), initial("aux", NAME, state, aux)
    return Adapted(NAME, apply, call, restore, *values, key=key_of_structure(static, stateful))


def _norms(eqx: Any) -> Callable[[Any], list[Any]]:
    is_norm = lambda x: isinstance(x, eqx.nn.BatchNorm)  # noqa: E731
    return lambda model: [x for x in jax.tree.leaves(model, is_leaf=is_norm) if is_norm(x)]


def _synchronized(eqx: Any, model: Any, axes: tuple[Hashable, str]) -> Any:
    """The model with BatchNorm layers that average their statistics over the rows and over the devices."""
    require_norms(NAME, "equinox.nn.BatchNorm", _norms(eqx)(model))
    return eqx.tree_at(lambda m: [norm.axis_name for norm in _norms(eqx)(m)], model, replace_fn=lambda _: axes)
