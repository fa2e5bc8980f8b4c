"""score, predict: a pass over data with parameters that are at hand, without a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jfit.data import ArrayData, StreamData
from jfit.graph import GraphError
from jfit.lowering.accept import as_model, split_trained
from jfit.lowering.model import flatten_names
from jfit.parallel import place
from jfit.step.state import TrainState
from jfit.train.batches import data_of, first_batch
from jfit.train.run import Run, settings_of


def score(
    model: Any,
    data: Any,
    eval_metric: Any = "acc",
    *,
    params: Mapping[str, Any] | None = None,
    aux: Mapping[str, Any] | None = None,
    **given: Any,
) -> dict[str, float]:
    """Loss and metrics of a model with given parameters over a data set; padded rows never count.

    Args:
        model: Symbol, Model, what `jfit.load` gives, or function with `loss=`.
        data: as for `fit`.
        eval_metric: as for `fit`.
        params: parameters by name; not needed with what `jfit.load` gives.
        aux: auxiliary states by name.
        given: batch_size, devices, policy, loss.

    Example:
        >>> import jfit, numpy as np
        >>> net = jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=2, name="fc")
        >>> net = jfit.sym.SoftmaxOutput(net, name="softmax")
        >>> params = {"fc_weight": np.eye(2, dtype="float32"), "fc_bias": np.zeros(2, "float32")}
        >>> jfit.score(net, (np.eye(2, dtype="float32"), [0, 1]), params=params)["accuracy"]
        1.0
    """
    run = make_run(model, params, aux, eval_metric=eval_metric, **given)
    return run.score(checked_data(run, data))


def predict(
    model: Any, data: Any, *, params: Mapping[str, Any] | None = None, aux: Mapping[str, Any] | None = None, **given: Any
) -> Any:
    """Outputs of a model with given parameters for every row of `data`; labels are not needed.

    Args:
        model: Symbol, Model, what `jfit.load` gives, or function with `loss=`.
        data: inputs as for `fit`, without labels.
        params: parameters by name; not needed with what `jfit.load` gives.
        aux: auxiliary states by name.
        given: batch_size, devices, policy, loss.

    Returns:
        One numpy array with rows as the data has them, or a tuple where the model has several outputs.

    Example:
        >>> import jfit, numpy as np
        >>> net = jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=2, name="fc")
        >>> params = {"fc_weight": np.eye(2, dtype="float32"), "fc_bias": np.zeros(2, "float32")}
        >>> jfit.predict(net, np.ones((3, 2), "float32"), params=params).shape
        (3, 2)
    """
    run = make_run(model, params, aux, **given)
    return run.predict(checked_data(run, data, labels=False))


def make_run(model: Any, params: Any, aux: Any, *, loss: Any = None, **given: Any) -> Run:
    """A run that only scores and predicts."""
    model, params, aux = split_trained(model, params, aux)
    if params is None:
        raise ValueError(
            "params is missing: a model alone has no values to compute with; pass params=, or what jfit.load gives"
        )
    model = as_model(model, loss=loss, params=params, aux=aux)
    settings = settings_of(**given)
    return Run(model, settings, placed_state(params, aux, settings["devices"]))


def placed_state(params: Any, aux: Any, devices: Any) -> TrainState:
    """A state that only holds values, copied onto the devices."""
    flat, flat_aux = flatten_names(params)[0], flatten_names(aux or {})[0]
    values = {k: jnp.asarray(v) for k, v in flat.items()}, {k: jnp.asarray(v) for k, v in flat_aux.items()}
    state = TrainState(jnp.zeros((), jnp.int32), *values, (), (), None, jax.random.key_data(jax.random.key(0)))
    return place(state, devices)


def checked_data(run: Run, data: Any, labels: bool = True, seen: set[Any] | None = None) -> ArrayData | StreamData:
    """The data by input names, after its first batch has said which shapes the parameters must have.

    Args:
        run: the run that is to use it.
        data: as for `fit`.
        labels: whether labels are needed.
        seen: shapes that were looked at before, kept by the caller.

    Raises:
        ValueError: a parameter has another shape.
    """
    found = data_of(run.model, data, run.settings["eval_batch_size"], labels=labels)
    net = run.model.symbol
    if net is None:
        return found
    shapes = {k: v.shape for k, v in first_batch(run.model, found, run.settings["eval_batch_size"]).items()}
    key = tuple(shapes.items())
    if seen is not None and key in seen:
        return found
    try:
        arguments, _, states = net.infer_shape_partial(**{k: v for k, v in shapes.items() if k in net.list_inputs()})
    except GraphError:
        return found  # running it says more
    for names, needed, held in ((net.list_arguments(), arguments, run.params), (net.list_auxiliary_states(), states, run.aux)):
        for name, shape in zip(names, needed, strict=True):
            if name in held and shape and 0 not in shape and held[name].shape != shape:
                raise ValueError(
                    f"{name} has shape {held[name].shape}, the graph needs {shape} for inputs of shapes {shapes}; pass data "
                    "of the shape that it was trained with, or the parameters of this graph"
                )
    if seen is not None:
        seen.add(key)
    return found
