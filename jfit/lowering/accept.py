"""Whatever a user calls a model becomes a Model: a graph, a function with its loss, a model with trained values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jfit.graph import Symbol
from jfit.lowering.build import lower
from jfit.lowering.function import from_function
from jfit.lowering.model import Model, Trained, flatten_names


def as_model(model: Any, *, loss: Any = None, params: Any = None, aux: Any = None) -> Model:
    """A Model from whatever `fit` accepts.

    Raises:
        TypeError: it is none of them, or a function without its loss.
    """
    if isinstance(model, Model):
        return model
    if isinstance(model, Trained):
        return model.model
    if isinstance(model, Symbol):
        return lower(model)
    if callable(model):
        if loss is None:
            raise TypeError(
                "a function as model needs loss=, a per-example loss such as optax.softmax_cross_entropy_with_integer_labels"
            )
        return from_function(model, loss=loss, params=params, aux=aux)
    raise TypeError(
        f"model is {model!r}; needed a Symbol, a jfit.Model, or a pure function apply(params, x) with loss= and params="
    )


def lower_feeding(symbol: Symbol, names: Iterable[str]) -> Model:
    """A symbol lowered so that these variables, where it has them, are inputs and no parameters, whatever their names."""
    usual, variables = lower(symbol), set(symbol.list_inputs())
    fed = {*usual.inputs, *usual.labels}
    named = {n for n in names if n in variables}
    return usual if fed >= named else lower(symbol, inputs=sorted(fed | named))


def split_trained(model: Any, params: Any, aux: Any) -> tuple[Any, Any, Any]:
    """(model, parameters, auxiliary states): those that come with a model stand back behind those that are given."""
    if not isinstance(model, Trained):
        return model, params, aux
    return model.model, model.params if params is None else params, model.aux if aux is None else aux


def model_and_values(model: Any, loss: Any, params: Any, aux: Any) -> tuple[Model, Any, Any]:
    """(model, initial parameters, initial auxiliary states) from what `fit` was given, values as flat dicts."""
    made = as_model(model, loss=loss, params=params, aux=aux)
    if made is not model and made.symbol is None:
        return made, None, None  # a function's own values are what its init returns
    return made, params and flatten_names(params)[0], aux and flatten_names(aux)[0]
