"""Folding a batch into running sums on the device: one compiled program for all metrics of a list.

Nothing here waits: the sums are read when somebody asks a metric for its value.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from jfit import counters
from jfit.metrics import Metric


class Pick(NamedTuple):
    """Which of the labels and outputs of a batch one metric sees, by position."""

    labels: tuple[int, ...]
    outputs: tuple[int, ...]


def fold_batch(metrics: tuple[Metric, ...], picks: tuple[Pick, ...], sums: Any, labels: Any, outputs: Any, weights: Any) -> Any:
    """The sums of each metric, (local, global), with one batch added: one dispatch, no wait.

    Args:
        metrics: pure metrics; the program is cached by them, so equal settings should give the same object.
        picks: what each of them sees.
        sums: for each metric its (local, global) sums, None where nothing has counted yet.
        labels: arrays, on the host or on devices.
        outputs: arrays.
        weights: (rows,) row weights for all outputs, or one such array (or None) for each output, or None.

    Returns:
        New sums, in the same order.

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
            seen_labels, seen = [labels[i] for i in pick.labels], [outputs[i] for i in pick.outputs]
            rows = _weights(weights, pick, seen_labels, seen)
            stats = metric.stats(seen_labels, seen, rows)
            folded.append((metric.update(local, stats), metric.update(everything, stats)))
        return tuple(folded)

    return jax.jit(metric_fold)


def _weights(weights: Any, pick: Pick, labels: Sequence[Any], outputs: Sequence[Any]) -> list[Any]:
    """One weight for each row of each output."""
    found = []
    for at, (index, output) in enumerate(zip(pick.outputs, outputs, strict=True)):
        weight = weights[index] if isinstance(weights, tuple) else weights
        label = labels[at] if at < len(labels) else None
        found.append(None if weight is None or not output.ndim else output_weights(weight, label, output, jnp))
    return found


def output_weights(weight: Any, label: Any, output: Any, xp: Any = np) -> Any:
    """Weights (batch,) as weights of the rows of an output, which may be steps of a sequence: (batch * steps, classes).

    The label says how such rows are ordered: (batch, steps) runs through the steps of a row, (steps, batch) through the rows.

    Raises:
        ValueError: the rows of the output cannot be told apart.

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
    raise ValueError(
        f"{size} row weights were given for an output of shape {tuple(output.shape)}"
        + ("" if label is None else f" with a label of shape {tuple(label.shape)}")
        + "; pass a list with the weights of each output's rows, or None where every row counts"
    )


def _together(sums: Any, labels: Any, outputs: Any, weights: Any) -> tuple[Any, Any, Any, Any]:
    """The arguments on one set of devices: that of the outputs, where they were put on some (a copy there never waits)."""
    arrays = [a for a in (*outputs, *labels) if isinstance(a, jax.Array) and a.committed]
    if not arrays:
        return sums, labels, outputs, weights
    home = max((a.sharding for a in arrays), key=lambda sharding: len(sharding.device_set))
    devices = home.device_set
    target = _replicated(home)

    def here(x: Any) -> bool:
        return isinstance(x, jax.Array) and x.committed and x.sharding.device_set == devices

    def moved(x: Any) -> Any:
        # host arrays are placed by the program itself
        return x if not isinstance(x, jax.Array) or here(x) else jax.device_put(x, target)

    if not all(here(x) for x in jax.tree.leaves(sums)):  # they must be committed from the start, or it compiles twice
        sums = jax.device_put(sums, target)
    weights = tuple(map(moved, weights)) if isinstance(weights, tuple) else moved(weights)
    return sums, tuple(map(moved, labels)), tuple(map(moved, outputs)), weights


@functools.lru_cache(maxsize=64)
def _replicated(sharding: Any) -> Any:
    if isinstance(sharding, SingleDeviceSharding):
        return sharding
    if isinstance(sharding, NamedSharding):
        return NamedSharding(sharding.mesh, PartitionSpec())
    devices = np.array(sorted(sharding.device_set, key=lambda d: d.id))
    return NamedSharding(Mesh(devices, ("devices",)), PartitionSpec())
