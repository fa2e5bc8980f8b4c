"""Lengths of schedules in updates, epochs, or fractions of the run.

Whole numbers are updates.  `epochs(30)` and `fraction(0.5)` are converted to updates once the length of the run is known, which
`fit` does.  A float between 0 and 1 means a fraction of the run.

>>> epochs(30).updates(total=3000, per_epoch=50), fraction(0.5).updates(total=3000)
(1500, 1500)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

UNITS = ("step", "epoch", "fraction")
# names of the schedule parameters that are lengths
LENGTHS = ("step", "max_update", "warmup_steps")


@dataclass(frozen=True)
class Span:
    """A length in epochs or as a fraction of the run; create it with `epochs` or `fraction`.

    Attributes:
        amount: number of epochs, or fraction of the run from 0 to 1.
        unit: "epoch" or "fraction".

    Example:
        >>> Span(2, "epoch")
        epochs(2)
    """

    amount: float
    unit: str

    def __post_init__(self) -> None:
        if not isinstance(self.amount, int | float) or isinstance(self.amount, bool) or not 0 <= self.amount < math.inf:
            raise ValueError(f"{self!r}: a length must be a finite number, at least 0.")
        if self.unit == "fraction" and self.amount > 1:
            raise ValueError(
                f"{self!r}: a fraction of the run must be at most 1; use epochs(n) for epochs, a whole number for updates."
            )

    def __repr__(self) -> str:
        return f"{'epochs' if self.unit == 'epoch' else 'fraction'}({self.amount!r})"

    def updates(self, total: int | None = None, per_epoch: int | None = None) -> int:
        """Convert to a number of updates, rounded to the nearest.

        Args:
            total: number of updates of the run, or None if unknown.
            per_epoch: number of updates per epoch, or None if unknown.

        Returns:
            int.

        Raises:
            ValueError: the number that the conversion needs is None.
        """
        return math.floor(self.amount * unit_length(self.unit, total, per_epoch, repr(self)) + 0.5)


def epochs(count: float) -> Span:
    """A schedule length in epochs, as in `cosine(epochs(90), warmup_steps=epochs(5))`.

    Args:
        count: number of epochs.

    Returns:
        `Span`.

    Example:
        >>> epochs(1.5).updates(per_epoch=100)
        150
    """
    return Span(count, "epoch")


def fraction(part: float) -> Span:
    """A schedule length as a fraction of the run, as in `multifactor([fraction(0.5), fraction(0.75)], 0.1)`.

    Args:
        part: number from 0 to 1.

    Returns:
        `Span`.

    Example:
        >>> fraction(0.25).updates(total=1000)
        250
    """
    return Span(part, "fraction")


def unit_length(unit: str, total: int | None, per_epoch: int | None, who: str) -> int:
    """Number of updates per unit: 1 for "step", `per_epoch` for "epoch", `total` for "fraction".

    Raises:
        ValueError: the number is None; the message starts with `who`.

    Example:
        >>> unit_length("epoch", 100, 10, "epochs(3)")
        10
    """
    updates = {"step": 1, "epoch": per_epoch, "fraction": total}[unit]
    if updates is None:
        what = "an epoch" if unit == "epoch" else "the run"
        raise ValueError(
            f"{who}: the number of updates of {what} is unknown, because the training data has no length; give the "
            "schedule numbers of updates, or train on data with a length."
        )
    return updates


def operand(length: float) -> float:
    """Convert a length to a float if it overflows int32, the dtype of update counts, so that it can be compared with them.

    Example:
        >>> operand(5), operand(10**10)
        (5, 10000000000.0)
    """
    return float(length) if abs(length) >= 2**31 else length


def check_unit(unit: Any) -> str:
    """Return `unit` after checking that it is "step", "epoch" or "fraction".

    Raises:
        ValueError: it is none of them.

    Example:
        >>> check_unit("epoch")
        'epoch'
    """
    if unit not in UNITS:
        raise ValueError(f"unit is {unit!r}; it must be one of {', '.join(map(repr, UNITS))}.")
    return unit


def measured(params: Mapping[str, Any], unit: str = "step") -> dict[str, Any]:
    """Convert the lengths among the parameters of a schedule to `Span`, except numbers of updates.

    Args:
        params: parameters by name; `step` may be a list.
        unit: unit of plain numbers: "step" (updates), "epoch" or "fraction".

    Example:
        >>> measured({"step": [0.5, 100], "factor": 0.5}), measured({"max_update": 90}, "epoch")
        ({'step': [fraction(0.5), 100], 'factor': 0.5}, {'max_update': epochs(90)})
    """
    return _each(params, lambda value: _measured(value, check_unit(unit)))


def has_spans(params: Mapping[str, Any]) -> bool:
    """Return whether any length among the parameters is a `Span`.

    Example:
        >>> has_spans({"step": [epochs(1), 100]})
        True
    """
    spans = []
    _each(params, lambda value: spans.append(isinstance(value, Span)))
    return any(spans)


def in_updates(params: Mapping[str, Any], total: int | None, per_epoch: int | None) -> dict[str, Any]:
    """Convert every `Span` among the parameters to a number of updates.

    Raises:
        ValueError: the number of updates of the run or of an epoch is needed, but None.

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
