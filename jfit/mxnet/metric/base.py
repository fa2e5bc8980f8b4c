"""EvalMetric, the base class of metrics; the metric registry; and dispatch of a batch to several metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import jax
import numpy as np

from jfit import counters
from jfit.metrics import Metric
from jfit.mxnet.metric.fold import Pick, fold_batch, output_weights
from jfit.mxnet.mutable import MutableArray, as_array, as_input
from jfit.ops import nearest

REGISTRY: dict[str, type[EvalMetric]] = {}
Names = Sequence[str] | None
Klass = TypeVar("Klass", bound="type[EvalMetric]")


def register(klass: Klass, *names: str) -> Klass:
    """Register a metric class for `create`, under its lower-case class name and under `names`; usable as a decorator.

    Args:
        klass: subclass of `EvalMetric`.
        *names: further names, case ignored.

    Returns:
        The class.

    Example:
        >>> @register
        ... class Answer(EvalMetric):
        ...     def update(self, labels, preds):
        ...         self.sum_metric, self.num_inst = 42.0, 1
        >>> REGISTRY["answer"].__name__
        'Answer'
    """
    REGISTRY.update(dict.fromkeys((klass.__name__.lower(), *(n.lower() for n in names)), klass))
    return klass


def alias(*names: str) -> Callable[[Klass], Klass]:
    """Class decorator: register a metric class under additional names, besides its lower-case class name.

    Args:
        *names: the names, case ignored.

    Returns:
        The decorator.

    Example:
        >>> @alias("mean_bias")
        ... class Bias(EvalMetric):
        ...     pass
        >>> REGISTRY["mean_bias"] is Bias
        True
    """
    return lambda klass: register(klass, *names)


def lookup(name: str) -> type[EvalMetric]:
    """Return the registered metric class of a name.

    Raises:
        AssertionError: the name is not registered (MXNet's exception type); the message lists similar names.
    """
    if name.lower() not in REGISTRY:
        near = nearest(name, REGISTRY) or ", ".join(sorted(REGISTRY))
        raise AssertionError(f"{name} is not registered. Please register with metric.register first; the nearest are {near}.")
    return REGISTRY[name.lower()]


class EvalMetric:
    """Base class of metrics: value = sum_metric / num_inst, since `reset_local` (local) and since `reset` (global).

    A subclass defines `update(labels, preds)`, which adds to `sum_metric` and `num_inst` (and, with has_global_stats=True, to
    `global_sum_metric` and `global_num_inst`).  The built-in metrics keep running sums on the device instead.

    Args:
        name: name of the metric, for logs.
        output_names: names of the outputs that `update_dict` passes to `update`; None: all.
        label_names: names of the labels that `update_dict` passes to `update`; None: all.
        **kwargs: settings included in `get_config`; has_global_stats=True declares that the subclass also maintains the
            global sums.

    Example:
        >>> class Bias(EvalMetric):
        ...     def update(self, labels, preds):
        ...         for label, pred in zip(labels, preds):
        ...             self.sum_metric += float((pred.asnumpy() - label.asnumpy()).sum())
        ...             self.num_inst += pred.shape[0]
        >>> metric = Bias("bias")
        >>> metric.fold([np.zeros(2)], [np.ones(2)])
        >>> metric.get()
        ('bias', 1.0)

    Source: mxnet.metric.EvalMetric of Apache MXNet 1.9.1.
    """

    needs_labels = True
    num_inst: Any
    sum_metric: Any
    global_num_inst: Any
    global_sum_metric: Any

    def __init__(self, name: Any, output_names: Names = None, label_names: Names = None, **kwargs: Any) -> None:
        self.name = str(name)
        self.output_names, self.label_names = output_names, label_names
        self._has_global_stats = kwargs.pop("has_global_stats", False)
        self._kwargs = kwargs
        self.reset()

    def __str__(self) -> str:
        return f"EvalMetric: {dict(self.get_name_value())}"

    @property
    def pure(self) -> Metric | None:
        """The equivalent `jfit.metrics` metric; None if `update` is Python code."""
        return None

    def get_config(self) -> dict[str, Any]:
        """Return the settings as a dict, from which `create` makes an equal metric."""
        shown = {"metric": type(self).__name__, "name": self.name}
        return {**self._kwargs, **shown, "output_names": self.output_names, "label_names": self.label_names}

    # -------------------------------------------------------------------------------- accumulation
    def reset(self) -> None:
        """Reset the local and the global sums."""
        self.global_num_inst, self.global_sum_metric = 0, 0.0
        self.num_inst, self.sum_metric = 0, 0.0

    def reset_local(self) -> None:
        """Reset the local sums; the global sums are unchanged."""
        self.num_inst, self.sum_metric = 0, 0.0

    def update(self, labels: Any, preds: Any) -> None:
        """Accumulate one batch.

        Args:
            labels: list of label arrays.
            preds: list of output arrays.
        """
        raise NotImplementedError(f"metric {self.name}: {type(self).__name__} must define update(self, labels, preds).")

    def update_dict(self, label: Mapping[str, Any], pred: Mapping[str, Any]) -> None:
        """Accumulate one batch of named arrays, those in `output_names` and `label_names` (None: all, in dict order).

        Args:
            label: label arrays by name.
            pred: output arrays by name.
        """
        labels, outputs = list(label.values()), list(pred.values())
        ((_, pick),) = self._picks(_places(label), _places(pred), True)
        self.update([labels[i] for i in pick.labels], [outputs[i] for i in pick.outputs])

    def fold(self, labels: Any, outputs: Any, weights: Any = None) -> None:
        """Accumulate one batch with row weights; one dispatch for all device metrics, which does not block.

        Args:
            labels: list of label arrays.
            outputs: list of output arrays, rows on axis 0.
            weights: row weights (rows,) for all outputs, a list of such arrays (one per output), or None: all 1.  Rows of
                weight 0 (padding) are excluded.
        """
        labels, outputs = listed(labels), listed(outputs)
        _fold(self._picks(_places(range(len(labels))), _places(range(len(outputs))), False), labels, outputs, weights)

    def fold_dict(self, label: Mapping[str, Any], pred: Mapping[str, Any], weights: Any = None) -> None:
        """Accumulate one batch with row weights, as `fold`; labels and outputs are dicts of arrays by name.

        Those in `label_names` and `output_names` are used.
        """
        picks = self._picks(_places(label), _places(pred), True)
        _fold(picks, list(label.values()), list(pred.values()), weights, (list(label), list(pred)))

    def leaves(self) -> list[EvalMetric]:
        """Return the metrics that accumulate values: this metric, or all metrics of a (nested) composite."""
        return [self]

    def _picks(self, labels: Mapping[Any, int], outputs: Mapping[Any, int], by_name: bool) -> list[tuple[EvalMetric, Pick]]:
        """Return (metric, positions of its labels and outputs in the batch) for each metric of `leaves()`.

        labels, outputs: name -> position.  by_name: select by the metric's label_names and output_names; else all in order.
        """
        label_positions = _select(self, "label", self.label_names, labels, by_name)
        return [(self, Pick(label_positions, _select(self, "output", self.output_names, outputs, by_name)))]

    def prepare(self, labels: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Hook called before each batch: resize running sums whose shape depends on the batch."""

    def _wrap(self, array: Any) -> Any:
        """Return an array as an object with a method `.asnumpy()`, as user-defined `update` methods expect."""
        return array if hasattr(array, "asnumpy") else MutableArray(array)

    # -------------------------------------------------------------------------------- values
    def get(self) -> tuple[Any, Any]:
        """Return (name, value) since the last `reset_local`; the value is nan if there was no batch."""
        return self.name, _mean(self.sum_metric, self.num_inst)

    def get_global(self) -> tuple[Any, Any]:
        """Return (name, value) since the last `reset`; the same as `get` for a metric without global sums."""
        if not self._has_global_stats:
            return self.get()
        return self.name, _mean(self.global_sum_metric, self.global_num_inst)

    def get_name_value(self) -> list[tuple[str, Any]]:
        """Return the result of `get` as a list of (name, value) pairs."""
        return named(*self.get())

    def get_global_name_value(self) -> list[tuple[str, Any]]:
        """Return the result of `get_global` as a list of (name, value) pairs."""
        return named(*self.get_global())


# ------------------------------------------------------------------------------------------------ dispatch of a batch
def _fold(
    picks: Sequence[tuple[EvalMetric, Pick]], labels: Sequence[Any], outputs: Sequence[Any], weights: Any, names: Any = None
) -> None:
    for metric, pick in picks:
        metric.prepare([labels[i] for i in pick.labels], [outputs[i] for i in pick.outputs])
    ruled: list[Any] = [(metric, pick, metric.pure) for metric, pick in picks]
    device = [(m, p if m.needs_labels else p._replace(labels=()), rule) for m, p, rule in ruled if rule is not None]
    if device:
        metrics, chosen, rules = zip(*device, strict=True)
        plain, plain_outputs = [as_input(a) for a in labels], [as_array(a) for a in outputs]
        new = fold_batch(rules, chosen, [metric.running() for metric in metrics], plain, plain_outputs, weights)
        for metric, sums in zip(metrics, new, strict=True):
            metric.set_sums(*sums)
    for metric, pick, rule in ruled:
        if rule is None:
            each = [weights[i] for i in pick.outputs] if isinstance(weights, (list, tuple)) else weights
            arrays = _weighted(metric, [labels[i] for i in pick.labels], [outputs[i] for i in pick.outputs], each)
            if names is None or type(metric).update_dict is EvalMetric.update_dict:
                metric.update(*arrays)
            else:  # the class overrides update_dict
                by_name = (
                    dict(zip((keys[i] for i in at), x, strict=True)) for keys, at, x in zip(names, pick, arrays, strict=True)
                )
                metric.update_dict(*by_name)


def _weighted(metric: EvalMetric, labels: list[Any], outputs: list[Any], weights: Any) -> tuple[list[Any], list[Any]]:
    """Return (labels, outputs) without the rows of weight 0, wrapped for a user-defined `update` (`EvalMetric._wrap`)."""
    if weights is not None:
        if any(isinstance(w, jax.Array) for w in jax.tree.leaves(weights)):
            weights = counters.read(weights)  # sync: rows of weight 0 are removed on the host
        for at, output in enumerate(outputs):
            weight = weights[at] if isinstance(weights, list) else weights
            if weight is None or np.all(np.asarray(weight) > 0):
                continue
            weight, label = np.asarray(weight), labels[at] if at < len(labels) else None
            outputs[at] = _rows(output, 0, output_weights(weight, label, output))
            if label is not None and len(weight) in label.shape[:2]:
                labels[at] = _rows(label, label.shape.index(len(weight)), weight)
    return [metric._wrap(x) for x in labels], [metric._wrap(x) for x in outputs]


def _rows(array: Any, axis: int, weight: np.ndarray) -> Any:
    rows = as_array(array)[(slice(None),) * axis + (np.flatnonzero(weight > 0),)]
    return type(array)(rows) if isinstance(array, MutableArray) else rows


def _places(keys: Iterable[Any]) -> dict[Any, int]:
    return {key: at for at, key in enumerate(keys)}


def _select(metric: EvalMetric, what: str, names: Any, places: Mapping[Any, int], by_name: bool) -> tuple[int, ...]:
    """Return the positions in the batch of the labels or outputs that a metric uses.

    what: "label" or "output", for the error message.  names: the metric's label_names or output_names, None for all.  places:
    name -> position.
    """
    if names is None or not by_name:
        return tuple(places.values())
    for name in names:
        if name not in places:
            near = nearest(name, list(places)) or ", ".join(map(repr, places))
            raise ValueError(f"metric {metric.name} needs the {what} {name!r}, but the batch has {near}; fix {what}_names.")
    return tuple(places[name] for name in names)


def listed(value: Any) -> list[Any]:
    """Return a list or tuple as a list, None as an empty list, and everything else as a list of one."""
    return [] if value is None else list(value) if isinstance(value, (list, tuple)) else [value]


def named(name: Any, value: Any) -> list[tuple[str, Any]]:
    """Return a list of (name, value) pairs, from one name and value or from a list of names and a list of values."""
    return list(zip(listed(name), listed(value), strict=True))


def _mean(total: Any, count: Any) -> Any:
    """Return total / count, nan if count is 0; it blocks if they are on the device."""
    total, count = (counters.read(as_array(x)) if isinstance(x, (MutableArray, jax.Array)) else x for x in (total, count))
    value = total / count if count else float("nan")
    return float(value) if np.ndim(value) == 0 else value
