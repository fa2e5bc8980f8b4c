"""A pass over data without learning: score and predict.

Rows that only fill up a batch never count and never come out.  Scoring adds to totals on the device and reads once.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jfit import counters
from jfit.data import ArrayData, Batch, StreamData
from jfit.data.batch import rows
from jfit.graph import GraphError
from jfit.graph.infer import infer_shape
from jfit.lowering.build import as_model, split_trained
from jfit.lowering.model import Model, Plan, Policy, flatten_names, plan_of
from jfit.metrics.core import on_devices, on_host
from jfit.ops.rows import LOST, RowLayout
from jfit.parallel import compile_spmd, place
from jfit.parallel.devices import concat_slices, merge_row_axis
from jfit.step import eval_step, predict_step, unrolls
from jfit.step.state import TrainState
from jfit.step.totals import Totals, joined, sized_for, values, zero_totals
from jfit.train.batches import (
    EPOCH_DATA_AXES,
    BatchLayout,
    DeviceBatches,
    HostBatches,
    Settings,
    data_of,
    first_batch,
    fits_on_device,
    resolve_metrics,
    settings_of,
)
from jfit.train.host_metrics import HostMetrics, metric_inputs

IN_FLIGHT = 8
BATCHES_PER_CALL = 64  # of resident data; bounds how long the host waits behind one call


class Scorer:
    """score(state, data): metrics over a data set.  Compiles one program per batch shape and keeps it.

    Metrics whose sums have the size of the outputs get it from the first data.
    """

    def __init__(
        self, model: Model, metrics: Sequence[Any], devices: Any, batch_size: int, policy: Policy | None = None
    ) -> None:
        self.model, self.devices, self.batch_size, self.policy = model, devices, batch_size, policy
        self.metrics, self.host = on_devices(metrics), on_host(metrics)
        self._program: Any = None

    @functools.cached_property
    def step(self) -> Any:
        """The pure step: an `eval_step` with the metrics that count on the devices."""
        return eval_step(self.model, metrics=self.metrics, policy=self.policy)

    def __call__(self, state: TrainState, data: ArrayData | StreamData, epoch: int = 0) -> dict[str, Any]:
        """Loss and metrics over all rows; one read at the end."""
        self._make(data)
        host = HostMetrics(self.host, len(self.devices)) if self.host else None
        totals = place(zero_totals(self.metrics), self.devices)
        batches = HostBatches(self.model, data, len(self.devices), self.batch_size, weights=True)
        with batches.read(epoch, in_order=True) as stream:
            for number, (batch, _) in enumerate(stream):
                report = self._program(state.params, state.aux, totals, batch, np.int32(number))
                totals = report if host is None else host.push(report)
                if host is not None and number % IN_FLIGHT == IN_FLIGHT - 1:
                    host.update(counters.read(host.pop(IN_FLIGHT)))  # sync: batches that are done; as many are still in flight
                elif host is None and number % (2 * IN_FLIGHT) == 2 * IN_FLIGHT - 1:
                    counters.wait(totals.loss)  # sync: bounds the batches in flight
        if host is None:
            return values(self.metrics, counters.read(totals))
        totals, arrived = counters.read((totals, host.pop(0)))  # sync: the end of the pass
        host.update(arrived)
        return joined(values(self.metrics, totals), host.values())

    def _make(self, data: ArrayData | StreamData) -> None:
        if self._program is not None:
            return
        # a stream is not read ahead for nothing
        known = isinstance(data, ArrayData) or any(m.sized for m in self.metrics)
        first = first_batch(self.model, data, self.batch_size) if known else {}
        self.metrics = sized_for(self.metrics, self.model, first)
        axes, out = (None, None, None, 0, None), (None, 0) if self.host else None
        step = self._watched() if self.host else self.step
        self._program = compile_spmd(step, self.devices, axes, out, donate=(2,), name="eval")

    def _watched(self) -> Callable[..., Any]:
        one = eval_step(self.model, metrics=self.metrics, policy=self.policy, outputs=True)

        def step(params: Any, aux: Any, totals: Totals, batch: Batch, number: Any, *, axis_name: str | None = None) -> Any:
            totals, outputs = one(params, aux, totals, batch, number, axis_name=axis_name)
            return totals, metric_inputs(self.model, outputs, batch, axis_name)

        return step


class ResidentScorer:
    """A Scorer for data that is scored again and again: it stays on the devices, one program serves full and short batches."""

    def __init__(self, scorer: Scorer, data: ArrayData) -> None:
        self.scorer = scorer
        batches = DeviceBatches(scorer.model, data, scorer.devices, scorer.batch_size)
        self.num_batches = batches.layout.num_batches
        self._pack = batches.epoch_data(np.arange(data.num_rows, dtype=np.int32))
        self._one = unrolls(scorer.model)
        # without self: JAX keeps programs, not the data
        program = functools.partial(_score_many, scorer, batches.layout, self._one)
        axes = (None, None, None, EPOCH_DATA_AXES, None, None)
        self._program = compile_spmd(program, scorer.devices, axes, None, donate=(2,), name="eval")

    def __call__(self, state: TrainState, epoch: int = 0) -> dict[str, float]:
        """Loss and metrics over all rows; one read at the end."""
        totals = place(zero_totals(self.scorer.metrics), self.scorer.devices)
        step = 1 if self._one else BATCHES_PER_CALL
        for number, first in enumerate(range(0, self.num_batches, step)):
            count = np.int32(min(step, self.num_batches - first))
            totals = self._program(state.params, state.aux, totals, self._pack, np.int32(first), count)
            if number % IN_FLIGHT == IN_FLIGHT - 1:
                counters.wait(totals.loss)  # sync: bounds the calls in flight
        return values(self.scorer.metrics, counters.read(totals))


def _score_many(
    scorer: Scorer,
    layout: BatchLayout,
    once: bool,
    params: Any,
    aux: Any,
    totals: Totals,
    epoch_data: Any,
    first: Any,
    count: Any,
    axis_name: str | None,
) -> Totals:
    """Totals of `count` batches of resident data from batch `first` on."""

    def one(j: Any, totals: Totals) -> Totals:
        batch = layout.batch(epoch_data, first + j, axis_name, tail=None)
        return scorer.step(params, aux, totals, batch, first + j, axis_name=axis_name)

    return one(0, totals) if once else lax.fori_loop(0, count, one, totals)


def make_evaluate(
    scorer: Scorer, data: ArrayData | StreamData, *, paddable: bool, on_device: bool | str = "auto", resident: int = 0
) -> Callable[[TrainState, int], Mapping[str, float]]:
    """`(state, epoch) -> logs` for the same data every epoch; it stays on the devices where it fits beside `resident` bytes."""
    fits = fits_on_device(data, scorer.devices, resident) if on_device == "auto" else bool(on_device)
    if isinstance(data, ArrayData) and paddable and fits and not scorer.host:
        return ResidentScorer(scorer, data)
    return lambda state, epoch: scorer(state, data, epoch)


class Predictor:
    """predict(state, data): the outputs for every row, in order."""

    def __init__(self, model: Model, devices: Any, batch_size: int, policy: Policy | None = None) -> None:
        self.model, self.devices, self.batch_size = model, devices, batch_size
        step = predict_step(model, policy=policy)
        self._program = compile_spmd(step, devices, (None, None, 0, None), 0, name="predict")
        self._plans: dict[Any, Plan] = {}

    def __call__(self, state: TrainState, data: ArrayData | StreamData) -> tuple[np.ndarray, ...]:
        """Each output as if the whole data were one batch."""
        parts = list(self._parts(state, data))
        if not parts:
            raise ValueError("predict got no batch: the data is empty")
        return tuple(_joined([p[i] for p in parts]) for i in range(len(parts[0])))

    def batches(self, state: TrainState, data: ArrayData | StreamData) -> Iterator[tuple[np.ndarray, ...]]:
        """The outputs batch by batch, padding cut off; up to 8 batches are computed ahead."""
        for part in self._parts(state, data):
            yield tuple(_joined([piece]) for piece in part)

    def _parts(self, state: TrainState, data: ArrayData | StreamData) -> Iterator[list[_Piece]]:
        waiting: deque[tuple[Any, int, Any]] = deque()
        batches = HostBatches(self.model, data, len(self.devices), self.batch_size, weights=False)
        with batches.read(in_order=True) as stream:
            for number, (batch, count) in enumerate(stream):
                waiting.append((self._program(state.params, state.aux, batch, np.int32(number)), count, batch))
                if len(waiting) == IN_FLIGHT:
                    yield self._pieces(*waiting.popleft())
        while waiting:
            yield self._pieces(*waiting.popleft())

    def _pieces(self, outputs: Any, count: int, batch: Batch) -> list[_Piece]:
        split = len(self.devices) > 1
        inputs = {k: v[0] if split else v for k, v in batch.inputs.items()}
        plan = self._plan({k: v for k, v in inputs.items() if k in self.model.evaluation_inputs})
        size = rows(Batch(inputs), self.model.batch_axes)
        pieces = []
        for out, where in zip(counters.read(outputs), plan.rows, strict=True):
            if isinstance(where, RowLayout):
                whole = concat_slices(out if split else out[None], where)
                pieces.append(_Piece(whole.take(np.arange(count), axis=where.axis + 1), where.axis))
            elif where is LOST and (split or count != size):
                raise ValueError(
                    "predict: an output mixes the rows of its batch, so padded rows cannot be cut off; "
                    "predict on one device with a batch size that divides the data"
                )
            else:
                pieces.append(_Piece(out[0] if split else out, None))
        return pieces

    def _plan(self, inputs: dict[str, Any]) -> Plan:
        key = tuple((k, v.shape, str(v.dtype)) for k, v in inputs.items())
        if key not in self._plans:
            self._plans[key] = plan_of(self.model, inputs)
        return self._plans[key]


class _Piece(NamedTuple):
    """One output of one batch, (..., before, rows, after, ...) with rows on axis + 1.  axis None: it has no rows."""

    array: np.ndarray
    axis: int | None


def _joined(pieces: list[_Piece]) -> np.ndarray:
    """The output of several batches as that of one."""
    axis = pieces[0].axis
    if axis is None:
        return pieces[0].array if len(pieces) == 1 else np.stack([p.array for p in pieces])
    return merge_row_axis(np.concatenate([p.array for p in pieces], axis=axis + 1), axis)


class Evaluator:
    """Scores and predicts with any state of a model; programs are kept for the next call.

    Args:
        model: the model.
        settings: devices, metrics, policy and the size of batches.
    """

    def __init__(self, model: Model, settings: Settings) -> None:
        self.model, self.settings = model, settings
        self._made: dict[Any, Any] = {}

    def score(self, state: TrainState, data: Any, eval_metric: Any = None, batch_size: int | None = None) -> dict[str, float]:
        """Loss and metrics over a data set."""
        metrics = self.settings.metrics if eval_metric is None else self._metrics(eval_metric)
        size, where = batch_size or self.settings.eval_batch_size, self.settings.devices
        make = lambda: Scorer(self.model, metrics, where, size, self.settings.policy)  # noqa: E731
        return self._once(("score", metrics, size), make)(state, data_of(self.model, data, size))

    def predict(self, state: TrainState, data: Any, batch_size: int | None = None) -> Any:
        """The outputs for every row: one numpy array, or a tuple where there are several."""
        size, where = batch_size or self.settings.eval_batch_size, self.settings.devices
        predictor = self._once(("predict", size), lambda: Predictor(self.model, where, size, self.settings.policy))
        outputs = predictor(state, data_of(self.model, data, size, labels=False))
        return outputs[0] if len(outputs) == 1 else outputs

    def _metrics(self, spec: Any) -> tuple[Any, ...]:
        """Metrics by name are made once: new ones would be compiled again."""
        named = isinstance(spec, (str, list, tuple)) and all(isinstance(name, str) for name in spec)
        return self._once(("metrics", str(spec)), lambda: resolve_metrics(spec)) if named else resolve_metrics(spec)

    def _once(self, key: Any, make: Callable[[], Any]) -> Any:
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]


# ------------------------------------------------------------------------------------------------ without a run
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
    return InferenceModel(model, params, aux, eval_metric=eval_metric, **given).score(data)


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
    return InferenceModel(model, params, aux, **{"eval_metric": None, **given}).predict(data)


class InferenceModel:
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
        self.set_params(params, aux)

    def set_params(self, params: Any, aux: Any) -> None:
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
            known = {k: v for k, v in shapes.items() if k in net.list_inputs()}
            arguments, _, states = infer_shape(net, partial=True, **known)
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
