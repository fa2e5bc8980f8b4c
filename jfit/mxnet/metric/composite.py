"""CompositeEvalMetric (several metrics), CustomMetric (a Python function), and `create`.

>>> import numpy as np
>>> metric = create(["acc", "ce"])
>>> metric.fold([np.array([1, 0])], [np.array([[0.0, 1.0], [0.0, 1.0]])], weights=np.array([1.0, 0.0]))
>>> metric.get_name_value()[0]
('accuracy', 1.0)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jfit.metrics import HostMetric, Metric
from jfit.mxnet.metric.base import EvalMetric, Names, alias, lookup, named, register
from jfit.mxnet.metric.device import DeviceMetric, read
from jfit.mxnet.metric.fold import Pick


@alias("composite")
class CompositeEvalMetric(EvalMetric):
    """Several metrics updated together; `get` returns a list of names and a list of values.

    Args:
        metrics: list of metrics, each in a form that `create` accepts.
        name: name of the composite, for logs.
        output_names: names of the outputs that `update_dict` passes on to the metrics; None: all.
        label_names: names of the labels that `update_dict` passes on to the metrics; None: all.

    Example:
        >>> CompositeEvalMetric(["acc", "mse"]).get()
        (['accuracy', 'mse'], [nan, nan])

    Source: Apache MXNet 1.9.1, `CompositeEvalMetric`.
    """

    def __init__(
        self, metrics: Any = None, name: str = "composite", output_names: Names = None, label_names: Names = None
    ) -> None:
        self.metrics: list[EvalMetric] = []
        super().__init__(name, output_names, label_names, has_global_stats=True)
        self.metrics = [create(m) for m in metrics or ()]  # after the constructor's reset, so instances keep their sums

    def add(self, metric: Any) -> None:
        """Append a metric.

        Args:
            metric: any form that `create` accepts: a name, function, metric ...
        """
        self.metrics.append(create(metric))

    def get_metric(self, index: int) -> EvalMetric:
        """Return the metric at position `index`."""
        return self.metrics[index]

    def leaves(self) -> list[EvalMetric]:
        """Return all metrics that accumulate values, including those of nested composites."""
        return [leaf for metric in self.metrics for leaf in metric.leaves()]

    def reset(self) -> None:
        """Reset the local and global sums of every metric."""
        for metric in self.metrics:
            metric.reset()

    def reset_local(self) -> None:
        """Reset the local sums of every metric."""
        for metric in self.metrics:
            metric.reset_local()

    def update(self, labels: Any, preds: Any) -> None:
        """Add one batch, lists of label and output arrays, to every metric."""
        self.fold(labels, preds)

    def update_dict(self, labels: Mapping[str, Any], preds: Mapping[str, Any]) -> None:
        """Add one batch, dicts of label and output arrays by name, to every metric."""
        self.fold_dict(labels, preds)

    def get(self) -> tuple[Any, Any]:
        """Return (names, values) since the last `reset_local`; it blocks once for all metrics."""
        read(self.leaves())
        return self._flat([m.get() for m in self.metrics])

    def get_global(self) -> tuple[Any, Any]:
        """Return (names, values) since the last `reset`; it blocks once for all metrics."""
        read(self.leaves())
        return self._flat([m.get_global() for m in self.metrics])

    def get_config(self) -> dict[str, Any]:
        """Return the settings as a dict, from which `create` makes an equal metric."""
        return {**super().get_config(), "metrics": [m.get_config() for m in self.metrics]}

    def _picks(self, labels: Mapping[Any, int], outputs: Mapping[Any, int], by_name: bool) -> list[tuple[EvalMetric, Pick]]:
        if by_name:  # missing names are ignored here; a metric that needs a missing name raises
            labels = {k: v for k, v in labels.items() if self.label_names is None or k in self.label_names}
            outputs = {k: v for k, v in outputs.items() if self.output_names is None or k in self.output_names}
        return [pick for metric in self.metrics for pick in metric._picks(labels, outputs, by_name)]

    @staticmethod
    def _flat(pairs: Sequence[tuple[Any, Any]]) -> tuple[list[str], list[Any]]:
        flat = [each for pair in pairs for each in named(*pair)]
        return [name for name, _ in flat], [value for _, value in flat]


@register
class CustomMetric(EvalMetric):
    """Metric from a Python function on NumPy arrays: the mean over batches of `feval(label, output)`.

    Args:
        feval: function (label, output) -> value, or -> (sum, count) for a mean weighted by count.
        name: name of the metric, for logs; None: the function's name, `custom(<lambda>)` for a lambda.
        output_names: names of the outputs that `update_dict` passes; None: all.
        label_names: names of the labels that `update_dict` passes; None: all.
        allow_extra_outputs: whether there may be more outputs than labels; extra outputs are ignored.

    Example:
        >>> import numpy
        >>> metric = CustomMetric(lambda label, output: abs(label - output).mean())
        >>> metric.update([numpy.zeros(2)], [numpy.ones(2)])
        >>> metric.get()
        ('custom(<lambda>)', 1.0)

    Source: Apache MXNet 1.9.1, `CustomMetric`.
    """

    def __init__(
        self,
        feval: Callable[[Any, Any], Any],
        name: str | None = None,
        output_names: Names = None,
        label_names: Names = None,
        allow_extra_outputs: bool = False,
    ):
        if name is None:
            name = str(getattr(feval, "__name__", type(feval).__name__))
            name = f"custom({name})" if "<" in name else name
        self._feval, self._allow_extra_outputs = feval, allow_extra_outputs
        config = {"feval": feval, "allow_extra_outputs": allow_extra_outputs}
        super().__init__(name, output_names, label_names, has_global_stats=True, **config)

    def update(self, labels: Any, preds: Any) -> None:
        """Accumulate one batch, lists of label and output arrays; it waits for the device and copies them to the host."""
        if not self._allow_extra_outputs:
            labels, preds = check_label_shapes(labels, preds, wrap=True)
        for label, pred in zip(labels, preds, strict=False):
            value = self._feval(self._wrap(label).asnumpy(), self._wrap(pred).asnumpy())
            total, count = value if isinstance(value, tuple) else (value, 1)
            self.sum_metric, self.num_inst = self.sum_metric + total, self.num_inst + count
            self.global_sum_metric, self.global_num_inst = self.global_sum_metric + total, self.global_num_inst + count

    def get_config(self) -> dict[str, Any]:
        """Raise NotImplementedError: a function cannot be saved as a configuration."""
        raise NotImplementedError(f"metric {self.name} wraps a Python function, which cannot be saved as a configuration.")


class _PureMetric(DeviceMetric):
    """EvalMetric around a user-defined pure metric (`jfit.metrics.Metric`), with running sums on the device."""

    def __init__(self, metric: Metric):
        self._metric = metric
        super().__init__({}, metric.name)

    def _pure(self) -> Metric:
        return self._metric


def np(numpy_feval: Callable[[Any, Any], Any], name: str | None = None, allow_extra_outputs: bool = False) -> CustomMetric:
    """Create a `CustomMetric` from a function on NumPy arrays.

    Args:
        numpy_feval: function (label, output) -> value, or -> (sum, count).
        name: name of the metric; None: the function's name.
        allow_extra_outputs: whether there may be more outputs than labels; extra outputs are ignored.

    Returns:
        The metric.

    Example:
        >>> np(lambda label, output: (abs(label - output).sum(), label.size), name="l1").name
        'l1'
    """
    return CustomMetric(numpy_feval, name, allow_extra_outputs=allow_extra_outputs)


def create(metric: Any, *args: Any, **kwargs: Any) -> EvalMetric:
    """Create a metric from a name, function, metric, configuration, or a list of these.

    Args:
        metric: name (case ignored), `EvalMetric`, `jfit.metrics.Metric`, function `(label, output) -> value` on NumPy
            arrays, result of `get_config`, JSON text of it or of `[name, settings]`, or a list of these.
        *args: arguments of the metric's class.
        **kwargs: arguments of the metric's class.

    Returns:
        The metric; an `EvalMetric` is returned unchanged, a list becomes a `CompositeEvalMetric`.

    Raises:
        AssertionError: the name is not registered (MXNet's exception type).
        TypeError: `metric` has none of these forms.
        ValueError: the JSON text is invalid.

    Example:
        >>> create("acc").name, create(["acc", "ce"]).get()[0], create(lambda label, pred: 0.0).name
        ('accuracy', ['accuracy', 'cross-entropy'], 'custom(<lambda>)')
        >>> create(create("top_k_accuracy", top_k=3, name="best").get_config() | {"name": "best"}).name
        'best_3'
    """
    if isinstance(metric, EvalMetric):
        return metric
    if isinstance(metric, Metric):
        return _PureMetric(metric)
    if isinstance(metric, HostMetric):
        return CustomMetric(metric.feval, metric.name)
    if isinstance(metric, str) and metric[:1] in ("[", "{"):
        config = json.loads(metric)
        metric, kwargs = config if isinstance(config, list) else (config, {})
    if isinstance(metric, Mapping):
        settings = dict(metric)
        return create(settings.pop("metric"), **settings)
    if isinstance(metric, (list, tuple)):
        return CompositeEvalMetric([create(m, *args, **kwargs) for m in metric])
    if isinstance(metric, str):
        return lookup(metric)(*args, **kwargs)
    if callable(metric):
        return CustomMetric(metric, *args, **kwargs)
    raise TypeError(f"a metric is a name, an EvalMetric, a function (label, output) or a list of these; found {metric!r}.")


def check_label_shapes(labels: Any, preds: Any, wrap: bool = False, shape: bool = False) -> tuple[Any, Any]:
    """Check that there are as many labels as outputs, and return both.

    Args:
        labels: list of label arrays; one array if `wrap` or `shape`.
        preds: list of output arrays; one array if `wrap` or `shape`.
        wrap: convert single arrays to lists of one array.
        shape: compare the shapes of two arrays instead of the lengths of two lists.

    Returns:
        (labels, preds).

    Raises:
        ValueError: lengths or shapes differ.

    Example:
        >>> check_label_shapes(1, 2, wrap=True)
        ([1], [2])
    """
    if wrap:
        labels, preds = ([x] if not isinstance(x, (list, tuple)) else x for x in (labels, preds))
    sizes = (tuple(labels.shape), tuple(preds.shape)) if shape else (len(labels), len(preds))
    if sizes[0] != sizes[1]:
        raise ValueError(f"Shape of labels {sizes[0]} does not match shape of predictions {sizes[1]}; they must be equal.")
    return labels, preds
