"""Metrics computed on the host: Python functions of the labels and outputs of each batch.

With such metrics, the compiled steps also return labels, outputs and row weights (`metric_inputs`).  `HostMetrics` copies them
to the host asynchronously, and evaluates them in order a few batches later, at a point where the host waits for an earlier
dispatch anyway.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jfit.data.batch import parts_of
from jfit.lowering.model import Model, plan_of
from jfit.lowering.structure import LABEL_WEIGHT
from jfit.ops.axis import Axis
from jfit.ops.rows import LOST, MaybeLayout, RowLayout
from jfit.parallel.devices import concat_slices, merge_row_axis
from jfit.step.totals import joined, plain, shown_heads


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RowArray:
    """A label or output with the position of the batch rows in its axes.

    Attributes:
        array: label or output for the rows of one device; outside of the compiled program, if there are several devices, with
            a leading device axis.
        layout: row layout of `array` (without the device axis); None if no axis contains the rows.
    """

    array: Any
    layout: RowLayout | None = dataclasses.field(metadata={"static": True})


class MetricInputs(NamedTuple):
    """Arguments of the host metrics for one batch.

    Attributes:
        labels: labels of the loss heads (output layers with a loss).
        outputs: outputs of the loss heads.
        weight: metric weight of each row, shape (rows,), 0 for padding rows; None: all 1.
    """

    labels: tuple[RowArray, ...]
    outputs: tuple[RowArray, ...]
    weight: Any


# ------------------------------------------------------------------------------------------------ in the compiled program
def metric_inputs(model: Model, values: Sequence[Array], batch: Any, axis_name: Axis) -> MetricInputs:
    """Return the arguments of the host metrics for the rows of one device, with their row layouts.

    Args:
        model: the `Model` whose loss heads have the labels and outputs.
        values: all outputs of the model.
        batch: the rows of this device, `Batch` or dict of arrays by input name.
        axis_name: name of the device axis; None for one device; or a `VirtualSlice`.

    Raises:
        ValueError: an output mixes the rows of its batch, and the batch has row weights or is split over devices.
    """
    inputs, _, weight = parts_of(batch)
    if LABEL_WEIGHT in inputs and model.symbol is None:
        raise ValueError(
            "metrics on the host do not support weights (rows, positions); pass a jfit.metrics.Metric, or weights of rows"
        )
    plan, axes, labels, outputs = plan_of(model, inputs), model.batch_axes, [], []
    for at in shown_heads(model, inputs):
        if plan.rows[at] is LOST and (weight is not None or axis_name is not None):
            problem = f"output {model.outputs[at].name!r} mixes the rows of its batch, so padding rows cannot be removed"
            raise ValueError(f"{problem} for a metric on the host; use one device and a batch size that divides the rows")
        outputs.append(_row_array(values[at], plan.rows[at]))
        name = model.outputs[at].label
        if name is not None and name in inputs:
            label, axis = jnp.asarray(inputs[name]), axes.get(name, 0)
            layout = RowLayout(axis, 1, label.shape[axis], 1) if axis is not None and label.ndim > axis else None
            labels.append(RowArray(label, layout))
    return MetricInputs(tuple(labels), tuple(outputs), weight)


def _row_array(array: Array, rows: MaybeLayout) -> RowArray:
    return RowArray(array, rows if isinstance(rows, RowLayout) else None)


# ------------------------------------------------------------------------------------------------ on the host
class HostMetrics:
    """Sums of the host metrics over one pass, and a queue of batches whose copies to the host are in progress.

    A pass is one epoch of training, or one evaluation.

    Args:
        metrics: metrics with `host` True, which are computed by NumPy on the host.
        devices: number of devices over which a batch is split.
    """

    def __init__(self, metrics: Sequence[Any], devices: int) -> None:
        self.metrics, self._split = tuple(metrics), devices > 1
        self.reset()

    def reset(self) -> None:
        """Start a new pass: empty the queue and the sums."""
        self._queue: deque[MetricInputs] = deque()
        self._sums = [m.init() for m in self.metrics]
        self._snapshots: dict[int, list[Any]] = {}
        self._pushed = self._added = 0

    def push(self, result: tuple[Any, MetricInputs]) -> Any:
        """Queue a batch: start the copy of its `MetricInputs` to the host.

        Args:
            result: pair (first result of the compiled program, `MetricInputs` of its batch).

        Returns:
            The first entry of `result`.
        """
        report, inputs = result
        for leaf in jax.tree.leaves(inputs):
            leaf.copy_to_host_async()
        self._queue.append(inputs)
        self._pushed += 1
        return report

    def pop(self, behind: int) -> list[MetricInputs]:
        """Remove and return all queued batches but the last `behind`, which the devices may not have finished.

        The caller copies them to the host and passes them to `update`.
        """
        return [self._queue.popleft() for _ in range(len(self._queue) - behind)]

    def update(self, batches: Sequence[MetricInputs]) -> None:
        """Add batches on the host to the sums of the metrics, in order.

        Raises:
            Exception: an exception of a metric function, with a note that names the metric and the batch.
        """
        for inputs in batches:
            labels, outputs, weights = self._rows(inputs)
            has_rows = inputs.weight is None or np.any(np.asarray(inputs.weight) > 0)
            for at, metric in enumerate(self.metrics if has_rows else ()):  # the mean of 0 rows is nan
                try:
                    self._sums[at] = metric.update(self._sums[at], labels, outputs, weights)
                except Exception as error:
                    shapes = f"labels {[x.shape for x in labels]}, outputs {[x.shape for x in outputs]}"
                    error.add_note(f"jfit: metric {metric.name!r} raised this for batch {self._added} of the pass ({shapes})")
                    raise
            self._added += 1
            if self._added in self._snapshots:
                self._snapshots[self._added] = list(self._sums)

    def packed(self) -> dict[str, np.ndarray]:
        """Return the sums of the batches passed to `update` as arrays by name, for a checkpoint in the middle of a pass."""
        return {f"{m.name}/{at}": np.array(sums) for at, (m, sums) in enumerate(zip(self.metrics, self._sums, strict=True))}

    def unpack(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Continue with the sums of a result of `packed`; other metrics than those that it has begin anew."""
        for at, metric in enumerate(self.metrics):
            if (sums := arrays.get(f"{metric.name}/{at}")) is not None:
                self._sums[at] = tuple(sums.tolist())

    def snapshot(self) -> int:
        """Return a key with which `values` returns the metrics over the batches pushed so far, once `update` has got these."""
        self._snapshots[self._pushed] = list(self._sums) if self._pushed == self._added else []
        return self._pushed

    def values(self, snapshot: int | None = None) -> dict[str, Any]:
        """Return the metrics by name.

        Args:
            snapshot: key from the method `snapshot`: the metrics over the batches pushed before it; the key is then invalid.
                None: the metrics over all batches passed to `update`.
        """
        sums = self._sums if snapshot is None else self._snapshots.pop(snapshot)
        merged: dict[str, Any] = {}
        for metric, total in zip(self.metrics, sums, strict=True):
            merged = joined(merged, {k: plain(v) for k, v in metric.compute(total).items()})
        return merged

    def _rows(self, inputs: MetricInputs) -> tuple[list[np.ndarray], list[np.ndarray], list[Any] | None]:
        """Return labels, outputs and row weights of the global batch, without rows of weight 0."""
        weight = None if inputs.weight is None else np.asarray(inputs.weight).reshape(-1)
        indices = None if weight is None or np.all(weight > 0) else np.flatnonzero(weight > 0)
        labels = [self._global(label, indices) for label in inputs.labels]
        outputs = [self._global(output, indices) for output in inputs.outputs]
        if weight is None:
            return labels, outputs, None
        weight = weight if indices is None else weight[indices]
        return labels, outputs, [self._weights(output, weight) for output in inputs.outputs]

    def _weights(self, output: RowArray, weight: np.ndarray) -> np.ndarray | None:
        """Repeat row weights (rows,) to the length of axis 0 of an output; None if axis 0 does not contain the rows."""
        if output.layout is None or output.layout.axis != 0:
            return None
        return np.tile(np.repeat(weight, output.layout.after), output.layout.before)

    def _global(self, part: RowArray, indices: np.ndarray | None) -> np.ndarray:
        """Return a label or output of the global batch: concatenate the arrays of all devices along the rows, and select rows.

        Args:
            part: array on the host, with a leading device axis if there are several devices.
            indices: indices of the rows in the global batch; None: all rows.
        """
        array = np.asarray(part.array)
        if array.dtype.kind == "V":  # many NumPy functions do not support bfloat16 and other extension dtypes
            array = array.astype(np.float32)
        if part.layout is None:
            return array[0] if self._split else array
        axis, rows = part.layout.axis, concat_slices(array if self._split else array[None], part.layout)
        return merge_row_axis(rows if indices is None else rows.take(indices, axis=axis + 1), axis)
