"""What metrics are made of: the record, how labels, outputs and weights pair up, and sums over the rows that count."""

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
Shapes = Sequence[tuple[int, ...]]
# (label, output, rows) -> (sum, how much counted); rows: None, or a mask or weights (rows,)
PairRule = Callable[[Array, Array, Array | None], tuple[Array, Array]]


class Metric(NamedTuple):
    """A metric: pure, jit-able functions.

    Attributes:
        name: what it is called in logs.
        init: `() -> sums`, all zero.
        stats: `(labels, outputs, weights) -> stats`: what one batch on one device adds.  Labels and outputs are paired in
            order, weights are (rows,) or None for each output.
        update: `(sums, stats) -> sums`.
        compute: `sums -> {name: value}`, on numpy or JAX arrays; nan while nothing has counted.  Most values are scalars, a
            confusion matrix is an array.
        host: False; a `HostMetric` has True.
        merge: `(stats, stats) -> stats` of two parts of a batch; None: stats are added.
        sized: `(label shapes, output shapes) -> Metric` where the sums have a size that follows from the shapes; None: they
            do not.  Such a metric has no `init` before it is sized (see `sized`).
    """

    name: str
    init: Callable[[], Any]
    stats: Callable[[Arrays, Arrays, Weights], Any]
    update: Callable[[Any, Any], Any]
    compute: Callable[[Any], dict[str, Any]]
    host: bool = False
    merge: Callable[[Any, Any], Any] | None = None
    sized: Callable[[Shapes, Shapes], Metric] | None = None


def sized(metrics: Sequence[Any], labels: Shapes, outputs: Shapes) -> tuple[Any, ...]:
    """The metrics with sums of the size that these shapes need; those that need no shapes come back as they are.

    Example:
        >>> from jfit.metrics import pcc
        >>> (metric,) = sized([pcc()], [(8,)], [(8, 3)])
        >>> metric.init().shape
        (3, 4)
    """
    return tuple(m if getattr(m, "sized", None) is None else m.sized(labels, outputs) for m in metrics)


def on_devices(metrics: Sequence[Any]) -> tuple[Any, ...]:
    """The metrics that count on the devices."""
    return tuple(m for m in metrics if not m.host)


def on_host(metrics: Sequence[Any]) -> tuple[Any, ...]:
    """The metrics that count on the host.

    Example:
        >>> from jfit.metrics import get
        >>> [m.name for m in on_host(get(["acc", len]))]
        ['len']
    """
    return tuple(m for m in metrics if m.host)


def unsized(name: str, make: Callable[[int], Metric], count: Callable[[str, Shapes, Shapes], int]) -> Metric:
    """A metric whose number of classes is not known yet; `count(name, label shapes, output shapes)` finds it."""

    def missing(*_: Any) -> Any:
        raise ValueError(
            f"metric {name}: the number of classes is not known here, and its sums have a place for each; pass num_classes= "
            "(jfit.fit and score find it in the shapes by themselves)"
        )

    def fitted(labels: Shapes, outputs: Shapes) -> Metric:
        return make(count(name, labels, outputs))

    return Metric(name, missing, missing, missing, missing, sized=fitted)


def pairs(name: str, labels: Any, outputs: Arrays, weights: Weights, weighted: bool = False) -> Iterator[tuple[Any, Any, Any]]:
    """(label, output, rows) of each output; rows: a mask or None, with `weighted` always float weights."""
    weights = [None] * len(outputs) if weights is None else weights
    labels = [None] * len(outputs) if labels is None else labels
    if len(labels) != len(outputs):
        raise ValueError(
            f"metric {name}: {len(labels)} labels and {len(outputs)} outputs were given; it needs one label for each output."
        )
    for label, output, weight in zip(labels, outputs, weights, strict=True):
        if not weighted:
            yield label, output, None if weight is None else weight > 0
        elif weight is None:
            yield label, output, jnp.ones(output.shape[:1], jnp.float32)
        else:
            yield label, output, jnp.maximum(weight.astype(jnp.float32), 0.0)


def like(name: str, label: Array, shape: tuple[int, ...]) -> Array:
    """The label in the shape of what it is compared with."""
    if label.size != math.prod(shape):
        raise ValueError(
            f"metric {name}: the label has shape {label.shape}, the predictions have shape {tuple(shape)}; "
            "it needs one label for each prediction."
        )
    return label.reshape(shape)


def each_row(values: Array, output: Array, rows: Array | None) -> Array:
    """The mask or the weights of an output's rows, shaped as the values that were made of it."""
    if rows is None:
        return jnp.ones(values.shape, bool)
    if not output.ndim:
        return jnp.broadcast_to(rows.reshape(-1)[:1].squeeze(), values.shape)
    per_row = values.size // max(output.shape[0], 1)
    return jnp.broadcast_to(rows[:, None], (rows.shape[0], per_row)).reshape(values.shape)


def weigh(values: Array, each: Array) -> Array:
    """The values by their weights (a mask: 0 or 1); where the weight is 0 the value is not looked at, it may be nan."""
    kept = jnp.where(each > 0, values, jnp.zeros((), values.dtype))
    return kept if each.dtype == bool else kept * each


def add_up(values: Array, output: Array, rows: Array | None) -> tuple[Array, Array]:
    """(sum of the values, how much counted): int32 for masks and booleans, float32 where weights or values are floats."""
    if rows is None:
        return jnp.sum(values, dtype=jnp.int32 if values.dtype == bool else None), jnp.int32(values.size)
    return add_each(values, each_row(values, output, rows))


def add_each(values: Array, each: Array) -> tuple[Array, Array]:
    """`add_up` with a mask or a weight for each value."""
    count = jnp.sum(each, dtype=jnp.int32 if each.dtype == bool else None)
    chosen = weigh(values, each)
    return jnp.sum(chosen, dtype=jnp.int32 if chosen.dtype == bool else None), count


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


# ------------------------------------------------------------------------------------------------ common forms
def ratio(name: str, pair: PairRule, weighted: bool = False) -> Metric:
    """Metric of an integer sum over a count, Σ w v / Σ w where it is weighted."""
    if weighted:
        return weighted_mean(name, pair)

    def stats(labels: Arrays, outputs: Arrays, weights: Weights) -> tuple[Array, Array]:
        return total(pair(*each) for each in pairs(name, labels, outputs, weights))

    def update(running: tuple[Array, Array], seen: tuple[Array, Array]) -> tuple[Array, Array]:
        return running[0] + seen[0], running[1] + seen[1]

    def compute(running: tuple[Any, Any]) -> dict[str, Any]:
        return {name: divide(*running)}

    return Metric(name, lambda: (jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32)), stats, update, compute)


def mean(name: str, pair: PairRule, finish: str | None = None, weighted: bool = False) -> Metric:
    """Metric of a float sum over a count; `finish` names the function that maps the mean (perplexity: exp)."""
    if weighted:
        return weighted_mean(name, pair, finish)

    def stats(labels: Arrays, outputs: Arrays, weights: Weights) -> tuple[Array, Array]:
        return total(pair(*each) for each in pairs(name, labels, outputs, weights))

    return Metric(name, zero_mean, stats, lambda sums, seen: kahan(sums, *seen), computed(name, finish))


def weighted_mean(name: str, pair: PairRule, finish: str | None = None) -> Metric:
    """Metric Σ w v / Σ w over everything that was seen; both sums keep what their additions round off."""

    def stats(labels: Arrays, outputs: Arrays, weights: Weights) -> Array:
        found = (pair(*each) for each in pairs(name, labels, outputs, weights, True))
        return total(jnp.stack([s.astype(jnp.float32), c.astype(jnp.float32)]) for s, c in found)

    def compute(running: Any) -> dict[str, Any]:
        sum_, count = exact(running)
        lib = xp(count)
        value = lib.where(count > 0, sum_ / lib.where(count > 0, count, 1), jnp.nan)
        return {name: value if finish is None else getattr(lib, finish)(value)}

    return Metric(name, lambda: nothing(2), stats, added, compute)


def batch_mean(name: str, error: Callable[[Array, Array], Array], finish: str | None = None, weighted: bool = False) -> Metric:
    """Metric that averages, over batches and outputs, `finish` of the mean error of a batch; weighted: over all rows."""

    def pair(label: Array, output: Array, rows: Array | None) -> tuple[Array, Array]:
        wanted = like(name, label, output.shape).astype(jnp.float32)
        return add_up(error(wanted, output.astype(jnp.float32)), output, rows)

    if weighted:
        return weighted_mean(name, pair, finish)

    def stats(labels: Arrays, outputs: Arrays, weights: Weights) -> tuple[tuple[Array, Array], ...]:
        return tuple(pair(*each) for each in pairs(name, labels, outputs, weights))

    def update(running: Any, seen: tuple[tuple[Array, Array], ...]) -> Any:
        for part, count in seen:
            value = part / jnp.maximum(count, 1)
            running = kahan(running, getattr(jnp, finish)(value) if finish else value, (count > 0).astype(jnp.int32))
        return running

    return Metric(name, zero_mean, stats, update, computed(name))


def computed(name: str, finish: str | None = None) -> Callable[[Any], dict[str, Any]]:
    """The `compute` of sums made by `kahan`."""

    def compute(running: tuple[Any, Any, Any]) -> dict[str, Any]:
        sum_, lost, count = running
        value = divide(sum_ - lost, count)
        return {name: value if finish is None else getattr(xp(value), finish)(value)}

    return compute


def xp(x: Any) -> Any:
    """numpy or jax.numpy, whichever `x` belongs to."""
    return jnp if isinstance(x, jax.Array) else np


def divide(value: Any, count: Any) -> Any:
    """value / count, nan for a count of 0; numpy in, numpy out."""
    lib = xp(count)
    return lib.where(count > 0, value / lib.maximum(count, 1), np.float32(np.nan))


# ------------------------------------------------------------------------------------------------ a float sum and a count
def zero_mean() -> tuple[Array, Array, Array]:
    """(sum, what its additions rounded off, count), each its own buffer."""
    return jnp.zeros((), jnp.float32), jnp.zeros((), jnp.float32), jnp.zeros((), jnp.int32)


def kahan(running: tuple[Array, Array, Array], value: Array, count: Array) -> tuple[Array, Array, Array]:
    """Running sums with `value` added, unless its count is 0; what the addition rounds off goes to the next one."""
    sum_, lost, number = running
    part = jnp.where(count > 0, value, 0.0) - lost
    grown = sum_ + part
    return grown, finite(grown, (grown - sum_) - part), number + count


def finite(grown: Array, lost: Array) -> Array:
    """What an addition rounded off; 0 beside an infinite sum, which stays infinite: inf - inf would be nan."""
    return jnp.where(jnp.isfinite(grown), lost, 0.0)


# ------------------------------------------------------------------------------------------------ many float sums
def nothing(*shape: int) -> Array:
    """Sums of zero, (2, *shape) float32: [0] the sums, [1] what their additions rounded off; the value is the sum of both."""
    return jnp.zeros((2, *shape), jnp.float32)


def added(running: Array, values: Array) -> Array:
    """Sums of `nothing` with `values` added: exact to about 48 bits, so counts in them are exact beyond 2^24.

    Example:
        >>> big = added(nothing(1), jnp.array([2.0**24]))
        >>> np.asarray(added(big, jnp.ones(1)), np.float64).sum(axis=0).tolist()
        [16777217.0]
    """
    high, low = running[0], running[1]
    grown, lost = two_sum(high, values)
    return jnp.stack([grown, low + lost])


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """(a + b rounded, what was rounded off); both exact together.

    Source: D. E. Knuth, The Art of Computer Programming 2, 4.2.2, theorem B.
    """
    grown = a + b
    other = grown - a
    return grown, finite(grown, (a - (grown - other)) + (b - other))


def exact(running: Any) -> Any:
    """The values of sums made by `added`: float64 on the host, float32 on a device."""
    if isinstance(running, jax.Array):
        return running[0] + running[1]
    return np.asarray(running, np.float64).sum(axis=0)
