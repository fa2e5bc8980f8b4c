"""The metrics by name.  Adding one is one function and one row of `METRICS`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jfit.metrics.core import (
    Arrays,
    HostMetric,
    Metric,
    Weights,
    batch_mean,
    computed,
    hits,
    kahan,
    like,
    mean,
    pairs,
    picked,
    ratio,
    row_mask,
    sums,
    total,
    xp,
    zero_mean,
)
from jfit.ops.registry import nearest


def accuracy(axis: int = 1, name: str = "accuracy") -> Metric:
    """correct / count, the prediction being the argmax over `axis`, or the output itself if shaped as its label.

    Example:
        >>> accuracy().name
        'accuracy'

    Source: Apache MXNet 1.9.1, `Accuracy`.
    """

    def pair(label: Array, output: Array, mask: Array | None) -> tuple[Array, Array]:
        found = output if output.shape == label.shape else jnp.argmax(output, axis if output.ndim > 1 else 0)
        return hits(found.astype(jnp.int32) == like(name, label, found.shape).astype(jnp.int32), output, mask)

    return ratio(name, pair)


def top_k_accuracy(top_k: int = 1, name: str = "top_k_accuracy") -> Metric:
    """How often the label is among the `top_k` largest of (rows, classes) outputs; the name ends in `_<top_k>`.

    Example:
        >>> top_k_accuracy(5).name
        'top_k_accuracy_5'

    Source: Apache MXNet 1.9.1, `TopKAccuracy`.
    """
    if top_k <= 1:
        raise ValueError(f"metric top_k_accuracy: top_k is {top_k}, more than 1 is needed; use 'acc' for the top one.")
    name = f"{name}_{top_k}"

    def pair(label: Array, output: Array, mask: Array | None) -> tuple[Array, Array]:
        if output.ndim != 2:
            raise ValueError(f"metric {name}: the output has shape {output.shape}, (rows, classes) is needed.")
        best = lax.top_k(output, min(top_k, output.shape[1]))[1]  # (rows, k)
        wanted = like(name, label, output.shape[:1]).astype(best.dtype)
        return hits(jnp.any(best == wanted[:, None], axis=1), output, mask)

    return ratio(name, pair)


def cross_entropy(eps: float = 1e-12, name: str = "cross-entropy") -> Metric:
    """-sum log(p[label] + eps) / count; classes lie on axis 1 of the output.

    Example:
        >>> cross_entropy().name
        'cross-entropy'

    Source: Apache MXNet 1.9.1, `CrossEntropy`.
    """

    def pair(label: Array, output: Array, mask: Array | None) -> tuple[Array, Array]:
        return sums(-jnp.log(picked(name, label, output, 1) + eps), output, mask)

    return mean(name, pair)


def nll_loss(eps: float = 1e-12, name: str = "nll-loss") -> Metric:
    """-sum log(p[label] + eps) / count, under another name.

    Example:
        >>> nll_loss().name
        'nll-loss'

    Source: Apache MXNet 1.9.1, `NegativeLogLikelihood`.
    """
    return cross_entropy(eps, name)


def perplexity(ignore_label: int | None = None, axis: int = -1, name: str = "perplexity") -> Metric:
    """exp(-sum log max(p[label], 1e-10) / count) over the labels that are not `ignore_label`.

    Args:
        ignore_label: label that does not count, None counts all.
        axis: where the classes of the output lie.
        name: for logs.

    Returns:
        A `Metric`.

    Example:
        >>> perplexity(ignore_label=0).name
        'perplexity'

    Source: Apache MXNet 1.9.1, `Perplexity`.
    """

    def pair(label: Array, output: Array, mask: Array | None) -> tuple[Array, Array]:
        loss = -jnp.log(jnp.maximum(picked(name, label, output, axis), 1e-10))
        if ignore_label is None:
            return sums(loss, output, mask)
        counts = like(name, label, loss.shape).astype(jnp.int32) != ignore_label
        kept = row_mask(loss, output, mask) & counts
        return jnp.sum(jnp.where(kept, loss, 0.0)), jnp.sum(kept, dtype=jnp.int32)

    return mean(name, pair, jnp.exp)


def mae(name: str = "mae") -> Metric:
    """Mean over batches of mean |label - output|.

    Example:
        >>> mae().name
        'mae'

    Source: Apache MXNet 1.9.1, `MAE`, over the whole batch on any number of devices.
    """
    return batch_mean(name, lambda label, output: jnp.abs(label - output))


def mse(name: str = "mse") -> Metric:
    """Mean over batches of mean (label - output)^2.

    Example:
        >>> mse().name
        'mse'

    Source: Apache MXNet 1.9.1, `MSE`, over the whole batch on any number of devices.
    """
    return batch_mean(name, lambda label, output: jnp.square(label - output))


def rmse(name: str = "rmse") -> Metric:
    """Mean over batches of sqrt(mean (label - output)^2).

    Example:
        >>> rmse().name
        'rmse'

    Source: Apache MXNet 1.9.1, `RMSE`, over the whole batch on any number of devices.
    """
    return batch_mean(name, lambda label, output: jnp.square(label - output), jnp.sqrt)


def f1(average: str = "macro", name: str = "f1") -> Metric:
    """2 tp / (2 tp + fp + fn) of binary labels; "macro": the mean over batches, "micro": from the totals.

    Outputs are (rows, 2) scores, or (rows,) or (rows, 1) probabilities of class 1.

    Example:
        >>> f1().name
        'f1'

    Source: Apache MXNet 1.9.1, `F1`; 0 where the denominator is 0.
    """
    if average not in ("macro", "micro"):
        raise ValueError(f"metric f1: average is {average!r}, it needs to be 'macro' or 'micro'.")

    def pair(label: Array, output: Array, mask: Array | None) -> Array:
        if output.ndim > 2 or (output.ndim == 2 and output.shape[1] > 2):
            raise ValueError(f"metric {name} is binary: the output has shape {output.shape}, (rows, 2) or (rows,) is needed.")
        two = output.ndim == 2 and output.shape[1] == 2
        said = jnp.argmax(output, 1) == 1 if two else output.reshape(-1) > 0.5
        true = like(name, label, said.shape).astype(jnp.int32) == 1
        kept = row_mask(true, output, mask)
        cells = [said & true, said & ~true, ~said & true, ~said & ~true]  # tp, fp, fn, tn
        return jnp.stack([jnp.sum(cell & kept, dtype=jnp.int32) for cell in cells])

    def stats(labels: Arrays, outputs: Arrays, weights: Weights) -> Array:
        return total(pair(*each) for each in pairs(name, labels, outputs, weights))

    def score(cells: Any) -> Any:
        cells = cells * 1.0  # doubling an int32 count may overflow
        wrong = 2 * cells[0] + cells[1] + cells[2]
        return 2 * cells[0] / (wrong + (wrong == 0))

    def fold(running: Any, cells: Array) -> Any:
        return kahan(running, score(cells), (jnp.sum(cells) > 0).astype(jnp.int32))

    if average == "macro":
        return Metric(name, zero_mean, stats, fold, computed(name))

    def compute(cells: Any) -> dict[str, Any]:
        return {name: xp(cells).where(cells.sum() > 0, score(cells), np.float32(np.nan))}

    return Metric(name, lambda: jnp.zeros(4, jnp.int32), stats, lambda running, cells: running + cells, compute)


def loss(name: str = "loss") -> Metric:
    """sum(outputs) / size; labels are ignored.

    Example:
        >>> loss().name
        'loss'

    Source: Apache MXNet 1.9.1, `Loss`.
    """

    def stats(labels: Arrays, outputs: Arrays, weights: Weights) -> tuple[Array, Array]:
        del labels
        rows = pairs(name, None, outputs, weights)
        return total(sums(output.astype(jnp.float32), output, mask) for _, output, mask in rows)

    return Metric(name, zero_mean, stats, lambda running, seen: kahan(running, *seen), computed(name))


METRICS: dict[str, Callable[..., Metric]] = {
    "acc": accuracy,
    "accuracy": accuracy,
    "top_k_accuracy": top_k_accuracy,
    "top_k_acc": top_k_accuracy,
    "ce": cross_entropy,
    "crossentropy": cross_entropy,
    "cross-entropy": cross_entropy,
    "nll_loss": nll_loss,
    "negativeloglikelihood": nll_loss,
    "nll-loss": nll_loss,
    "perplexity": perplexity,
    "mae": mae,
    "mse": mse,
    "rmse": rmse,
    "f1": f1,
    "loss": loss,
    "torch": lambda name="torch": loss(name),
    "caffe": lambda name="caffe": loss(name),
}


def create(name: str, **params: Any) -> Metric:
    """One metric by name; `top_k_accuracy_5` is short for `top_k_accuracy` with top_k=5.

    Args:
        name: case ignored; see `METRICS`.
        **params: of that metric.

    Returns:
        A `Metric`.

    Raises:
        ValueError: unknown name or parameter.

    Example:
        >>> create("top_k_accuracy_5").name
        'top_k_accuracy_5'
    """
    key = name.lower()
    short = re.fullmatch(r"(top_k_acc(?:uracy)?)_(\d+)", key)
    if short:
        return create(short[1], **{"top_k": int(short[2]), **params})
    make = METRICS.get(key)
    if make is None:
        near = nearest(name, METRICS) or ", ".join(map(repr, METRICS))
        raise ValueError(f"unknown metric {name!r}: the nearest names are {near}.")
    known = list(inspect.signature(make).parameters)
    for given in params:
        if given not in known:
            near = nearest(given, known) or ", ".join(map(repr, known))
            raise ValueError(f"metric {name!r} has no parameter {given!r}; the nearest it has: {near}.")
    return make(**params)


def get(spec: Any, **params: Any) -> tuple[Metric | HostMetric, ...]:
    """The metrics that `spec` means, always a tuple.

    Args:
        spec: a name, a `Metric`, a function `(label, output) -> number` on numpy arrays, a list of these, or None for none.
        **params: parameters of a named metric.

    Returns:
        Tuple of `Metric` and `HostMetric`.

    Raises:
        ValueError: unknown name or parameter.
        TypeError: `spec` is none of the above.

    Example:
        >>> [m.name for m in get(["acc", "ce"])]
        ['accuracy', 'cross-entropy']
    """
    if spec is None:
        return ()
    if isinstance(spec, Metric | HostMetric):
        return (spec,)
    if isinstance(spec, str):
        return (create(spec, **params),)
    if isinstance(spec, list | tuple):
        return tuple(m for each in spec for m in get(each))
    if callable(spec):
        name = getattr(spec, "__name__", type(spec).__name__)
        return (HostMetric(f"custom({name})" if "<" in name else name, spec),)
    raise TypeError(f"a metric is a name, a Metric, a function (label, output) or a list of these; found {spec!r}.")
