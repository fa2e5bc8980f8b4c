"""What all metrics share: names, registry, sums in Python, and how a batch reaches every metric of a list."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import jax
import numpy as np

from jfit import counters
from jfit.metrics import Metric
from jfit.mxnet.metric.fold import Pick, fold_batch, output_weights
from jfit.mxnet.mutable import MutableArray, as_array
from jfit.ops import nearest

REGISTRY: dict[str, type[EvalMetric]] = {}
Klass = TypeVar("Klass", bound="type[EvalMetric]")


def register(klass: Klass, *names: str) -> Klass:
    """Make a metric class known to `create` by its lower-case name and by `names`.

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
    """Decorator: register a metric class under further names too."""
    return lambda klass: register(klass, *names)


def lookup(name: str) -> type[EvalMetric]:
    """The metric class of a name.

    Raises:
        AssertionError: no such name (MXNet's class of error); the message lists the nearest.
    """
    if name.lower() not in REGISTRY:
        near = nearest(name, REGISTRY) or ", ".join(sorted(REGISTRY))
        raise AssertionError(
            f"{name} is not registered. Please register with metric.register first; the nearest metrics are {near}."
        )
    return REGISTRY[name.lower()]


class EvalMetric:
    """sum_metric / num_inst over the batches that were seen: since `reset_local`, and since `reset` (global).

    A subclass writes `update(labels, preds)`, which adds to `sum_metric` and `num_inst` (and, with has_global_stats=True, to
    `global_sum_metric` and `global_num_inst`); the named metrics keep their sums on the device instead.

    Args:
        name: what logs call it.
        output_names: outputs it sees in `update_dict`; None: all.
        label_names: labels it sees in `update_dict`; None: all.
        **kwargs: settings that `get_config` shows; has_global_stats: the subclass keeps global sums too.

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
    grows = False  # whether the size of its sums depends on what it sees
    num_inst: Any
    sum_metric: Any
    global_num_inst: Any
    global_sum_metric: Any

    def __init__(
        self,
        name: Any,
        output_names: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> None:
        self.name = str(name)
        self.output_names, self.label_names = output_names, label_names
        self._has_global_stats = kwargs.pop("has_global_stats", False)
        self._kwargs = kwargs
        self.reset()

    def __str__(self) -> str:
        return f"EvalMetric: {dict(self.get_name_value())}"

    @property
    def pure(self) -> Metric | None:
        """The pure metric behind this one; None where `update` is Python."""
        return None

    def get_config(self) -> dict[str, Any]:
        """The settings that make this metric again."""
        shown = {"metric": type(self).__name__, "name": self.name}
        return {**self._kwargs, **shown, "output_names": self.output_names, "label_names": self.label_names}

    # -------------------------------------------------------------------------------- counting
    def reset(self) -> None:
        """Forget everything."""
        self.global_num_inst, self.global_sum_metric = 0, 0.0
        self.num_inst, self.sum_metric = 0, 0.0

    def reset_local(self) -> None:
        """Forget the local sums; the global ones go on."""
        self.num_inst, self.sum_metric = 0, 0.0

    def update(self, labels: Any, preds: Any) -> None:
        """Add a batch: lists of labels and outputs."""
        raise NotImplementedError(f"metric {self.name}: {type(self).__name__} needs a method update(self, labels, preds).")

    def update_dict(self, label: Mapping[str, Any], pred: Mapping[str, Any]) -> None:
        """Add a batch given by name; `output_names` and `label_names` choose, else all count in their order."""
        labels, outputs = list(label.values()), list(pred.values())
        ((_, pick),) = self._picks(_places(label), _places(pred), True)
        self.update([labels[i] for i in pick.labels], [outputs[i] for i in pick.outputs])

    def fold(self, labels: Any, outputs: Any, weights: Any = None) -> None:
        """Add a batch: one dispatch for all pure metrics, no wait; rows of weight 0 never count.

        Args:
            labels: list of arrays.
            outputs: list of arrays, rows on axis 0.
            weights: (rows,) for all outputs, a list of such arrays (one for each output), or None: every row counts.
        """
        labels, outputs = _listed(labels), _listed(outputs)
        _fold(self._picks(_places(range(len(labels))), _places(range(len(outputs))), False), labels, outputs, weights)

    def fold_dict(self, label: Mapping[str, Any], pred: Mapping[str, Any], weights: Any = None) -> None:
        """As `fold`, with labels and outputs by name and `output_names` / `label_names` respected."""
        picks = self._picks(_places(label), _places(pred), True)
        _fold(picks, list(label.values()), list(pred.values()), weights, (list(label), list(pred)))

    def set_sums(self, sums: Any, global_sums: Any = None) -> None:
        """Replace the sums, local and (where not given apart) global, by those of a program that did its own counting.

        Args:
            sums: what the `update` of the pure metric gave; of several metrics, one entry for each of `leaves()`.
            global_sums: the same for the global sums.  The arrays are kept, so they must not be donated afterwards.

        Raises:
            TypeError: a metric of the user's has no such sums.
        """
        found = self.leaves()
        each, everything = ([s] if len(found) == 1 and found[0] is self else list(s) for s in (sums, global_sums or sums))
        for leaf, local, total in zip(found, each, everything, strict=True):
            if leaf.pure is None:
                raise TypeError(f"metric {leaf.name} counts in Python: it has no sums on a device that could be replaced.")
            leaf._store((local, total))

    def leaves(self) -> list[EvalMetric]:
        """The metrics that count: itself, or those of a composite."""
        return [self]

    def _picks(self, labels: Mapping[Any, int], outputs: Mapping[Any, int], by_name: bool) -> list[tuple[EvalMetric, Pick]]:
        """Each metric that counts, with the positions of its labels and outputs."""
        chosen = _select(self, "label", self.label_names, labels, by_name)
        return [(self, Pick(chosen, _select(self, "output", self.output_names, outputs, by_name)))]

    def prepare(self, labels: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Called before a batch is folded: sums whose size follows from the shapes get it here."""

    def running(self) -> tuple[Any, Any]:
        """Local and global sums as the pure metric counts them; None where nothing has counted."""
        raise NotImplementedError

    def _store(self, sums: tuple[Any, Any]) -> None:
        """Take the sums that a program gave."""
        raise NotImplementedError

    def _box(self, array: Any) -> Any:
        """What the Python `update` of a user gets for an array: something with `.asnumpy()`."""
        return array if hasattr(array, "asnumpy") else MutableArray(array)

    # -------------------------------------------------------------------------------- values
    def get(self) -> tuple[Any, Any]:
        """(name, value) since the last `reset_local`; nan where nothing was counted."""
        return self.name, _mean(self.sum_metric, self.num_inst)

    def get_global(self) -> tuple[Any, Any]:
        """(name, value) since the last `reset`; that of `get` where there are no global sums."""
        if not self._has_global_stats:
            return self.get()
        return self.name, _mean(self.global_sum_metric, self.global_num_inst)

    def get_name_value(self) -> list[tuple[str, Any]]:
        """[(name, value), ...] of `get`."""
        return named(*self.get())

    def get_global_name_value(self) -> list[tuple[str, Any]]:
        """[(name, value), ...] of `get_global`."""
        return named(*self.get_global())


# ------------------------------------------------------------------------------------------------ a batch, to every metric
def _fold(
    picks: Sequence[tuple[EvalMetric, Pick]], labels: Sequence[Any], outputs: Sequence[Any], weights: Any, names: Any = None
) -> None:
    for metric, pick in picks:
        metric.prepare([labels[i] for i in pick.labels], [outputs[i] for i in pick.outputs])
    device = [(m, m.pure, p if m.needs_labels else p._replace(labels=())) for m, p in picks if m.pure is not None]
    if device:
        rules, seen = tuple(rule for _, rule, _ in device if rule is not None), tuple(p for _, _, p in device)
        plain, plain_outputs = [as_array(a) for a in labels], [as_array(a) for a in outputs]
        new = fold_batch(rules, seen, [m.running() for m, _, _ in device], plain, plain_outputs, weights)
        for (metric, _, _), sums in zip(device, new, strict=True):
            metric._store(sums)
    for metric, pick in picks:
        if metric.pure is None:
            each = [weights[i] for i in pick.outputs] if isinstance(weights, (list, tuple)) else weights
            kept = _kept(metric, [labels[i] for i in pick.labels], [outputs[i] for i in pick.outputs], each)
            if names is None or type(metric).update_dict is EvalMetric.update_dict:
                metric.update(*kept)
            else:  # the user's own
                by_name = (
                    dict(zip((keys[i] for i in at), x, strict=True)) for keys, at, x in zip(names, pick, kept, strict=True)
                )
                metric.update_dict(*by_name)


def _kept(metric: EvalMetric, labels: list[Any], outputs: list[Any], weights: Any) -> tuple[list[Any], list[Any]]:
    """MutableArray labels and outputs without the rows of weight 0."""
    if weights is not None:
        if any(isinstance(w, jax.Array) for w in jax.tree.leaves(weights)):
            weights = counters.read(weights)  # sync: a metric in Python needs to know which rows count
        for at, output in enumerate(outputs):
            weight = weights[at] if isinstance(weights, list) else weights
            if weight is None or np.all(np.asarray(weight) > 0):
                continue
            weight, label = np.asarray(weight), labels[at] if at < len(labels) else None
            outputs[at] = _rows(output, 0, output_weights(weight, label, output))
            if label is not None and len(weight) in label.shape[:2]:
                labels[at] = _rows(label, label.shape.index(len(weight)), weight)
    return [metric._box(x) for x in labels], [metric._box(x) for x in outputs]


def _rows(array: Any, axis: int, weight: np.ndarray) -> Any:
    kept = as_array(array)[(slice(None),) * axis + (np.flatnonzero(weight > 0),)]
    return type(array)(kept) if isinstance(array, MutableArray) else kept


def _places(keys: Iterable[Any]) -> dict[Any, int]:
    return {key: at for at, key in enumerate(keys)}


def _select(metric: EvalMetric, what: str, names: Any, places: Mapping[Any, int], by_name: bool) -> tuple[int, ...]:
    """Positions of the labels or outputs that a metric sees."""
    if names is None or not by_name:
        return tuple(places.values())
    for name in names:
        if name not in places:
            near = nearest(name, list(places)) or ", ".join(map(repr, places))
            raise ValueError(f"metric {metric.name} asks for the {what} {name!r}, but the batch has {near}; fix {what}_names.")
    return tuple(places[name] for name in names)


def _listed(value: Any) -> list[Any]:
    return [] if value is None else list(value) if isinstance(value, (list, tuple)) else [value]


def named(name: Any, value: Any) -> list[tuple[str, Any]]:
    """[(name, value), ...] of one pair, or of a list of names with a list of values."""
    return list(zip(_listed(name), _listed(value), strict=True))


def _mean(total: Any, count: Any) -> Any:
    """total / count, nan for a count of 0; sums of arrays are read."""
    total, count = (counters.read(as_array(x)) if isinstance(x, (MutableArray, jax.Array)) else x for x in (total, count))
    value = total / count if count else float("nan")
    return float(value) if np.ndim(value) == 0 else value
