"""Which members of a sweep are the best, and successive halving, which ends the others."""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jfit.history.plots import is_score


class Halving(NamedTuple):
    """Successive halving: after some epochs, only the best of the members train on.

    Attributes:
        metric: name of the value that decides, such as "val_accuracy".
        factor: 1 / share of the members that train on.
        first: number of epochs before the first decision; the next ones are after `factor` times as many.

    Source: Jamieson and Talwalkar 2016, https://arxiv.org/abs/1502.07943.
    """

    metric: str
    factor: float
    first: int

    def epochs(self, last: int) -> list[int]:
        """Numbers of epochs, below `last`, after which members are dropped."""
        result, epoch = [], float(self.first)
        while round(epoch) < last:
            result.append(round(epoch))
            epoch *= self.factor
        return sorted(set(result))

    def kept(self, count: int) -> int:
        """How many of `count` members train on."""
        return max(1, math.ceil(count / self.factor))


def halving_of(spec: Any) -> Halving | None:
    """Convert the argument `halving` of `sweep`.

    Raises:
        ValueError: it is no tuple (metric, factor) or (metric, factor, first), or a number is out of range.
    """
    if spec is None:
        return None
    with contextlib.suppress(TypeError, ValueError):  # no tuple of two or three, or no numbers
        metric, factor, first = spec if len(spec) == 3 else (*spec, 1)
        if isinstance(metric, str) and 1 < factor < math.inf and operator.index(first) >= 1:
            return Halving(metric, float(factor), int(first))
    raise ValueError(f"sweep: halving is {spec!r}; expected (metric, factor, first epochs), such as ('val_accuracy', 3, 1)")


def ranking(scores: Sequence[float], name: str) -> list[int]:
    """Positions of scores, the best first; NaN is last.  Larger is better if the name is that of a score such as an accuracy.

    Example:
        >>> ranking([0.5, float("nan"), 0.9], "val_accuracy"), ranking([0.5, 0.1], "val_loss")
        ([2, 0, 1], [1, 0])
    """
    values = np.asarray(scores, np.float64)
    values = np.where(np.isnan(values), np.inf, -values if is_score(name) else values)
    return np.argsort(values, kind="stable").tolist()
