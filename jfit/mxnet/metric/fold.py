"""Accumulate a batch into the running sums of several metrics with one compiled program.

Nothing here blocks; the host reads the sums when the value of a metric is requested.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from jfit import counters
from jfit.metrics import Metric
from jfit.parallel.devices import sharding as replicated


class Pick(NamedTuple):
    """Positions of the labels and outputs of a batch that are passed to one metric."""

    labels: tuple[int, ...]
    outputs: tuple[int, ...]


def fold_batch(metrics: tuple[Metric, ...], picks: tuple[Pick, ...], sums: Any, labels: Any, outputs: Any, weights: Any) -> Any:
    """Add one batch to the (local, global) running sums of each metric; one dispatch, does not block.

    Args:
        metrics: pure metrics.  The compiled program is cached by these objects, so equal settings should be one object.
        picks: per metric, the labels and outputs it gets.
        sums: per metric (local, global) sums; None before the first batch.
        labels: label arrays, on the host or on devices.
        outputs: output arrays, rows on axis 0.
        weights: row weights (rows,) for all outputs, a list of such arrays (or None) per output, or None: all 1.

    Returns:
        The new (local, global) sums per metric.

    Example:
        >>> from jfit import metrics
        >>> acc = metrics.accuracy()
        >>> ((local, _),) = fold_batch((acc,), (Pick((0,), (0,)),), [(None, None)], [np.array([0, 1])], [np.eye(2)], None)
        >>> float(acc.compute(local)["accuracy"])
        1.0
    """
    labels, outputs = tuple(labels), tuple(outputs)
    weights = tuple(weights) if isinstance(weights, (list, tuple)) else weights
    filled = tuple(tuple(m.init() if s is None else s for s in pair) for m, pair in zip(metrics, sums, strict=True))
    return _program(metrics, picks)(*_together(filled, labels, outputs, weights))


@functools.lru_cache(maxsize=512)
def _program(metrics: tuple[Metric, ...], picks: tuple[Pick, ...]):
    def metric_fold(sums, labels, outputs, weights):
        counters.count_trace("metric_fold")
        folded = []
        for metric, pick, (local, everything) in zip(metrics, picks, sums, strict=True):
            picked_labels, picked = [labels[i] for i in pick.labels], [outputs[i] for i in pick.outputs]
            row_weights = _weights(weights, pick, picked_labels, picked)
            stats = metric.stats(picked_labels, picked, row_weights)
            folded.append((metric.update(local, stats), metric.update(everything, stats)))
        return tuple(folded)

    return jax.jit(metric_fold)


def _weights(weights: Any, pick: Pick, labels: Sequence[Any], outputs: Sequence[Any]) -> list[Any]:
    """Return the row weights of each output that `pick` selects; None for scalars and for outputs without weights."""
    result = []
    for at, (index, output) in enumerate(zip(pick.outputs, outputs, strict=True)):
        weight = weights[index] if isinstance(weights, tuple) else weights
        label = labels[at] if at < len(labels) else None
        result.append(None if weight is None or not output.ndim else output_weights(weight, label, output, jnp))
    return result


def output_weights(weight: Any, label: Any, output: Any, xp: Any = np) -> Any:
    """Expand row weights (batch,) to the rows of an output, which may be flattened sequences (batch * steps, classes).

    The label's shape determines the order: (batch, steps) means batch-major rows, (steps, batch) means step-major rows.

    Args:
        weight: row weights (batch,).
        label: the label of the output, or None (batch-major).
        output: output array (rows, ...).
        xp: numpy or jax.numpy.

    Returns:
        Weights (rows,).

    Raises:
        ValueError: the number of rows is not a multiple of the batch size in either order.

    Example:
        >>> output_weights(np.array([1.0, 0.0]), np.zeros((3, 2)), np.zeros((6, 5))).tolist()
        [1.0, 0.0, 1.0, 0.0, 1.0, 0.0]
    """
    size, rows = weight.shape[0], output.shape[0]
    if rows == size:
        return weight
    if size and rows % size == 0 and (label is None or label.shape[:1] == (size,)):
        return xp.repeat(weight, rows // size)
    if size and rows % size == 0 and label is not None and label.shape[1:2] == (size,):
        after = rows // (label.shape[0] * size)
        return xp.tile(xp.repeat(weight, after), label.shape[0])
    shapes = f"{tuple(output.shape)}" + ("" if label is None else f" with a label of shape {tuple(label.shape)}")
    problem = f"the {size} row weights of the batch do not match an output of shape {shapes}"
    raise ValueError(f"{problem}; if outputs have different numbers of rows, pass a list of weights, one per output")


def _together(sums: Any, labels: Any, outputs: Any, weights: Any) -> tuple[Any, Any, Any, Any]:
    """Copy all arguments to one set of devices, the largest among those of committed outputs and labels; it does not block."""
    arrays = [a for a in (*outputs, *labels) if isinstance(a, jax.Array) and a.committed]
    if not arrays:
        return sums, labels, outputs, weights
    sharding = max((a.sharding for a in arrays), key=lambda sharding: len(sharding.device_set))
    devices = sharding.device_set
    target = _replicated(sharding)

    def moved(x: Any) -> Any:
        # jit itself copies host arrays and uncommitted ones to the devices
        elsewhere = isinstance(x, jax.Array) and x.committed and x.sharding.device_set != devices
        return jax.device_put(x, target) if elsewhere else x

    def started(x: Any) -> Any:
        # the program returns committed sums; uncommitted ones would compile it once more
        return moved(x) if isinstance(x, jax.Array) and x.committed else jax.device_put(x, target)

    return jax.tree.map(started, sums), *jax.tree.map(moved, (labels, outputs, weights))


@functools.lru_cache(maxsize=64)
def _replicated(sharding: Any) -> Any:
    if isinstance(sharding, NamedSharding):
        return NamedSharding(sharding.mesh, PartitionSpec())
    return replicated(sorted(sharding.device_set, key=lambda d: d.id))
