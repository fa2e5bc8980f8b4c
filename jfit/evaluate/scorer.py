"""Scoring and prediction: passes over a data set that do not change the parameters.

Padding rows have weight 0 in scores and are removed from predictions.  Scoring adds to running sums on the devices and copies
them to the host once, at the end of the pass.
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

from jfit import counters, interrupts
from jfit.checkpoints.fingerprint import describe_data, digest
from jfit.checkpoints.same_run import check_same
from jfit.data import ArrayData, Batch, StreamData
from jfit.data.batch import rows
from jfit.distributed import num_processes
from jfit.evaluate.host_metrics import HostMetrics, metric_inputs
from jfit.feed.batch_sizes import BatchSizes
from jfit.feed.batches import (
    EPOCH_DATA_AXES,
    BatchLayout,
    DeviceBatches,
    Settings,
    data_of,
    first_batch,
    fits_on_device,
    labels_of,
    settings_of,
)
from jfit.feed.data_checks import DataChecks
from jfit.feed.host_batches import HostBatches, kept_plan
from jfit.graph import GraphError
from jfit.graph.infer import infer_shape
from jfit.lowering.build import as_model, split_trained
from jfit.lowering.model import Model, Plan, Policy, flatten_names, plan_of
from jfit.lowering.row_axes import NO_ROWS
from jfit.metrics import get as get_metrics
from jfit.metrics.core import on_devices, on_host
from jfit.ops.rows import LOST, RowLayout
from jfit.parallel import check_entry, check_unsharded, compile_spmd, place
from jfit.parallel.devices import check_same_devices, concat_slices, merge_row_axis, own_slices_of
from jfit.parallel.mesh import on_mesh
from jfit.parallel.spmd import GATHERED
from jfit.parallel.whole import evaluated_state
from jfit.step import eval_step, predict_step, unrolls
from jfit.step.fitting import choose_metrics, needs_inputs, paired
from jfit.step.observe import evaluated_aux
from jfit.step.state import TrainState
from jfit.step.totals import Totals, joined, values, zero_totals

IN_FLIGHT = 8  # number of dispatches (calls of a compiled program) between two waits of the host
# number of batches in one dispatch for data kept on the devices; with more, the host would wait too long for one dispatch
BATCHES_PER_CALL = 64
# Axes of params, aux, batch and number.  Not 0 for the batch: if there are as many leaves as arguments, pmap of JAX 0.10 takes
# a tuple of numbers as the axes of the leaves.
PREDICT_AXES = (None, None, Batch(0, 0, 0), None)  # type: ignore[arg-type]


class Scorer:
    """Compute loss and metrics over a data set: `scorer(state, data)`.  Compiled programs are reused by later calls.

    Metrics whose sums depend on the output shapes (such as a confusion matrix) take the shapes from the data of the first call.

    Args:
        model: the `Model` to score.
        metrics: metrics to compute, on the devices or on the host.
        devices: list of devices over which batches are split.
        batch_size: number of rows per batch of arrays.
        policy: mixed-precision policy; None: no casts.
        regularizers: parameter name -> regularizer, added to the loss; None: none.
    """

    def __init__(
        self,
        model: Model,
        metrics: Sequence[Any],
        devices: Any,
        batch_size: int,
        policy: Policy | None = None,
        regularizers: Mapping[str, Any] | None = None,
    ) -> None:
        self.model, self.devices, self.batch_size, self.policy = model, devices, batch_size, policy
        self.regularizers = regularizers
        self.metrics, self.host = on_devices(metrics), on_host(metrics)
        self._is_ready = False  # whether the metrics are chosen, by the first call
        self._sizes = BatchSizes()  # of the batches of earlier calls

    @functools.cached_property
    def step(self) -> Any:
        """Pure evaluation step with the metrics that are computed on the devices."""
        return self._make_step()

    def _make_step(self, **options: Any) -> Any:
        model = on_mesh(self.model, self.devices)
        return eval_step(model, metrics=self.metrics, policy=self.policy, regularizers=self.regularizers, **options)

    def __call__(self, state: TrainState, data: ArrayData | StreamData, epoch: int = 0) -> dict[str, Any]:
        """Compute loss and metrics over all rows.

        Args:
            state: `TrainState` on the devices.
            data: the data set, labels included.
            epoch: number of the epoch, for iterators that return different batches in each epoch.

        Returns:
            dict of floats (some metrics: arrays) by metric name.
        """
        if not self._is_ready:
            self._choose_metrics(data)
        params, aux, totals = self.arguments(state)
        host = HostMetrics(self.host, len(self.devices)) if self.host else None
        options: dict[str, Any] = {"values": (params, state.aux), "weights": True, "sizes": self._sizes}
        options["own"] = own_slices_of(self.devices)
        batches = HostBatches(self.model, data, len(self.devices), self.batch_size, **options)
        with batches.read(epoch, in_order=True) as stream:
            for number, (batch, _) in enumerate(stream):
                interrupts.check_step()
                result = self._program(params, aux, totals, batch, np.int32(number))
                totals = result if host is None else host.push(result)
                if host is not None and number % IN_FLIGHT == IN_FLIGHT - 1:
                    host.update(counters.read(host.pop(IN_FLIGHT)))  # sync: all batches but the last 8, still in flight
                elif host is None and number % (2 * IN_FLIGHT) == 2 * IN_FLIGHT - 1:
                    counters.wait(totals.loss)  # sync: limits the number of dispatches in flight
            interrupts.check_step()  # after the wait for the end of the data
        self._sizes = batches.sizes
        totals, rest = counters.read((totals, () if host is None else host.pop(0)))  # sync: once, at the end of the pass
        DataChecks(self.model, batches).check_epoch(totals)
        if host is None:
            return values(self.metrics, totals)
        host.update(rest)
        return joined(values(self.metrics, totals), host.values())

    def arguments(self, state: TrainState) -> tuple[Any, Any, Totals]:
        """Return parameters, auxiliary states and running sums over no batches, the first arguments of `step`."""
        state = evaluated_state(state, self.devices)
        zeros = zero_totals(self.metrics, self.model.logged, self.model.num_losses)
        return state.params, evaluated_aux(self.model, state), place(zeros, self.devices)

    def _choose_metrics(self, data: ArrayData | StreamData) -> None:
        # avoid reading ahead in a stream if no metric needs the shapes
        needs_batch = isinstance(data, ArrayData) or needs_inputs((*self.metrics, *self.host), self.model)
        first = first_batch(self.model, data, self.batch_size) if needs_batch else {}
        metrics, _ = choose_metrics((*self.metrics, *self.host), self.model, first, labels_of(self.model, data))
        self.metrics, self.host, self._is_ready = on_devices(metrics), on_host(metrics), True

    @functools.cached_property
    def _program(self) -> Any:
        """The program for a batch."""
        step = functools.partial(_with_outputs, self.model, self._make_step(outputs=True)) if self.host else self.step
        out = (None, GATHERED) if self.host else None
        return compile_spmd(step, self.devices, (None, None, None, 0, None), out, donate=(2,), name="eval")


def _with_outputs(
    model: Model, evaluate: Any, params: Any, aux: Any, totals: Totals, batch: Batch, number: Any, *, axis_name: Any
) -> Any:
    """Run an evaluation step with outputs=True: (running sums, arguments of the metrics that run on the host)."""
    totals, outputs = evaluate(params, aux, totals, batch, number, axis_name=axis_name)
    return totals, metric_inputs(model, outputs, batch, axis_name)


class ResidentScorer:
    """Score the same arrays repeatedly, such as after every epoch.  The arrays stay on the devices.

    One compiled program computes full and incomplete batches.

    Args:
        scorer: `Scorer` with the model, the metrics, the devices and the batch size.
        data: the arrays of the data set, labels included.
    """

    def __init__(self, scorer: Scorer, data: ArrayData) -> None:
        self.scorer = scorer
        batches = DeviceBatches(scorer.model, data, scorer.devices, scorer.batch_size)
        self.num_batches = batches.layout.num_batches
        self._epoch_data = batches.epoch_data(np.arange(data.num_rows, dtype=np.int32))
        plan = plan_of(scorer.model, first_batch(scorer.model, data, scorer.batch_size))
        self._one_per_call = unrolls(scorer.model, scorer.devices, plan)
        # Not a method: JAX's cache keeps compiled functions alive, and a method would keep `self` and its data alive, too.
        program = functools.partial(_add_batches, scorer.step, batches.layout, self._one_per_call)
        axes = (None, None, None, EPOCH_DATA_AXES, None, None)
        self._program = compile_spmd(program, scorer.devices, axes, None, donate=(2,), name="eval")

    def __call__(self, state: TrainState, epoch: int = 0) -> dict[str, float]:
        """Return loss and metrics over all rows, a dict by metric name; `epoch` is ignored."""
        params, aux, totals = self.scorer.arguments(state)
        step = 1 if self._one_per_call else BATCHES_PER_CALL
        for number, first in enumerate(range(0, self.num_batches, step)):
            count = np.int32(min(step, self.num_batches - first))
            totals = self._program(params, aux, totals, self._epoch_data, np.int32(first), count)
            interrupts.check_step()
            if number % IN_FLIGHT == IN_FLIGHT - 1:
                counters.wait(totals.loss)  # sync: limits the number of dispatches in flight
        return values(self.scorer.metrics, counters.read(totals))

    def prepare(self, state: TrainState, submit: Any) -> None:
        """Trace the program for a state, and compile it on another thread, see `jfit.programs.Program.prepare`."""
        number = np.int32(0)
        self._program.prepare(*self.scorer.arguments(state), self._epoch_data, number, number, submit=submit)


def _add_batches(
    step: Any,
    layout: BatchLayout,
    one_per_call: bool,
    params: Any,
    aux: Any,
    totals: Totals,
    epoch_data: Any,
    first: Any,
    count: Any,
    axis_name: str | None,
) -> Totals:
    """Add batches `first`, ..., `first + count - 1` of data on the devices to the running sums `totals`.

    Args:
        step: the evaluation step.
        layout: sizes of the batches.
        one_per_call: whether `count` is always 1; the loop over batches is then left out.
        params: parameters by name.
        aux: auxiliary states by name.
        totals: running sums of loss and metrics.
        epoch_data: arrays and row indices from `DeviceBatches.epoch_data`.
        first: number of the first batch, traced.
        count: number of batches, traced.
        axis_name: name of the device axis, or None.
    """

    def add_batch(j: Any, totals: Totals) -> Totals:
        batch = layout.batch(epoch_data, first + j, axis_name, tail=None)
        return step(params, aux, totals, batch, first + j, axis_name=axis_name)

    return add_batch(0, totals) if one_per_call else lax.fori_loop(0, count, add_batch, totals)


def make_evaluate(
    scorer: Scorer, data: ArrayData | StreamData, *, paddable: bool, on_device: bool | str = "auto", resident: int = 0
) -> Callable[[TrainState, int], Mapping[str, float]]:
    """Make a function `evaluate(state, epoch)` that returns the metrics of a fixed data set as a dict.

    Args:
        scorer: `Scorer` with the model, the metrics, the devices and the batch size.
        data: the data set, labels included.
        paddable: whether incomplete batches may be padded; if not, the data is not kept on the devices.
        on_device: True or False: whether to keep arrays on the devices; "auto": if they fit.
        resident: number of bytes of other data already on every device.
    """
    fits = fits_on_device(data, scorer.devices, resident) if on_device == "auto" else bool(on_device)
    if isinstance(data, ArrayData) and paddable and fits and not scorer.host:
        return ResidentScorer(scorer, data)
    return lambda state, epoch: scorer(state, data, epoch)


class Predictor:
    """Compute the outputs of a model for every row of a data set, in order: `predictor(state, data)`.

    Args:
        model: the `Model` whose outputs are computed.
        devices: list of devices over which batches are split.
        batch_size: number of rows per batch of arrays.
        policy: mixed-precision policy; None: no casts.
    """

    def __init__(self, model: Model, devices: Any, batch_size: int, policy: Policy | None = None) -> None:
        self.model, self.devices, self.batch_size = model, devices, batch_size
        step = predict_step(on_mesh(model, devices), policy=policy)
        self._own = own_slices_of(devices)
        # every process of a job gets the outputs of all rows of arrays, and of a stream those of its own rows
        self._program = compile_spmd(step, devices, PREDICT_AXES, GATHERED, name="predict")
        self._program_of_own = compile_spmd(step, devices, PREDICT_AXES, 0, name="predict")
        self._plans: dict[Any, Plan] = {}
        self._sizes = BatchSizes()  # of the batches of earlier calls

    def __call__(self, state: TrainState, data: ArrayData | StreamData) -> tuple[np.ndarray, ...]:
        """Return the outputs of the model for all rows, a tuple of NumPy arrays.

        Args:
            state: `TrainState` with the parameters of evaluation (`jfit.parallel.whole.evaluated_state`), on the devices.
            data: the data set.

        Raises:
            ValueError: the data is empty, or padding rows cannot be removed from an output.
        """
        if isinstance(data, ArrayData) and 0 < data.num_rows <= self.batch_size:
            parts = [self._one_batch(state, data)]
        else:
            parts = [part for part in self._outputs(state, data) if part]
        if not parts:
            raise ValueError("predict got no batch: the data is empty")
        return tuple(_concatenate([p[i] for p in parts]) for i in range(len(parts[0])))

    def _one_batch(self, state: TrainState, data: ArrayData) -> list[_BatchOutput]:
        """Return the outputs for data of at most `batch_size` rows; no thread prepares batches ahead.

        The rows are padded to a power of two, so that `batch_size` bounds the number of programs by its logarithm.
        """
        batches = self._read(state, data, min(self.batch_size, 1 << (data.num_rows - 1).bit_length()))
        batch, count = batches.whole()
        self._sizes = batches.sizes
        return self._unpad(self._program(state.params, state.aux, batch, np.int32(0)), count, batch)

    def _outputs(self, state: TrainState, data: ArrayData | StreamData) -> Iterator[list[_BatchOutput]]:
        in_flight: deque[tuple[Any, int, Any]] = deque()
        batches = self._read(state, data, self.batch_size)
        program = self._program if isinstance(data, ArrayData) else self._program_of_own
        with batches.read(in_order=True) as stream:
            for number, (batch, count) in enumerate(stream):
                interrupts.check_step()
                in_flight.append((program(state.params, state.aux, batch, np.int32(number)), count, batch))
                if len(in_flight) == IN_FLIGHT:
                    yield self._unpad(*in_flight.popleft())
            interrupts.check_step()
        self._sizes = batches.sizes
        while in_flight:
            yield self._unpad(*in_flight.popleft())

    def _read(self, state: TrainState, data: ArrayData | StreamData, batch_size: int) -> HostBatches:
        options: dict[str, Any] = {"values": (state.params, state.aux), "weights": False, "sizes": self._sizes}
        return HostBatches(self.model, data, len(self.devices), batch_size, plans=self._plans, own=self._own, **options)

    def _unpad(self, outputs: Any, count: int, batch: Batch) -> list[_BatchOutput]:
        """Copy the outputs of a batch to the host and remove its padding rows.

        Args:
            outputs: outputs of the compiled program; with several devices, each has a leading device axis.
            count: number of rows of the batch without padding rows.
            batch: the padded batch, split over the devices.

        Returns:
            One entry per output of the model; none for a batch without rows, of a process whose stream has ended.
        """
        if not count:
            return []
        split = len(self.devices) > 1
        inputs = {k: v[0] if split else v for k, v in batch.inputs.items()}
        read = {k: v for k, v in inputs.items() if k in self.model.evaluation_inputs}
        plan = kept_plan(self._plans, self.model, read)
        size, unit = rows(Batch(inputs), self.model.batch_axes), NO_ROWS in plan.coupled
        unpadded = []
        for out, layout in zip(counters.read(outputs), plan.rows, strict=True):
            if unit and out.ndim:
                unpadded.append(_BatchOutput(out[None, :, None], 0))
            elif isinstance(layout, RowLayout):
                merged = concat_slices(out if split else out[None], layout)
                unpadded.append(_BatchOutput(merged[(*(slice(None),) * (layout.axis + 1), slice(count))], layout.axis))
            elif layout is LOST and (split or count != size):
                problem = "an output mixes the rows of its batch, so padding rows cannot be removed from it"
                raise ValueError(f"predict: {problem}; use one device and a batch size that divides the number of rows")
            else:
                unpadded.append(_BatchOutput(out[0] if split else out, None))
        return unpadded


class _BatchOutput(NamedTuple):
    """One output of one batch.

    Attributes:
        array: if `axis` is an int, array (..., before, rows, after, ...) whose axes axis, axis + 1 and axis + 2 are the parts
            of axis `axis` of the output, see `RowLayout`; else the output.
        axis: axis of the output that contains the rows; None if no axis does.
    """

    array: np.ndarray
    axis: int | None


def _concatenate(parts: list[_BatchOutput]) -> np.ndarray:
    """Concatenate one output of several batches along its rows; outputs that contain no rows are stacked along a new axis 0."""
    axis = parts[0].axis
    if axis is None:
        return parts[0].array if len(parts) == 1 else np.stack([p.array for p in parts])
    shapes = {p.array.shape[: axis + 1] + p.array.shape[axis + 2 :] for p in parts}
    if len(shapes) > 1:
        found = sorted({merge_row_axis(p.array, axis).shape for p in parts})
        raise ValueError(f"predict: an output of the batches has the shapes {found}; pass batches of one shape at a time")
    return merge_row_axis(np.concatenate([p.array for p in parts], axis=axis + 1), axis)


class Evaluator:
    """Score and predict with any state of one model; compiled programs are reused by later calls.

    Args:
        model: the `Model` to score and predict with.
        settings: devices, default metrics, mixed-precision policy and default batch size.
    """

    def __init__(self, model: Model, settings: Settings) -> None:
        self.model, self.settings = model, settings
        self._cache: dict[Any, Any] = {}
        self._devices_checked = False

    def score(self, state: TrainState, data: Any, eval_metric: Any = None, batch_size: int | None = None) -> dict[str, float]:
        """Return loss and metrics over a data set as a dict; arguments as for `Run.score`, with the parameters in `state`."""
        check_entry("Run.score", several=True)
        metrics = self.settings.metrics if eval_metric is None else self._metrics(eval_metric)
        size, devices = self._size(batch_size), self.settings.devices
        converted = self._data(data, size)
        if num_processes() > 1:
            self._check_job(converted, "score", batch_size=size, eval_metric=[metric.name for metric in metrics])
        model = self._bound(converted, size)
        if model.joint_loss is not None and not any(o.label for o in model.outputs):
            model = paired(model, metrics, first_batch(self.model, converted, size))
        options = self.settings.policy, self.settings.regularizers
        make = lambda: Scorer(model, metrics, devices, size, *options)  # noqa: E731
        return self._cached(("score", metrics, size, model.inputs, model.labels), make)(state, converted)

    def predict(self, state: TrainState, data: Any, batch_size: int | None = None) -> Any:
        """Return the outputs for every row: a NumPy array, or a tuple of arrays if the model has several outputs.

        Arguments as for `Run.predict`, with the parameters of evaluation in `state`.
        """
        size, devices = self._size(batch_size), self.settings.devices
        check_entry("Run.predict", several=True)
        converted = self._data(data, size, labels=False)
        if num_processes() > 1:
            self._check_job(converted, "predict", batch_size=size)
        model = self._bound(converted, size)
        make = lambda: Predictor(model, devices, size, self.settings.policy)  # noqa: E731
        outputs = self._cached(("predict", size, model.inputs), make)(state, converted)
        tree = None if model.structure is None else model.structure.outputs
        if tree is not None:
            return jax.tree.unflatten(tree.treedef, outputs)
        return outputs[0] if len(outputs) == 1 else outputs

    def _size(self, batch_size: int | None) -> int:
        return self.settings.eval_batch_size if batch_size is None else batch_size

    def _check_job(self, data: ArrayData | StreamData, verb: str, **more: Any) -> None:
        """Check that all processes of a job use the same data, and before the first call the same devices."""
        if not self._devices_checked:
            check_same_devices(self.settings.devices, "jfit.score or jfit.predict")
            self._devices_checked = True
        check_same(lambda: {**describe_data(data), **more}, verb)

    def _bound(self, data: ArrayData | StreamData, size: int) -> Model:
        """The model with the names of its inputs and outputs, which the first batch determines for functions."""
        return self.model if self.model.bind is None else self.model.bound(first_batch(self.model, data, size))

    def _data(self, data: Any, size: int, labels: bool = True) -> ArrayData | StreamData:
        return data_of(self.model, data, size, labels=labels, label=self.settings.columns)

    def _metrics(self, spec: Any) -> tuple[Any, ...]:
        """Convert `eval_metric` to metrics; equal names return the same objects, for which programs are compiled already."""
        names = spec.values() if isinstance(spec, Mapping) else spec
        named = isinstance(spec, (str, list, tuple, Mapping)) and all(isinstance(name, str) for name in names)
        return self._cached(("metrics", repr(spec)), lambda: get_metrics(spec)) if named else get_metrics(spec)

    def _cached(self, key: Any, make: Callable[[], Any]) -> Any:
        if key not in self._cache:
            self._cache[key] = make()
        return self._cache[key]


# ------------------------------------------------------------------------------------------------ without a Run
def score(
    model: Any,
    data: Any,
    eval_metric: Any = "auto",
    *,
    params: Mapping[str, Any] | None = None,
    aux: Mapping[str, Any] | None = None,
    **options: Any,
) -> dict[str, float]:
    """Compute the loss and metrics of a model over a data set.

    Args:
        model: `Symbol`, `jfit.Model`, model returned by `jfit.load`, or pure function `apply(params, x) -> output` or module of
            a JAX framework with `loss` in `options`.
        data: data with labels, in the forms of `train_data` of `jfit.fit`; rows are weighted by their row weights.
        eval_metric: metrics as in `jfit.fit`; None: the loss only.
        params: dict of all parameters by name.  Default: the parameters of a model returned by `jfit.load`, or of a module.
        aux: dict of auxiliary states by name.  Default: those of a model returned by `jfit.load`, or of a module.
        options: `batch_size` (default 32), `devices`, `policy`, `label` and `loss`, as for `jfit.fit`.

    Returns:
        dict of floats (some metrics: arrays) by metric name, with the mean loss of the rows as "loss" if the model has a loss.

    Raises:
        ValueError: there are no parameters, a parameter does not match the shapes of the data, or the data is empty or invalid.
        jfit.distributed.RanksDiffer: in a job, the processes pass different arrays.

    Example:
        >>> import jfit, numpy as np
        >>> net = jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=2, name="fc")
        >>> net = jfit.sym.SoftmaxOutput(net, name="softmax")
        >>> params = {"fc_weight": np.eye(2, dtype="float32"), "fc_bias": np.zeros(2, "float32")}
        >>> jfit.score(net, (np.eye(2, dtype="float32"), [0, 1]), params=params)["accuracy"]
        1.0
    """
    return InferenceModel(model, params, aux, eval_metric=eval_metric, **options).score(data)


def predict(
    model: Any, data: Any, *, params: Mapping[str, Any] | None = None, aux: Mapping[str, Any] | None = None, **options: Any
) -> Any:
    """Compute the outputs of a model for every row of a data set.

    Args:
        model: `Symbol`, `jfit.Model`, model returned by `jfit.load`, pure function `apply(params, x) -> output`, or module of a
            JAX framework.
        data: inputs without labels (labels are ignored), in the forms of `train_data` of `jfit.fit`.
        params: dict of all parameters by name.  Default: the parameters of a model returned by `jfit.load`, or of a module.
        aux: dict of auxiliary states by name.  Default: those of a model returned by `jfit.load`, or of a module.
        options: `batch_size` (default 32), `devices`, `policy`, `label` and `loss`, as for `jfit.fit`.

    Returns:
        NumPy array of shape (rows, ...) in the order of the data, or a tuple of arrays if the model has several outputs.

    Raises:
        ValueError: there are no parameters, a parameter does not match the shapes of the data, the data is empty, or an
            incomplete batch cannot be padded.
        jfit.distributed.RanksDiffer: in a job, the processes pass different arrays.

    Example:
        >>> import jfit, numpy as np
        >>> net = jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=2, name="fc")
        >>> params = {"fc_weight": np.eye(2, dtype="float32"), "fc_bias": np.zeros(2, "float32")}
        >>> jfit.predict(net, np.ones((3, 2), "float32"), params=params).shape
        (3, 2)
    """
    return InferenceModel(model, params, aux, **{"eval_metric": None, **options}).predict(data)


class InferenceModel:
    """A model with its parameters on the devices, to score and predict; compiled programs are reused by later calls.

    Args:
        model: as for `score`.
        params: dict of all parameters by name.  None: those of a model returned by `jfit.load`.
        aux: dict of auxiliary states by name.  None: none, or those of a model returned by `jfit.load`.
        options: `loss` of a function, `loss(output, label)` that returns the loss of each row, `loss_weights`,
            `loss_per_batch`, `gather_outputs` and `row_axes`, as for `jfit.fit`; and arguments of `settings_of`, such as
            `batch_size` and `devices`.

    Raises:
        ValueError: `params` is None and the model has no parameters.
    """

    def __init__(self, model: Any, params: Any, aux: Any, **options: Any) -> None:
        check_entry("jfit.score or jfit.predict", several=True)
        model, params, aux = split_trained(model, params, aux)
        names = ("loss", "loss_weights", "loss_per_batch", "gather_outputs", "row_axes")
        of_loss = {name: options.pop(name) for name in names if name in options}
        self.model = as_model(model, params=params, aux=aux, predict=True, **of_loss)
        if self.model.module is not None:  # a module contains its values
            params, aux = self.model.module.params, self.model.module.aux
        if params is None:
            raise ValueError("params is missing: the model has no parameter values; pass params=, or a model of jfit.load")
        self.settings = settings_of(self.model, **options)
        self._evaluator = Evaluator(self.model, self.settings)
        self.set_params(params, aux)

    def set_params(self, params: Any, aux: Any) -> None:
        """Replace the parameters and auxiliary states by copies of these; in a job, all processes pass the same."""
        if num_processes() > 1:
            check_same(lambda: {"parameters": digest(params), "auxiliary states": digest(aux)}, "score or predict")
        params, aux = (
            {k: jnp.asarray(v) for k, v in flatten_names(t)[0].items()} for t in (params, {} if aux is None else aux)
        )
        check_unsharded("params", params)
        check_unsharded("aux", aux)
        key = jax.random.key_data(jax.random.key(0))
        state = TrainState(jnp.zeros((), jnp.int32), params, aux, (), (), None, key)
        self._state = place(state, self.settings.devices)
        self._valid_shapes: set[Any] = set()  # input shapes that match the parameters

    def score(self, data: Any, eval_metric: Any = None) -> dict[str, float]:
        """Return loss and metrics over a data set as a dict; arguments as for `jfit.score`."""
        return self._evaluator.score(self._state, self._checked(data), eval_metric)

    def predict(self, data: Any) -> Any:
        """Return the outputs for every row of `data`, as `jfit.predict` does."""
        return self._evaluator.predict(self._state, self._checked(data, labels=False))

    def _checked(self, data: Any, labels: bool = True) -> ArrayData | StreamData:
        """Convert data to `ArrayData` or `StreamData`, and check the parameter shapes against its first batch.

        Raises:
            ValueError: a parameter has another shape than inferred from the data.
        """
        size, net = self.settings.eval_batch_size, self.model.symbol
        converted = data_of(self.model, data, size, labels=labels, label=self.settings.columns)
        if net is None:
            return converted
        shapes = {k: v.shape for k, v in first_batch(self.model, converted, size).items()}
        key = tuple(shapes.items())
        if key in self._valid_shapes:
            return converted
        try:
            input_shapes = {k: v for k, v in shapes.items() if k in net.list_inputs()}
            arguments, _, states = infer_shape(net, partial=True, **input_shapes)
        except GraphError:
            return converted  # the shapes do not fit the graph: running the model raises a clearer error
        _check_shapes(net.list_arguments(), arguments, self._state.params, shapes)
        _check_shapes(net.list_auxiliary_states(), states, self._state.aux, shapes)
        self._valid_shapes.add(key)
        return converted


def _check_shapes(names: Sequence[str], expected: Sequence[Any], values: Mapping[str, Any], shapes: Any) -> None:
    for name, shape in zip(names, expected, strict=True):
        if name in values and shape and 0 not in shape and values[name].shape != shape:
            found = f"{name} has shape {values[name].shape}, expected {shape} for inputs of shapes {shapes}"
            raise ValueError(f"{found}; pass rows, or parameters, of the trained shapes")
