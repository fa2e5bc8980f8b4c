"""`mx.np.random` and `mx.npx.random`: samples from the global seed of `mx.random.seed`.

Parameters are numbers or arrays that broadcast against each other; `size` is the shape of the result.  Samples that are
computed from the parameters, such as those of `normal`, have gradients with respect to them.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import random

from jfit.mxnet import keys
from jfit.mxnet import random as legacy
from jfit.mxnet.context import place
from jfit.mxnet.keys import seed as seed
from jfit.mxnet.namespaces import absent
from jfit.mxnet.ndarray.invoke import call
from jfit.mxnet.numpy.arrays import elementwise, ndarray, write

# Distribution -> function (key, shape of the result, parameters) of the samples.
_SAMPLERS: dict[str, Callable[..., Any]] = {
    "uniform": lambda k, n, low=0.0, high=1.0: low + (high - low) * random.uniform(k, n),
    "_bernoulli": lambda k, n, prob: random.bernoulli(k, prob, n),
    "normal": lambda k, n, loc=0.0, scale=1.0: loc + scale * random.normal(k, n),
    "lognormal": lambda k, n, mean=0.0, sigma=1.0: jnp.exp(mean + sigma * random.normal(k, n)),
    "exponential": lambda k, n, scale=1.0: scale * random.exponential(k, n),
    "gamma": lambda k, n, shape, scale=1.0: scale * random.gamma(k, shape, n),
    "beta": lambda k, n, a, b: random.beta(k, a, b, n),
    "chisquare": lambda k, n, df: 2.0 * random.gamma(k, df / 2.0, n),
    "gumbel": lambda k, n, loc=0.0, scale=1.0: loc + scale * random.gumbel(k, n),
    "logistic": lambda k, n, loc=0.0, scale=1.0: loc + scale * random.logistic(k, n),
    "pareto": lambda k, n, a: jnp.expm1(random.exponential(k, n) / a),
    "power": lambda k, n, a: jnp.exp(-random.exponential(k, n) / a),
    "rayleigh": lambda k, n, scale=1.0: scale * jnp.sqrt(2.0 * random.exponential(k, n)),
    "weibull": lambda k, n, a: random.exponential(k, n) ** (1.0 / a),
}
_OTHERS = {"rand": "uniform", "randn": "normal", "uniform_n": "uniform", "normal_n": "normal"}

# MXNet's have no dtype, which is the last argument here.
_WITHOUT_DTYPE: dict[str, Any] = dict.fromkeys(
    ("exponential", "gumbel", "logistic", "pareto", "power", "rayleigh", "weibull"), ("ctx", "out", "dtype")
)


def _sample(key: Any, *parameters: Any, sampler: Callable[..., Any], shape: tuple[int, ...], dtype: Any) -> Any:
    with jax.numpy_rank_promotion("allow"):
        return sampler(jax.random.wrap_key_data(key), shape, *parameters).astype(dtype)


@functools.cache
def __getattr__(name: str) -> Callable[..., Any]:
    if name in ("rand", "randn"):
        return lambda *size, **options: __getattr__(_OTHERS[name])(size=size, **options)
    sampler = _SAMPLERS.get(_OTHERS.get(name, name)) or absent("mx.np.random", name, __dir__())
    own = list(inspect.signature(sampler).parameters.values())[2:]
    rest = ["batch_shape" if name in _OTHERS else "size", *_WITHOUT_DTYPE.get(name, ("dtype", "ctx", "out"))]
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    signature = inspect.Signature([*own, *(inspect.Parameter(n, kind, default=None) for n in rest)])

    def draw(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        *parameters, size = list(bound.arguments.values())[: len(own) + 1]
        dtype, ctx, out = (bound.arguments[n] for n in ("dtype", "ctx", "out"))
        event = np.broadcast_shapes(*map(np.shape, parameters))
        shape = event if size is None else legacy.sizes(size) + (event if name in _OTHERS else ())
        arrays = [p if hasattr(p, "shape") else np.float32(p) for p in parameters]
        key = jax.random.key_data(keys.next_key())
        dtype = np.dtype(jax.dtypes.canonicalize_dtype(dtype or np.float32))
        samples = call(_sample, [key, *arrays], {"sampler": sampler, "shape": shape, "dtype": dtype}, ndarray)
        return write(out, samples if ctx is None else samples.as_in_ctx(ctx))

    draw.__name__, draw.__signature__ = name, signature  # type: ignore[attr-defined]
    draw.__doc__ = f"Sample from the {_OTHERS.get(name, name)} distribution, as `numpy.random` does, in float32 by default."
    return draw


def bernoulli(
    prob: Any = None, logit: Any = None, size: Any = None, dtype: Any = None, ctx: Any = None, out: Any = None
) -> ndarray:
    """Sample 1 with probability `prob` = 1 / (1 + exp(-logit)), and 0 otherwise.

    Args:
        prob: probability, a number or an array.
        logit: the logarithm of the odds instead.
        size: shape of the result; by default that of the parameter.
        dtype: float32 by default.
        ctx: device.
        out: ndarray to write the samples into.

    Returns:
        ndarray of shape `size`.

    Raises:
        ValueError: both or neither of `prob` and `logit` are passed.

    Example:
        >>> bernoulli(prob=1.0, size=2)
        array([1., 1.])
    """
    if (prob is None) == (logit is None):
        raise ValueError("bernoulli takes either prob or logit")
    prob = 1 / (1 + elementwise("exp", -logit)) if prob is None else prob
    return __getattr__("_bernoulli")(prob, size, dtype, ctx, out)


def randint(
    low: int, high: int | None = None, size: Any = None, dtype: Any = None, ctx: Any = None, out: Any = None
) -> ndarray:
    """Sample integers uniformly from low (inclusive) to high (exclusive).

    Args:
        low: lower bound; with one argument it is the upper bound, and the lower is 0.
        high: upper bound.
        size: shape of the result; () by default.
        dtype: an integer dtype.
        ctx: device.
        out: ndarray to write the samples into.

    Returns:
        ndarray of shape `size`.

    Raises:
        ValueError: the range is empty.

    Example:
        >>> randint(5, 6, size=2).tolist()
        [5, 5]
    """
    first, last = (0, low) if high is None else (low, high)
    if first >= last:
        raise ValueError(f"randint: low={first} must be below high={last}")
    samples = random.randint(keys.next_key(), legacy.sizes(size), first, last)
    return write(out, ndarray(place(samples.astype(jax.dtypes.canonicalize_dtype(dtype or int)), ctx)))


def choice(a: Any, size: Any = None, replace: bool = True, p: Any = None, ctx: Any = None, out: Any = None) -> ndarray:
    """Sample entries of an array of one axis, or of range(a).

    Args:
        a: array (entries,), or an int.
        size: shape of the result; () by default.
        replace: whether an entry can be sampled twice.
        p: probabilities (entries,); uniform by default.
        ctx: device.
        out: ndarray to write the samples into.

    Returns:
        ndarray of shape `size`.

    Example:
        >>> choice(3, size=2, p=[0, 1, 0]).tolist()
        [1, 1]
    """
    entries, p = a if isinstance(a, int) else jnp.asarray(a), None if p is None else jnp.asarray(p)
    return write(out, ndarray(place(random.choice(keys.next_key(), entries, legacy.sizes(size), replace, p), ctx)))


def shuffle(x: ndarray) -> None:
    """Permute the rows of an array (entries along axis 0) in place.

    Args:
        x: ndarray (rows, ...).

    Example:
        >>> import jfit.mx as mx
        >>> x = mx.np.arange(3)
        >>> shuffle(x)
        >>> sorted(x.tolist())
        [0.0, 1.0, 2.0]
    """
    x[:] = ndarray(random.permutation(keys.next_key(), jnp.asarray(x)))


def multinomial(n: int, pvals: Any, size: Any = None) -> ndarray:
    """Sample how often each outcome occurs in `n` trials.

    Args:
        n: number of trials.
        pvals: probabilities (outcomes,).
        size: shape of the samples; () by default.

    Returns:
        ndarray (*size, outcomes) of integers.

    Example:
        >>> multinomial(5, [0.0, 1.0]).tolist()
        [0, 5]
    """
    p = jnp.asarray(pvals, np.float32)
    drawn = random.categorical(keys.next_key(), jnp.log(p), shape=(*legacy.sizes(size), n))
    return ndarray(jax.nn.one_hot(drawn, len(p), dtype=np.int32).sum(axis=-2))


def multivariate_normal(mean: Any, cov: Any, size: Any = None, check_valid: Any = None, tol: Any = None) -> ndarray:
    """Sample vectors y ~ N(mean, cov).

    Args:
        mean: array (..., n).
        cov: covariance (..., n, n).
        size: shape of the samples; () by default.
        check_valid, tol: accepted and ignored.

    Returns:
        ndarray (*size, ..., n).

    Example:
        >>> import jfit.mx as mx
        >>> multivariate_normal(mx.np.zeros(2), mx.np.eye(2), size=3).shape
        (3, 2)
    """
    mean, cov = jnp.asarray(mean), jnp.asarray(cov)
    shape = None if size is None else (*legacy.sizes(size), *mean.shape[:-1])
    return ndarray(random.multivariate_normal(keys.next_key(), mean, cov, shape))


def __dir__() -> list[str]:
    own = (n for n, f in globals().items() if n[0] != "_" and getattr(f, "__module__", "") == __name__)
    return sorted([*own, *(n for n in _SAMPLERS if n[0] != "_"), *_OTHERS, "seed"])
