"""Settings of a run, and the two sources of batches for training, scoring and prediction.

`DeviceBatches` keeps whole arrays on the devices; compiled programs gather each batch there by row indices.  `HostBatches`
prepares batches on the host in a background thread.  Both split every batch into one slice per device and pad incomplete
batches with rows of weight 0, so that all batches have one shape.  Models whose outputs mix the rows of a batch cannot be
padded: their incomplete batches keep their size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jfit.data import ArrayData, Batch, StreamData, as_data, prefetch
from jfit.data.batch import pad_rows, rows, wrapped_rows
from jfit.lowering.model import Model, Policy, plan_of
from jfit.metrics import get as get_metrics
from jfit.ops.rows import LOST
from jfit.parallel import place, place_split, split_batch
from jfit.parallel.devices import Device, resolve

RESIDENT_SHARE = 0.3  # of an accelerator's memory; the rest is for parameters and activations
RESIDENT_BYTES_CPU = 2 << 30
EPOCH_DATA_AXES = {
    "arrays": None,
    "weight": None,
    "order": 0,
    "numbers": None,
}  # in_axes of `compile_spmd` for a `DeviceBatches.epoch_data`


# ------------------------------------------------------------------------------------------------ settings
@dataclass(frozen=True)
class Settings:
    """The settings of a run, immutable; `dataclasses.replace` makes changed copies.

    Attributes:
        devices: where it computes.
        batch_size: rows of a global batch.
        eval_batch_size: rows of an evaluation batch.
        num_epoch: epochs in all; training stops before the epoch of this number.
        metrics: of training and evaluation.
        policy: mixed precision, or None.
        directory: folder where callbacks write files, or None.
        checkpoint: folder of checkpoints, or None.
    """

    devices: list[Device]
    batch_size: int
    eval_batch_size: int
    num_epoch: int
    metrics: tuple[Any, ...]
    policy: Policy | None
    directory: str | None
    checkpoint: str | None


def settings_of(
    *,
    devices: Any = None,
    batch_size: int = 32,
    eval_batch_size: int | None = None,
    num_epoch: int = 0,
    eval_metric: Any = "acc",
    policy: Any = None,
    directory: str | Path | None = None,
    checkpoint: str | Path | None = None,
) -> Settings:
    """The settings from what a user passes; see `jfit.fit`."""
    return Settings(
        devices=resolve(devices),
        batch_size=batch_size,
        eval_batch_size=eval_batch_size or batch_size,
        num_epoch=num_epoch,
        metrics=resolve_metrics(eval_metric),
        policy=_policy(policy),
        directory=None if directory is None else str(directory),
        checkpoint=None if checkpoint is None else str(checkpoint),
    )


def _policy(policy: Any) -> Policy | None:
    resolved = Policy(policy) if isinstance(policy, str) else policy
    if resolved is None:
        return None
    try:
        if isinstance(resolved, Policy) and jnp.issubdtype(jnp.dtype(resolved.compute), jnp.floating):
            return resolved
    except TypeError:
        pass  # no dtype at all
    raise ValueError(f'policy is {policy!r}; needed a floating dtype such as "bfloat16", or a jfit.Policy')


def resolve_metrics(spec: Any) -> tuple[Any, ...]:
    """Metrics from a name, a Metric, a function `(label, output)` of numpy arrays, or a list of them; None for none.

    Raises:
        ValueError: an unknown name (nearest names listed), or a function where several processes share the outputs.
    """
    metrics = () if spec is None else get_metrics(spec)
    on_host = [m.name for m in metrics if m.host]
    if on_host and jax.process_count() > 1:
        raise ValueError(
            f"metric {on_host[0]!r} runs on the host, but each of the {jax.process_count()} processes holds only its own "
            "outputs; write it as a jfit.metrics.Metric of jax functions"
        )
    return metrics


# ------------------------------------------------------------------------------------------------ data
def data_of(
    model: Model, data: Any, batch_size: int, *, shuffle: bool = False, seed: int = 0, labels: bool = True
) -> ArrayData | StreamData:
    """Data by the model's input names; begin states may be left out, and with labels=False the labels too."""
    given = set(data) if isinstance(data, Mapping) else set()
    return as_data(
        data,
        batch_size=batch_size,
        input_names=[n for n in model.inputs if n not in model.optional or n in given],
        label_names=model.labels,
        shuffle=shuffle,
        seed=seed,
        require_labels=labels,
        axes=model.batch_axes,
    )


def first_batch(model: Model, data: ArrayData | StreamData, batch_size: int) -> dict[str, Any]:
    """The inputs of the first batch as the model sees them."""
    if isinstance(data, ArrayData):
        return _in_model_axes({k: v[:batch_size] for k, v in data.arrays.items()}, model)
    return dict(data.peek(0).inputs)


def fits_on_device(data: Any, devices: Sequence[Any], resident: int = 0) -> bool:
    """True where the arrays are small enough to stay on every device beside `resident` bytes that are there already."""
    if not isinstance(data, ArrayData):
        return False
    stats = devices[0].memory_stats() if devices[0].platform != "cpu" else None
    limit = RESIDENT_SHARE * stats["bytes_limit"] if stats else RESIDENT_BYTES_CPU / len(devices)
    return data.nbytes + resident <= limit


# ------------------------------------------------------------------------------------------------ on the devices
def place_order(order: np.ndarray, devices: Sequence[Any]) -> Array:
    """Row numbers (batches, slots) on the devices; on several each has the slots of its slice."""
    if len(devices) > 1:
        order = order.reshape(len(order), len(devices), -1).swapaxes(0, 1)
    return place_split(order, devices)


def take_rows(array: Array, slots: Array) -> Array:
    """Rows of an array that has them on axis 0, by number, inside a program."""
    return array.at[slots].get(mode="promise_in_bounds")


def gather(arrays: Mapping[str, Array], slots: Array, axes: Mapping[str, int]) -> dict[str, Array]:
    """Inputs of a model, which may want its rows on another axis, from arrays that have them on axis 0."""
    return {k: jnp.moveaxis(take_rows(v, slots), 0, axes.get(k, 0)) for k, v in arrays.items()}


class BatchLayout(NamedTuple):
    """How resident data is divided into batches.

    Programs close over this and take the data as arguments: JAX caches programs, and data they close over is never freed.

    Attributes:
        model: the model.
        devices: number of devices.
        batch_size: rows of a batch.
        slots: rows of a padded batch.
        last_size: rows of the last batch, at most `batch_size`.
        num_batches: batches of a pass.
        paddable: short batches may be padded; else they run in their own size.
    """

    model: Model
    devices: int
    batch_size: int
    slots: int
    last_size: int
    num_batches: int
    paddable: bool

    @property
    def num_full(self) -> int:
        """Batches of `batch_size` rows."""
        return self.num_batches - (self.last_size != self.batch_size)

    def batch(self, epoch_data: Mapping[str, Any], at: Any, axis_name: str | None, *, tail: bool | None = False) -> Batch:
        """Batch `at` of a pass, gathered inside a program from what `DeviceBatches.epoch_data` gives.

        Args:
            epoch_data: the arrays and their order.
            at: number of the batch, traced.
            axis_name: name of the device axis.
            tail: True for the short last batch, False for a full one; None where only the program knows, so that every batch
                has weights.
        """
        slots = epoch_data["order"][at]  # (slots per device,)
        if tail and not self.paddable:
            slots = slots[: self.last_size // self.devices]
        inputs, weight = gather(epoch_data["arrays"], slots, self.model.batch_axes), None
        if tail is None or self.slots != self.batch_size or (tail and self.paddable):
            device = 0 if axis_name is None else lax.axis_index(axis_name)
            number = device * len(slots) + jnp.arange(len(slots))
            last = at == self.num_batches - 1 if tail is None else int(tail)
            weight = (number < epoch_data["numbers"][1 + last]).astype(jnp.float32)
        if epoch_data["weight"] is not None:
            given = take_rows(epoch_data["weight"], slots)
            weight = given if weight is None else weight * given
        return Batch(inputs, weight, weight)


class DeviceBatches:
    """Arrays that stay on the devices.

    Args:
        model: the model.
        data: the arrays, rows on axis 0.
        devices: where they are kept, all of them on each.
        batch_size: rows of a global batch.
        micro_batches: number of equal parts that each device's slice is cut into.
        paddable: short batches may be padded.

    Raises:
        ValueError: batches may not be padded, and their rows do not divide by devices * micro_batches.
    """

    def __init__(
        self,
        model: Model,
        data: ArrayData,
        devices: Sequence[Any],
        batch_size: int,
        *,
        micro_batches: int = 1,
        paddable: bool = True,
    ) -> None:
        unit, num_batches = len(devices) * micro_batches, data.num_batches(batch_size)
        slots, tail = -(-batch_size // unit) * unit, data.num_rows - (num_batches - 1) * batch_size
        if not paddable and (slots != batch_size or tail % unit):
            raise ValueError(unpaddable_sentence(batch_size if slots != batch_size else tail, unit))
        self.layout = BatchLayout(model, len(devices), batch_size, slots, tail, num_batches, paddable)
        self.devices = devices
        self.arrays = place(dict(data.arrays), devices)
        self.weight = None if data.weight is None else place(data.weight, devices)

    def epoch_data(self, order: np.ndarray, first: int = 0) -> dict[str, Any]:
        """The arguments of a program that gathers batches.

        Args:
            order: row numbers of a pass in their order, (rows,).
            first: value of `state.step` at batch 0 of the pass.

        Returns:
            The arrays, their weights, `order` as (batches, slots), and `numbers`: (first, rows of a batch, rows of the last).
            The numbers are data and not constants: from constants XLA would fold the weights, and round otherwise than for
            a stream.
        """
        layout = self.layout
        size, slots = layout.batch_size, np.arange(layout.slots)
        whole = order[: layout.num_full * size].reshape(layout.num_full, size)
        parts = [whole[:, slots % size]] if layout.num_full else []
        if layout.num_full < layout.num_batches:
            last = order[layout.num_full * size :]
            if layout.paddable:
                parts.append(last[slots % len(last)][None])
            else:  # each device's rows stand first in its slice; the program reads only those
                each = last.reshape(layout.devices, -1)
                parts.append(each[:, np.arange(layout.slots // layout.devices) % each.shape[1]].reshape(1, -1))
        table = np.concatenate(parts)  # (batches, slots): row numbers, real ones repeated where a slot is padding
        numbers = place(np.asarray([first, size, layout.last_size], np.int32), self.devices)
        return {
            "arrays": self.arrays,
            "weight": self.weight,
            "order": place_order(table, self.devices),
            "numbers": numbers,
        }


# ------------------------------------------------------------------------------------------------ from the host
class HostBatches:
    """Batches from the host, prepared on a background thread; each is (batch split over devices, number of real rows).

    Args:
        model: the model.
        data: arrays or batches.
        devices: number of devices.
        batch_size: rows of a batch of arrays; other sources have batches of their own size.
        micro_batches: number of equal parts that each device's slice is cut into.
        paddable: short batches may be padded; None: as `Model.plan` says of the first batch.
        weights: None (training): a batch keeps its weights.  True (scoring): every batch has weights, its metric weights.
            False (prediction): no batch has weights or labels, and rows that a source wrapped around are not counted as real.
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
        weights: bool | None = None,
    ) -> None:
        self.model, self.data, self.devices, self.batch_size = model, data, devices, batch_size
        self.micro_batches, self.paddable, self.weights = micro_batches, paddable, weights
        self._largest = batch_size if isinstance(data, ArrayData) else 0  # rows that a batch is padded to
        self._rows_known = False

    def read(
        self, epoch: int = 0, start: int = 0, *, in_order: bool = False, ahead: int = 2
    ) -> AbstractContextManager[Iterator[tuple[Batch, int]]]:
        """The batches of an epoch from batch `start`; `in_order` reads shuffled arrays from their first row to the last."""
        if in_order and isinstance(self.data, ArrayData):
            source = _in_order(self.data, self.batch_size)
        else:
            source = self.data.batches(epoch, self.batch_size, start)
        return prefetch(source, size=ahead, transform=self._prepare)

    def _prepare(self, batch: Batch) -> tuple[Batch, int]:
        axes, unit = self.model.batch_axes, self.devices * self.micro_batches
        if isinstance(self.data, ArrayData):
            batch = batch._replace(inputs=_in_model_axes(batch.inputs, self.model))
        else:  # a source may fill the same buffer again while this batch still waits for its turn
            batch = Batch({k: _copied(v) for k, v in batch.inputs.items()}, *(_copied(w) for w in batch[1:]))
        filled = 0
        if self.weights is False:
            filled = wrapped_rows(batch)
            batch = Batch({k: v for k, v in batch.inputs.items() if k in self.model.evaluation_inputs})
        if self.paddable is None:
            plan = plan_of(self.model, batch.inputs)
            self.paddable, self._rows_known = plan.paddable, LOST not in plan.rows
        count = rows(batch, axes)
        self._largest = max(self._largest, count)
        if not self.paddable and count % unit:
            raise ValueError(unpaddable_sentence(count, unit))
        if self.paddable:
            if self.weights:
                batch = _weighted(batch, count)
            if count < self._largest:
                batch = pad_rows(batch, self._largest, axes)
        batch = split_batch(batch, self.devices, axes, self.micro_batches)
        if self.weights is False:
            batch = Batch(batch.inputs)
        return batch, count - filled * self._rows_known


def _weighted(batch: Batch, count: int) -> Batch:
    weight = batch.metric_weight if batch.metric_weight is not None else batch.weight
    weight = np.ones(count, np.float32) if weight is None else np.asarray(weight, np.float32)
    return Batch(batch.inputs, weight, weight)


def _in_order(data: ArrayData, batch_size: int) -> Iterator[Batch]:
    for low in range(0, data.num_rows, batch_size):
        yield data.take(slice(low, low + batch_size))


def _in_model_axes(inputs: Mapping[str, Any], model: Model) -> dict[str, Any]:
    # arrays have their rows first; the model may want the batch elsewhere
    return {k: np.moveaxis(v, 0, model.batch_axes.get(k, 0)) for k, v in inputs.items()}


def _copied(x: Any) -> Any:
    return np.array(x) if isinstance(x, np.ndarray) else x


def unpaddable_sentence(count: int, unit: int) -> str:
    """The error for a batch of `count` rows that cannot be cut into `unit` equal parts."""
    return (
        f"a batch of {count} rows does not divide into {unit} equal parts, and this network mixes the rows of a batch before a "
        "loss head or a batch statistic, so rows cannot be padded; choose a batch size (and data) that divides, or one device"
    )
