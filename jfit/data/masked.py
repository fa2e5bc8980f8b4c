"""Arrays of `numpy.ma`: values that are masked are missing, and jfit has no missing values."""

from __future__ import annotations

from typing import Any

import numpy as np


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
        ValueError: input 'x' is a masked array with 1 masked value (the first in row 1), whose value below the mask would be \
used; fill masked values, as in x.filled(0), and exclude rows by row weights of 0, (x, y, weight).
    """
    if not (hasattr(value, "filled") and hasattr(value, "mask") and isinstance(value, np.ndarray)):
        return value
    mask = np.ma.getmaskarray(value)
    count = int(mask.sum())
    if not count:
        return np.ma.getdata(value)
    row = f" (the first in row {np.argwhere(mask)[0][0]})" if mask.ndim else ""
    raise ValueError(
        f"input {name!r} is a masked array with {count} masked value{'s' * (count > 1)}{row}, whose value below the mask would "
        "be used; fill masked values, as in x.filled(0), and exclude rows by row weights of 0, (x, y, weight)."
    )
