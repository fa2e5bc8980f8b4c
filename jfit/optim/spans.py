"""Lengths in a schedule: a number of updates, epochs, or a part of the run.

A whole number is updates; `epochs(30)` and `fraction(0.5)` become updates where the length of the run is known, which `fit`
does.  A float between 0 and 1, which can be no number of updates, is a part of the run.

>>> epochs(30).updates(total=3000, per_epoch=50), fraction(0.5).updates(total=3000)
(1500, 1500)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

UNITS = ("step", "epoch", "fraction")
# parameters of schedules that are lengths
LENGTHS = ("step", "max_update", "warmup_steps")


@dataclass(frozen=True)
class Span:
    """A length that becomes a number of updates when the run is known; made by `epochs` and `fraction`.

    Attributes:
        amount: how many of the unit.
        unit: "epoch" or "fraction".

    Example:
        >>> Span(2, "epoch")
        epochs(2)
    """

    amount: float
    unit: str

    def __post_init__(self) -> None:
        if not isinstance(self.amount, int | float) or isinstance(self.amount, bool) or not 0 <= self.amount < math.inf:
            raise ValueError(f"{self!r}: a length is a number from 0 on.")
        if self.unit == "fraction" and self.amount > 1:
            raise ValueError(f"{self!r}: a part of the run is at most 1; epochs(n) counts epochs, a whole number updates.")

    def __repr__(self) -> str:
        return f"{'epochs' if self.unit == 'epoch' else 'fraction'}({self.amount!r})"

    def updates(self, total: int | None = None, per_epoch: int | None = None) -> int:
        """The length in updates, rounded to the nearest.

        Args:
            total: updates of the run; None where it is not known.
            per_epoch: updates of an epoch; None where it is not known.

        Raises:
            ValueError: the one that is needed is None.
        """
        return math.floor(self.amount * unit_length(self.unit, total, per_epoch, repr(self)) + 0.5)


def epochs(count: float) -> Span:
    """A length in epochs, for schedules: `cosine(epochs(90), warmup_steps=epochs(5))`.

    Example:
        >>> epochs(1.5).updates(per_epoch=100)
        150
    """
    return Span(count, "epoch")


def fraction(part: float) -> Span:
    """A length as a part of the run, from 0 to 1, for schedules: `multifactor([fraction(0.5), fraction(0.75)], 0.1)`.

    Example:
        >>> fraction(0.25).updates(total=1000)
        250
    """
    return Span(part, "fraction")


def unit_length(unit: str, total: int | None, per_epoch: int | None, who: str) -> int:
    """How many updates one of this unit is.

    Raises:
        ValueError: it is not known.

    Example:
        >>> unit_length("epoch", 100, 10, "epochs(3)")
        10
    """
    found = {"step": 1, "epoch": per_epoch, "fraction": total}[unit]
    if found is None:
        what = "how many updates an epoch has" if unit == "epoch" else "how many updates the run has"
        raise ValueError(
            f"{who}: it needs to be known {what}, and this data does not tell its length; give the schedule numbers of "
            "updates, or train on data with a length."
        )
    return found


def operand(length: float) -> float:
    """A length as updates are compared with it: as a float where int32, which counts are, cannot hold it.

    Example:
        >>> operand(5), operand(10**10)
        (5, 10000000000.0)
    """
    return float(length) if abs(length) >= 2**31 else length


def check_unit(unit: Any) -> str:
    """`unit`, if it is one.

    Raises:
        ValueError: it is not.

    Example:
        >>> check_unit("epoch")
        'epoch'
    """
    if unit not in UNITS:
        raise ValueError(f"unit is {unit!r}, it needs to be one of {', '.join(map(repr, UNITS))}.")
    return unit


def measured(params: Mapping[str, Any], unit: str = "step") -> dict[str, Any]:
    """The parameters of a schedule, with every length that is no number of updates as a `Span`.

    Args:
        params: parameters by name; `step` may be a list.
        unit: what plain numbers count.

    Example:
        >>> measured({"step": [0.5, 100], "factor": 0.5}), measured({"max_update": 90}, "epoch")
        ({'step': [fraction(0.5), 100], 'factor': 0.5}, {'max_update': epochs(90)})
    """
    return _each(params, lambda value: _measured(value, check_unit(unit)))


def has_spans(params: Mapping[str, Any]) -> bool:
    """Whether a length among the parameters is a `Span`.

    Example:
        >>> has_spans({"step": [epochs(1), 100]})
        True
    """
    found = []
    _each(params, lambda value: found.append(isinstance(value, Span)))
    return any(found)


def in_updates(params: Mapping[str, Any], total: int | None, per_epoch: int | None) -> dict[str, Any]:
    """The parameters with every `Span` as a number of updates.

    Raises:
        ValueError: the length of the run or of an epoch is needed and None.

    Example:
        >>> in_updates({"step": [fraction(0.5), 90]}, total=100, per_epoch=None)
        {'step': [50, 90]}
    """
    return _each(params, lambda value: value.updates(total, per_epoch) if isinstance(value, Span) else value)


def _measured(value: Any, unit: str) -> Any:
    if isinstance(value, Span | bool) or not isinstance(value, int | float):
        return value
    if unit != "step":
        return Span(value, unit)
    return Span(value, "fraction") if isinstance(value, float) and 0 < value < 1 else value


def _each(params: Mapping[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    def changed(value: Any) -> Any:
        return [change(v) for v in value] if isinstance(value, list | tuple) else change(value)

    return {name: changed(value) if name in LENGTHS else value for name, value in params.items()}
