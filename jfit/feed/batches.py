"""Settings of a run, and batches of arrays on the devices for training, scoring and prediction.

`DeviceBatches` keeps whole arrays on the devices; compiled programs gather each batch there by row indices.  `HostBatches`
(`jfit.feed.host_batches`) prepares batches on the host in a background thread.  Both split every batch into one slice per
device and pad incomplete batches with rows of weight 0, so that all batches have one shape.  Models whose outputs mix the rows
of a batch cannot be padded: their incomplete batches keep their size.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jfit.callbacks.intervals import EPOCH, Every
from jfit.checks import positive_integer
from jfit.data import ArrayData, Batch, StreamData, as_data
from jfit.data.adapters import MOST_ROWS
from jfit.data.batch import Names, row_axis
from jfit.data.columns import Columns, column_names
from jfit.feed.auto_devices import model_devices
from jfit.feed.batch_sizes import announce_size, unpaddable_message
from jfit.lowering.model import Model, Policy, Specs, plan_of
from jfit.lowering.structure import LABEL_WEIGHT
from jfit.metrics import get as get_metrics
from jfit.parallel import place, place_split
from jfit.parallel.contexts import Device, across, is_auto, job_devices
from jfit.parallel.devices import place_shared
from jfit.parallel.mesh import MeshDevices
from jfit.step.batch_check import BatchLabels

# Data is kept on the devices if it fits into this share of an accelerator's memory (the rest is for parameters and
# activations), or on CPU into this many bytes for all devices together.
RESIDENT_SHARE = 0.3
RESIDENT_BYTES_CPU = 2 << 30
# `in_axes` of `compile_spmd` for the result of `DeviceBatches.epoch_data`
EPOCH_DATA_AXES = {"arrays": None, "weight": None, "order": 0, "numbers": None}


# ------------------------------------------------------------------------------------------------ settings
@dataclass(frozen=True)
class Settings:
    """Settings of a run, immutable; `dataclasses.replace` makes changed copies.

    Attributes:
        devices: list of `jax.Device` over which every batch is split.
        batch_size: number of rows per training batch over all devices.
        eval_batch_size: number of rows per evaluation batch over all devices.
        metrics: metrics of training and evaluation.
        policy: mixed-precision policy, or None for float32.
        num_epoch: total number of epochs; training ends before epoch `num_epoch` (the first epoch is 0).  None: `num_steps`.
        num_steps: total number of updates, or None: `num_epoch`.
        eval_every: `Every`, the interval between two evaluations; one epoch without evaluation data.
        directory: folder for files written by callbacks, or None.
        checkpoint: folder of checkpoints, or None.
        metric_choice: one line that says which metric `eval_metric="auto"` is for a model of a function, and why; else "".
        learning_rate: base learning rate that the user passed, or None; a callback may have changed it since.
        inputs: shapes and dtypes of the first batch, by input name; None for a run that was loaded.
        optimizer: name of the optimizer, "optax" for an optax transformation; "" for a run that was loaded.
        regularizers: parameter name -> regularizer, added to the reported losses.
        ignores_base_lr: whether the schedule is a function of the number of updates alone, as optax schedules are.
        columns: label and feature columns of the training data, if it has named columns; else None.
    """

    devices: list[Device]
    batch_size: int
    eval_batch_size: int
    metrics: tuple[Any, ...]
    policy: Policy | None
    num_epoch: int | None = 0
    num_steps: int | None = None
    eval_every: Every = EPOCH
    directory: str | None = None
    checkpoint: str | None = None
    metric_choice: str = ""
    learning_rate: float | None = None
    inputs: Specs | None = None
    optimizer: str = ""
    ignores_base_lr: bool = False
    columns: Columns | None = None
    regularizers: Mapping[str, Any] = field(default_factory=dict)


def settings_of(
    model: Model | None = None,
    *,
    devices: Any = None,
    batch_size: int = 32,
    eval_batch_size: int | None = None,
    eval_metric: Any = "auto",
    policy: Any = None,
    label: Any = None,
) -> Settings:
    """Convert arguments of `jfit.fit`, described there, to `Settings`.

    Args:
        model: the `Model`, for `devices="auto"`: the functions of JAX frameworks get one device on a CPU.
        devices, batch_size, eval_batch_size, eval_metric, policy, label: see `jfit.fit`.

    Raises:
        ValueError: an invalid list of devices, batch size, metric or policy.
    """
    eval_batch_size = batch_size if eval_batch_size is None else eval_batch_size
    positive_integer(batch_size=batch_size, eval_batch_size=eval_batch_size, most=MOST_ROWS)
    devices = job_devices(devices) if model is None or not is_auto(devices) else across(model_devices(model, batch_size))
    return Settings(devices, batch_size, eval_batch_size, get_metrics(eval_metric), _policy(policy), columns=Columns.of(label))


def _policy(policy: Any) -> Policy | None:
    resolved = Policy(policy) if isinstance(policy, str) else policy
    if resolved is None:
        return None
    with contextlib.suppress(TypeError):  # not the name of a dtype
        if isinstance(resolved, Policy) and jnp.issubdtype(jnp.dtype(resolved.compute), jnp.floating):
            return resolved
    raise ValueError(f'policy is {policy!r}; expected a floating-point dtype such as "bfloat16", or a jfit.Policy')


# ------------------------------------------------------------------------------------------------ data
def data_of(
    model: Model,
    data: Any,
    batch_size: int,
    *,
    shuffle: bool = False,
    labels: bool = True,
    timeout: float | None = None,
    others: Sequence[Model] = (),
    **options: Any,
) -> ArrayData | StreamData:
    """Convert the data argument of `fit`, `score` or `predict` to `ArrayData` (arrays) or `StreamData` (batches).

    Args:
        model: the `Model` whose inputs and labels the data must contain; optional inputs (initial states of recurrent cells)
            may be missing.
        data: a form that `jfit.data.as_data` accepts.
        batch_size: number of rows per batch of arrays.
        shuffle: whether to shuffle arrays before every epoch.
        labels: whether labels are required.
        timeout: seconds to wait for a batch of a stream; arrays do not wait.  None: no change.
        others: the same model with other losses, which read the batches, too.
        **options: `seed`, `label`, `sample_weight`, `steps_per_epoch` and `endless` of `jfit.data.as_data`.
    """
    names = set(column_names(data)) if model.optional else ()
    structure, arguments, label_names = model.structure, model.inputs, model.labels
    if structure is not None:
        arguments, label_names = structure.arguments, [n for n in model.labels if n not in (structure.only_loss or ())]
    converted = as_data(
        data,
        batch_size=batch_size,
        input_names=[n for n in arguments if n not in model.optional or n in names],
        label_names=label_names,
        shuffle=shuffle,
        require_labels=labels,
        axes=model.batch_axes,
        structure=structure,
        **options,
    )
    if not labels and model.symbol is None and isinstance(converted, ArrayData) and converted is not data:
        # the outputs of a function do not depend on labels
        converted.drop([n for n in converted.arrays if n.split("/")[0] in (*model.labels, LABEL_WEIGHT)])
    if labels and structure is not None and structure.only_loss is None and converted is not data:
        first = first_batch(model, converted, batch_size)
        read = [each.bound(first).structure.only_loss for each in (*others, model)]  # `bound` finds what the loss reads
        structure.only_loss = tuple(dict.fromkeys(name for names in read for name in names or ()))
        bound = model.bound(first)
        names = Names.of(bound.inputs, bound.labels)._replace(structure=structure)
        names.log_extra(first)
        converted.drop(names.extra(first))
    if timeout is not None and isinstance(converted, StreamData):
        converted.timeout = timeout
    return converted


def first_batch(model: Model, data: ArrayData | StreamData, batch_size: int) -> dict[str, Any]:
    """Return the inputs of the first batch by name, with the rows along `model.batch_axes`.

    The batch of an iterable is not consumed.
    """
    if isinstance(data, ArrayData):
        return to_batch_axes(data.take(slice(0, batch_size)).inputs, model)
    return dict(data.peek(0).inputs)


def labels_of(model: Model, data: ArrayData | StreamData) -> dict[str, Any] | None:
    """All arrays of an `ArrayData` by name, labels included; None for a stream, and if labels are on disk."""
    return data.arrays if isinstance(data, ArrayData) and data.mapped.isdisjoint(model.labels) else None


def fits_on_device(data: Any, devices: Sequence[Any], resident: int = 0) -> bool:
    """Return whether the arrays of a data set fit on every device (see `RESIDENT_SHARE`); False for streams of batches.

    Args:
        data: `ArrayData` or `StreamData`.
        devices: list of `jax.Device`.
        resident: number of bytes of other data already on every device.
    """
    if not isinstance(data, ArrayData):
        return False
    stats = devices[0].memory_stats() if devices[0].platform != "cpu" else None
    count = devices.mesh.size if isinstance(devices, MeshDevices) else len(devices)
    limit = RESIDENT_SHARE * stats["bytes_limit"] if stats else RESIDENT_BYTES_CPU / count
    return data.nbytes + resident <= limit


def to_batch_axes(inputs: Mapping[str, Any], model: Model) -> dict[str, Any]:
    """Move the rows of arrays from axis 0 to the batch axis of each input of a model."""
    axes = model.batch_axes
    return {k: v if row_axis(k, axes) is None else np.moveaxis(v, 0, axes.get(k, 0)) for k, v in inputs.items()}


# ------------------------------------------------------------------------------------------------ arrays on the devices
def place_order(order: np.ndarray, devices: Sequence[Any]) -> Array:
    """Copy row indices of shape (batches, rows per batch) to the devices, each of which gets its part of every batch.

    Args:
        order: row indices, int32.
        devices: list of `jax.Device`.

    Returns:
        Array (batches, rows per batch) for one device, (devices, batches, rows per device) for several.
    """
    if len(devices) > 1:
        order = order.reshape(len(order), len(devices), -1).swapaxes(0, 1)
    return place_split(order, devices)


def take_rows(array: Array, indices: Array) -> Array:
    """Gather rows along axis 0 in a traced function; out-of-range indices are undefined behavior."""
    return array.at[indices].get(mode="promise_in_bounds")


def gather(arrays: Mapping[str, Array], indices: Array, axes: Mapping[str, int]) -> dict[str, Array]:
    """Gather rows of arrays along axis 0, and move axis 0 to the batch axis of each input, in a traced function.

    Args:
        arrays: input name -> array (rows, ...).
        indices: row indices, shape (batch,).
        axes: input name -> batch axis, for inputs whose batch axis is not 0.
    """
    rows_of = lambda k, v: jnp.moveaxis(take_rows(v, indices), 0, axes.get(k, 0))  # noqa: E731
    return {k: v if row_axis(k, axes) is None else rows_of(k, v) for k, v in arrays.items()}


class BatchLayout(NamedTuple):
    """Sizes of the batches of `DeviceBatches`, without the data.

    Compiled programs close over this object and get the data as arguments: JAX caches traced functions, so that arrays they
    close over would never be freed.

    Attributes:
        model: the model that the batches are for; it determines the batch axis of each input.
        devices: number of devices.
        batch_size: number of rows per batch over all devices.
        padded_size: number of rows per batch with padding rows: `batch_size` rounded up to a multiple of
            devices * micro_batches.
        last_size: number of rows in the last batch, at most `batch_size`.
        num_batches: number of batches per epoch.
        paddable: whether the last batch is padded to `padded_size` if it is incomplete.
    """

    model: Model
    devices: int
    batch_size: int
    padded_size: int
    last_size: int
    num_batches: int
    paddable: bool

    @property
    def num_full(self) -> int:
        """Number of batches with `batch_size` rows."""
        return self.num_batches - (self.last_size != self.batch_size)

    def table(self, order: np.ndarray, first: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Return "order" and "numbers" of `DeviceBatches.epoch_data`, whose arguments these are, on the host."""
        size, positions = self.batch_size, np.arange(self.padded_size)
        last = positions % self.last_size
        if not self.paddable:  # repeat the rows of each device up to the length of a full batch; `batch` reads no repeated row
            slices = np.arange(self.last_size).reshape(self.devices, -1)
            last = slices[:, np.arange(self.padded_size // self.devices) % slices.shape[1]].reshape(-1)
        table = np.arange(self.num_batches)[:, None] * size + positions % size  # (batches, padded_size)
        table[-1] = (self.num_batches - 1) * size + last
        return order[table].astype(np.int32, copy=False), np.asarray([first, size, self.last_size], np.int32)

    def batch(self, epoch_data: Mapping[str, Any], at: Any, axis_name: str | None, *, tail: bool | None = False) -> Batch:
        """Gather one batch (with several devices: the slice of this device) in a traced function.

        Args:
            epoch_data: arrays and row indices from `DeviceBatches.epoch_data`.
            at: number of the batch, traced.
            axis_name: name of the device axis, or None.
            tail: True for the incomplete last batch, False for a full batch.  None if it is not known before the program runs:
                then every batch has row weights.
        """
        indices = epoch_data["order"][at]  # (rows per device,)
        if tail and not self.paddable:
            indices = indices[: self.last_size // self.devices]
        inputs, weight = gather(epoch_data["arrays"], indices, self.model.batch_axes), None
        if tail is None or self.padded_size != self.batch_size or (tail and self.paddable):
            device = 0 if axis_name is None else lax.axis_index(axis_name)
            position = device * len(indices) + jnp.arange(len(indices))  # index of each row in the global batch
            last = at == self.num_batches - 1 if tail is None else int(tail)
            weight = (position < epoch_data["numbers"][1 + last]).astype(jnp.float32)
        if epoch_data["weight"] is not None:
            row_weight = take_rows(epoch_data["weight"], indices)
            weight = row_weight if weight is None else weight * row_weight
        return Batch(inputs, weight, weight)


class DeviceBatches:
    """Batches of arrays that stay on the devices; compiled programs gather each batch by row indices.

    Args:
        model: the model that the batches are for; it determines the batch axis of each input.
        data: the arrays of the whole data set, with the rows along axis 0.
        devices: list of devices; every device gets a copy of all arrays.
        batch_size: number of rows per batch over all devices.
        micro_batches: number of equal parts into which each device splits its rows of a batch.
        paddable: whether batches may be padded with rows of weight 0; False for models whose outputs mix the rows of a batch.

    Raises:
        ValueError: batches may not be padded, and `batch_size` or the number of rows in the last batch is not divisible by
            devices * micro_batches.
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
        reason: str = "",
    ) -> None:
        unit, num_batches = len(devices) * micro_batches, data.num_batches(batch_size)
        padded_size, last_size = -(-batch_size // unit) * unit, data.epoch_rows(batch_size) - (num_batches - 1) * batch_size
        if not paddable and (padded_size != batch_size or last_size % unit):
            raise ValueError(unpaddable_message(batch_size if padded_size != batch_size else last_size, unit, reason))
        if not paddable and num_batches > 1 and last_size != batch_size:
            announce_size(model, last_size, batch_size, reason)
        self.layout = BatchLayout(model, len(devices), batch_size, padded_size, last_size, num_batches, paddable)
        self.devices = devices
        put = {name: place_shared if name in data.private else place for name in data.arrays}
        plan = plan_of(model, first_batch(model, data, batch_size)) if data.mapped else None
        indices = [] if plan is None else [lookup.name for lookup in plan.lookups]
        on_disk = data.mapped.intersection(data.arrays, (*model.labels, *indices))  # their values are not checked yet
        checks = BatchLabels(model, plan) if on_disk else None
        self.arrays = {}
        for name in data.arrays:
            array = data.whole(name)
            if checks is not None and name in on_disk:
                part = to_batch_axes({name: array}, model) if name in indices else {name: array}
                checks.check(Batch(part, data.weight, data.weight), "arrays on disk" if name in indices else "labels on disk")
            self.arrays[name] = put[name](array, devices)
            del array  # a memory map is freed before the next
        self.weight = None if data.weight is None else place(data.weight, devices)

    def epoch_data(self, order: np.ndarray, first: int = 0) -> dict[str, Any]:
        """Return the data of one epoch on the devices, as an argument of programs that call `BatchLayout.batch`.

        Args:
            order: (rows,) int32, row indices in the order of the epoch.
            first: value of `state.step` at batch 0 of the epoch.

        Returns:
            dict of "arrays"; "weight", the row weights or None; "order", row indices (batches, padded_size), with padding rows
            that repeat other rows; and "numbers", (first, batch_size, last_size) int32.  The numbers are an argument because
            XLA would fold weights that it computes from constants, and round differently than for batches from the host.
        """
        table, numbers = self.layout.table(order, first)
        placed = {"order": place_order(table, self.devices), "numbers": place(numbers, self.devices)}
        return {"arrays": self.arrays, "weight": self.weight, **placed}
