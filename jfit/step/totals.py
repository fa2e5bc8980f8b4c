"""Running sums of a pass over the data: the loss and every metric, as one pytree that lives on the devices.

A step adds its batch to them; the host reads them once an epoch (or at a log point).
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
        >>> from jfit.step.totals import zero_totals
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
    lost = finite(grown, (grown - total) - part)
    bad = jnp.where((totals.first_bad_step < 0) & ~jnp.isfinite(loss) & (loss_count > 0), step, totals.first_bad_step)
    folded = tuple(m.update(t, merged(m, s)) for m, t, s in zip(metrics, totals.metrics, shared.metrics, strict=True))
    return Totals(jnp.stack([grown, lost, count + loss_count]), bad, folded)


def merged(metric: Metric, stats: Any) -> Any:
    """The stats of a whole batch: those of a metric that merges come one for each part, (parts, ...), in order."""
    if metric.merge is None:
        return stats
    while (parts := jax.tree.leaves(stats)[0].shape[0]) > 1:
        one, other = (jax.tree.map(lambda x, i=i: x[i : parts - parts % 2 : 2], stats) for i in (0, 1))
        last = jax.tree.map(lambda x: x[parts - parts % 2 :], stats)
        stats = jax.tree.map(lambda x, y: jnp.concatenate([x, y]), jax.vmap(metric.merge)(one, other), last)
    return jax.tree.map(lambda x: x[0], stats)


def shown_heads(model: Model, inputs: Any) -> tuple[int, ...]:
    """Positions of the outputs that the metrics see: the loss heads with a label, or all loss heads."""
    heads = [i for i, o in enumerate(model.outputs) if o.kind != "plain"]
    return tuple(i for i in heads if model.outputs[i].label is not None and model.outputs[i].label in inputs) or tuple(heads)


def head_labels(model: Model, inputs: Any) -> tuple[Any, ...]:
    """The labels of the outputs that the metrics see, from the inputs by name."""
    labels = (model.outputs[i].label for i in shown_heads(model, inputs))
    return tuple(inputs[name] for name in labels if name is not None and name in inputs)


def head_arguments(
    model: Model, values: Sequence[Array], inputs: Mapping[str, Array], weight: Array | None, rows: Sequence[MaybeLayout]
) -> tuple[tuple[Array, ...], tuple[Array, ...], tuple[Array | None, ...]]:
    """(labels, outputs, row weights) that the metrics see: the loss heads, paired with their labels."""
    shown = [(values[i], rows[i]) for i in shown_heads(model, inputs)]
    weights = tuple(row_weights(weight, r, v.shape[0]) if v.ndim else None for v, r in shown)
    return head_labels(model, inputs), tuple(v for v, _ in shown), weights


def sized_for(metrics: Sequence[Any], model: Model, inputs: Mapping[str, Any]) -> tuple[Any, ...]:
    """The metrics with sums of the size that a batch of these inputs needs."""
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
    """The sums of one part of a batch for each metric, such that those of all parts can be added.

    A metric that merges gets a place for each part, and all but the place of this one are 0.
    """

    def placed(x: Array) -> Array:
        return x[None] if parts == 1 else jnp.zeros((parts, *x.shape), x.dtype).at[part].set(x)

    found = [m.stats(labels, outputs, weights) for m in metrics]
    return tuple(s if m.merge is None else jax.tree.map(placed, s) for m, s in zip(metrics, found, strict=True))


def values(metrics: Sequence[Metric], totals: Totals) -> dict[str, Any]:
    """Loss and metrics as Python numbers (a confusion matrix as an array), from totals that are on the host.

    Example:
        >>> from jfit.step.totals import values, zero_totals
        >>> values((), zero_totals())
        {}
    """
    total, lost, count = np.asarray(totals.loss, np.float64).tolist()
    found = {"loss": (total - lost) / count} if count > 0 else {}
    for metric, sums in zip(metrics, totals.metrics, strict=True):
        found = joined(found, {k: plain(v) for k, v in metric.compute(sums).items()})
    return found


def joined(found: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two dicts; clashing names get _2, _3, ...: two functions may have one name, and a metric that of the loss.

    Example:
        >>> joined({"loss": 0.5, "custom(<lambda>)": 1.0}, {"custom(<lambda>)": 2.0})
        {'loss': 0.5, 'custom(<lambda>)': 1.0, 'custom(<lambda>)_2': 2.0}
    """
    both = dict(found)
    for name, value in more.items():
        key, number = name, 1
        while key in both:
            number += 1
            key = f"{name}_{number}"
        both[key] = value
    return both


def plain(value: Any) -> Any:
    """A scalar as a Python float, anything larger as a numpy array."""
    found = np.asarray(value)
    return found if found.ndim else float(found)
