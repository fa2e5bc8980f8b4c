"""Running sums of a pass over the data: the loss and every metric, as one pytree that lives on the devices.

A step adds its batch to them; the host reads them once an epoch (or at a log point).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from jfit.metrics import Metric
from jfit.model import Model, row_weights
from jfit.ops.rows import MaybeRows


class Totals(NamedTuple):
    """Sums since the pass began.

    Attributes:
        loss: Σ loss, its rounding compensation, Σ count, (3,) float32: one array, as each of the state costs dispatch time.
        first_bad_step: number of the first step whose loss was not finite, () int32; -1: none.
        metrics: the sums of each metric.
    """

    loss: Array
    first_bad_step: Array
    metrics: tuple[Any, ...]


def zero_totals(metrics: Sequence[Metric] = ()) -> Totals:
    """Totals of an empty pass.

    Example:
        >>> from jfit.totals import zero_totals
        >>> int(zero_totals().first_bad_step)
        -1
    """
    return Totals(jnp.zeros(3, jnp.float32), jnp.full((), -1, jnp.int32), tuple(m.init() for m in metrics))


def fold(metrics: Sequence[Metric], totals: Totals, shared: Any, step: Array, loss: Array) -> Totals:
    """Totals with the sums of one batch added (`shared` is already summed over devices)."""
    total, lost, count = totals.loss
    loss_sum, loss_count = shared.loss
    # Kahan: what the addition rounds away is carried to the next one
    part = loss_sum - lost
    grown = total + part
    lost = (grown - total) - part
    bad = jnp.where((totals.first_bad_step < 0) & ~jnp.isfinite(loss) & (loss_count > 0), step, totals.first_bad_step)
    folded = tuple(m.update(t, s) for m, t, s in zip(metrics, totals.metrics, shared.metrics, strict=True))
    return Totals(jnp.stack([grown, lost, count + loss_count]), bad, folded)


def head_arguments(
    model: Model, values: Sequence[Array], inputs: Mapping[str, Array], weight: Array | None, rows: Sequence[MaybeRows]
) -> tuple[tuple[Array, ...], tuple[Array, ...], tuple[Array | None, ...]]:
    """(labels, outputs, row weights) that the metrics see: the loss heads, paired with their labels."""
    heads = [(o, v, r) for o, v, r in zip(model.outputs, values, rows, strict=True) if o.kind != "plain"]
    labelled = [(o, v, r) for o, v, r in heads if o.label is not None and o.label in inputs]
    shown = labelled or heads
    labels = tuple(inputs[o.label] for o, _, _ in labelled if o.label is not None)
    weights = tuple(row_weights(weight, r, v.shape[0]) if v.ndim else None for _, v, r in shown)
    return labels, tuple(v for _, v, _ in shown), weights


def metric_stats(
    metrics: Sequence[Metric], labels: tuple[Array, ...], outputs: tuple[Array, ...], weights: tuple[Array | None, ...]
) -> tuple[Any, ...]:
    """The sums of one batch for each metric."""
    return tuple(m.stats(labels, outputs, weights) for m in metrics)


def values(metrics: Sequence[Metric], totals: Totals) -> dict[str, float]:
    """Loss and metrics as Python numbers, from totals that are on the host.

    Example:
        >>> from jfit.totals import values, zero_totals
        >>> values((), zero_totals())
        {}
    """
    total, lost, count = np.asarray(totals.loss, np.float64).tolist()
    found = {"loss": (total - lost) / count} if count > 0 else {}
    for metric, sums in zip(metrics, totals.metrics, strict=True):
        found.update({k: float(np.asarray(v)) for k, v in metric.compute(sums).items()})
    return found
