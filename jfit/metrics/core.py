"""What metrics are made of: the records, row masks, and sums that may be added over devices."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

Arrays = Sequence[Array]
Weights = Sequence[Array | None] | None
# (label, output, row mask or None) -> (sum, how many)
PairRule = Callable[[Array, Array, Array | None], tuple[Array, Array]]


class Metric(NamedTuple):
    """A metric: pure, jit-able functions.

    Attributes:
        name: what it is called in logs.
        init: `() -> sums`, all zero.
        stats: `(labels, outputs, weights) -> stats`: sums of one batch on one device, which may be added.  Labels and
            outputs are paired in order, weights are (rows,) or None for each output.
        update: `(sums, stats) -> sums`.
        compute: `sums -> {name: value}`, on numpy or JAX arrays; nan while nothing has counted.
        host: False; a `HostMetric` has True.
    """

    name: str
    init: Callable[[], Any]
    stats: Callable[[Arrays, Arrays, Weights], Any]
    update: Callable[[Any, Any], Any]
    compute: Callable[[Any], dict[str, Any]]
    host: bool = False


class HostMetric(NamedTuple):
    """A numpy function of the user's, called on the host once a batch: it forces one read per step.

    Attributes:
        name: what it is called in logs.
        feval: `(label, output) -> value` or `-> (sum, count)`, on numpy arrays without padded rows.
        host: True.

    Example:
        >>> bias = HostMetric("bias", lambda label, output: float((output - label).mean()))
        >>> bias.compute(bias.update(bias.init(), [np.zeros(2)], [np.ones(2)]))
        {'bias': 1.0}

    Source: Apache MXNet 1.9.1, `CustomMetric`.
    """

    name: str
    feval: Callable[[np.ndarray, np.ndarray], Any]
    host: bool = True

    def init(self) -> tuple[float, int]:
        """Sums of no batch."""
        return 0.0, 0

    def update(self, sums: tuple[float, int], labels: Sequence[Any], outputs: Sequence[Any]) -> tuple[float, int]:
        """Sums with one batch added; labels and outputs are numpy arrays of the rows that count."""
        total, count = sums
        for label, output, _ in pairs(self.name, labels, outputs, None):
            value = self.feval(np.asarray(label), np.asarray(output))
            added, number = value if isinstance(value, tuple) else (value, 1)
            total, count = total + float(added), count + int(number)
        return total, count

    def compute(self, sums: tuple[float, int]) -> dict[str, float]:
        """{name: mean}."""
        return {self.name: sums[0] / sums[1] if sums[1] else float("nan")}


def pairs(name: str, labels: Any, outputs: Arrays, weights: Weights) -> Iterator[tuple[Any, Any, Any]]:
    """(label, output, row mask) of each output."""
    weights = [None] * len(outputs) if weights is None else weights
    labels = [None] * len(outputs) if labels is None else labels
    if len(labels) != len(outputs):
        raise ValueError(
            f"metric {name}: {len(labels)} labels and {len(outputs)} outputs were given; it needs one label for each output."
        )
    for label, output, weight in zip(labels, outputs, weights, strict=True):
        yield label, output, None if weight is None else weight > 0


def like(name: str, label: Array, shape: tuple[int, ...]) -> Array:
    """The label in the shape of what it is compared with."""
    if label.size != math.prod(shape):
        raise ValueError(
            f"metric {name}: the label has shape {label.shape}, the predictions have shape {tuple(shape)}; "
            "it needs one label for each prediction."
        )
    return label.reshape(shape)


def row_mask(values: Array, output: Array, mask: Array | None) -> Array:
    """The row mask of an output, shaped as the values that were made of it."""
    if mask is None:
        return jnp.ones(values.shape, bool)
    per_row = values.size // max(output.shape[0], 1)
    return jnp.broadcast_to(mask[:, None], (mask.shape[0], per_row)).reshape(values.shape)


def sums(values: Array, output: Array, mask: Array | None) -> tuple[Array, Array]:
    """(sum of the values that count, how many), float."""
    if mask is None:
        return jnp.sum(values), jnp.int32(values.size)
    kept = row_mask(values, output, mask)
    return jnp.sum(jnp.where(kept, values, 0)), jnp.sum(kept, dtype=jnp.int32)  # where: a padded row may hold nan


def hits(correct: Array, output: Array, mask: Array | None) -> tuple[Array, Array]:
    """(how many are correct, how many count), int32."""
    if mask is None:
        return jnp.sum(correct, dtype=jnp.int32), jnp.int32(correct.size)
    kept = row_mask(correct, output, mask)
    return jnp.sum(correct & kept, dtype=jnp.int32), jnp.sum(kept, dtype=jnp.int32)


def picked(name: str, label: Array, output: Array, axis: int) -> Array:
    """p[label] for each label, float32, shaped as the output without its class axis."""
    if output.ndim < 2:
        raise ValueError(f"metric {name}: the output has shape {output.shape}, (rows, classes, ...) is needed.")
    axis %= output.ndim
    index = like(name, label, output.shape[:axis] + output.shape[axis + 1 :]).astype(jnp.int32)
    return jnp.take_along_axis(output, jnp.expand_dims(index, axis), axis).squeeze(axis).astype(jnp.float32)


def total(parts: Iterator[Any]) -> Any:
    """The sum of trees of one structure."""
    return functools.reduce(lambda a, b: jax.tree.map(jnp.add, a, b), parts)


def xp(x: Any) -> Any:
    """numpy or jax.numpy, whichever `x` belongs to."""
    return jnp if isinstance(x, jax.Array) else np


def ratio(name: str, pair: Callable[..., tuple[Array, Array]]) -> Metric:
    """Metric of an integer sum over a count."""

    def stats(labels: Arrays, outputs: Arrays, weights: Weights) -> tuple[Array, Array]:
        return total(pair(*each) for each in pairs(name, labels, outputs, weights))

    def update(running: tuple[Array, Array], seen: tuple[Array, Array]) -> tuple[Array, Array]:
        return running[0] + seen[0], running[1] + seen[1]

    def compute(running: tuple[Any, Any]) -> dict[str, Any]:
        return {name: divide(*running)}

    return Metric(name, lambda: (jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32)), stats, update, compute)


def mean(name: str, pair: PairRule, finish: Callable[[Any], Any] | None = None) -> Metric:
    """Metric of a float sum over a count; `finish` maps the mean (perplexity: exp)."""

    def stats(labels: Arrays, outputs: Arrays, weights: Weights) -> tuple[Array, Array]:
        return total(pair(*each) for each in pairs(name, labels, outputs, weights))

    return Metric(name, zero_mean, stats, lambda sums, seen: kahan(sums, *seen), computed(name, finish))


def batch_mean(name: str, error: Callable[[Array, Array], Array], finish: Callable[[Array], Array] | None = None) -> Metric:
    """Metric that averages, over batches and outputs, `finish` of the mean error of a batch."""

    def pair(label: Array, output: Array, mask: Array | None) -> tuple[Array, Array]:
        wanted = like(name, label, output.shape).astype(jnp.float32)
        return sums(error(wanted, output.astype(jnp.float32)), output, mask)

    def stats(labels: Arrays, outputs: Arrays, weights: Weights) -> tuple[tuple[Array, Array], ...]:
        return tuple(pair(*each) for each in pairs(name, labels, outputs, weights))

    def update(running: Any, seen: tuple[tuple[Array, Array], ...]) -> Any:
        for added, count in seen:
            value = added / jnp.maximum(count, 1)
            running = kahan(running, finish(value) if finish else value, (count > 0).astype(jnp.int32))
        return running

    return Metric(name, zero_mean, stats, update, computed(name))


def zero_mean() -> tuple[Array, Array, Array]:
    """(sum, what its additions rounded off, count), each its own buffer."""
    return jnp.zeros((), jnp.float32), jnp.zeros((), jnp.float32), jnp.zeros((), jnp.int32)


def kahan(running: tuple[Array, Array, Array], value: Array, count: Array) -> tuple[Array, Array, Array]:
    """Running sums with `value` added, unless its count is 0; what the addition rounds off goes to the next one."""
    sum_, lost, number = running
    part = jnp.where(count > 0, value, 0.0) - lost
    grown = sum_ + part
    return grown, (grown - sum_) - part, number + count


def computed(name: str, finish: Callable[[Any], Any] | None = None) -> Callable[[Any], dict[str, Any]]:
    """The `compute` of sums made by `kahan`."""

    def compute(running: tuple[Any, Any, Any]) -> dict[str, Any]:
        sum_, lost, count = running
        value = divide(sum_ - lost, count)
        return {name: value if finish is None else (xp(value).exp(value) if finish is jnp.exp else finish(value))}

    return compute


def divide(value: Any, count: Any) -> Any:
    """value / count, nan for a count of 0; numpy in, numpy out."""
    lib = xp(count)
    return lib.where(count > 0, value / lib.maximum(count, 1), np.float32(np.nan))
