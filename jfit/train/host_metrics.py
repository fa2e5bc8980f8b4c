"""Metrics of the host: the outputs of each batch on their way there, and the functions that look at them a few calls later.

A program that is watched returns, beside its report, the labels and outputs that metrics see.  They are copied to the host
while the devices go on, and evaluated in order when the loop waits for a call that is long done: no wait more than without.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jfit.data.batch import parts_of
from jfit.lowering.model import Model, plan_of
from jfit.ops.rows import LOST, MaybeLayout, RowLayout
from jfit.parallel.devices import concat_slices, merge_row_axis
from jfit.step.totals import joined, plain, shown_heads


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RowArray:
    """An array of one device's slice of a batch, or of all slices with a leading device axis.

    Attributes:
        array: the values.
        layout: where its rows are; None: it has none.
    """

    array: Any
    layout: RowLayout | None = dataclasses.field(metadata={"static": True})


class MetricInputs(NamedTuple):
    """What metrics see of a batch: labels, outputs, and the metric weight of each row (None: all count)."""

    labels: tuple[RowArray, ...]
    outputs: tuple[RowArray, ...]
    weight: Any


# ------------------------------------------------------------------------------------------------ inside the program
def metric_inputs(model: Model, values: Sequence[Array], batch: Any, axis_name: str | None) -> MetricInputs:
    """Labels and outputs of one device's slice, in a form that the slices of all devices can be put together from.

    Raises:
        ValueError: an output mixes the rows of its batch, so those of padding or of several devices cannot be told apart.
    """
    inputs, _, weight = parts_of(batch)
    plan, axes, labels, outputs = plan_of(model, inputs), model.batch_axes, [], []
    for at in shown_heads(model, inputs):
        if plan.rows[at] is LOST and (weight is not None or axis_name is not None):
            raise ValueError(
                f"output {model.outputs[at].name!r} mixes the rows of its batch, so a metric on the host cannot be given the "
                "rows that count; run on one device with a batch size that divides the data"
            )
        outputs.append(_row_array(values[at], plan.rows[at]))
        name = model.outputs[at].label
        if name is not None and name in inputs:
            label, axis = jnp.asarray(inputs[name]), axes.get(name, 0)
            labels.append(_row_array(label, RowLayout(axis, 1, label.shape[axis], 1) if label.ndim > axis else None))
    return MetricInputs(tuple(labels), tuple(outputs), weight)


def _row_array(array: Array, rows: MaybeLayout) -> RowArray:
    return RowArray(array, rows if isinstance(rows, RowLayout) else None)


# ------------------------------------------------------------------------------------------------ on the host
class HostMetrics:
    """Host metrics over a pass: batches that are on their way, and the sums of those that arrived.

    Args:
        metrics: metrics with `host` True.
        devices: how many devices a batch lies on.
    """

    def __init__(self, metrics: Sequence[Any], devices: int) -> None:
        self.metrics, self._split = tuple(metrics), devices > 1
        self.reset()

    def reset(self) -> None:
        """Begin a pass."""
        self._waiting: deque[MetricInputs] = deque()
        self._sums = [m.init() for m in self.metrics]
        self._snapshots: dict[int, list[Any]] = {}
        self._sent = self._done = 0

    def push(self, result: tuple[Any, MetricInputs]) -> Any:
        """The report of a watched call; its batch is sent to the host, nobody waits for it."""
        report, seen = result
        for leaf in jax.tree.leaves(seen):
            leaf.copy_to_host_async()
        self._waiting.append(seen)
        self._sent += 1
        return report

    def pop(self, behind: int) -> list[MetricInputs]:
        """All batches but the last `behind`, to be read together with whatever is waited for; `add` takes them then."""
        return [self._waiting.popleft() for _ in range(len(self._waiting) - behind)]

    def update(self, arrived: Sequence[MetricInputs]) -> None:
        """Evaluate batches that were read, in order.

        Raises:
            Exception: whatever a function raises, with a note that names the metric and the batch.
        """
        for seen in arrived:
            labels, outputs, weights = self._rows(seen)
            counts = seen.weight is None or np.any(np.asarray(seen.weight) > 0)
            for at, metric in enumerate(self.metrics if counts else ()):  # the mean of no rows would make all of it nan
                try:
                    self._sums[at] = metric.update(self._sums[at], labels, outputs, weights)
                except Exception as error:
                    shapes = f"labels {[x.shape for x in labels]}, outputs {[x.shape for x in outputs]}"
                    error.add_note(f"jfit: metric {metric.name!r} raised this for batch {self._done} of the pass ({shapes})")
                    raise
            self._done += 1
            if self._done in self._snapshots:
                self._snapshots[self._done] = list(self._sums)

    def snapshot(self) -> int:
        """Remember this place: `values(mark)` will be those of the batches that were sent so far."""
        self._snapshots[self._sent] = list(self._sums) if self._sent == self._done else []
        return self._sent

    def values(self, mark: int | None = None) -> dict[str, Any]:
        """The values of all batches that were added, or of those up to a mark (which is forgotten)."""
        sums = self._sums if mark is None else self._snapshots.pop(mark)
        found: dict[str, Any] = {}
        for metric, each in zip(self.metrics, sums, strict=True):
            found = joined(found, {k: plain(v) for k, v in metric.compute(each).items()})
        return found

    def _rows(self, seen: MetricInputs) -> tuple[list[np.ndarray], list[np.ndarray], list[Any] | None]:
        """Labels, outputs and weights as those of the whole batch, rows that do not count left out."""
        weight = None if seen.weight is None else np.asarray(seen.weight).reshape(-1)
        kept = None if weight is None or np.all(weight > 0) else np.flatnonzero(weight > 0)
        labels = [self._whole(slab, kept) for slab in seen.labels]
        outputs = [self._whole(slab, kept) for slab in seen.outputs]
        if weight is None:
            return labels, outputs, None
        weight = weight if kept is None else weight[kept]
        return labels, outputs, [self._weights(slab, weight) for slab in seen.outputs]

    def _weights(self, slab: RowArray, weight: np.ndarray) -> np.ndarray | None:
        """The weights of an output's rows, which may stand several times on its first axis; None where they lie elsewhere."""
        if slab.layout is None or slab.layout.axis != 0:
            return None
        return np.tile(np.repeat(weight, slab.layout.after), slab.layout.before)

    def _whole(self, slab: RowArray, kept: np.ndarray | None) -> np.ndarray:
        array = np.asarray(slab.array)
        if array.dtype.kind == "V":  # bfloat16 and its like are strangers to numpy's functions
            array = array.astype(np.float32)
        if slab.layout is None:
            return array[0] if self._split else array
        axis, whole = slab.layout.axis, concat_slices(array if self._split else array[None], slab.layout)
        return merge_row_axis(whole if kept is None else whole.take(kept, axis=axis + 1), axis)
