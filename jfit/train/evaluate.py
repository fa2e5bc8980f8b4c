"""A pass over data without learning: score and predict.

Rows that only fill up a batch never count and never come out.  Scoring adds to totals on the device and reads once.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax

from jfit import counters
from jfit.data import ArrayData, Batch, StreamData, prefetch
from jfit.data.batch import pad_rows, rows, wrapped_rows
from jfit.lowering.model import Model, Plan, Policy
from jfit.ops.rows import LOST, RowLayout
from jfit.parallel import compile_spmd, place, place_split, split_batch
from jfit.parallel.placing import rows_joined, rows_of_slices
from jfit.step import eval_step, plan_of, predict_step, unrolls
from jfit.step.state import TrainState
from jfit.step.totals import Totals, joined, sized_for, values, zero_totals
from jfit.train.feed import fits_on_device, unpaddable_sentence
from jfit.train.host_metrics import HostPass, on_devices, on_host, seen_of

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
        host = HostPass(self.host, len(self.devices)) if self.host else None
        totals = place(zero_totals(self.metrics), self.devices)
        batches = _batches(self.model, data, self.batch_size, len(self.devices), epoch, weights=True)
        for number, (batch, _) in enumerate(batches):
            told = self._program(state.params, state.aux, totals, batch, np.int32(number))
            totals = told if host is None else host.take(told)
            if host is not None and number % IN_FLIGHT == IN_FLIGHT - 1:
                host.add(counters.read(host.due(IN_FLIGHT)))  # sync: batches that are done; as many are still in flight
            elif host is None and number % (2 * IN_FLIGHT) == 2 * IN_FLIGHT - 1:
                counters.wait(totals.loss)  # sync: bounds the batches in flight
        if host is None:
            return values(self.metrics, counters.read(totals))
        totals, arrived = counters.read((totals, host.due(0)))  # sync: the end of the pass
        host.add(arrived)
        return joined(values(self.metrics, totals), host.values())

    def _make(self, data: ArrayData | StreamData) -> None:
        if self._program is not None:
            return
        axes = self.model.batch_axes
        if isinstance(data, ArrayData):
            first = {k: np.moveaxis(v[: self.batch_size], 0, axes.get(k, 0)) for k, v in data.arrays.items()}
        else:
            first = dict(data.peek(0).inputs) if any(m.sized for m in self.metrics) else {}
        self.metrics = sized_for(self.metrics, self.model, first)
        axes, out = (None, None, None, 0, None), (None, 0) if self.host else None
        step = self._watched() if self.host else self.step
        self._program = compile_spmd(step, self.devices, axes, out, donate=(2,), name="eval")

    def _watched(self) -> Callable[..., Any]:
        one = eval_step(self.model, metrics=self.metrics, policy=self.policy, outputs=True)

        def step(params: Any, aux: Any, totals: Totals, batch: Batch, number: Any, *, axis_name: str | None = None) -> Any:
            totals, outputs = one(params, aux, totals, batch, number, axis_name=axis_name)
            return totals, seen_of(self.model, outputs, batch, axis_name)

        return step


class ResidentScorer:
    """A Scorer for data that is scored again and again: it stays on the devices, one program serves full and short batches."""

    def __init__(self, scorer: Scorer, data: ArrayData) -> None:
        self.scorer, count, size, n = scorer, len(scorer.devices), scorer.batch_size, data.num_rows
        slots = -(-size // count) * count  # rows of a padded batch
        self.num_batches = data.num_batches(size)
        number = np.arange(self.num_batches)[:, None] * size + np.arange(slots)[None]  # (batches, slots): row numbers
        real = (number < n) & (np.arange(slots) < size)[None]
        own = np.ones(n, np.float32) if data.weight is None else data.weight
        table, weight = number % n, np.where(real, own[number % n], 0).astype(np.float32)
        if count > 1:
            table, weight = (t.reshape(self.num_batches, count, -1).swapaxes(0, 1) for t in (table, weight))
        self._pack = {
            "arrays": place(dict(data.arrays), scorer.devices),
            "order": place_split(table.astype(np.int32), scorer.devices),
            "weight": place_split(weight, scorer.devices),
        }
        self._one = unrolls(scorer.model)
        program = functools.partial(_score_many, scorer, self._one)  # without self: JAX keeps programs, not the data
        axes = (None, None, None, {"arrays": None, "order": 0, "weight": 0}, None, None)
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
    scorer: Scorer, once: bool, params: Any, aux: Any, totals: Totals, pack: Any, first: Any, count: Any, axis_name: str | None
) -> Totals:
    """Totals of `count` batches of resident data from batch `first` on."""

    def one(j: Any, totals: Totals) -> Totals:
        slots = pack["order"][first + j]  # (slots per device,)
        take = lambda x: x.at[slots].get(mode="promise_in_bounds")  # noqa: E731
        axes = scorer.model.batch_axes
        inputs = {k: jax.numpy.moveaxis(take(v), 0, axes.get(k, 0)) for k, v in pack["arrays"].items()}
        weight = pack["weight"][first + j]
        return scorer.step(params, aux, totals, Batch(inputs, weight, weight), first + j, axis_name=axis_name)

    return one(0, totals) if once else lax.fori_loop(0, count, one, totals)


def make_evaluate(
    scorer: Scorer, data: ArrayData | StreamData, *, paddable: bool, on_device: bool | str = "auto", held: int = 0
) -> Callable[[TrainState, int], Mapping[str, float]]:
    """`(state, epoch) -> logs` for the same data every epoch; it stays on the devices where it fits beside `held` bytes."""
    fits = fits_on_device(data, scorer.devices, held) if on_device == "auto" else bool(on_device)
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
        batches = _batches(self.model, data, self.batch_size, len(self.devices), 0, weights=False)
        for number, (batch, count) in enumerate(batches):
            waiting.append((self._program(state.params, state.aux, batch, np.int32(number)), count, batch))
            if len(waiting) == IN_FLIGHT:
                yield self._pieces(*waiting.popleft())
        while waiting:
            yield self._pieces(*waiting.popleft())

    def _pieces(self, outputs: Any, count: int, batch: Batch) -> list[_Piece]:
        split = len(self.devices) > 1
        inputs = {k: v[0] if split else v for k, v in batch.inputs.items()}
        plan = self._plan({k: v for k, v in inputs.items() if k in self.model.evaluated})
        size = rows(Batch(inputs), self.model.batch_axes)
        found = []
        for out, where in zip(counters.read(outputs), plan.rows, strict=True):
            if isinstance(where, RowLayout):
                whole = rows_of_slices(out if split else out[None], where)
                found.append(_Piece(whole.take(np.arange(count), axis=where.axis + 1), where.axis))
            elif where is LOST and (split or count != size):
                raise ValueError(
                    "predict: an output mixes the rows of its batch, so padded rows cannot be cut off; "
                    "predict on one device with a batch size that divides the data"
                )
            else:
                found.append(_Piece(out[0] if split else out, None))
        return found

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
    return rows_joined(np.concatenate([p.array for p in pieces], axis=axis + 1), axis)


def _batches(
    model: Model, data: Any, batch_size: int, devices: int, epoch: int, *, weights: bool
) -> Iterator[tuple[Batch, int]]:
    """(batch for the devices, real rows): every batch padded to one size, weights always present when asked for."""
    axes, largest = model.batch_axes, [batch_size if isinstance(data, ArrayData) else 0]
    paddable: list[bool] = []
    told: list[bool] = []  # whether the rows of all outputs are known

    def prepare(batch: Batch) -> tuple[Batch, int]:
        if isinstance(data, ArrayData):
            batch = batch._replace(inputs={k: np.moveaxis(v, 0, axes.get(k, 0)) for k, v in batch.inputs.items()})
        wrapped = 0 if weights else wrapped_rows(batch)
        if not weights:
            batch = Batch({k: v for k, v in batch.inputs.items() if k in model.evaluated})
        count = rows(batch, axes)
        if not paddable:
            plan = plan_of(model, batch.inputs)
            paddable.append(plan.paddable)
            told.append(LOST not in plan.rows)
        if not paddable[0]:  # a short batch runs in its own shape
            if count % devices:
                raise ValueError(unpaddable_sentence(count, devices))
            return split_batch(batch, devices, axes), count
        largest[0] = max(largest[0], count)
        own = batch.metric_weight if batch.metric_weight is not None else batch.weight
        own = np.ones(count, np.float32) if own is None else np.asarray(own, np.float32)
        batch = Batch(batch.inputs, own, own) if weights else Batch(batch.inputs)
        if count < largest[0]:
            batch = pad_rows(batch, largest[0], axes)
        batch = split_batch(batch, devices, axes)
        return (batch if weights else Batch(batch.inputs)), count - wrapped * told[0]

    source = _unshuffled(data, batch_size) if isinstance(data, ArrayData) else data.batches(epoch)
    with prefetch(source, size=2, transform=prepare) as stream:
        yield from stream


def _unshuffled(data: ArrayData, batch_size: int) -> Iterator[Batch]:
    for low in range(0, data.num_rows, batch_size):
        yield data.take(slice(low, low + batch_size))
