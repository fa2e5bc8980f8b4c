"""Validation of optimizer and scheduler attributes read from a file: no value is used before it is checked."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, NoReturn

import numpy as np

from jfit.checks import shown
from jfit.formats import FormatError

MOST_UPDATES = 2_000_000_000  # update counts are int32 on the devices
# learning rates and hyperparameters are float32 on the devices, or int32 if they are Python ints
_LARGEST = {float: float(np.finfo(np.float32).max), int: 2**30}
_REMEDY = "the file is damaged or was written by another program: load another file, or save it again."

Path = str | os.PathLike[str]


class Need(NamedTuple):
    """A condition on one attribute read from a file, and its wording in error messages ("expected ...")."""

    words: str
    holds: Callable[[Any], bool]


def is_number(value: Any) -> bool:
    """Return whether the value is a finite number in the range of float32 (or int32 for ints); NaN and bools are not.

    Example:
        >>> [is_number(value) for value in (0.5, -3, True, float("nan"), 10**400, "1")]
        [True, True, False, False, False, False]
    """
    return type(value) in _LARGEST and abs(value) <= _LARGEST[type(value)]


def is_length(value: Any) -> bool:
    """Return whether the value is a finite number of updates >= 1; very large numbers such as 10**10 mean never."""
    return type(value) in (int, float) and 1 <= value < 2**63


def _is_whole(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


NUMBER = Need("a finite number of 32 bits", is_number)
FROM_0 = Need("a finite number of 32 bits of at least 0", lambda value: is_number(value) and value >= 0)
UP_TO_1 = Need("a finite number of at most 1", lambda value: is_number(value) and value <= 1)
LENGTH = Need("a finite number of at least 1", is_length)
WHOLE = Need("a whole number of at least 0", _is_whole)
WHOLE_FROM_1 = Need("a whole number of at least 1", lambda value: _is_whole(value) and value >= 1)
DONE = Need(f"a number from 0 to {MOST_UPDATES}", lambda value: type(value) in (int, float) and 0 <= value <= MOST_UPDATES)
COUNT = Need(f"a whole number from 0 to {MOST_UPDATES}", lambda value: _is_whole(value) and value <= MOST_UPDATES)
OPTIONAL = Need("a finite number of 32 bits or None", lambda value: value is None or is_number(value))
# MXNet tests `if clip_gradient`, so False means None there.
LIMIT = Need("a finite number of 32 bits, None or False", lambda value: value is None or value is False or is_number(value))
MULTIPLIER = Need("a finite number of 32 bits", lambda value: isinstance(value, bool) or is_number(value))
SWITCH = Need("True or False", lambda value: type(value) in (bool, int) and value in (0, 1))
TEXT = Need("text", lambda value: isinstance(value, str))


def need_like(now: Any) -> Need:
    """Return the condition on a saved hyperparameter of a rule: that it has the type of its current value `now`."""
    if now is None:
        return OPTIONAL
    return SWITCH if isinstance(now, bool) else TEXT if isinstance(now, str) else NUMBER


def same_kind(now: Any) -> Need:
    """Return the condition on a saved attribute of a user-defined class: text if `now` is text, a number if it is one."""
    number = isinstance(now, (bool, int, float))
    return TEXT if isinstance(now, str) else Need("a number", lambda v: not number or isinstance(v, (bool, int, float)))


def is_plain(value: Any) -> bool:
    """Return whether a file may contain this value: a number, text, None, or a list or dict of them."""
    if isinstance(value, (list, tuple)):
        return all(map(is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str, dict, np.generic))


def checked(path: Path, where: str, name: str, value: Any, need: Need) -> Any:
    """Return the value as plain data after checking it.

    Args:
        path: the file, for error messages.
        where: the object in the file, for error messages.
        name: name of the attribute.
        value: value of the attribute.
        need: the condition.

    Raises:
        FormatError: the condition does not hold.

    Example:
        >>> checked("a.states", "optimizer SGD", "momentum", np.float64(0.5), NUMBER)
        0.5
    """
    value = as_plain(value)
    if not need.holds(value):
        reject(path, f"{where}, attribute {name!r}", value, need.words)
    return value


def reject(path: Path, where: str, value: Any, expected: str) -> NoReturn:
    """Raise FormatError for an invalid value in a file.

    path, where: the file, and the object in the file.  expected: what was expected, in words.
    """
    raise FormatError(path, where, f"found {shown(value)}, expected {expected}", _REMEDY)


def check_counts(path: Path, counts: Mapping[Any, int] | None, num_update: int | None) -> int:
    """Return the largest update count of a file.

    Raises:
        FormatError: a count is not a whole number from 0 to MOST_UPDATES.
    """
    fields = [("num_update", num_update or 0), *((f"update count of {shown(k)}", n) for k, n in (counts or {}).items())]
    for where, count in fields:
        if not COUNT.holds(count):
            reject(path, where, count, COUNT.words)
    return max(count for _, count in fields)


def class_of(settings: Mapping[str, Any]) -> str:
    """Return the name of the class that the saved attributes belong to."""
    name = settings.get("class")
    return name if isinstance(name, str) else shown(name)


def as_plain(value: Any) -> Any:
    """Convert NumPy scalars, also inside lists, to Python numbers; return anything else unchanged."""
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
        return value.item()
    return [as_plain(part) for part in value] if isinstance(value, list) else value
