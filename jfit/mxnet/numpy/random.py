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
from jfit.mxnet.context import place
from jfit.mxnet.namespaces import absent
from jfit.mxnet.ndarray.invoke import call
from jfit.mxnet.numpy.arrays import ndarray, write
from jfit.mxnet.random import seed as seed


def _lognormal(k: Any, shape: Any, mean: Any = 0.0, sigma: Any = 1.0) -> Any:
    return jnp.exp(mean + sigma * random.normal(k, shape))


def _gamma(k: Any, n: Any, shape: Any, scale: Any = 1.0) -> Any:
    return scale * random.gamma(k, shape, n)


# Distribution -> function (key, shape of the result, parameters) of the samples.
_SAMPLERS: dict[str, Callable[..., Any]] = {
    "uniform": lambda k, n, low=0.0, high=1.0: low + (high - low) * random.uniform(k, n),
    "normal": lambda k, n, loc=0.0, scale=1.0: loc + scale * random.normal(k, n),
    "lognormal": _lognormal,
    "exponential": lambda k, n, scale=1.0: scale * random.exponential(k, n),
    "gamma": _gamma,
    "beta": lambda k, n, a, b: random.beta(k, a, b, n),
    "chisquare": lambda k, n, df: 2.0 * random.gamma(k, df / 2.0, n),
    "gumbel": lambda k, n, loc=0.0, scale=1.0: loc + scale * random.gumbel(k, n),
    "logistic": lambda k, n, loc=0.0, scale=1.0: loc + scale * random.logistic(k, n),
    "pareto": lambda k, n, a: jnp.expm1(random.exponential(k, n) / a),
    "power": lambda k, n, a: jnp.exp(-random.exponential(k, n) / a),
    "rayleigh": lambda k, n, scale=1.0: scale * jnp.sqrt(2.0 * random.exponential(k, n)),
    "weibull": lambda k, n, a: random.exponential(k, n) ** (1.0 / a),
    "bernoulli": lambda k, n, prob: random.bernoulli(k, prob, n).astype(np.float32),
}
_NO_DTYPE = "exponential gumbel logistic pareto power rayleigh weibull"


def _sizes(size: Any) -> tuple[int, ...]:
    return (int(size),) if isinstance(size, (int, np.integer)) else tuple(map(int, size))


def _drawn(sampler: Callable[..., Any], parameters: Any, size: Any, dtype: Any, ctx: Any, out: Any) -> Any:
    """Draw samples of shape `size`; None: of the shape to which the parameters broadcast."""
    shapes = [np.shape(p) for p in parameters]
    shape = np.broadcast_shapes(*shapes) if size is None else _sizes(size)
    arrays = [p if hasattr(p, "shape") else np.float32(p) for p in parameters]
    key = jax.random.key_data(keys.next_key())
    dtype = np.dtype(jax.dtypes.canonicalize_dtype(dtype or np.float32))
    samples = call(_sample, [key, *arrays], {"sampler": sampler, "shape": shape, "dtype": dtype}, ndarray)
    return write(out, samples if ctx is None else samples.as_in_ctx(ctx))


def _sample(key: Any, *parameters: Any, sampler: Callable[..., Any], shape: tuple[int, ...], dtype: Any) -> Any:
    with jax.numpy_rank_promotion("allow"):
        return sampler(jax.random.wrap_key_data(key), shape, *parameters).astype(dtype)


@functools.cache
def __getattr__(name: str) -> Callable[..., Any]:
    if name not in _SAMPLERS:
        absent("mx.np.random", name, __dir__())
    sampler = _SAMPLERS[name]
    own = list(inspect.signature(sampler).parameters.values())[2:]
    rest = [n for n in ("size", "dtype", "ctx", "out") if n != "dtype" or name not in _NO_DTYPE.split()]
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    signature = inspect.Signature([*own, *(inspect.Parameter(n, kind, default=None) for n in rest)])

    def draw(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        values = bound.arguments
        return _drawn(sampler, [values.pop(p.name) for p in own], *(values.get(n) for n in ("size", "dtype", "ctx", "out")))

    draw.__name__, draw.__signature__ = name, signature  # type: ignore[attr-defined]
    draw.__doc__ = f"Sample from the {name} distribution as `numpy.random.{name}`, of dtype float32 by default."
    return draw


def rand(*size: int, **kwargs: Any) -> ndarray:
    """Sample y ~ U(0, 1) in the shape of the arguments."""
    return __getattr__("uniform")(size=size, **kwargs)


def randn(*size: int, **kwargs: Any) -> ndarray:
    """Sample y ~ N(0, 1) in the shape of the arguments."""
    return __getattr__("normal")(size=size, **kwargs)


def uniform_n(low: Any = 0.0, high: Any = 1.0, batch_shape: Any = None, dtype: Any = None, ctx: Any = None) -> ndarray:
    """Sample y ~ U(low, high) `batch_shape` times for each entry of the parameters."""
    return _batch("uniform", (low, high), batch_shape, dtype, ctx)


def normal_n(loc: Any = 0.0, scale: Any = 1.0, batch_shape: Any = None, dtype: Any = None, ctx: Any = None) -> ndarray:
    """Sample y ~ N(loc, scale²) `batch_shape` times for each entry of the parameters."""
    return _batch("normal", (loc, scale), batch_shape, dtype, ctx)


def _batch(name: str, parameters: Any, batch_shape: Any, dtype: Any, ctx: Any) -> ndarray:
    event = np.broadcast_shapes(*map(np.shape, parameters))
    return _drawn(_SAMPLERS[name], parameters, (*_sizes(batch_shape or ()), *event), dtype, ctx, None)


def bernoulli(
    prob: Any = None, logit: Any = None, size: Any = None, dtype: Any = None, ctx: Any = None, out: Any = None
) -> ndarray:
    """Sample 1 with probability `prob`, or 1 / (1 + exp(-logit)), and 0 otherwise."""
    if (prob is None) == (logit is None):
        raise ValueError("bernoulli takes either prob or logit")
    return _drawn(
        _bernoulli_of_logits if prob is None else _SAMPLERS["bernoulli"],
        [logit if prob is None else prob],
        size,
        dtype,
        ctx,
        out,
    )


def _bernoulli_of_logits(k: Any, n: Any, logit: Any) -> Any:
    return _SAMPLERS["bernoulli"](k, n, jax.nn.sigmoid(logit))


def randint(
    low: int, high: int | None = None, size: Any = None, dtype: Any = None, ctx: Any = None, out: Any = None
) -> ndarray:
    """Sample integers from low (inclusive) to high (exclusive); with one argument from 0 to `low`."""
    first, last = (0, low) if high is None else (low, high)
    if first >= last:
        raise ValueError(f"randint: low={first} must be below high={last}")
    samples = random.randint(keys.next_key(), () if size is None else _sizes(size), first, last)
    return write(out, ndarray(place(samples.astype(jax.dtypes.canonicalize_dtype(dtype or int)), ctx)))


def choice(a: Any, size: Any = None, replace: bool = True, p: Any = None, ctx: Any = None, out: Any = None) -> ndarray:
    """Sample entries of an array of one axis, or of range(a), with probabilities `p`, with or without replacement."""
    from_ = a if isinstance(a, int) else jnp.asarray(a)
    p = None if p is None else jnp.asarray(p)
    samples = random.choice(keys.next_key(), from_, () if size is None else _sizes(size), replace, p)
    return write(out, ndarray(place(samples, ctx)))


def shuffle(x: ndarray) -> None:
    """Permute the rows of an array (entries along axis 0) in place."""
    x[:] = ndarray(random.permutation(keys.next_key(), jnp.asarray(x)))


def multinomial(n: int, pvals: Any, size: Any = None) -> ndarray:
    """Sample how often each of len(pvals) outcomes occurs in `n` trials; the result has shape (*size, outcomes)."""
    shape = () if size is None else _sizes(size)
    p = jnp.asarray(pvals, np.float32)
    drawn = random.categorical(keys.next_key(), jnp.log(p), shape=(*shape, n))
    return ndarray(jax.nn.one_hot(drawn, len(p), dtype=np.int32).sum(axis=-2))


def multivariate_normal(mean: Any, cov: Any, size: Any = None, check_valid: Any = None, tol: Any = None) -> ndarray:
    """Sample vectors y ~ N(mean, cov); the result has shape (*size, *mean.shape)."""
    mean, cov = jnp.asarray(mean), jnp.asarray(cov)
    shape = None if size is None else (*_sizes(size), *mean.shape[:-1])
    return ndarray(random.multivariate_normal(keys.next_key(), mean, cov, shape))


def __dir__() -> list[str]:
    return sorted(
        {*(n for n, f in globals().items() if n[0] != "_" and callable(f) and n not in ("Any", "Callable")), *_SAMPLERS}
    )
