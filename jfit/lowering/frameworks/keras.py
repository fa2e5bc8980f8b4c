"""Keras 3 models on the JAX backend: trainable variables are the parameters, other variables the auxiliary state."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from typing import Any

import jax

from jfit.lowering.frameworks.adapted import Adapted, call_of, initial, mode, one_row, unsupported_sync

NAME = "Keras"
SEED = "seed_generator_state"  # name of the variable of a keras.random.SeedGenerator


def adapt(module: Any, params: Any = None, aux: Any = None, inputs: Any = None) -> Adapted:
    """Convert a Keras model to the arguments of `Model.from_function`.

    A model that has no variables yet is built from the data, on a copy of the model if Keras can copy it.

    In training, the state of the i-th seed generator is set in each step to random bits of fold_in(key, i), where `key` is the
    key of the step.

    Args:
        module: the model; its variables are not changed.
        params: dict of initial values of the trainable variables; default: those of the model.
        aux: dict of initial values of the other variables, except those of seed generators; default: those of the model.
        inputs: names of the inputs, if the user passed any, else None.

    Returns:
        `Adapted`.

    Raises:
        ValueError: Keras has another backend than JAX.
    """
    import keras

    if keras.config.backend() != "jax":
        raise ValueError(f"the backend of Keras is {keras.config.backend()!r}, but jfit trains JAX programs; set it to jax")
    model = _Built(module, params, aux, inputs)
    if module.built and module.variables:
        own_params, own_aux = model.values()
        values = initial("params", NAME, own_params, params), initial("aux", NAME, own_aux, aux)
        return Adapted(NAME, model.apply, model.call, model.restore, *values)
    return Adapted(NAME, model.apply, model.call, model.restore, init=model.init)


class _Built:
    """A Keras model, which is built at the first call of `init` if it has no variables yet.

    Args:
        model: the model of the user.
        params, aux: initial values, or None.
    """

    def __init__(self, model: Any, params: Any, aux: Any, names: Any) -> None:
        self.model, self.user_model, self.passed = model, model, (params, aux)
        inputs = getattr(model, "inputs", None) or ()
        self.call = call_of(model.call, names)._replace(by_position=())
        if inputs or type(model).__module__.startswith("keras."):  # not a subclass
            names = tuple(x.name for x in inputs) if len(inputs) > 1 else self.call.inputs[:1]
            self.call = self.call._replace(inputs=names, optional=())
        self.inputs = self.call.inputs
        self.is_dict = isinstance(getattr(model, "input", None), dict) if inputs else False

    def init(self, key: Any, *specs: Any) -> tuple[Any, Any]:
        """Build the model for inputs of these shapes and return (params, aux)."""
        if not (self.model.built and self.model.variables):
            try:
                self.model = copy.deepcopy(self.user_model)
            except (NotImplementedError, TypeError):  # a subclass without get_config
                self.model = self.user_model
            with jax.ensure_compile_time_eval():  # `init` is traced for its shapes first, but variables keep their values
                args, named = self.call.bind(one_row(specs))
                self.model(self._packed(args), **named)
        values = zip(("params", "aux"), self.values(), self.passed, strict=True)
        params, aux = (initial(kind, NAME, own, passed) for kind, own, passed in values)
        return params, aux

    def values(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The values of the variables by name: (trainable ones, others without seed generators)."""
        names, model = _names(self.model), self.model
        params = {names[id(v)]: v.value for v in model.trainable_variables}
        return params, {names[id(v)]: v.value for v in model.non_trainable_variables if v.name != SEED}

    def apply(
        self, params: Any, *inputs: Any, key: Any = None, train: bool = False, aux: Any = None, axis_name: Any = None
    ) -> tuple[Any, Any]:
        """See `Adapted.apply`."""
        if axis_name is not None:
            raise unsupported_sync(NAME, "keras.layers.BatchNormalization takes no device axis on the JAX backend")
        names, model = _names(self.model), self.model
        others = _with_seeds(model.non_trainable_variables, names, aux, key if train else None)
        trainable = [params[names[id(v)]] for v in model.trainable_variables]
        options = {**mode(self.call, train), "return_losses": True}
        args, named = self.call.bind(inputs)
        output, new, losses = model.stateless_call(trainable, others, self._packed(args), **named, **options)
        if losses:
            raise ValueError(f"Keras model {model.name!r} adds {len(losses)} losses by regularizers, which fit would leave out")
        pairs = zip(model.non_trainable_variables, new, strict=True)
        return output, {names[id(v)]: value for v, value in pairs if v.name != SEED}

    def restore(self, params: Any, aux: Any) -> Any:
        """A copy of the model with these values."""
        target = copy.deepcopy(self.model)
        values, names = {**params, **aux}, _names(self.model)
        for own, variable in zip(self.model.variables, target.variables, strict=True):
            if names[id(own)] in values:
                variable.assign(values[names[id(own)]])
        return target

    def _packed(self, arrays: Sequence[Any]) -> Any:
        if self.is_dict:
            return dict(zip(self.inputs, arrays, strict=True))
        return list(arrays) if len(self.inputs) > 1 else arrays[0]


def _with_seeds(variables: Sequence[Any], names: dict[int, str], aux: Any, key: Any) -> list[Any]:
    """The values of the variables that are not trained, with new states of the seed generators if there is a key."""
    values, generators = [], 0
    for variable in variables:
        if variable.name == SEED:
            bits = None if key is None else jax.random.bits(jax.random.fold_in(key, generators), variable.shape, "uint32")
            values.append(variable.value if bits is None else bits.astype(variable.dtype))
            generators += 1
        else:
            values.append(aux[names[id(variable)]])
    return values


def _names(model: Any) -> dict[int, str]:
    """Names of the variables by id: their paths, with automatic names of layers numbered from 0 in this model.

    Keras numbers automatic names through the whole process ("dense_7"), so the same model made again would have others.
    """
    renamed: dict[str, str] = {}
    counts: dict[str, int] = {}
    for layer in [model, *_layers(model)]:
        base = _automatic_name(type(layer).__name__)
        if layer.name not in renamed and re.fullmatch(rf"{re.escape(base)}(_\d+)?", layer.name):
            number = counts[base] = counts.get(base, -1) + 1
            renamed[layer.name] = f"{base}_{number}" if number else base
    paths = {id(v): "/".join(renamed.get(part, part) for part in str(v.path).split("/")) for v in model.variables}
    if len(set(paths.values())) == len(paths):
        return paths
    return {id(v): f"{k}/{v.path}" for k, v in enumerate(model.variables)}


def _layers(model: Any) -> list[Any]:
    """All layers inside a model, nested ones too."""
    found = []
    for layer in getattr(model, "_layers", None) or getattr(model, "layers", ()):
        found += [layer, *_layers(layer)]
    return found


def _automatic_name(kind: str) -> str:
    """The name that Keras gives to the first layer of a class: 'BatchNormalization' -> 'batch_normalization'."""
    words = re.sub(r"(.)([A-Z][a-z0-9]+)", r"\1_\2", re.sub(r"\W+", "", kind))
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", words).lower()
