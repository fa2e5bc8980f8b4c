"""Functions of `mx.nd.contrib` that are not operators: masks, and tests of single values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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


def group_adagrad_update(weight: NDArray, grad: NDArray, history: NDArray, **options: Any) -> NDArray:
    """Update a weight as `mx.optimizer.GroupAdaGrad`; options: lr, rescale_grad, clip_gradient, epsilon, out."""
    from jfit.mxnet.ndarray.updates import update  # it imports the optimizers

    return update("group_adagrad_update")(weight, grad, history, **options)


def zipfian(op: Callable[[str], Callable[..., Any]]) -> Callable[..., Any]:
    """Return `rand_zipfian`, whose operators are `op(name)`: those of NDArrays or of symbols."""

    def rand_zipfian(true_classes: Any, num_sampled: int, range_max: int, ctx: Any = None) -> list[Any]:
        """Draw classes with P(c) = log((c + 2) / (c + 1)) / log(range_max + 1), as candidates of a sampled softmax.

        Args:
            true_classes: classes whose expected counts are returned.
            num_sampled: number of classes to draw, with repeats.
            range_max: number of classes.
            ctx: accepted and ignored.

        Returns:
            The drawn classes (num_sampled,), and the expected counts of the true and of the drawn classes.
        """
        most = float(np.log(range_max + 1))
        drawn = op("exp")(op("_random_uniform")(low=0.0, high=most, shape=(num_sampled,))) - 1
        drawn = op("cast")(op("floor")(drawn), dtype="int32") % range_max

        def expected(classes: Any) -> Any:
            number = op("cast")(classes, dtype="float32")
            return op("log")((number + 2) / (number + 1)) * (num_sampled / most)

        return [drawn, expected(true_classes), expected(drawn)]

    return rand_zipfian


FUNCTIONS = (boolean_mask, isnan, isinf, isfinite, group_adagrad_update, zipfian(function))
