"""Valid values of labels, row indices of tables and row weights: what they are, their check on the host, the error message.

Values that `numpy.ma` masks are missing, and jfit has no missing values.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from jfit.lowering.lookups import Lookup

FLOAT_INTEGERS = 1 << 24  # float32 has all integers up to this one


class Valid(NamedTuple):
    """The valid values of one array of a batch.

    Attributes:
        name: name of the input; "weight" or "metric_weight" for row weights.
        low: smallest valid value.
        high: largest valid value.
        whole: whether values must be whole numbers.
        ignored: more valid values.
        axis: batch axis of the array; None: it has no rows.
        kind: "classes", "range", "index" or "weight", for the message.
    """

    name: str
    low: float
    high: float
    whole: bool = False
    ignored: tuple[float, ...] = ()
    axis: int | None = 0
    kind: str = "classes"

    def highest(self, integers: bool) -> float:
        """The largest valid value of an array of integers or floats: float32 does not have all indices of a large table."""
        return self.high if integers or self.kind != "index" else min(self.high, FLOAT_INTEGERS - 1)


def valid_indices(lookup: Lookup, axis: int | None = 0) -> Valid:
    """Return the range of allowed values of an input that holds row indices of a table, such as the tokens of an Embedding."""
    return Valid(lookup.name, lookup.low, lookup.rows - 1, True, (), axis, "index")


def valid_weights(name: str) -> Valid:
    """Return the valid values of row weights: finite, and not negative."""
    return Valid(name, 0, float(np.finfo(np.float32).max), kind="weight")


def check_values(values: Any, valid: Valid, where: str = "") -> None:
    """Check numbers on the host.

    Args:
        values: numbers of any shape, with the rows along axis 0.
        valid: the valid ones.
        where: start of the error message.

    Raises:
        ValueError: a value is nan or not valid; the message names the first such row.

    Example:
        >>> check_values([[1, 2], [3, 10]], valid_indices(Lookup("ids", 10)))
        Traceback (most recent call last):
        ...
        ValueError: input 'ids': row 1, position (1,) is 10, expected the index of a row of the table that it is looked up in, \
a whole number 0..9; renumber the values, or make the table larger (programs clip such an index, or return nan).
    """
    array = np.asarray(values)
    integers = array.dtype.kind in "iub"
    high = valid.highest(integers)
    inside = not array.size or (array.min() >= valid.low and array.max() <= high)  # nan compares false
    if inside and (integers or not valid.whole or (np.trunc(array) == array).all()):
        return
    good = (array >= valid.low) & (array <= high)
    if valid.whole:
        good &= np.trunc(array) == array
    for value in valid.ignored:
        good |= array == value
    if not good.all():
        at = tuple(int(k) for k in np.unravel_index(np.argmin(good), array.shape))
        raise ValueError(where + message(valid, at[0], at[1:], array[at], int((~good).sum())))


def message(valid: Valid, row: int, position: tuple[int, ...], value: Any, count: int = 1) -> str:
    """The error message for an invalid value; the caller adds the index of the batch. `count`: how many values are invalid."""
    place = f"row {row}{f', position {position}' if position else ''} is {value}"
    if valid.kind == "weight":
        more = f" ({count} such values)" if count > 1 else ""
        return f"{valid.name} of {place}{more}; row weights must be finite and at least 0; use 0 to exclude a row."
    if valid.kind == "index":
        inexact = valid.low <= value <= valid.high and float(value).is_integer()
        limit = f" below {FLOAT_INTEGERS}, as float32 does not have all above (pass integers)" if inexact else ""
        return (
            f"input {valid.name!r}: {place}, expected the index of a row of the table that it is looked up in, a whole number "
            f"{valid.low}..{valid.high}{limit}; renumber the values, or make the table larger (programs clip such an index, or "
            "return nan)."
        )
    ignored = "".join(f" and {value:g} (ignored)" for value in valid.ignored)
    if valid.kind == "range":
        limit = "" if math.isinf(valid.high) else f" to {valid.high:g}"
        return (
            f"label {valid.name!r}: {place}, expected values from {valid.low:g}{limit}{ignored}; rescale the labels, or choose "
            "the loss of the task (class indices need 'cross_entropy')."
        )
    return (
        f"label {valid.name!r}: {place}, expected classes 0..{valid.high}{ignored}; renumber the labels from 0, or give the "
        "last layer more outputs."
    )


def unmasked(value: Any, name: str) -> Any:
    """Return the values of a `numpy.ma` array without masked values; other objects are returned unchanged.

    Args:
        value: any object.
        name: name of the input, for the message.

    Raises:
        ValueError: a value is masked.

    Example:
        >>> unmasked(np.ma.masked_array([1, 2], mask=[False, True]), "x")
        Traceback (most recent call last):
        ...
        ValueError: input 'x' is a masked array with 1 masked value (the first in row 1); fill them, as in x.filled(0), \
and exclude rows by a row weight of 0, (x, y, weight).
    """
    if not (hasattr(value, "filled") and hasattr(value, "mask") and isinstance(value, np.ndarray)):
        return value
    mask = np.ma.getmaskarray(value)
    count = int(mask.sum())
    if not count:
        return np.ma.getdata(value)
    row = f" (the first in row {np.argwhere(mask)[0][0]})" if mask.ndim else ""
    problem = f"input {name!r} is a masked array with {count} masked value{'s' * (count > 1)}{row}"
    raise ValueError(f"{problem}; fill them, as in x.filled(0), and exclude rows by a row weight of 0, (x, y, weight).")
