"""Flax nnx modules: `nnx.Param` variables are the parameters, all other variables but those of random streams the state."""

from __future__ import annotations

import zlib
from typing import Any

import jax

from jfit.lowering.frameworks.adapted import Adapted, call_of, initial, mode, require_norms
from jfit.programs import key_of_structure

NAME = "Flax nnx"
MODE_ATTRIBUTES = ("deterministic", "use_running_average")  # of layers, True in evaluation mode


def adapt(module: Any, params: Any = None, aux: Any = None, inputs: Any = None) -> Adapted:
    """Convert a `flax.nnx.Module` to the arguments of `Model.from_function`.

    In training, layers that are in evaluation mode stay in it if other layers of the module are in training mode.  Every random
    stream of the module is reseeded in each step with `nnx.reseed`; the key of the stream `name` is
    fold_in(key, crc32(name)), where `key` is the key of the step.

    Args:
        module: the module.  It is not changed.
        params: `nnx.State` of initial parameters; default: those of the module.
        aux: `nnx.State` of the initial other variables, such as batch statistics; default: those of the module.
        inputs: names of the inputs, if the user passed any, else None.

    Returns:
        `Adapted`.
    """
    from flax import nnx

    graphdef, own_params, streams, own_aux = nnx.split(module, nnx.Param, nnx.RngState, ...)
    tags = {node.tag for _, node in nnx.iter_graph(module) if isinstance(node, nnx.RngStream)}
    call = call_of(module.__call__, inputs, {"rngs"})
    fixed = _fixed_modes(nnx, module)
    # An optional `rngs` would replace the streams of the module, whose keys are documented.
    takes_rngs = "rngs" in call.names - {*call.inputs} and ("rngs" in call.required or not tags)

    def merged(params: Any, aux: Any, train: bool) -> Any:
        copy = nnx.merge(graphdef, params, streams, aux, copy=True)  # the variables of a split belong to the user's module
        (copy.train if train else copy.eval)()
        for path, layer in nnx.iter_modules(copy) if fixed else ():
            for name in MODE_ATTRIBUTES:
                if (path, name) in fixed:
                    setattr(layer, name, True)
        return copy

    def apply(params: Any, *inputs: Any, key: Any = None, train: bool = False, aux: Any = None, axis_name: Any = None) -> Any:
        copy = merged(params, aux, train)
        options: dict[str, Any] = mode(call, train)
        if axis_name is not None:
            norms = [layer for _, layer in nnx.iter_modules(copy) if isinstance(layer, nnx.BatchNorm)]
            require_norms(NAME, "nnx.BatchNorm", norms)
            for norm in norms:
                norm.axis_name = axis_name
        if train and key is not None:
            keys: dict[str, Any] = {tag: jax.random.fold_in(key, zlib.crc32(tag.encode())) for tag in tags}
            nnx.reseed(copy, policy="match_shape", **keys)
        if takes_rngs and (train or "rngs" in call.required):
            options["rngs"] = nnx.Rngs(jax.random.key(0) if key is None else key)
        args, named = call.bind(inputs)
        output = copy(*args, **named, **options)
        nnx.pop(copy, nnx.Intermediate)  # values that `sow` stored; with them the state would have another structure
        return output, nnx.split(copy, nnx.Param, nnx.RngState, ...)[3]

    return Adapted(
        NAME,
        apply,
        call,
        lambda params, aux: merged(params, aux, train=False),
        initial("params", NAME, own_params, params),
        initial("aux", NAME, own_aux, aux),
        key=key_of_structure(graphdef, streams),
    )


def _fixed_modes(nnx: Any, module: Any) -> set[tuple[Any, str]]:
    """(path, attribute to keep True) of layers in evaluation mode, of a module with other layers in training mode.

    If all layers are in evaluation mode, as in the module that `run.model` returns, the whole module is to be trained.
    """
    modes = {(path, name): getattr(layer, name, None) for path, layer in nnx.iter_modules(module) for name in MODE_ATTRIBUTES}
    trains = any(mode is False for mode in modes.values())
    return {place for place, mode in modes.items() if trains and mode is True}
