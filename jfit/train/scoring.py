"""score, predict: a pass over data with parameters that are at hand, without a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jfit.data import ArrayData, StreamData
from jfit.graph import GraphError
from jfit.lowering.build import as_model, split_trained
from jfit.lowering.model import flatten_names
from jfit.parallel import place
from jfit.step.state import TrainState
from jfit.train.batches import data_of, first_batch
from jfit.train.evaluate import Evaluator
from jfit.train.settings import settings_of


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
    return Placed(model, params, aux, eval_metric=eval_metric, **given).score(data)


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
    return Placed(model, params, aux, **given).predict(data)


class Placed:
    """A model with its values on the devices, ready to score and predict; programs are kept for the next call.

    Args:
        model: as for `score`.
        params: parameters by name.
        aux: auxiliary states by name.
        loss: for a function.
        given: settings, as for `score`.

    Raises:
        ValueError: there are no parameters.
    """

    def __init__(self, model: Any, params: Any, aux: Any, *, loss: Any = None, **given: Any) -> None:
        model, params, aux = split_trained(model, params, aux)
        if params is None:
            raise ValueError(
                "params is missing: a model alone has no values to compute with; pass params=, or what jfit.load gives"
            )
        self.model = as_model(model, loss=loss, params=params, aux=aux)
        self.settings = settings_of(**given)
        self._evaluator = Evaluator(self.model, self.settings)
        self.place(params, aux)

    def place(self, params: Any, aux: Any) -> None:
        """Compute with these values from now on; they are copied."""
        params, aux = ({k: jnp.asarray(v) for k, v in flatten_names(t)[0].items()} for t in (params, aux or {}))
        key = jax.random.key_data(jax.random.key(0))
        state = TrainState(jnp.zeros((), jnp.int32), params, aux, (), (), None, key)
        self._state = place(state, self.settings.devices)
        self._fitting: set[Any] = set()  # input shapes that these values fit

    def score(self, data: Any, eval_metric: Any = None) -> dict[str, float]:
        """Loss and metrics over a data set."""
        return self._evaluator.score(self._state, self._checked(data), eval_metric)

    def predict(self, data: Any) -> Any:
        """The outputs for every row of `data`."""
        return self._evaluator.predict(self._state, self._checked(data, labels=False))

    def _checked(self, data: Any, labels: bool = True) -> ArrayData | StreamData:
        """The data by input names, after its first batch has said which shapes the parameters must have.

        Raises:
            ValueError: a parameter has another shape.
        """
        size, net = self.settings.eval_batch_size, self.model.symbol
        named = data_of(self.model, data, size, labels=labels)
        if net is None:
            return named
        shapes = {k: v.shape for k, v in first_batch(self.model, named, size).items()}
        key = tuple(shapes.items())
        if key in self._fitting:
            return named
        try:
            arguments, _, states = net.infer_shape_partial(**{k: v for k, v in shapes.items() if k in net.list_inputs()})
        except GraphError:
            return named  # running it says more
        _check_shapes(net.list_arguments(), arguments, self._state.params, shapes)
        _check_shapes(net.list_auxiliary_states(), states, self._state.aux, shapes)
        self._fitting.add(key)
        return named


def _check_shapes(names: Sequence[str], needed: Sequence[Any], values: Mapping[str, Any], shapes: Any) -> None:
    for name, shape in zip(names, needed, strict=True):
        if name in values and shape and 0 not in shape and values[name].shape != shape:
            raise ValueError(
                f"{name} has shape {values[name].shape}, the graph needs {shape} for inputs of shapes {shapes}; pass data of "
                "the shape that it was trained with, or the parameters of this graph"
            )
