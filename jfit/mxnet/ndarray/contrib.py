"""Functions of `mx.nd.contrib` that are not operators: masks, and tests of single values."""

from __future__ import annotations

import numpy as np

from jfit.mxnet.ndarray.array import NDArray, function


def boolean_mask(data: NDArray, index: NDArray, axis: int = 0) -> NDArray:
    """Return the entries of an axis where `index` is not 0.

    Args:
        data: the array.
        index: one number for each entry of the axis.
        axis: the axis.

    Returns:
        NDArray; its size depends on the values of `index`, which are read for it.

    Example:
        >>> import jfit.mx as mx
        >>> boolean_mask(mx.nd.array([1, 2, 3]), mx.nd.array([0, 1, 1])).asnumpy().tolist()
        [2.0, 3.0]
    """
    return function("take")(data, NDArray(np.flatnonzero(index.asnumpy()).astype(np.int32)), axis=axis)


def isnan(data: NDArray) -> NDArray:
    """Return 1 where a value is nan, else 0."""
    return function("broadcast_not_equal")(data, data)


def isinf(data: NDArray) -> NDArray:
    """Return 1 where a value is inf or -inf, else 0."""
    return function("abs")(data) == np.inf


def isfinite(data: NDArray) -> NDArray:
    """Return 1 where a value is neither nan nor infinite, else 0."""
    return function("abs")(data) < np.inf


FUNCTIONS = (boolean_mask, isnan, isinf, isfinite)
