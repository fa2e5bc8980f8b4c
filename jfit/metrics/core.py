"""The base of metrics: the `Metric` record, pairing of labels, outputs and weights, and compensated sums over rows."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jfit.checks import one_of
from jfit.programs import made

Arrays = Sequence[Array]
Weights = Sequence[Array | None] | None
Shapes = Sequence[tuple[int, ...]]
# (label, output, rows) -> (sum over the batch, count or total weight); rows: bool mask or float32 weights of shape (rows,), or
# None for all rows
PairRule = Callable[[Array, Array, Array | None], tuple[Array, Array]]


class Metric(NamedTuple):
    """A metric: pure, jit-able functions.

    Attributes:
        name: name of the value in logs and results.
        init: `() -> sums`, the running sums over no batches, a pytree of zeros.
        stats: `(labels, outputs, weights) -> stats`, a pytree of the sums over one batch on one device.  The arguments are
            sequences with one entry per output; each weight is an array of shape (rows,), or None if all rows have weight 1.
        update: `(sums, stats) -> sums`, adds the stats of a batch to the running sums.
        compute: `sums -> {name: value}`, on numpy or JAX arrays; NaN if no row has a weight above 0.  Values are scalars, or
            arrays such as a confusion matrix.
        host: False; True for a `HostMetric`, which runs on the host.
        merge: `(stats, stats) -> stats`, combines the stats of two parts of a batch; None if these are added.
        sized: `(label shapes, output shapes) -> Metric` for metrics whose sums depend on the number of classes; until it is
            called (see the function `sized`), their other functions raise an error.  None for all other metrics.
        fitted: `targets -> Metric`, the metric for the outputs and labels of a function (see `jfit.metrics.targets.Target`):
            logits, one-hot or binary labels, classes on the last axis.  Only `stats` differs, and the sizes of sums that are
            not `sized` yet.  None: outputs and labels are used unchanged.
        of_rows: the metric over all rows, by which `fit` and `score` replace a mean over batches for models of functions; None
            if this metric is not replaced.

    Example:
        >>> import jfit
        >>> acc = jfit.metrics.accuracy()
        >>> acc.name, [int(x) for x in acc.init()]
        ('accuracy', [0, 0])
    """

    name: str
    init: Callable[[], Any]
    stats: Callable[[Arrays, Arrays, Weights], Any]
    update: Callable[[Any, Any], Any]
    compute: Callable[[Any], dict[str, Any]]
    host: bool = False
    merge: Callable[[Any, Any], Any] | None = None
    sized: Callable[[Shapes, Shapes], Metric] | None = None
    fitted: Callable[[Sequence[Any]], Any] | None = None
    of_rows: Any = None


def sized(metrics: Sequence[Any], labels: Shapes, outputs: Shapes) -> tuple[Any, ...]:
    """Set the number of classes of metrics that need it, from the shapes of labels and outputs.

    Args:
        metrics: metrics; those that do not depend on the number of classes are returned unchanged.
        labels: shape of the label of each output.
        outputs: shape of each output that metrics are computed for.

    Returns:
        Tuple of metrics.

    Example:
        >>> from jfit.metrics import pcc
        >>> (metric,) = sized([pcc()], [(8,)], [(8, 3)])
        >>> metric.init().shape
        (3, 4)
    """
    return tuple(m if getattr(m, "sized", None) is None else made(m.sized)(labels, outputs) for m in metrics)


def on_devices(metrics: Sequence[Any]) -> tuple[Any, ...]:
    """Return the metrics that are computed on the devices, inside the compiled step."""
    return tuple(m for m in metrics if not m.host)


def on_host(metrics: Sequence[Any]) -> tuple[Any, ...]:
    """Return the metrics that are computed on the host, by numpy.

    Example:
        >>> from jfit.metrics import get
        >>> [m.name for m in on_host(get(["acc", len]))]
        ['len']
    """
    return tuple(m for m in metrics if m.host)


def needs_size(name: str, make: Callable[[int], Metric]) -> Metric:
    """Make a metric whose number of classes is not known yet.

    `sized` sets it from the shapes of the outputs: the size of axis 1, or 2 for probabilities of class 1.

    Args:
        name: name of the value in logs and results.
        make: number of classes -> the metric.
    """

    def unknown(*_: Any) -> Any:
        raise ValueError(
            f"metric {name}: the number of classes, which sets the size of its sums, is unknown; pass num_classes="
        )

    def with_classes(labels: Shapes, outputs: Shapes) -> Metric:
        return make(max([2, *(shape[1] for shape in outputs if len(shape) > 1)]))

    return Metric(name, unknown, unknown, unknown, unknown, sized=with_classes)


def pairs(name: str, labels: Any, outputs: Arrays, weights: Weights, weighted: bool = False) -> Iterator[tuple[Any, Any, Any]]:
    """Yield (label, output, rows) for each output.

    With `weighted`, `rows` are float32 row weights; otherwise a bool mask of the rows with a weight above 0, or None if all
    rows have weight 1.

    Args:
        name: name of the metric, for error messages.
        labels: label of each output; None: no labels, and `label` is None.
        outputs: the outputs.
        weights: row weights (rows,) of each output, or None if they are all 1.
        weighted: whether rows are weighted by their row weights.
    """
    weights = [None] * len(outputs) if weights is None else weights
    labels = [None] * len(outputs) if labels is None else labels
    if len(labels) != len(outputs):
        raise ValueError(f"metric {name}: got {len(labels)} labels and {len(outputs)} outputs, but needs one label per output.")
    for label, output, weight in zip(labels, outputs, weights, strict=True):
        if not weighted:
            yield label, output, None if weight is None else weight > 0
        elif weight is None:
            yield label, output, jnp.ones(output.shape[:1], jnp.float32)
        else:
            yield label, output, jnp.maximum(wide(weight), 0.0)


def wide(x: Array) -> Array:
    """Convert an array to float32; arrays of wider dtypes are unchanged."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def like(name: str, label: Array, shape: tuple[int, ...]) -> Array:
    """Reshape the label to `shape`, the shape of the predictions.

    Raises:
        ValueError: the label has another number of elements; the message contains `name`, the name of the metric.
    """
    if label.size != math.prod(shape):
        raise ValueError(f"metric {name}: the label has shape {label.shape}; pass one label per prediction, {tuple(shape)}")
    return label.reshape(shape)


def each_row(values: Array, output: Array, rows: Array | None) -> Array:
    """Broadcast row weights to one weight for each value.

    Args:
        values: array computed from `output`, with the rows along axis 0.
        output: output of the model, with the rows along axis 0.
        rows: bool mask or weights of the rows (rows,), or of their positions (rows, positions, ...); None: all True.
    """
    if rows is None:
        return jnp.ones(values.shape, bool)
    if not output.ndim:
        return jnp.broadcast_to(rows.reshape(-1)[:1].squeeze(), values.shape)
    if rows.ndim > 1:
        return jnp.broadcast_to(rows.reshape(*rows.shape, *(1,) * (values.ndim - rows.ndim)), values.shape)
    per_row = values.size // max(output.shape[0], 1)
    return jnp.broadcast_to(rows[:, None], (rows.shape[0], per_row)).reshape(values.shape)


def add_up(values: Array, output: Array, rows: Array | None) -> tuple[Array, Array]:
    """Return (sum of the values, their count or total weight); bools are summed as int32, floats and weights as float32.

    Arguments as for `each_row`.
    """
    if rows is None:
        return jnp.sum(values, dtype=jnp.int32 if values.dtype == bool else None), jnp.int32(values.size)
    return add_each(values, each_row(values, output, rows))


def add_each(values: Array, each: Array) -> tuple[Array, Array]:
    """Return (sum of the values, their count or total weight) for a bool mask or weights `each` of the shape of `values`."""
    count = jnp.sum(each, dtype=jnp.int32 if each.dtype == bool else None)
    weighted = jnp.where(each > 0, values, jnp.zeros((), values.dtype))  # 0 where the weight is 0, even if the value is NaN
    weighted = weighted if each.dtype == bool else weighted * each
    return jnp.sum(weighted, dtype=jnp.int32 if weighted.dtype == bool else None), count


def add_counted(values: Array, labels: Array, output: Array, rows: Array | None, ignored: int | None) -> tuple[Array, Array]:
    """`add_up` without the values whose label is `ignored`; None counts all."""
    if ignored is None:
        return add_up(values, output, rows)
    each = each_row(values, output, rows)
    return add_each(values, jnp.where(labels != ignored, each, jnp.zeros((), each.dtype)))


def label_probability(name: str, label: Array, output: Array, axis: int) -> Array:
    """Return the entry of the output at the class of each label, in the shape of the output without its class axis.

    Args:
        name: name of the metric, for error messages.
        label: class indices.
        output: probabilities or scores of the classes.
        axis: class axis of the output.
    """
    axis %= output.ndim
    index = like(name, label, output.shape[:axis] + output.shape[axis + 1 :]).astype(jnp.int32)
    return wide(jnp.take_along_axis(output, jnp.expand_dims(index, axis), axis).squeeze(axis))


def total(parts: Iterator[Any]) -> Any:
    """Add pytrees of the same structure, leaf by leaf."""
    return functools.reduce(lambda a, b: jax.tree.map(jnp.add, a, b), parts)


# ------------------------------------------------------------------------------------------------ common forms
def ratio(name: str, pair: PairRule, weighted: bool = False) -> Metric:
    """Make the metric Σ value / count with int32 sums; if `weighted`, Σ weight · value / Σ weight.

    Args:
        name: name of the value in logs and results.
        pair: `(label, output, rows) -> (sum of values, count or total weight)`, for bool values such as "is correct".
        weighted: whether rows are weighted by their row weights.
    """
    if weighted:
        return weighted_mean(name, pair)

    def update(running: tuple[Array, Array], seen: tuple[Array, Array]) -> tuple[Array, Array]:
        return running[0] + seen[0], running[1] + seen[1]

    zeros = lambda: tuple([jax.device_put(np.int32(0), may_alias=False) for _ in range(2)])  # noqa: E731
    return Metric(name, zeros, mean(name, pair).stats, update, lambda running: {name: divide(*running)})


def mean(name: str, pair: PairRule, finish: str | None = None, weighted: bool = False) -> Metric:
    """Make the metric Σ value / count with float32 sums; if `weighted`, Σ weight · value / Σ weight.

    Args:
        name: name of the value in logs and results.
        pair: `(label, output, rows) -> (sum of values, count or total weight)`.
        finish: name of a jnp function that is applied to the mean (perplexity: "exp"); None: the mean itself.
        weighted: whether rows are weighted by their row weights.
    """
    if weighted:
        return weighted_mean(name, pair, finish)

    def stats(labels: Arrays, outputs: Arrays, weights: Weights) -> tuple[Array, Array]:
        return total(pair(*each) for each in pairs(name, labels, outputs, weights))

    return Metric(name, zero_mean, stats, lambda sums, seen: kahan(sums, *seen), computed(name, finish))


def weighted_mean(name: str, pair: PairRule, finish: str | None = None) -> Metric:
    """Make the metric Σ weight · value / Σ weight over all batches; both sums are compensated.  Arguments as for `mean`."""

    def stats(labels: Arrays, outputs: Arrays, weights: Weights) -> Array:
        sums = (pair(*each) for each in pairs(name, labels, outputs, weights, True))
        return total(jnp.stack([s.astype(float), c.astype(float)]) for s, c in sums)

    def compute(running: Any) -> dict[str, Any]:
        sum_, count = exact(running)
        lib = xp(count)
        value = lib.where(count > 0, sum_ / lib.where(count > 0, count, 1), jnp.nan)
        return {name: value if finish is None else getattr(lib, finish)(value)}

    return Metric(name, lambda: zero_sums(2), stats, added, compute)


def batch_mean(
    name: str, error: Callable[[Array, Array], Array], average: str, finish: str | None = None, weighted: bool = False
) -> Metric:
    """Metric: `finish`(mean error) of every batch, averaged over batches and outputs ("macro"), or of all rows ("micro")."""
    one_of(("macro", "micro"), **{f"metric {name}: average": average})

    def pair(label: Array, output: Array, rows: Array | None) -> tuple[Array, Array]:
        return add_up(error(wide(like(name, label, output.shape)), wide(output)), output, rows)

    if weighted or average == "micro":
        return mean(name, pair, finish, weighted)

    def stats(labels: Arrays, outputs: Arrays, weights: Weights) -> tuple[tuple[Array, Array], ...]:
        return tuple(pair(*each) for each in pairs(name, labels, outputs, weights))

    def update(running: Any, seen: tuple[tuple[Array, Array], ...]) -> Any:
        for part, count in seen:
            value = part / jnp.maximum(count, 1)
            running = kahan(running, getattr(jnp, finish)(value) if finish else value, (count > 0).astype(jnp.int32))
        return running

    return Metric(name, zero_mean, stats, update, computed(name))


def computed(name: str, finish: str | None = None) -> Callable[[Any], dict[str, Any]]:
    """Return the function `compute` of a metric whose running sums are (sum, rounding error, count), as `kahan` makes them."""

    def compute(running: tuple[Any, Any, Any]) -> dict[str, Any]:
        sum_, lost, count = running
        value = divide(sum_ - lost, count)
        return {name: value if finish is None else getattr(xp(value), finish)(value)}

    return compute


def xp(x: Any) -> Any:
    """Return the module for functions of `x`: jax.numpy for a JAX array, numpy for anything else."""
    return jnp if isinstance(x, jax.Array) else np


def divide(value: Any, count: Any) -> Any:
    """Return value / count, or NaN where count is 0; numpy arrays for numpy arguments, JAX arrays for JAX arguments."""
    lib = xp(count)
    return lib.where(count > 0, value / lib.maximum(count, 1), np.float32(np.nan))


# ------------------------------------------------------------------------------------------------ compensated sum and count
def zero_mean() -> tuple[Array, Array, Array]:
    """Return (sum, rounding error of the sum, count), three zeros in separate buffers, so that they can be donated."""
    return jnp.zeros((), float), jnp.zeros((), float), jnp.zeros((), jnp.int32)


def kahan(running: tuple[Array, Array, Array], value: Array, count: Array) -> tuple[Array, Array, Array]:
    """Add `value` and `count` to running = (sum, rounding error, count) by Kahan summation; a value with count 0 is ignored."""
    sum_, lost, number = running
    part = jnp.where(count > 0, value, 0.0) - lost
    grown = sum_ + part
    return grown, finite(grown, (grown - sum_) - part), number + count


def finite(grown: Array, lost: Array) -> Array:
    """Return `lost`, the rounding error of the sum `grown`, or 0 if that is not finite: there the error is inf - inf = NaN."""
    return jnp.where(jnp.isfinite(grown), lost, 0.0)


# ------------------------------------------------------------------------------------------------ arrays of compensated sums
def zero_sums(*shape: int) -> Array:
    """Return compensated sums, initially 0, (2, *shape): [0] are the sums, [1] their rounding errors.

    They are float32, with jax_enable_x64 float64.
    """
    return jax.device_put(np.zeros((2, *shape), jax.dtypes.canonicalize_dtype(float)), may_alias=False)  # compiles nothing


def added(running: Array, values: Array) -> Array:
    """Add `values` to compensated sums (see `zero_sums`): precise to about 48 bits, so counts stay exact beyond 2^24.

    Example:
        >>> big = added(zero_sums(1), jnp.array([2.0**24]))
        >>> np.asarray(added(big, jnp.ones(1)), np.float64).sum(axis=0).tolist()
        [16777217.0]
    """
    high, low = running[0], running[1]
    grown, lost = two_sum(high, values)
    # what has been lost so far goes back into the sum, else it grows with the number of additions and is rounded itself
    return jnp.stack(two_sum(grown, low + lost))


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """Return (rounded sum of a and b, its rounding error), which together are the exact sum.

    Source: D. E. Knuth, The Art of Computer Programming 2, 4.2.2, theorem B.
    """
    grown = a + b
    other = grown - a
    return grown, finite(grown, (a - (grown - other)) + (b - other))


def exact(running: Any) -> Any:
    """Return sum + rounding error of compensated sums (see `zero_sums`): float64 for numpy arrays, float32 for JAX arrays."""
    if isinstance(running, jax.Array):
        return running[0] + running[1]
    return np.asarray(running, np.float64).sum(axis=0)
