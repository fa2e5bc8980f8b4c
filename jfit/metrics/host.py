"""Metrics that are Python functions of numpy arrays: called on the host, batch after batch, behind the devices."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from jfit.metrics.core import pairs


class HostMetric(NamedTuple):
    """A numpy function of the user's: the mean of what it gives for each batch and output.

    In `fit` and `score` the outputs are copied to the host while the devices go on; the function is called a few batches
    later, in order, with the rows that count.

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

    def init(self) -> tuple[float, float]:
        """Sums of no batch."""
        return 0.0, 0.0

    def update(
        self, sums: tuple[float, float], labels: Sequence[Any], outputs: Sequence[Any], weights: Any = None
    ) -> tuple[float, float]:
        """Sums with one batch added; labels and outputs are numpy arrays of the rows that count.

        The function's count may be a fraction, such as a sum of weights.

        Raises:
            TypeError: the function gave neither a number nor a pair (sum, count).
        """
        total, count = sums
        for label, output, _ in pairs(self.name, labels, outputs, None):
            value = self.feval(np.asarray(label), np.asarray(output))
            try:
                part, number = value if isinstance(value, tuple) else (value, 1)
                total, count = total + float(part), count + float(number)
            except (TypeError, ValueError) as error:
                gave = f"metric {self.name}: the function gave {reprlib.repr(value)}"
                raise TypeError(f"{gave}, needed a number, or a pair (sum, count) of numbers") from error
        return total, count

    def compute(self, sums: tuple[float, float]) -> dict[str, float]:
        """{name: mean}."""
        return {self.name: sums[0] / sums[1] if sums[1] else float("nan")}
