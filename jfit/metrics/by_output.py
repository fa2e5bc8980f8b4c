"""Metrics of one output of a model with several outputs, selected by the name of the output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from jfit.checks import name_hint
from jfit.programs import made


class OutputMetric(NamedTuple):
    """A metric of one output, with its label; its values are named "<output>_<metric>".

    `jfit.metrics.get({"a": "acc"})` makes one.  It has the methods of `Metric` or, if `host`, of `HostMetric`.

    Attributes:
        output: name of the output, as in `Model.outputs`.
        metric: a `Metric` or `HostMetric`.
        at: index of the output among those that metrics are computed for; None until the model is known.

    Example:
        >>> from jfit.metrics import accuracy
        >>> OutputMetric("a", accuracy()).name
        'a_accuracy'
    """

    output: str
    metric: Any
    at: int | None = None

    @property
    def name(self) -> str:
        """Name of the value in logs and results."""
        return f"{self.output}_{self.metric.name}"

    host = property(attrgetter("metric.host"), doc="Whether the metric runs on the host.")
    merge = property(attrgetter("metric.merge"), doc="As `Metric.merge`.")

    @property
    def sized(self) -> Callable[..., OutputMetric] | None:
        """As `Metric.sized`, for shapes of all outputs."""
        make = getattr(self.metric, "sized", None)
        return None if make is None else lambda *shapes: self._replace(metric=made(make)(*(self._one(s) for s in shapes)))

    @property
    def fitted(self) -> Callable[..., OutputMetric] | None:
        """As `Metric.fitted`, for targets of all outputs."""
        make = getattr(self.metric, "fitted", None)
        return None if make is None else lambda targets: self._replace(metric=make(self._one(targets)))

    def init(self) -> Any:
        """Running sums over no batches."""
        return self.metric.init()

    def stats(self, labels: Sequence[Any], outputs: Sequence[Any], weights: Any) -> Any:
        """Sums over one batch; arguments with one entry per output."""
        return self.metric.stats(self._one(labels), self._one(outputs), None if weights is None else self._one(weights))

    def update(self, sums: Any, *batch: Any) -> Any:
        """Add a batch: its stats, or if the metric runs on the host its labels, outputs and weights."""
        if not self.host:
            return self.metric.update(sums, *batch)
        return self.metric.update(sums, *(None if arrays is None else self._one(arrays) for arrays in batch))

    def compute(self, sums: Any) -> dict[str, Any]:
        """The values by name."""
        return {f"{self.output}_{name}": value for name, value in self.metric.compute(sums).items()}

    def _one(self, values: Sequence[Any]) -> Sequence[Any]:
        assert self.at is not None
        return values[self.at : self.at + 1]


def located(metrics: Sequence[Any], names: Sequence[str]) -> list[Any]:
    """Set the index of the output of each `OutputMetric`.

    Args:
        metrics: metrics; others are returned unchanged.
        names: names of the outputs that metrics are computed for.

    Raises:
        ValueError: there is no such output, or it has no label.

    Example:
        >>> from jfit.metrics.core import Metric
        >>> located([OutputMetric("b", Metric("n", *[len] * 4))], ["a", "b"])[0].at
        1
    """
    for metric in metrics:
        if isinstance(metric, OutputMetric) and metric.output not in names:
            hint = name_hint(metric.output, names)
            raise ValueError(f"eval_metric has {metric.output!r}, which is no output with a label; {hint}")
    return [m._replace(at=list(names).index(m.output)) if isinstance(m, OutputMetric) else m for m in metrics]
