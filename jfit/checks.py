"""Checks of arguments: each raises a ValueError that names the argument, its value and what was expected."""

from __future__ import annotations

import difflib
import fnmatch
import inspect
import math
import numbers
import operator
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np


def integer(**values: Any) -> None:
    """Raise a ValueError unless each value is an integer of at most 64 bits."""
    for name, value in values.items():
        index = _index(value)
        if index is None or not -(2**63) <= index < 2**64:
            raise ValueError(f"{name} is {shown(value)}; expected an integer" + " of at most 64 bits" * (index is not None))


def positive_integer(*, most: int | None = None, **values: Any) -> None:
    """Raise a ValueError unless each value is an integer of at least 1, and at most `most`."""
    for name, value in values.items():
        index = _index(value)
        if index is None or index < 1:
            raise ValueError(f"{name} is {shown(value)}; expected an integer of at least 1")
        if most is not None and index > most:
            raise ValueError(f"{name} is {shown(value)}; expected at most {most}")


def positive(*, none: str = "", **values: Any) -> None:
    """Raise a ValueError unless each value is a finite number above 0; or None, if `none` says what that is for."""
    values = {name: value for name, value in values.items() if value is not None or not none}
    _numbers(lambda x: 0 < x < math.inf, "a number above 0" + (f", or None for {none}" if none else ""), values)


def at_least_0(**values: Any) -> None:
    """Raise a ValueError unless each value is a finite number of at least 0."""
    _numbers(lambda x: 0 <= x < math.inf, "a finite number of at least 0", values)


def below_1(**values: Any) -> None:
    """Raise a ValueError unless each value is a number from 0 to below 1."""
    _numbers(lambda x: 0 <= x < 1, "a number from 0 to below 1", values)


def one_of(choices: Sequence[Any], **values: Any) -> None:
    """Raise a ValueError unless each value is one of the choices."""
    for name, value in values.items():
        if value not in choices:
            raise ValueError(f"{name} is {shown(value)}; expected one of {', '.join(map(repr, choices))}")


def shown(value: Any) -> str:
    """Return the `repr` of a value, shortened for an error message."""
    value = value.item() if isinstance(value, np.generic) else value
    try:
        return reprlib.repr(value)
    except ValueError:  # Python does not print integers of more than 4,300 digits
        return f"an integer of {value.bit_length()} bits"


def nearest(name: str, names: Sequence[str] | Mapping[str, Any], count: int = 3) -> str:
    """Return up to `count` names that are spelled like `name`, for the hints of error messages.

    Args:
        name: the misspelled name.
        names: the valid names.
        count: maximum number of names to return.

    Returns:
        The names, quoted and joined by ", ", most similar first; "" if no name is similar.

    Example:
        >>> nearest("Convolutoin", ["Convolution", "Embedding"])
        "'Convolution'"
    """
    by_lower = {n.lower(): n for n in names}
    matches = difflib.get_close_matches(name.lower(), list(by_lower), n=count, cutoff=0.5)
    return ", ".join(repr(by_lower[m]) for m in matches)


def name_hint(name: str, names: Iterable[str]) -> str:
    """Return the end of an error message about an unknown name: the names that are spelled like it, or the first 30 names.

    Example:
        >>> name_hint("Convolutoin", ["Convolution", "Embedding"]), name_hint("x", ["rate"])
        ("did you mean 'Convolution'?", "the names are 'rate'.")
    """
    near = nearest(name, names := list(names))
    return f"did you mean {near}?" if near else f"the names are {', '.join(map(repr, names[:30])) or 'none'}."


def matching(pattern: str, names: Sequence[str], problem: str) -> list[str]:
    """Return the names that match a glob pattern; raise a ValueError that begins with `problem` if there are none."""
    matches = [name for name in names if fnmatch.fnmatchcase(name, pattern)]
    if not matches:
        raise ValueError(f"{problem}; {name_hint(pattern, names)}")
    return matches


def parameters_of(fn: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a function by name; none for callables without a signature, such as some of C."""
    try:
        return inspect.signature(fn).parameters
    except (TypeError, ValueError):
        return {}


def _index(value: Any) -> int | None:
    """Return an integer, also one in an array, as an int; None if the value is none."""
    if isinstance(value, bool) or getattr(value, "dtype", None) == np.bool_:
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def _numbers(accepts: Callable[[float], bool], expected: str, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        # arrays of JAX may be traced, and reading one waits for the device
        if not hasattr(value, "aval") and not accepts(_float(value)):
            raise ValueError(f"{name} is {shown(value)}; expected {expected}")


def _float(value: Any) -> float:
    """Convert a number to a float: inf if it is too large for one, nan if it is not a number."""
    value = value[()] if isinstance(value, np.ndarray) and not value.ndim else value
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf
