"""When members of a sweep end before the last epoch: patience, successive halving."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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
    good = isinstance(spec, tuple | list) and len(spec) in (2, 3) and isinstance(spec[0], str)
    first = spec[2] if good and len(spec) == 3 else 1
    if not good or not _is_number(spec[1]) or not 1 < spec[1] < math.inf or not _is_integer(first) or first < 1:
        raise ValueError(
            f"sweep: halving is {spec!r}; expected (metric, factor) or (metric, factor, first epochs), such as "
            '("val_accuracy", 3, 1): after 1, 3, 9, ... epochs the best third trains on'
        )
    return Halving(spec[0], float(spec[1]), int(first))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


class Patience:
    """The best value of each member, and the number of epochs since.

    Args:
        monitor: name of the value.
        patience: number of evaluated epochs without improvement after which a member ends; None: never.
    """

    def __init__(self, monitor: str, patience: int | None) -> None:
        if patience is not None and (not _is_integer(patience) or patience < 1):
            raise ValueError(f"sweep: patience is {patience!r}; expected a number of epochs, at least 1")
        self.monitor, self.patience, self._maximize = monitor, patience, is_score(monitor)
        self.best: dict[int, float] = {}
        self._waited: dict[int, int] = {}

    def improved(self, number: int, value: float | None) -> bool:
        """Add the value of an epoch of a member, None if it was not evaluated; return whether it is the best so far."""
        if value is None:
            return False
        best = self.best.get(number)
        if not math.isnan(value) and (best is None or (value > best if self._maximize else value < best)):
            self.best[number], self._waited[number] = value, 0
            return True
        self._waited[number] = self._waited.get(number, 0) + 1
        return False

    def is_over(self, number: int) -> bool:
        """Return whether a member ends now, because its last `patience` evaluated epochs were not better than its best one."""
        return self.patience is not None and self._waited.get(number, 0) >= self.patience


def ranking(scores: Sequence[float], name: str) -> list[int]:
    """Positions of scores, the best first; NaN is last.  Larger is better if the name is that of a score such as an accuracy.

    Example:
        >>> ranking([0.5, float("nan"), 0.9], "val_accuracy"), ranking([0.5, 0.1], "val_loss")
        ([2, 0, 1], [1, 0])
    """
    values = np.asarray(scores, np.float64)
    values = np.where(np.isnan(values), np.inf, -values if is_score(name) else values)
    return np.argsort(values, kind="stable").tolist()


def number_of(logs: Mapping[str, Any], name: str) -> float | None:
    """Return a value of an epoch as a float; None if it was not evaluated.

    Raises:
        ValueError: the value is an array.
    """
    value = logs.get(name)
    if getattr(value, "ndim", 0) or isinstance(value, list):
        raise ValueError(f"sweep: {name!r} is an array, which cannot be compared; choose another value of {sorted(logs)}")
    return None if value is None else float(value)
