"""Running sums of the loss and all metrics over batches, as one pytree on the devices.

Steps add their batch to the sums; the host reads them once per epoch or log point.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jfit.lowering.model import Model, row_weights, specs_of
from jfit.metrics import Metric, sized
from jfit.metrics.core import finite
from jfit.ops.rows import MaybeLayout


class Totals(NamedTuple):
    """Running sums of the loss and the metrics.

    Attributes:
        loss: (Σ loss, its rounding error, Σ weight), float32 of shape (3,); one array, because every array costs dispatch time.
        first_bad_step: number of the first step with a loss that was not finite, int32 scalar, or -1.
        metrics: sums of each metric, as `Metric.init` makes them.
    """

    loss: Array
    first_bad_step: Array
    metrics: tuple[Any, ...]


def zero_totals(metrics: Sequence[Metric] = ()) -> Totals:
    """Running sums of no batches.

    Args:
        metrics: the metrics to sum.

    Returns:
        `Totals`.

    Example:
        >>> from jfit.step.totals import zero_totals
        >>> int(zero_totals().first_bad_step)
        -1
    """
    return Totals(jnp.zeros(3, jnp.float32), jnp.full((), -1, jnp.int32), tuple(m.init() for m in metrics))


def fold(metrics: Sequence[Metric], totals: Totals, shared: Any, step: Array, loss: Array) -> Totals:
    """Add one batch to the running sums; `shared` must already be summed over devices."""
    total, lost, count = totals.loss
    loss_sum, loss_count = shared.loss
    # Kahan summation: the rounding error of each addition is subtracted from the next value.
    part = loss_sum - lost
    grown = total + part
    lost = finite(grown, (grown - total) - part)
    bad = jnp.where((totals.first_bad_step < 0) & ~jnp.isfinite(loss) & (loss_count > 0), step, totals.first_bad_step)
    folded = tuple(m.update(t, merged(m, s)) for m, t, s in zip(metrics, totals.metrics, shared.metrics, strict=True))
    return Totals(jnp.stack([grown, lost, count + loss_count]), bad, folded)


def merged(metric: Metric, stats: Any) -> Any:
    """Merge the stats of the parts of a batch, stacked as (parts, ...), for metrics with `merge`; others are summed already."""
    if metric.merge is None:
        return stats
    while (parts := jax.tree.leaves(stats)[0].shape[0]) > 1:
        one, other = (jax.tree.map(lambda x, i=i: x[i : parts - parts % 2 : 2], stats) for i in (0, 1))
        last = jax.tree.map(lambda x: x[parts - parts % 2 :], stats)
        stats = jax.tree.map(lambda x, y: jnp.concatenate([x, y]), jax.vmap(metric.merge)(one, other), last)
    return jax.tree.map(lambda x: x[0], stats)


def shown_heads(model: Model, inputs: Any) -> tuple[int, ...]:
    """Indices of the outputs that metrics get: the loss heads with a label in `inputs`, or all loss heads if none has one."""
    heads = [i for i, o in enumerate(model.outputs) if o.kind != "plain"]
    return tuple(i for i in heads if model.outputs[i].label is not None and model.outputs[i].label in inputs) or tuple(heads)


def head_labels(model: Model, inputs: Any) -> tuple[Any, ...]:
    """Labels of the outputs that metrics get."""
    labels = (model.outputs[i].label for i in shown_heads(model, inputs))
    return tuple(inputs[name] for name in labels if name is not None and name in inputs)


def head_arguments(
    model: Model, values: Sequence[Array], inputs: Mapping[str, Array], weight: Array | None, rows: Sequence[MaybeLayout]
) -> tuple[tuple[Array, ...], tuple[Array, ...], tuple[Array | None, ...]]:
    """Return (labels, outputs, row weights): the arguments of `Metric.stats`, one entry per loss head."""
    shown = [(values[i], rows[i]) for i in shown_heads(model, inputs)]
    weights = tuple(row_weights(weight, r, v.shape[0]) if v.ndim else None for v, r in shown)
    return head_labels(model, inputs), tuple(v for v, _ in shown), weights


def sized_for(metrics: Sequence[Any], model: Model, inputs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Set the number of classes of metrics that need it, from the shapes of the outputs for a batch of these inputs."""
    if all(getattr(m, "sized", None) is None for m in metrics):
        return tuple(metrics)
    outputs = model.plan(specs_of(inputs)).shapes
    return sized(metrics, [x.shape for x in head_labels(model, inputs)], [outputs[i].shape for i in shown_heads(model, inputs)])


def metric_stats(
    metrics: Sequence[Metric],
    labels: tuple[Array, ...],
    outputs: tuple[Array, ...],
    weights: tuple[Array | None, ...],
    part: Any = 0,
    parts: int = 1,
) -> tuple[Any, ...]:
    """Stats of each metric for one part (device, micro-batch) of a batch, in a form that can be summed over parts.

    Metrics with `merge` cannot be summed: their stats are stacked as (parts, ...), with zeros for all parts but this one.
    """

    def placed(x: Array) -> Array:
        return x[None] if parts == 1 else jnp.zeros((parts, *x.shape), x.dtype).at[part].set(x)

    stats = [m.stats(labels, outputs, weights) for m in metrics]
    return tuple(s if m.merge is None else jax.tree.map(placed, s) for m, s in zip(metrics, stats, strict=True))


def values(metrics: Sequence[Metric], totals: Totals) -> dict[str, Any]:
    """Compute loss and metrics from running sums that were copied to the host.

    Args:
        metrics: the metrics of the sums.
        totals: `Totals` of numpy arrays, from `jax.device_get`.

    Returns:
        Dict name -> float (numpy array for values such as a confusion matrix).  "loss" is missing if no row was weighted.

    Example:
        >>> from jfit.step.totals import values, zero_totals
        >>> values((), zero_totals())
        {}
    """
    total, lost, count = np.asarray(totals.loss, np.float64).tolist()
    results = {"loss": (total - lost) / count} if count > 0 else {}
    for metric, sums in zip(metrics, totals.metrics, strict=True):
        results = joined(results, {k: plain(v) for k, v in metric.compute(sums).items()})
    return results


def joined(results: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two dicts; clashing names get _2, _3, ... (two metric functions may have the same name).

    Example:
        >>> joined({"loss": 0.5, "custom(<lambda>)": 1.0}, {"custom(<lambda>)": 2.0})
        {'loss': 0.5, 'custom(<lambda>)': 1.0, 'custom(<lambda>)_2': 2.0}
    """
    both = dict(results)
    for name, value in more.items():
        key, number = name, 1
        while key in both:
            number += 1
            key = f"{name}_{number}"
        both[key] = value
    return both


def plain(value: Any) -> Any:
    """Convert a scalar to float, any other array to a numpy array."""
    array = np.asarray(value)
    return array if array.ndim else float(array)
