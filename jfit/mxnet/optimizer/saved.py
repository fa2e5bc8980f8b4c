"""What the attributes of a saved optimizer or scheduler have to be: nothing of a file is used before it was checked."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, NoReturn

import numpy as np

from jfit.formats import FormatError
from jfit.formats.mxnet_states import shown

MOST_UPDATES = 2_000_000_000  # counts are int32 on the devices
# rates and parameters of the rules are float32 there, or int32 where they were given as whole numbers
_LARGEST = {float: float(np.finfo(np.float32).max), int: 2**30}
_REMEDY = "the file is damaged, or another program wrote it: load another one, or save it again."

Path = str | os.PathLike[str]


class Need(NamedTuple):
    """A condition on one attribute, and the words that an error says it in."""

    words: str
    holds: Callable[[Any], bool]


def is_number(value: Any) -> bool:
    """A finite number that float32 holds, or int32; neither NaN nor True.

    Example:
        >>> [is_number(value) for value in (0.5, -3, True, float("nan"), 10**400, "1")]
        [True, True, False, False, False, False]
    """
    return type(value) in _LARGEST and abs(value) <= _LARGEST[type(value)]


def is_length(value: Any) -> bool:
    """A finite number of updates from 1 on, of any size: 10**10 is a way to say never."""
    return type(value) in (int, float) and 1 <= value < 2**63


def _is_whole(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


NUMBER = Need("a finite number of 32 bits", is_number)
FROM_0 = Need("a finite number of 32 bits from 0 on", lambda value: is_number(value) and value >= 0)
UP_TO_1 = Need("a finite number of at most 1", lambda value: is_number(value) and value <= 1)
LENGTH = Need("a finite number from 1 on", is_length)
WHOLE = Need("a whole number from 0 on", _is_whole)
WHOLE_FROM_1 = Need("a whole number from 1 on", lambda value: _is_whole(value) and value >= 1)
DONE = Need(f"a number from 0 to {MOST_UPDATES}", lambda value: type(value) in (int, float) and 0 <= value <= MOST_UPDATES)
COUNT = Need(f"a whole number from 0 to {MOST_UPDATES}", lambda value: _is_whole(value) and value <= MOST_UPDATES)
OPTIONAL = Need("a finite number of 32 bits or None", lambda value: value is None or is_number(value))
# False is a way to say None in MXNet, which asks `if clip_gradient`.
LIMIT = Need("a finite number of 32 bits, None or False", lambda value: value is None or value is False or is_number(value))
MULTIPLIER = Need("a finite number of 32 bits", lambda value: isinstance(value, bool) or is_number(value))
SWITCH = Need("True or False", lambda value: type(value) in (bool, int) and value in (0, 1))
TEXT = Need("text", lambda value: isinstance(value, str))


def need_like(now: Any) -> Need:
    """What a parameter of a rule needs, by its value now."""
    if now is None:
        return OPTIONAL
    return SWITCH if isinstance(now, bool) else TEXT if isinstance(now, str) else NUMBER


def same_kind(now: Any) -> Need:
    """What an attribute of somebody's own class needs, by its value now: only text and numbers are distinguished."""
    if isinstance(now, str):
        return TEXT
    number = isinstance(now, (bool, int, float))
    return Need("a number", lambda value: not number or isinstance(value, (bool, int, float)))


def is_plain(value: Any) -> bool:
    """What a file may hold: numbers, text, None, and lists and dicts of them."""
    if isinstance(value, (list, tuple)):
        return all(map(is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str, dict, np.generic))


def checked(path: Path, where: str, name: str, value: Any, need: Need) -> Any:
    """The value as plain data, if it is what is needed.

    Raises:
        FormatError: it is not.

    Example:
        >>> checked("a.states", "optimizer SGD", "momentum", np.float64(0.5), NUMBER)
        0.5
    """
    value = as_plain(value)
    if not need.holds(value):
        refuse(path, f"{where}, attribute {name!r}", value, need.words)
    return value


def refuse(path: Path, where: str, value: Any, needed: str) -> NoReturn:
    """Raises the FormatError of one field."""
    raise FormatError(path, where, f"found {shown(value)}, needed {needed}", _REMEDY)


def check_counts(path: Path, counts: Mapping[Any, int] | None, num_update: int | None) -> int:
    """The largest number of updates that a file records.

    Raises:
        FormatError: there are more than the devices can count.
    """
    found = [("num_update", num_update or 0), *((f"update count of {shown(k)}", n) for k, n in (counts or {}).items())]
    for where, count in found:
        if not COUNT.holds(count):
            refuse(path, where, count, COUNT.words)
    return max(count for _, count in found)


def class_of(settings: Mapping[str, Any]) -> str:
    """The class that saved attributes are of, by its name."""
    found = settings.get("class")
    return found if isinstance(found, str) else shown(found)


def as_plain(value: Any) -> Any:
    """A scalar of numpy as a Python number, lists of them too; anything else as it is."""
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
        return value.item()
    return [as_plain(part) for part in value] if isinstance(value, list) else value
