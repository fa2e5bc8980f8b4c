"""`HostBatches`: batches that a background thread prepares on the host, of streams and of arrays not on the devices."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from jfit.data import ArrayData, Batch, StreamData, prefetch
from jfit.data.batch import pad_rows, rows, wrapped_rows
from jfit.data.prefetch import Patience
from jfit.distributed import rank
from jfit.feed.batch_sizes import (
    BatchSizes,
    announce_size,
    announce_varying,
    depends_on_parts,
    pad_to_few,
    unpaddable_message,
)
from jfit.feed.batches import to_batch_axes
from jfit.feed.job_batches import Agreed, StreamAgreement, fewer_message, global_batches, on_host, own_batch, own_rows
from jfit.feed.labels import BatchLabels, check_indices
from jfit.lowering.coupling import warn_per_device
from jfit.lowering.lookups import Lookup
from jfit.lowering.model import Model, Plan, plan_of
from jfit.ops.rows import LOST
from jfit.parallel import split_batch


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
        values: (parameters, auxiliary states) for a test of the first batch, see `jfit.lowering.coupling.verified_plan`.
        weights: None (training): batches keep their row weights.  True (scoring): every batch gets row weights, its metric
            weights.  False (prediction): weights and labels are removed, and the numbers of rows that `read` yields exclude
            rows with which a data iterator filled its last batch.
        plans: plans by `plan_key`, to which new ones are added; None: none yet.
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
        # Of arrays, all slices have a number of rows that is agreed already; of streams, those of this process have.
        self._slices = devices if own is None or isinstance(data, ArrayData) else own.stop - own.start
        self.weighted = False  # whether a batch of a stream had row weights
        self._largest = batch_size if isinstance(data, ArrayData) else 0  # number of rows to which batches are padded
        self._labels = BatchLabels(model) if self._checks_labels() else None
        self._thread: threading.Thread | None = None  # that of the last `read`
        self._position = (0, 0)  # epoch and number of the batch that is prepared next
        self._rows_separable = False  # whether padding rows can be removed from the outputs
        self._lookups: tuple[Lookup, ...] = ()  # inputs of predictions that are row indices of tables
        self.sizes = BatchSizes() if sizes is None else sizes
        self._changes: list[tuple[tuple[int, int], BatchSizes]] = []  # (position, sizes) after a batch that changed `sizes`

    def _checks_labels(self) -> bool:
        # `fit` has checked all rows of arrays in memory; others, and those of predictions (`weights`), are checked by batch
        checked = isinstance(self.data, ArrayData) and not self.data.mapped and self.weights is None
        return self.weights is not False and not checked

    def read(
        self, epoch: int = 0, start: int = 0, *, in_order: bool = False, ahead: int = 2
    ) -> AbstractContextManager[Iterator[tuple[Batch, int]]]:
        """Return a context manager over an iterator of (batch split over the devices, number of rows without padding).

        Args:
            epoch: number of the epoch.
            start: number of the first batch.
            in_order: whether to read arrays unshuffled, from the first row to the last.
            ahead: number of batches to prepare in advance.
        """
        if in_order and isinstance(self.data, ArrayData):
            source = _sequential(self.data, self.batch_size)
        else:
            source = self.data.batches(epoch, self.batch_size, start)
        data = self.data
        if self._own is not None and isinstance(data, ArrayData):
            source: Any = global_batches(data, epoch, self.batch_size, start, in_order)
        elif self._own is not None:
            self._agreement = StreamAgreement(self.model.batch_axes, self._use)
            source = self._agreement.batches(source)

        def what(number: int) -> str:
            number += start
            return data.described(number, epoch) if isinstance(data, StreamData) else f"batch {number} of epoch {epoch}"

        agreement = None if isinstance(data, ArrayData) else self._agreement
        own_seconds = None if agreement is None else agreement.own_seconds  # a late process is not reported by the others
        patience = Patience(what, data.timeout if isinstance(data, StreamData) else None, own_seconds)
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
        every = slice(0, self.data.num_rows)
        return self._prepare(self.data.take(every) if self._own is None else every)

    def _prepare(self, item: Any) -> tuple[Batch, int]:
        """Prepare what the source of `read` yields: a batch; in a job, row indices of arrays, or a batch that is `Agreed`."""
        epoch, number = self._position
        self._position = epoch, number + 1
        if self._own is None:
            return self._prepared(item, epoch, number)
        if isinstance(item, Agreed):
            return self._prepared(on_host(item.batch), epoch, number, item)
        return self._own_rows(item, epoch, number)

    def _own_rows(self, wanted: Any, epoch: int, number: int) -> tuple[Batch, int]:
        """Prepare the rows of this process of a global batch of arrays, as `_prepared` would prepare the global batch."""
        assert isinstance(self.data, ArrayData) and self._own is not None
        if self.paddable is None:  # decided from the global batch, so that all processes decide alike
            probe = self.data.take(wanted)
            self._read_plan(Batch(to_batch_axes(probe.inputs, self.model)))
        count = wanted.stop - wanted.start if isinstance(wanted, slice) else len(wanted)
        unit = self.devices * self.micro_batches
        self._check_size(count, unit, (epoch, number))
        size = self._largest if self.paddable else count
        batch = own_batch(
            self.data, own_rows(wanted, size, unit, self.devices, self._own), bool(self.weights and self.paddable)
        )
        batch = batch._replace(inputs=to_batch_axes(batch.inputs, self.model))
        if self._labels is not None:
            self._labels.check(batch, f"batch {number} of epoch {epoch}, in the rows of rank {rank()}")
        if self.weights is False:
            batch = Batch({k: v for k, v in batch.inputs.items() if k in self.model.evaluation_inputs})
        each = slice(None)
        return split_batch(batch, self._own.stop - self._own.start, self.model.batch_axes, self.micro_batches, own=each), count

    def _check_size(self, count: int, unit: int, position: tuple[int, int]) -> None:
        """Check that a batch of `count` rows can be split into `unit` parts, and note its size."""
        if not self.paddable and count % unit:
            raise ValueError(unpaddable_message(count, unit, self.reason))
        self._note_size(-(-count // unit) * unit, position)
        if not self.paddable and self.weights is None and self._largest not in (0, count) and not self._announced:
            announce_size(self.model, count, self._largest, self.reason)
            self._announced = True
        self._largest = max(self._largest, count)

    def _prepared(self, batch: Batch, epoch: int, number: int, agreed: Agreed | None = None) -> tuple[Batch, int]:
        axes, unit = self.model.batch_axes, self._slices * self.micro_batches
        if isinstance(self.data, ArrayData):
            batch = batch._replace(inputs=to_batch_axes(batch.inputs, self.model))
        else:  # copy the batch, because the iterator may write the next one into the same buffers
            batch = Batch({k: _copy(v) for k, v in batch.inputs.items()}, *(_copy(w) for w in batch[1:]))
            self.weighted |= batch.weight is not None or batch.metric_weight is not None
        if self._labels is not None:
            self._labels.check(batch, f"batch {number} of epoch {epoch}")
        filled = 0
        if self.weights is False:
            filled = wrapped_rows(batch) if agreed is None else agreed.filled
            batch = Batch({k: v for k, v in batch.inputs.items() if k in self.model.evaluation_inputs})
        if self.paddable is None:
            self._read_plan(batch)
        for lookup in self._lookups:  # of predictions: the others check indices with the labels
            if isinstance(indices := batch.inputs.get(lookup.name), np.ndarray):
                check_indices(np.moveaxis(indices, axes.get(lookup.name, 0), 0), lookup, f"predict: batch {number}: ")
        count = rows(batch, axes)
        if agreed is not None and agreed.padded is not None and not self.paddable:
            raise ValueError(fewer_message(agreed, count, self.reason))
        self._check_size(count, unit, (epoch, number))
        if self.paddable:
            if self.weights:
                batch = _with_weights(batch, count)
            batch = self._padded(batch, count)
        every = None if agreed is None else slice(None)  # in a job, arrays have an axis of devices also for one device
        batch = split_batch(batch, self._slices, axes, self.micro_batches, own=every)
        if self.weights is False:
            batch, count = Batch(batch.inputs), count if agreed is None else agreed.own
        elif agreed is not None:
            count = agreed.count
        return batch, count - filled * self._rows_separable

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
        if sizes == self.sizes or (self.paddable and isinstance(self.data, ArrayData)):
            return
        if sizes.varies and not self.sizes.varies and (self._to_few_sizes or not self.paddable):
            announce_varying(sizes, self._use, None if self.paddable else self.reason)
        self.sizes = sizes
        self._changes.append((position, sizes))

    def _padded(self, batch: Batch, count: int) -> Batch:
        axes = self.model.batch_axes
        if not (self.sizes.varies and self._to_few_sizes):
            return pad_rows(batch, self._largest, axes) if count < self._largest else batch
        return pad_to_few(batch, self.sizes, self._slices * self.micro_batches, axes)

    def _read_plan(self, batch: Batch) -> None:
        if self.values is not None and self.model.verify is not None:
            self.model.verify(*self.values, batch.inputs)  # decides once per shape of a row, so that plans stay valid
        key = plan_key(batch.inputs)
        if key not in self.plans:
            self.plans[key] = plan_of(self.model, batch.inputs)
        plan = self.plans[key].in_evaluation
        self._lookups = plan.lookups if self.weights is False else ()
        if self._agreement is not None:
            plan = self._agreement.agree_on_plan(plan)
        self.paddable, self.reason, self._rows_separable = plan.paddable, plan.coupled, LOST not in plan.rows
        warn_per_device(plan, self.devices)


def plan_key(inputs: Mapping[str, Any]) -> Any:
    """Key of `HostBatches.plans`: names, shapes and dtypes of the inputs."""
    return tuple((k, v.shape, v.dtype) for k, v in inputs.items())


def _with_weights(batch: Batch, count: int) -> Batch:
    weight = batch.metric_weight if batch.metric_weight is not None else batch.weight
    weight = np.ones(count, np.float32) if weight is None else np.asarray(weight, np.float32)
    return Batch(batch.inputs, weight, weight)


def _sequential(data: ArrayData, batch_size: int) -> Iterator[Batch]:
    for low in range(0, data.num_rows, batch_size):
        yield data.take(slice(low, low + batch_size))


def _copy(x: Any) -> Any:
    return np.array(x) if isinstance(x, np.ndarray) else x
