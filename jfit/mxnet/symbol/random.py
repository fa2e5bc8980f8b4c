"""`mx.sym.random`: nodes that draw.  Numbers as parameters make `_random_*`, symbols make `_sample_*`.

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
    """y ~ U(low, high)."""
    return _drawn("uniform", {"low": low, "high": high}, shape, dtype, kwargs)


def normal(loc: Any = 0, scale: Any = 1, shape: Any = None, dtype: Any = None, **kwargs: Any) -> Symbol:
    """y ~ N(loc, scale²)."""
    return _drawn("normal", {"loc": loc, "scale": scale}, shape, dtype, kwargs)


def randn(*shape: int, loc: Any = 0, scale: Any = 1, dtype: Any = None, **kwargs: Any) -> Symbol:
    """y ~ N(loc, scale²) of the shape given by position."""
    return normal(loc, scale, shape, dtype, **kwargs)


def poisson(lam: Any = 1, shape: Any = None, dtype: Any = None, **kwargs: Any) -> Symbol:
    """y ~ Poisson(lam)."""
    return _drawn("poisson", {"lam": lam}, shape, dtype, kwargs)


def exponential(scale: Any = 1, shape: Any = None, dtype: Any = None, **kwargs: Any) -> Symbol:
    """y ~ Exp(1 / scale), of mean scale."""
    return _drawn("exponential", {"lam": 1.0 / scale}, shape, dtype, kwargs)


def gamma(alpha: Any = 1, beta: Any = 1, shape: Any = None, dtype: Any = None, **kwargs: Any) -> Symbol:
    """y ~ Γ(alpha) · beta, of mean alpha · beta."""
    return _drawn("gamma", {"alpha": alpha, "beta": beta}, shape, dtype, kwargs)


def negative_binomial(k: Any = 1, p: Any = 1, shape: Any = None, dtype: Any = None, **kwargs: Any) -> Symbol:
    """y = failures before the k-th success of probability p."""
    return _drawn("negative_binomial", {"k": k, "p": p}, shape, dtype, kwargs)


def generalized_negative_binomial(mu: Any = 1, alpha: Any = 1, shape: Any = None, dtype: Any = None, **kwargs: Any) -> Symbol:
    """y of mean mu and variance mu + alpha mu²."""
    return _drawn("generalized_negative_binomial", {"mu": mu, "alpha": alpha}, shape, dtype, kwargs)


def multinomial(data: Graph, shape: Any = None, get_prob: bool = True, dtype: Any = "int32", **kwargs: Any) -> Symbol:
    """y = k with probability data[..., k], and (get_prob, which is the default here) the logarithm of that probability."""
    return operator("_sample_multinomial")(data, shape=shape, get_prob=get_prob, dtype=dtype, **kwargs)


def randint(low: int, high: int, shape: Any = None, dtype: Any = None, **kwargs: Any) -> Symbol:
    """Whole numbers from low to high - 1, equally likely."""
    return _drawn("randint", {"low": low, "high": high}, shape, dtype, kwargs)


def shuffle(data: Graph, **kwargs: Any) -> Symbol:
    """The rows in a random order."""
    return operator("_shuffle")(data, **kwargs)


def _drawn(law: str, parameters: Mapping[str, Any], shape: Any, dtype: Any, more: Mapping[str, Any]) -> Symbol:
    given = {"shape": shape, "dtype": dtype, **more}
    if all(isinstance(v, Graph) for v in parameters.values()):
        return operator(f"_sample_{law}")(*parameters.values(), **given)
    if all(isinstance(v, numbers.Number) for v in parameters.values()):
        return operator(f"_random_{law}")(**parameters, **given)
    found = {k: type(v).__name__ for k, v in parameters.items()}
    raise ValueError(f"random.{law}: the parameters are {found}, needed numbers only or Symbols only; convert them")


def __getattr__(name: str) -> Any:
    return find("mx.sym.random", ("_random_",), name, operator)
