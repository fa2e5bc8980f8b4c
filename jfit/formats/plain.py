"""Measured values as JSON can hold them."""

from __future__ import annotations

import math
from typing import Any


def number(value: Any) -> Any:
    """A scalar of any library as a Python number, an array as nested lists, anything else as it is.

    Example:
        >>> import numpy as np
        >>> number(np.float32(0.5)), number(np.eye(2))
        (0.5, [[1.0, 0.0], [0.0, 1.0]])
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return value.tolist() if hasattr(value, "tolist") else value


def to_plain(value: Any) -> Any:
    """`number`, with infinities and NaN as the texts "inf", "-inf", "nan", because JSON has no such numbers.

    Example:
        >>> to_plain([1.0, float("nan")])
        [1.0, 'nan']
    """
    value = number(value)
    if isinstance(value, list):
        return [to_plain(each) for each in value]
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value


def shown(value: Any) -> str:
    """A value of a file, short enough for a sentence.

    Example:
        >>> shown("a" * 100), shown(10**5000)
        ("'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa...", 'int')
    """
    try:
        text = repr(value)
    except ValueError:  # Python prints no integer of more than 4300 digits
        return type(value).__name__
    return text if len(text) <= 60 else f"{text[:60]}..."


def from_plain(value: Any) -> Any:
    """What `to_plain` was given.

    Example:
        >>> from_plain([1.0, "-inf"])
        [1.0, -inf]
    """
    if isinstance(value, list):
        return [from_plain(each) for each in value]
    return float(value) if value in ("nan", "inf", "-inf") else value
