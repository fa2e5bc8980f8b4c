"""Metrics as Python functions of numpy arrays, called on the host for every batch while the devices continue."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from jfit.metrics.core import pairs


class HostMetric(NamedTuple):
    """A numpy function as a metric: the mean of its values over batches and outputs.

    `fit` and `score` copy labels and outputs to the host while the devices continue, and call the function a few batches
    later, in order, without padding rows.

    Attributes:
        name: name of the value in logs and results.
        feval: function `(label, output) -> value`, or `-> (sum, count)`, of numpy arrays without padding rows.
        host: True: runs on the host.

    Example:
        >>> bias = HostMetric("bias", lambda label, output: float((output - label).mean()))
        >>> bias.compute(bias.update(bias.init(), [np.zeros(2)], [np.ones(2)]))
        {'bias': 1.0}

    Source: Apache MXNet 1.9.1, `CustomMetric`.
    """

    name: str
    feval: Callable[[np.ndarray, np.ndarray], Any]
    host: bool = True

    def init(self) -> tuple[float, float]:
        """Return (sum, count) over no batches."""
        return 0.0, 0.0

    def update(
        self, sums: tuple[float, float], labels: Sequence[Any], outputs: Sequence[Any], weights: Any = None
    ) -> tuple[float, float]:
        """Call the function for each output of a batch, and add the results to (sum, count).

        Args:
            sums: (sum, count) so far; the count may be a float, such as a sum of weights.
            labels: numpy arrays without padding rows, one per output.
            outputs: numpy arrays without padding rows.
            weights: ignored.

        Returns:
            (sum, count).

        Raises:
            TypeError: the function returned neither a number nor a pair (sum, count).
        """
        total, count = sums
        for label, output, _ in pairs(self.name, labels, outputs, None):
            value = self.feval(np.asarray(label), np.asarray(output))
            try:
                part, number = value if isinstance(value, tuple) else (value, 1)
                total, count = total + float(part), count + float(number)
            except (TypeError, ValueError) as error:
                returned = f"metric {self.name}: the function returned {reprlib.repr(value)}"
                raise TypeError(f"{returned}, expected a number or a pair (sum, count) of numbers") from error
        return total, count

    def compute(self, sums: tuple[float, float]) -> dict[str, float]:
        """Return {name: sum / count}, NaN without batches."""
        return {self.name: sums[0] / sums[1] if sums[1] else float("nan")}
