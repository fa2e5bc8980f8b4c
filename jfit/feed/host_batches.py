"""`HostBatches`: batches that a background thread prepares on the host, of streams and of arrays not on the devices."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from jfit.data import ArrayData, Batch, StreamData, prefetch
from jfit.data.batch import on_host, pad_rows, rows, wrapped_rows
from jfit.data.prefetch import Patience, Prefetch
from jfit.data.valid import check_values, valid_indices
from jfit.distributed import rank
from jfit.feed.batch_sizes import BatchSizes, announce_size, announce_varying, depends_on_parts, multiple, unpaddable_message
from jfit.feed.batches import to_batch_axes
from jfit.feed.job_batches import StreamAgreement, StreamBatch, copied, fewer_message
from jfit.lowering.coupling import warn_per_device
from jfit.lowering.lookups import Lookup
from jfit.lowering.model import Model, Plan, plan_of
from jfit.ops.rows import LOST
from jfit.parallel import split_batch
from jfit.step.batch_check import BatchLabels


class HostBatches:
    """Batches prepared on the host by a background thread: padded, and split over the devices.

    Args:
        model: the model that the batches are for; it determines the batch axis of each input.
        data: arrays, or a stream of batches.
        devices: number of devices.
        batch_size: number of rows per batch of arrays; a stream determines its own batch sizes.
        micro_batches: number of equal parts into which each device splits its rows of a batch.
        paddable: whether incomplete batches may be padded with rows of weight 0.  None: as `Model.plan` determines for the
            first batch in evaluation mode (False for models whose outputs mix the rows of a batch).
        reason: why they may not, see `Plan.coupled`.
        values: (parameters, auxiliary states) for a test of the first batch, see `jfit.lowering.model.verified_plan`.
        weights: None (training): batches keep their row weights.  True (scoring): every batch gets row weights, its metric
            weights.  False (prediction): weights and labels are removed, and the numbers of rows that `read` yields exclude
            rows with which a data iterator filled its last batch.
        plans: plans as in `kept_plan`, to which new ones are added; None: none yet.
        sizes: the sizes of earlier batches that the same programs computed, see `jfit.feed.batch_sizes`; None: none.
        own: in a job of several processes, the slices of the devices of this process (`own_slices_of`), the only ones that
            `read` yields; see `jfit.feed.job_batches`.  None: one process has all devices.

    Attributes:
        sizes: as the argument, with the batches prepared so far.
    """

    def __init__(
        self,
        model: Model,
        data: ArrayData | StreamData,
        devices: int,
        batch_size: int,
        *,
        micro_batches: int = 1,
        paddable: bool | None = None,
        reason: str = "",
        values: tuple[Any, Any] | None = None,
        weights: bool | None = None,
        plans: dict[Any, Plan] | None = None,
        sizes: BatchSizes | None = None,
        own: slice | None = None,
    ) -> None:
        self.plans = {} if plans is None else plans
        self.model, self.data, self.devices, self.batch_size = model, data, devices, batch_size
        self.micro_batches, self.paddable, self.weights = micro_batches, paddable, weights
        self.reason, self.values, self._announced, self._own = reason, values, False, own
        self._agreement: StreamAgreement | None = None  # of the last `read` of a stream in a job
        self._slices = devices if own is None else own.stop - own.start
        # Of arrays, the rows of the global batch are known; of streams, those of this process are.
        self._unit = micro_batches * (devices if isinstance(data, ArrayData) else self._slices)
        self.weighted = False  # whether a batch of a stream had row weights
        self._largest = batch_size if isinstance(data, ArrayData) else 0  # number of rows to which batches are padded
        # `fit` has checked all rows of arrays in memory; others, and those of predictions (`weights`), are checked by batch
        checked = isinstance(data, ArrayData) and not data.mapped and weights is None
        self._labels = BatchLabels(model) if weights is not False and not checked else None
        self._thread: threading.Thread | None = None  # that of the last `read`
        self.busy: Callable[[], bool] | None = None  # whether the devices still compute, see `Patience`
        self._position = (0, 0)  # epoch and number of the batch that is prepared next
        self._rows_separable = False  # whether padding rows can be removed from the outputs
        self._lookups: tuple[Lookup, ...] = ()  # inputs of predictions that are row indices of tables
        self.sizes = BatchSizes() if sizes is None else sizes
        self._changes: list[tuple[tuple[int, int], BatchSizes]] = []  # (position, sizes) after a batch that changed `sizes`

    def read(
        self, epoch: int = 0, start: int = 0, *, in_order: bool = False, ahead: int = 2, most: int | None = None
    ) -> Prefetch:
        """Return a context manager over an iterator of (batch split over the devices, number of rows without padding).

        Args:
            epoch: number of the epoch.
            start: number of the first batch.
            in_order: whether to read arrays unshuffled, from the first row to the last.
            ahead: number of batches to prepare in advance.
            most: number of batches of a stream after which training ends; later ones stay in it.  None: no limit.
        """
        data, own_seconds = self.data, None
        if isinstance(data, ArrayData):
            source: Any = self._pieces(data, epoch, start, in_order)
        else:
            source = itertools.islice(data.batches(epoch, start=start), most)
            if self._own is not None:
                self._agreement = StreamAgreement(self.model.batch_axes, self._use)
                source = self._agreement.batches(source)
                own_seconds = self._agreement.own_seconds  # a late process is not reported by the others
        patience = Patience(lambda number: data.described(number + start, epoch), data.timeout, own_seconds)
        patience.busy = self.busy
        source = self._from((epoch, start), source, self._thread)
        stream = prefetch(source, size=ahead, transform=self._prepare, patience=patience)
        self._thread = stream.thread
        return stream

    def _from(self, position: tuple[int, int], source: Iterable[Batch], thread: threading.Thread | None) -> Iterator[Batch]:
        """Yield the batches of a source once an earlier thread has ended, which may still read from it after Ctrl-C."""
        if thread is not None:
            thread.join()
        if self.weights is None:  # training goes on at a position: the sizes are those of the batches before it
            self.continue_with(self.sizes_at(*position))
        self._position = position
        yield from source

    def sizes_at(self, epoch: int, batch: int) -> BatchSizes:
        """Return `sizes` as of the batches before a position in training, without those that were prepared ahead."""
        return next((sizes for position, sizes in reversed(self._changes) if position < (epoch, batch)), BatchSizes())

    def continue_with(self, sizes: BatchSizes) -> None:
        """Replace `sizes` by those of the batches before the one that is prepared next."""
        self.sizes, self._changes = sizes, [((-1, 0), sizes)]
        if isinstance(self.data, StreamData):
            self._largest = sizes.largest

    @property
    def _use(self) -> str:
        """What the batches are for."""
        return {None: "training", True: "scoring", False: "prediction"}[self.weights]

    def whole(self) -> tuple[Batch, int]:
        """Return all rows of an `ArrayData` as one batch, in the form that `read` yields; no background thread prepares it."""
        assert isinstance(self.data, ArrayData)
        return self._prepare((self.data.take, slice(0, self.data.num_rows)))

    def _pieces(self, data: ArrayData, epoch: int, start: int, in_order: bool) -> Iterator[Any]:
        """Yield (function that reads rows, positions of the rows of a global batch)."""
        read = data.reader(None if in_order else epoch)
        end = data.num_rows if in_order else data.epoch_rows(self.batch_size)
        for low in range(start * self.batch_size, end, self.batch_size):
            yield read, slice(low, min(low + self.batch_size, end))

    def _prepare(self, item: Any) -> tuple[Batch, int]:
        """Prepare what the source of `read` yields: (batch split over the devices, number of rows without padding)."""
        epoch, number = position = self._position
        self._position = epoch, number + 1
        batch, count = (self._of_arrays if isinstance(self.data, ArrayData) else self._of_stream)(item, position)
        every = None if self._own is None else slice(None)  # in a job, arrays have an axis of devices also for one device
        batch = split_batch(batch, self._slices, self.model.batch_axes, self.micro_batches, own=every)
        return Batch(batch.inputs) if self.weights is False else batch, count  # predictions need no weights of padding rows

    def _of_arrays(self, item: Any, position: tuple[int, int]) -> tuple[Batch, int]:
        """Read the rows of this process of a global batch, which is padded by row number."""
        read, wanted = item
        if self.paddable is None:  # decided from the global batch, so that all processes decide alike
            self._read_plan(self._used(to_batch_axes(read(wanted).inputs, self.model)))
        count, own = wanted.stop - wanted.start, self._own or slice(0, self.devices)
        self._check_size(count, position)
        size = self._largest if self.paddable else count
        rows, counted = own_positions(count, size, self._unit, self.devices, own)
        if isinstance(rows, slice):
            rows = slice(wanted.start + rows.start, wanted.start + rows.stop)
        else:
            rows = wanted.start + rows
        inputs, weight, _ = read(rows)
        if (self.weights and self.paddable) or weight is not None or size > count or count % self._unit:
            weight = counted.astype(np.float32) * (1 if weight is None else weight)
        batch = Batch(to_batch_axes(inputs, self.model), weight, weight)
        return self._checked(batch, position, "" if self._own is None else f", in the rows of rank {rank()}"), count

    def _of_stream(self, item: Any, position: tuple[int, int]) -> tuple[Batch, int]:
        """Pad a batch of a stream, or in a job what `StreamAgreement` makes of it."""
        axes, part = self.model.batch_axes, item
        if self._own is None:
            count = rows(item, axes)
            part = StreamBatch(copied(item), count, count, wrapped_rows(item) if self.weights is False else 0)
        batch = part.batch
        self.weighted |= batch.weight is not None or batch.metric_weight is not None
        batch, count = self._checked(batch, position), rows(batch, axes)
        if part.padded is not None and not self.paddable:
            raise ValueError(fewer_message(part, count, self.reason))
        self._check_size(count, position)
        if self.paddable:
            batch = self._padded(batch, count)
        return batch, part.count if self.weights is not False else part.own - part.filled * self._rows_separable

    def _used(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The inputs that the model reads: predictions need no labels."""
        return {k: v for k, v in inputs.items() if self.weights is not False or k in self.model.evaluation_inputs}

    def _checked(self, batch: Batch, position: tuple[int, int], more: str = "") -> Batch:
        """Check labels and row indices, decide about padding with the first batch, and remove what predictions do not need."""
        epoch, number = position
        if self._labels is not None:
            self._labels.check(batch, f"batch {number} of epoch {epoch}{more}")
        if self.weights is False:
            batch = Batch(self._used(batch.inputs))
        if self.paddable is None:
            self._read_plan(batch.inputs)
        for lookup in self._lookups:  # of predictions: the others check indices with the labels
            if (indices := on_host(batch.inputs.get(lookup.name))) is not None:
                rows_first = np.moveaxis(indices, self.model.batch_axes.get(lookup.name, 0) or 0, 0)
                check_values(rows_first, valid_indices(lookup), f"predict: batch {number}: ")
        return batch

    def _check_size(self, count: int, position: tuple[int, int]) -> None:
        """Check that a batch of `count` rows can be split into equal parts, and note its size."""
        unit = self._unit
        if not self.paddable and count % unit:
            raise ValueError(unpaddable_message(count, unit, self.reason))
        if not (self.paddable and isinstance(self.data, ArrayData)):  # those are padded to the batch size
            self._note_size(multiple(count, unit), position)
        if not self.paddable and self.weights is None and self._largest not in (0, count) and not self._announced:
            announce_size(self.model, count, self._largest, self.reason)
            self._announced = True
        self._largest = max(self._largest, count)

    @functools.cached_property
    def _to_few_sizes(self) -> bool:
        """Whether batches of ever-changing size may be padded to few sizes; those of arrays have one size already."""
        if not (self.paddable and isinstance(self.data, StreamData)):
            return False
        if self.weights is not None:
            return self.weights or self._rows_separable
        return not depends_on_parts(self.model, self.devices * self.micro_batches, self.reason)

    def _note_size(self, count: int, position: tuple[int, int]) -> None:
        sizes = self.sizes.add(count)
        if sizes == self.sizes:
            return
        if sizes.varies and not self.sizes.varies and (self._to_few_sizes or not self.paddable):
            announce_varying(sizes, self._use, None if self.paddable else self.reason)
        self.sizes = sizes
        self._changes.append((position, sizes))

    def _padded(self, batch: Batch, count: int) -> Batch:
        size, real = max(count, self._largest), None
        if self.weights:  # scores weight rows as metrics do, also in full batches
            batch, real = Batch(batch.inputs, batch.weight if batch.metric_weight is None else batch.metric_weight), count
        if self.sizes.varies and self._to_few_sizes:
            size = self.sizes.padded(count, self._unit)
            # with row weights, also if all are 1, because one program is enough for full and for padded batches of this size
            real = real if count == size and self.sizes.ran_without_weights(count) else count
            batch = batch if count == size else on_host(batch, "cpu")
        return pad_rows(batch, size, self.model.batch_axes, real)

    def _read_plan(self, inputs: Mapping[str, Any]) -> None:
        if self.values is not None and self.model.verify is not None:
            self.model.verify(*self.values, inputs)  # decides once per shape of a row, so that plans stay valid
        plan = kept_plan(self.plans, self.model, inputs).in_evaluation
        self._lookups = plan.lookups if self.weights is False else ()
        if self._agreement is not None:
            plan = self._agreement.agree_on_plan(plan)
        self.paddable, self.reason, self._rows_separable = plan.paddable, plan.coupled, LOST not in plan.rows
        if plan.coupled or plan.of_loss:
            warn_per_device(plan, self.devices)


def own_positions(count: int, size: int, unit: int, devices: int, own: slice) -> tuple[np.ndarray | slice, np.ndarray]:
    """Choose the rows of the devices of this process from a global batch of arrays, padded as one process would pad it.

    Every process of a job has the same arrays.

    Args:
        count: number of rows of the global batch.
        size: number of rows to which the batch is padded; padding rows repeat the batch.
        unit: number by which the number of rows is then made divisible.
        devices: number of devices of all processes.
        own: positions of the devices of this process.

    Returns:
        (positions of the rows in the batch, a slice if none is padding; whether each row is no padding, bool).

    Example:
        >>> own_positions(3, 4, 4, 4, slice(2, 4))
        (array([2, 0]), array([ True, False]))
    """
    each = -(-size // unit) * unit // devices
    positions = np.arange(own.start * each, own.stop * each)
    counted = positions < count
    return slice(own.start * each, own.stop * each) if counted.all() else positions % size % count, counted


def kept_plan(plans: dict[Any, Plan], model: Model, inputs: Mapping[str, Any]) -> Plan:
    """Return the plan of a model from `plans`, to which a new one is added: a `plan_of` for each batch would take longer."""
    key = tuple((k, v.shape, v.dtype) for k, v in inputs.items())
    if key not in plans:
        plans[key] = plan_of(model, dict(inputs))
    return plans[key]
