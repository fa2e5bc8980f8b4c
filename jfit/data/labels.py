"""Checks of class labels on the host, before a wrong one trains silently."""

from __future__ import annotations

from typing import Any

import numpy as np


def check_labels(labels: Any, num_classes: int, name: str, ignore_label: float | None = None) -> None:
    """0 ≤ labelᵢ ≤ n − 1 for every row, or a sentence that names the first row where it does not hold.

    Args:
        labels: class indices, any shape with rows on axis 0, integer or float.
        num_classes: n, the number of classes.
        name: the label input's name, for messages.
        ignore_label: a value that is allowed besides, for rows that do not count.

    Raises:
        ValueError: a label is NaN, outside 0..n-1, or not a whole number.

    Example:
        >>> check_labels([0, 2, 5], 5, "y")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        ValueError: label 'y': row 2 is 5, allowed are the classes 0..4; renumber them from 0, or give the last layer ...
    """
    array = np.asarray(labels)
    whole = array if array.dtype.kind in "iub" else np.trunc(array)
    good = (array >= 0) & (array < num_classes) & (whole == array)  # NaN compares false
    if ignore_label is not None:
        good |= array == ignore_label
    if good.all():
        return
    where = np.unravel_index(np.argmin(good), array.shape)
    place = f"row {where[0]}" + (f", position {tuple(int(k) for k in where[1:])}" if len(where) > 1 else "")
    extra = "" if ignore_label is None else f" and {ignore_label:g} (ignored)"
    raise ValueError(
        f"label {name!r}: {place} is {array[where]}, allowed are the classes 0..{num_classes - 1}{extra}; "
        "renumber them from 0, or give the last layer more outputs."
    )
