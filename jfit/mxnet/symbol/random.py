"""`mx.sym.random`: nodes that draw random numbers.

Parameters that are numbers create a `_random_*` node of any shape.  Parameters that are symbols create a `_sample_*` node,
which draws `shape` numbers for each entry of the parameters.

>>> import jfit.mx as mx
>>> mx.sym.random.exponential(2.0, shape=(3,)).infer_shape()[1]
[(3,)]
"""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from typing import Any

from jfit.graph.symbol import Symbol as Graph
from jfit.mxnet.namespaces import find
from jfit.mxnet.symbol.symbol import Symbol, operator


def uniform(low: Any = 0, high: Any = 1, shape: Any = None, dtype: Any = None, **kwargs: Any) -> Symbol:
    """Draw from the uniform distribution over [low, high).

    Args:
        low: lower bound, number or Symbol.
        high: upper bound, number or Symbol.
        shape: shape of the draws.
        dtype: float32 by default.
        kwargs: `name` and attributes of the node.

    Returns:
        Symbol.

    Example:
        >>> uniform(0, 2, shape=(3,)).infer_shape()[1]
        [(3,)]
    """
    return _sample("uniform", {"low": low, "high": high}, shape, dtype, kwargs)


def normal(loc: Any = 0, scale: Any = 1, shape: Any = None, dtype: Any = None, **kwargs: Any) -> Symbol:
    """Draw from the normal distribution.

    Args:
        loc: mean, number or Symbol.
        scale: standard deviation, number or Symbol.
        shape: shape of the draws.
        dtype: float32 by default.
        kwargs: `name` and attributes of the node.

    Returns:
        Symbol.

    Example:
        >>> normal(0, 2, shape=(3,)).infer_shape()[1]
        [(3,)]
    """
    return _sample("normal", {"loc": loc, "scale": scale}, shape, dtype, kwargs)


def randn(*shape: int, loc: Any = 0, scale: Any = 1, dtype: Any = None, **kwargs: Any) -> Symbol:
    """Draw from the normal distribution, with the shape as positional arguments.

    Args:
        shape: sizes of the axes.
        loc: mean, number or Symbol.
        scale: standard deviation, number or Symbol.
        dtype: float32 by default.
        kwargs: `name` and attributes of the node.

    Returns:
        Symbol.

    Example:
        >>> randn(2, 3).infer_shape()[1]
        [(2, 3)]
    """
    return normal(loc, scale, shape, dtype, **kwargs)


def poisson(lam: Any = 1, shape: Any = None, dtype: Any = None, **kwargs: Any) -> Symbol:
    """Draw from the Poisson distribution.

    Args:
        lam: mean, number or Symbol.
        shape: shape of the draws.
        dtype: float32 by default.
        kwargs: `name` and attributes of the node.

    Returns:
        Symbol.

    Example:
        >>> poisson(4.0, shape=(3,)).infer_shape()[1]
        [(3,)]
    """
    return _sample("poisson", {"lam": lam}, shape, dtype, kwargs)


def exponential(scale: Any = 1, shape: Any = None, dtype: Any = None, **kwargs: Any) -> Symbol:
    """Draw from the exponential distribution.

    Args:
        scale: mean (1 / rate), number or Symbol.
        shape: shape of the draws.
        dtype: float32 by default.
        kwargs: `name` and attributes of the node.

    Returns:
        Symbol.

    Example:
        >>> exponential(2.0, shape=(3,)).infer_shape()[1]
        [(3,)]
    """
    return _sample("exponential", {"lam": 1.0 / scale}, shape, dtype, kwargs)


def gamma(alpha: Any = 1, beta: Any = 1, shape: Any = None, dtype: Any = None, **kwargs: Any) -> Symbol:
    """Draw from the gamma distribution.

    Args:
        alpha: shape parameter, number or Symbol.
        beta: scale parameter, number or Symbol; the mean is alpha * beta.
        shape: shape of the draws.
        dtype: float32 by default.
        kwargs: `name` and attributes of the node.

    Returns:
        Symbol.

    Example:
        >>> gamma(2.0, 0.5, shape=(3,)).infer_shape()[1]
        [(3,)]
    """
    return _sample("gamma", {"alpha": alpha, "beta": beta}, shape, dtype, kwargs)


def negative_binomial(k: Any = 1, p: Any = 1, shape: Any = None, dtype: Any = None, **kwargs: Any) -> Symbol:
    """Draw the number of failures before the k-th success in trials of success probability p.

    Args:
        k: number of successes, number or Symbol.
        p: success probability, number or Symbol.
        shape: shape of the draws.
        dtype: float32 by default.
        kwargs: `name` and attributes of the node.

    Returns:
        Symbol.

    Example:
        >>> negative_binomial(3, 0.5, shape=(3,)).infer_shape()[1]
        [(3,)]
    """
    return _sample("negative_binomial", {"k": k, "p": p}, shape, dtype, kwargs)


def generalized_negative_binomial(mu: Any = 1, alpha: Any = 1, shape: Any = None, dtype: Any = None, **kwargs: Any) -> Symbol:
    """Draw from the negative binomial distribution of mean mu and variance mu + alpha * mu ** 2.

    Args:
        mu: mean, number or Symbol.
        alpha: dispersion, number or Symbol.
        shape: shape of the draws.
        dtype: float32 by default.
        kwargs: `name` and attributes of the node.

    Returns:
        Symbol.

    Example:
        >>> generalized_negative_binomial(2.0, 0.3, shape=(3,)).infer_shape()[1]
        [(3,)]
    """
    return _sample("generalized_negative_binomial", {"mu": mu, "alpha": alpha}, shape, dtype, kwargs)


def multinomial(data: Graph, shape: Any = None, get_prob: bool = True, dtype: Any = "int32", **kwargs: Any) -> Symbol:
    """Draw category indices k with probability data[..., k].

    Args:
        data: Symbol (..., categories) of probabilities.
        shape: shape of the draws for each distribution; one draw by default.
        get_prob: also return the log-probability of each draw; True by default here, as in MXNet.
        dtype: dtype of the indices.
        kwargs: `name` and attributes of the node.

    Returns:
        Symbol with one output, or two with `get_prob`.

    Example:
        >>> import jfit.mx as mx
        >>> multinomial(mx.sym.Variable("p"), get_prob=False).infer_shape(p=(2, 5))[1]
        [(2,)]
    """
    return operator("_sample_multinomial")(data, shape=shape, get_prob=get_prob, dtype=dtype, **kwargs)


def randint(low: int, high: int, shape: Any = None, dtype: Any = None, **kwargs: Any) -> Symbol:
    """Draw integers from [low, high), uniformly.

    Args:
        low: lower bound, included.
        high: upper bound, not included.
        shape: shape of the draws.
        dtype: int32 by default.
        kwargs: `name` and attributes of the node.

    Returns:
        Symbol.

    Example:
        >>> randint(0, 9, shape=(3,)).infer_shape()[1]
        [(3,)]
    """
    return _sample("randint", {"low": low, "high": high}, shape, dtype, kwargs)


def shuffle(data: Graph, **kwargs: Any) -> Symbol:
    """Shuffle the rows, the entries of the first axis.

    Args:
        data: Symbol (rows, ...).
        kwargs: `name` and attributes of the node.

    Returns:
        Symbol of the same shape.

    Example:
        >>> import jfit.mx as mx
        >>> shuffle(mx.sym.Variable("x")).infer_shape(x=(4, 2))[1]
        [(4, 2)]
    """
    return operator("_shuffle")(data, **kwargs)


def _sample(distribution: str, parameters: Mapping[str, Any], shape: Any, dtype: Any, kwargs: Mapping[str, Any]) -> Symbol:
    attrs = {"shape": shape, "dtype": dtype, **kwargs}
    if all(isinstance(v, Graph) for v in parameters.values()):
        return operator(f"_sample_{distribution}")(*parameters.values(), **attrs)
    if all(isinstance(v, numbers.Number) for v in parameters.values()):
        return operator(f"_random_{distribution}")(**parameters, **attrs)
    types = {k: type(v).__name__ for k, v in parameters.items()}
    raise ValueError(f"random.{distribution}: the parameters are {types}, expected numbers only or Symbols only; convert them")


def __getattr__(name: str) -> Any:
    return find("mx.sym.random", ("_random_",), name, operator)
