"""`mx.random` and `mx.nd.random`: the seed, and eager draws from its sequence of keys.

Numbers as parameters draw with `_random_*`; arrays draw with `_sample_*`, `shape` numbers for each of their entries.

>>> import jfit.mx as mx
>>> mx.nd.random.normal(mx.nd.array([0, 100]), mx.nd.array([1, 1]), shape=3).shape
(2, 3)
"""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from typing import Any

import numpy as np

from jfit.mxnet import keys
from jfit.mxnet.namespaces import find
from jfit.mxnet.ndarray.array import NDArray, function
from jfit.mxnet.ndarray.create import array
from jfit.mxnet.ndarray.invoke import is_array


def seed(seed_state: int, ctx: Any = "all") -> None:
    """Start the random numbers of everything in `jfit.mx` again; the same calls then give the same numbers.

    Example:
        >>> seed(7)
        >>> first = uniform(shape=2).asnumpy().tolist()
        >>> seed(7)
        >>> uniform(shape=2).asnumpy().tolist() == first
        True
    """
    if not isinstance(seed_state, numbers.Integral):
        raise ValueError(f"the seed is {seed_state!r}, needed a whole number; convert it by int()")
    keys.seed(int(seed_state))


def uniform(low: Any = 0, high: Any = 1, shape: Any = None, dtype: Any = None, ctx: Any = None, out: Any = None) -> NDArray:
    """y ~ U(low, high)."""
    return _drawn("uniform", {"low": low, "high": high}, shape, dtype, ctx, out)


def normal(loc: Any = 0, scale: Any = 1, shape: Any = None, dtype: Any = None, ctx: Any = None, out: Any = None) -> NDArray:
    """y ~ N(loc, scale²)."""
    return _drawn("normal", {"loc": loc, "scale": scale}, shape, dtype, ctx, out)


def randn(*shape: int, loc: Any = 0, scale: Any = 1, dtype: Any = None, ctx: Any = None, out: Any = None) -> NDArray:
    """y ~ N(loc, scale²) of the shape given by position."""
    return normal(loc, scale, shape, dtype, ctx, out)


def poisson(lam: Any = 1, shape: Any = None, dtype: Any = None, ctx: Any = None, out: Any = None) -> NDArray:
    """y ~ Poisson(lam)."""
    return _drawn("poisson", {"lam": lam}, shape, dtype, ctx, out)


def exponential(scale: Any = 1, shape: Any = None, dtype: Any = None, ctx: Any = None, out: Any = None) -> NDArray:
    """y ~ Exp(1 / scale), of mean scale."""
    return _drawn("exponential", {"lam": 1.0 / scale}, shape, dtype, ctx, out)


def gamma(alpha: Any = 1, beta: Any = 1, shape: Any = None, dtype: Any = None, ctx: Any = None, out: Any = None) -> NDArray:
    """y ~ Γ(alpha) · beta, of mean alpha · beta."""
    return _drawn("gamma", {"alpha": alpha, "beta": beta}, shape, dtype, ctx, out)


def negative_binomial(
    k: Any = 1, p: Any = 1, shape: Any = None, dtype: Any = None, ctx: Any = None, out: Any = None
) -> NDArray:
    """y = failures before the k-th success of probability p."""
    return _drawn("negative_binomial", {"k": k, "p": p}, shape, dtype, ctx, out)


def generalized_negative_binomial(
    mu: Any = 1, alpha: Any = 1, shape: Any = None, dtype: Any = None, ctx: Any = None, out: Any = None
) -> NDArray:
    """y of mean mu and variance mu + alpha mu²."""
    return _drawn("generalized_negative_binomial", {"mu": mu, "alpha": alpha}, shape, dtype, ctx, out)


def multinomial(data: Any, shape: Any = None, get_prob: bool = False, out: Any = None, dtype: Any = "int32") -> Any:
    """y = k with probability data[..., k]; with get_prob also the logarithm of that probability."""
    kind = np.dtype(dtype).name
    return function("_sample_multinomial")(data, shape=_sizes(shape), get_prob=get_prob, dtype=kind, out=out)


def randint(low: int, high: int, shape: Any = None, dtype: Any = "int32", ctx: Any = None, out: Any = None) -> NDArray:
    """Whole numbers from low to high - 1, equally likely."""
    return _drawn("randint", {"low": low, "high": high}, shape, dtype or "int32", ctx, out)


def shuffle(data: Any, out: Any = None) -> NDArray:
    """The rows in a random order."""
    return function("_shuffle")(data, out=out)


def _drawn(law: str, parameters: Mapping[str, Any], shape: Any, dtype: Any, ctx: Any, out: Any) -> NDArray:
    kind = None if dtype is None else np.dtype(dtype).name
    kinds = {is_array(v) if not isinstance(v, numbers.Number) else False for v in parameters.values()}
    if kinds == {True}:
        return function(f"_sample_{law}")(*parameters.values(), shape=_sizes(shape), dtype=kind, out=out)
    if kinds != {False} or not all(isinstance(v, numbers.Number) for v in parameters.values()):
        found = {k: type(v).__name__ for k, v in parameters.items()}
        raise ValueError(f"random.{law}: the parameters are {found}, needed numbers only or NDArrays only; convert them")
    size = out.shape if out is not None and shape is None else _sizes(shape) or (1,) if shape is None else _sizes(shape)
    drawn = function(f"_random_{law}")(shape=size, dtype=kind, **parameters)
    if out is not None:
        out[:] = drawn
        return out
    return array(drawn, ctx, np.float32 if dtype is None else dtype)


def _sizes(shape: Any) -> tuple[int, ...]:
    """The sizes given by one number, several, or None (no axis)."""
    return () if shape is None else (int(shape),) if isinstance(shape, (int, np.integer)) else tuple(map(int, shape))


def __getattr__(name: str) -> Any:
    return find("mx.nd.random", ("_random_",), name, function)
