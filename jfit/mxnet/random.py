"""`mx.random` and `mx.nd.random`: the global seed and random arrays.

Distribution parameters are either all scalars (operator `_random_*`; the result has shape `shape`) or all NDArrays of one shape
(operator `_sample_*`; the result has shape `parameter.shape + shape`, `shape` samples for each entry).

>>> import jfit.mx as mx
>>> mx.nd.random.normal(mx.nd.array([0, 100]), mx.nd.array([1, 1]), shape=3).shape
(2, 3)
"""

from __future__ import annotations

import inspect
import numbers
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jfit.mxnet.context import Context
from jfit.mxnet.keys import seed as seed
from jfit.mxnet.namespaces import find
from jfit.mxnet.ndarray.array import NDArray, function
from jfit.mxnet.ndarray.create import array
from jfit.mxnet.ndarray.invoke import is_array
from jfit.ops import lookup
from jfit.ops.attributes import REQUIRED

__all__ = [
    "exponential", "gamma", "generalized_negative_binomial", "multinomial", "negative_binomial", "normal", "poisson", "randint",
    "randn", "seed", "shuffle", "uniform",
]  # fmt: skip


def uniform(low: Any = 0, high: Any = 1, shape: Any = None, dtype: Any = None, ctx: Any = None, out: Any = None) -> NDArray:
    """Sample y ~ U(low, high).

    Args:
        low: lower bound (inclusive), a number or an NDArray.
        high: upper bound (exclusive), like `low`.
        shape: int or tuple; None means (1,) for scalar parameters, and one sample per entry for NDArrays.
        dtype: dtype of the result; None means float32.
        ctx: device of the result; None means the current context.  Ignored for NDArray parameters.
        out: NDArray to write the samples into.

    Returns:
        NDArray of shape `shape`, or `low.shape + shape` for NDArrays; `out` if it was passed.

    Raises:
        ValueError: some parameters are numbers and others NDArrays.

    Example:
        >>> uniform(0, 1, shape=(2, 3)).shape
        (2, 3)
    """
    return _sample("uniform", {"low": low, "high": high}, shape, dtype, ctx, out)


def normal(loc: Any = 0, scale: Any = 1, shape: Any = None, dtype: Any = None, ctx: Any = None, out: Any = None) -> NDArray:
    """Sample y ~ N(loc, scale²).

    Args:
        loc: mean, a number or an NDArray.
        scale: standard deviation, like `loc`.
        shape: int or tuple, see `uniform`.
        dtype: dtype of the result; None means float32.
        ctx: device of the result, see `uniform`.
        out: NDArray to write the samples into.

    Returns:
        NDArray of shape `shape`, or `loc.shape + shape` for NDArrays; `out` if it was passed.

    Example:
        >>> normal(0, 1, shape=2).shape
        (2,)
    """
    return _sample("normal", {"loc": loc, "scale": scale}, shape, dtype, ctx, out)


def randn(*shape: int, loc: Any = 0, scale: Any = 1, dtype: Any = None, ctx: Any = None, out: Any = None) -> NDArray:
    """Sample y ~ N(loc, scale²), with the shape as positional arguments.

    Args:
        shape: sizes of the axes.
        loc: mean, a number or an NDArray.
        scale: standard deviation, like `loc`.
        dtype: dtype of the result; None means float32.
        ctx: device of the result, see `uniform`.
        out: NDArray to write the samples into.

    Returns:
        NDArray of shape `shape`, or `loc.shape + shape` for NDArrays; `out` if it was passed.

    Example:
        >>> randn(2, 3).shape
        (2, 3)
    """
    return normal(loc, scale, shape, dtype, ctx, out)


def poisson(lam: Any = 1, shape: Any = None, dtype: Any = None, ctx: Any = None, out: Any = None) -> NDArray:
    """Sample y ~ Poisson(lam).

    Args:
        lam: mean, a number or an NDArray.
        shape: int or tuple, see `uniform`.
        dtype: dtype of the result; None means float32.
        ctx: device of the result, see `uniform`.
        out: NDArray to write the samples into.

    Returns:
        NDArray of shape `shape`, or `lam.shape + shape` for an NDArray; `out` if it was passed.

    Example:
        >>> poisson(4.0, shape=2).shape
        (2,)
    """
    return _sample("poisson", {"lam": lam}, shape, dtype, ctx, out)


def exponential(scale: Any = 1, shape: Any = None, dtype: Any = None, ctx: Any = None, out: Any = None) -> NDArray:
    """Sample from the exponential distribution with mean `scale`.

    Args:
        scale: mean, a number or an NDArray.
        shape: int or tuple, see `uniform`.
        dtype: dtype of the result; None means float32.
        ctx: device of the result, see `uniform`.
        out: NDArray to write the samples into.

    Returns:
        NDArray of shape `shape`, or `scale.shape + shape` for an NDArray; `out` if it was passed.

    Example:
        >>> exponential(2.0, shape=2).shape
        (2,)
    """
    return _sample("exponential", {"lam": 1.0 / scale}, shape, dtype, ctx, out)


def gamma(alpha: Any = 1, beta: Any = 1, shape: Any = None, dtype: Any = None, ctx: Any = None, out: Any = None) -> NDArray:
    """Sample from the gamma distribution with shape parameter `alpha` and scale `beta`; its mean is alpha · beta.

    Args:
        alpha: shape parameter, a number or an NDArray.
        beta: scale, like `alpha`.
        shape: int or tuple, see `uniform`.
        dtype: dtype of the result; None means float32.
        ctx: device of the result, see `uniform`.
        out: NDArray to write the samples into.

    Returns:
        NDArray of shape `shape`, or `alpha.shape + shape` for NDArrays; `out` if it was passed.

    Example:
        >>> gamma(2.0, 0.5, shape=2).shape
        (2,)
    """
    return _sample("gamma", {"alpha": alpha, "beta": beta}, shape, dtype, ctx, out)


def negative_binomial(
    k: Any = 1, p: Any = 1, shape: Any = None, dtype: Any = None, ctx: Any = None, out: Any = None
) -> NDArray:
    """Sample the number of failures before the k-th success, each with success probability p.

    Args:
        k: number of successes, a number or an NDArray.
        p: success probability, like `k`.
        shape: int or tuple, see `uniform`.
        dtype: dtype of the result; None means float32.
        ctx: device of the result, see `uniform`.
        out: NDArray to write the samples into.

    Returns:
        NDArray of shape `shape`, or `k.shape + shape` for NDArrays; `out` if it was passed.

    Example:
        >>> negative_binomial(3, 0.5, shape=2).shape
        (2,)
    """
    return _sample("negative_binomial", {"k": k, "p": p}, shape, dtype, ctx, out)


def generalized_negative_binomial(
    mu: Any = 1, alpha: Any = 1, shape: Any = None, dtype: Any = None, ctx: Any = None, out: Any = None
) -> NDArray:
    """Sample from the negative binomial distribution with mean mu and variance mu + alpha mu².

    Args:
        mu: mean, a number or an NDArray.
        alpha: dispersion, like `mu`; 0 is a Poisson distribution.
        shape: int or tuple, see `uniform`.
        dtype: dtype of the result; None means float32.
        ctx: device of the result, see `uniform`.
        out: NDArray to write the samples into.

    Returns:
        NDArray of shape `shape`, or `mu.shape + shape` for NDArrays; `out` if it was passed.

    Example:
        >>> generalized_negative_binomial(2.0, 0.3, shape=2).shape
        (2,)
    """
    return _sample("generalized_negative_binomial", {"mu": mu, "alpha": alpha}, shape, dtype, ctx, out)


def multinomial(data: Any, shape: Any = None, get_prob: bool = False, out: Any = None, dtype: Any = "int32") -> Any:
    """Sample class indices: y = k with probability data[..., k].

    Args:
        data: probabilities, NDArray of shape (classes,) or (batch, classes).
        shape: int or tuple, the samples for each distribution; None draws one, without an axis.
        get_prob: also return the log-probability of each sample.
        out: NDArray to write the samples into.
        dtype: dtype of the samples.

    Returns:
        NDArray of shape (*shape,) or (batch, *shape); with `get_prob` a list of it and the log-probabilities.

    Example:
        >>> import jfit.mx as mx
        >>> multinomial(mx.nd.array([0, 1, 0]), shape=3).asnumpy().tolist()
        [1, 1, 1]
    """
    dtype_name = np.dtype(dtype).name
    return function("_sample_multinomial")(data, shape=sizes(shape), get_prob=get_prob, dtype=dtype_name, out=out)


def randint(low: int, high: int, shape: Any = None, dtype: Any = "int32", ctx: Any = None, out: Any = None) -> NDArray:
    """Sample integers uniformly from low (inclusive) to high (exclusive).

    Args:
        low: lower bound, an int.
        high: upper bound, an int.
        shape: int or tuple; None means (1,).
        dtype: dtype of the result; None means int32.
        ctx: device of the result; None means the current context.
        out: NDArray to write the samples into.

    Returns:
        NDArray of shape `shape`; `out` if it was passed.

    Example:
        >>> randint(5, 6, shape=2).asnumpy().tolist()
        [5, 5]
    """
    return _sample("randint", {"low": low, "high": high}, shape, dtype, ctx, out)


def shuffle(data: Any, out: Any = None) -> NDArray:
    """Return the rows of an array (entries along axis 0) in random order.

    Args:
        data: NDArray of shape (rows, ...).
        out: NDArray to write the result into.

    Returns:
        NDArray of the same shape; `out` if it was passed.

    Example:
        >>> import jfit.mx as mx
        >>> sorted(shuffle(mx.nd.array([1, 2, 3])).asnumpy().tolist())
        [1.0, 2.0, 3.0]
    """
    return function("_shuffle")(data, out=out)


def _sample(distribution: str, parameters: Mapping[str, Any], shape: Any, dtype: Any, ctx: Any, out: Any) -> NDArray:
    dtype_name = None if dtype is None else np.dtype(dtype).name
    if all(map(is_array, parameters.values())):
        return function(f"_sample_{distribution}")(*parameters.values(), shape=sizes(shape), dtype=dtype_name, out=out)
    if not all(isinstance(v, numbers.Number) for v in parameters.values()):
        types = {k: type(v).__name__ for k, v in parameters.items()}
        raise ValueError(f"random.{distribution}: the parameters are {types}, expected only numbers or only NDArrays")
    size = sizes(shape) if shape is not None else (1,) if out is None else out.shape
    samples = function(f"_random_{distribution}")(shape=size, dtype=dtype_name, **parameters)
    if out is not None:
        out[:] = samples
        return out
    return array(samples, ctx, dtype)


def registered(distribution: str) -> Callable[..., NDArray]:
    """Return `mx.nd.random_<distribution>`: arguments are those of the operator, in its order, which has `ctx` before `dtype`.

    Example:
        >>> import jfit.mx as mx
        >>> registered("exponential")(4.0, (2, 3), mx.cpu(0), "float16").dtype.__name__
        'float16'
    """
    attrs = lookup(f"_random_{distribution}").attrs
    defaults = {n: inspect.Parameter.empty if a.default is REQUIRED else a.default for n, a in attrs.items()} | {
        "out": None,
        "name": None,
    }
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    signature = inspect.Signature([inspect.Parameter(name, kind, default=value) for name, value in defaults.items()])

    def draw(*args: Any, **kwargs: Any) -> NDArray:
        """Sample from a distribution, with the arguments of its operator."""
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        del given["name"]
        parameters = {n: given.pop(n) for n in [*attrs][:-3]}  # without shape, ctx and dtype
        if isinstance(given["ctx"], str):  # as in the attributes of a symbol: "cpu(0)", or "" for the current context
            kind, _, number = given["ctx"].rstrip(")").partition("(")
            given["ctx"] = Context(kind, int(number or 0)) if kind else None
        return _sample(distribution, parameters, **given)

    draw.__name__ = draw.__qualname__ = f"random_{distribution}"
    draw.__signature__ = signature  # pyright: ignore[reportFunctionMemberAccess]
    return draw


def sizes(shape: Any) -> tuple[int, ...]:
    """Convert a shape to a tuple of ints: int -> (int,), sequence -> tuple, None -> ()."""
    return () if shape is None else (int(shape),) if isinstance(shape, (int, np.integer)) else tuple(map(int, shape))


def __getattr__(name: str) -> Any:
    return find("mx.nd.random", ("_random_",), name, function)
