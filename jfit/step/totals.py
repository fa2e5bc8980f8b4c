"""Running sums of the loss and all metrics over batches, as one pytree on the devices.

Training and evaluation steps add their batch to the sums; the host reads the sums once per epoch, and for "log" events.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jfit.checks import one_of
from jfit.lowering.model import Model, row_weights
from jfit.lowering.structure import LABEL_WEIGHT
from jfit.metrics import Metric
from jfit.metrics.core import added, exact, zero_sums
from jfit.ops.rows import MaybeLayout

NORMS = ("grad_norm", "update_norm")


def norms_of(log: str | Iterable[str]) -> tuple[str, ...]:
    """Return the names in the argument `log` of `train_step` that are norms: all but "lr", which is reported in any case.

    Raises:
        ValueError: an unknown name.

    Example:
        >>> norms_of(("lr", "grad_norm"))
        ('grad_norm',)
    """
    names = (log,) if isinstance(log, str) else tuple(log)
    for name in names:
        one_of(("lr", *NORMS), log=name)
    return tuple(name for name in NORMS if name in names)


class Totals(NamedTuple):
    """Running sums of the loss and the metrics.

    Attributes:
        loss: compensated sums (see `jfit.metrics.core.zero_sums`) of (Σ weight · loss, Σ weight) over the positions of all
            rows, (2, 2), or (2, 2, losses) for a model with several losses; one array, because every array costs dispatch time.
        first_bad_step: number of the first step with a loss that was not finite, int32 scalar; -1 if there is none.
        metrics: for each metric its running sums, with the structure of `Metric.init()`.
        logged: for each value that the loss of the model logs (`Model.logged`), and each of `NORMS` that is logged, by name,
            sums as in `loss`.
    """

    loss: Array
    first_bad_step: Array
    metrics: tuple[Any, ...]
    logged: Mapping[str, Array] = {}


def zero_totals(metrics: Sequence[Metric] = (), logged: Iterable[str] = (), losses: int = 1) -> Totals:
    """Return running sums over no batches, the initial value.

    Args:
        metrics: the metrics to sum.
        logged: names of the values that the loss logs: `Model.logged` of a model for which they are known; and of `NORMS`.
        losses: `Model.num_losses`.  With 1 for a model of several losses, the mean loss of each batch is weighted by the
            positions of the first loss.

    Returns:
        `Totals`, float32, with jax_enable_x64 float64.

    Example:
        >>> from jfit.step.totals import zero_totals
        >>> int(zero_totals().first_bad_step)
        -1
    """
    sums = {name: zero_sums(2) for name in logged}
    loss = zero_sums(2) if losses == 1 else zero_sums(2, losses)
    return Totals(loss, jnp.full((), -1, jnp.int32), tuple(m.init() for m in metrics), sums)


def cleared(metrics: Sequence[Metric], totals: Totals) -> Totals:
    """Return running sums over no batches, of the same values as `totals`."""
    return zero_totals(metrics, totals.logged, *totals.loss.shape[2:])


def fold(metrics: Sequence[Metric], totals: Totals, shared: Any, step: Array, loss: Array) -> Totals:
    """Add one batch to the running sums.

    Args:
        metrics: the metrics of the sums.
        totals: running sums before the batch.
        shared: sums of the batch (`jfit.step.Shared`) over all devices.
        step: number of the step, int32 scalar.
        loss: mean loss of the batch; if it is not finite, `first_bad_step` is set.
    """
    total, count = shared.loss
    is_bad = (totals.first_bad_step < 0) & ~jnp.isfinite(loss) & jnp.any(count > 0)
    bad = jnp.where(is_bad, step, totals.first_bad_step)
    if count.ndim and totals.loss.ndim == 2:
        total, count = shared.mean_loss * count[0], count[0]
    folded = tuple(m.update(t, merged(m, s)) for m, t, s in zip(metrics, totals.metrics, shared.metrics, strict=True))
    logged = {k: _grown(v, *shared.logged[k]) if k in shared.logged else v for k, v in totals.logged.items()}
    return Totals(_grown(totals.loss, total, count), bad, folded, logged)


def _grown(sums: Array, total: Array, count: Array) -> Array:
    pair = [jnp.broadcast_to(x, sums.shape[2:]) for x in (total, count)]
    return added(sums, jnp.stack(pair).astype(sums.dtype))


def merged(metric: Metric, stats: Any) -> Any:
    """Merge the stats (sums of one metric) of the parts of a batch.

    Args:
        metric: the metric.  Without `merge`, its stats are added up already and returned unchanged.
        stats: pytree of arrays (parts, ...), one part for each micro-batch of each device.
    """
    if metric.merge is None:
        return stats
    while (parts := jax.tree.leaves(stats)[0].shape[0]) > 1:
        one, other = (jax.tree.map(lambda x, i=i: x[i : parts - parts % 2 : 2], stats) for i in (0, 1))
        last = jax.tree.map(lambda x: x[parts - parts % 2 :], stats)
        stats = jax.tree.map(lambda x, y: jnp.concatenate([x, y]), jax.vmap(metric.merge)(one, other), last)
    return jax.tree.map(lambda x: x[0], stats)


def shown_heads(model: Model, inputs: Any) -> tuple[int, ...]:
    """Return the indices of the outputs for which metrics are computed.

    These are the loss heads (output layers with a loss) and the outputs of functions with a label, if the label is in `inputs`,
    or all of them if no label is.
    """
    heads = [i for i, o in enumerate(model.outputs) if o.kind != "plain" or o.label is not None]
    return tuple(i for i in heads if model.outputs[i].label is not None and model.outputs[i].label in inputs) or tuple(heads)


def head_labels(model: Model, inputs: Any) -> tuple[Any, ...]:
    """Return the labels of the outputs for which metrics are computed (see `shown_heads`)."""
    labels = (model.outputs[i].label for i in shown_heads(model, inputs))
    return tuple(inputs[name] for name in labels if name is not None and name in inputs)


def head_arguments(
    model: Model, values: Sequence[Array], inputs: Mapping[str, Array], weight: Array | None, rows: Sequence[MaybeLayout]
) -> tuple[tuple[Array, ...], tuple[Array, ...], tuple[Array | None, ...]]:
    """Return (labels, outputs, row weights), the arguments of `Metric.stats`, each with one entry per loss head.

    The weights are (rows,), or (rows, positions, ...) if the batch has weights of positions.

    Args:
        model: the `Model` whose outputs are passed.
        values: all outputs of the model.
        inputs: arrays by input name, labels included.
        weight: metric weights of the rows (rows,), or None if all are 1.
        rows: row layout of each output.
    """
    shown = [(values[i], rows[i]) for i in shown_heads(model, inputs)]
    weights = tuple(row_weights(weight, r, v.shape[0]) if v.ndim else None for v, r in shown)
    positions = inputs.get(LABEL_WEIGHT) if model.symbol is None else None
    if positions is not None:
        weights = tuple(positions if w is None else w.reshape(-1, *(1,) * (positions.ndim - 1)) * positions for w in weights)
    return head_labels(model, inputs), tuple(v for v, _ in shown), weights


def metric_stats(
    metrics: Sequence[Metric],
    labels: tuple[Array, ...],
    outputs: tuple[Array, ...],
    weights: tuple[Array | None, ...],
    part: Any = 0,
    parts: int = 1,
) -> tuple[Any, ...]:
    """Return the stats (sums of one metric) of each metric for one part of a batch, in a form that can be added over parts.

    A part is one micro-batch on one device.  The stats of metrics with `merge` cannot be added: they are stacked as
    (parts, ...), with zeros for all parts but this one.

    Args:
        metrics: metrics that are computed on the devices.
        labels, outputs, weights: arguments of `Metric.stats`, see `head_arguments`.
        part: index of this part.
        parts: number of parts of the batch.
    """

    def placed(x: Array) -> Array:
        return x[None] if parts == 1 else jnp.zeros((parts, *x.shape), x.dtype).at[part].set(x)

    stats = [m.stats(labels, outputs, weights) for m in metrics]
    return tuple(s if m.merge is None else jax.tree.map(placed, s) for m, s in zip(metrics, stats, strict=True))


def batch_metrics(metrics: Sequence[Metric], shared: Any) -> dict[str, Array]:
    """Compute the metrics of one batch, and the values that its loss logs, inside a step.

    Args:
        metrics: metrics that are computed on the devices.
        shared: sums of the batch (`jfit.step.Shared`) over all devices.

    Returns:
        dict name -> scalar array.  Values that are arrays, such as a confusion matrix, are left out.

    Raises:
        ValueError: the function `compute` of a metric cannot be traced by JAX.
    """
    results = _scalars(metrics, [m.update(m.init(), merged(m, s)) for m, s in zip(metrics, shared.metrics, strict=True)])
    return joined(results, {name: total / jnp.maximum(count, 1e-30) for name, (total, count) in shared.logged.items()})


def step_names(metrics: Sequence[Any], logged: Iterable[str] = ()) -> tuple[str, ...]:
    """Names of the values of a step that are recorded: "loss", "lr", and the names of the result of `batch_metrics`."""
    names: dict[str, Any] = {}
    jax.eval_shape(lambda: names.update(_scalars(metrics, [m.init() for m in metrics])))  # dicts of results are sorted by name
    return ("loss", "lr", *joined(names, dict.fromkeys(logged)))


def _scalars(metrics: Sequence[Metric], sums: Sequence[Any]) -> dict[str, Array]:
    results: dict[str, Array] = {}
    for metric, total in zip(metrics, sums, strict=True):
        try:
            computed = metric.compute(total)
        except jax.errors.JAXTypeError as error:
            problem = f"metric {metric.name!r} cannot be computed for single steps, because JAX cannot trace its `compute`"
            raise ValueError(f"{problem} ({type(error).__name__}); write it with jax.numpy, or leave log_every= out") from error
        results = joined(results, {name: value for name, value in computed.items() if not jnp.ndim(value)})
    return results


def values(metrics: Sequence[Metric], totals: Totals) -> dict[str, Any]:
    """Compute loss and metrics from running sums that were copied to the host.

    Args:
        metrics: the metrics for which the sums were made, in the same order.
        totals: `Totals` of numpy arrays, from `jax.device_get`.

    Returns:
        Dict name -> float (numpy array for values such as a confusion matrix).  "loss" is missing if no row has a weight
        above 0.

    Example:
        >>> from jfit.step.totals import values, zero_totals
        >>> values((), zero_totals())
        {}
    """
    results = _mean("loss", totals.loss)
    for metric, sums in zip(metrics, totals.metrics, strict=True):
        results = joined(results, {k: plain(v) for k, v in metric.compute(sums).items()})
    for name, sums in totals.logged.items():
        results = joined(results, _mean(name, sums))
    return results


def _mean(name: str, sums: Any) -> dict[str, float]:
    total, count = exact(np.asarray(sums)).reshape(2, -1)
    counted = count > 0
    return {name: float(np.sum(total[counted] / count[counted]))} if counted.any() else {}


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
