"""Random numbers of distributions given by attributes: _random_* of a shape, _random_*_like of an array's shape.

Each operator draws in training and in evaluation, in float32 before it gives its dtype, and passes no gradient on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jfit.ops.attributes import DTYPES, Attr, Attrs, integer, maybe_choice, maybe_shape, number, text
from jfit.ops.context import Ctx
from jfit.ops.registry import Shape, operator
from jfit.ops.rows import no_rows
from jfit.ops.rules import dtype_of

FLOATS = ("float16", "float32", "float64", "bfloat16")


# ------------------------------------------------------------------------------------------ the distributions
def uniform(key: Array, shape: Shape, low: Any, high: Any) -> Array:
    """y ~ U[low, high)."""
    return low + (high - low) * jax.random.uniform(key, shape)


def normal(key: Array, shape: Shape, mean: Any, deviation: Any) -> Array:
    """y ~ N(mean, deviation²)."""
    return mean + deviation * jax.random.normal(key, shape)


def gamma(key: Array, shape: Shape, alpha: Any, beta: Any) -> Array:
    """y ~ Γ(alpha) · beta, of mean alpha · beta."""
    return jax.random.gamma(key, alpha, shape) * beta


def exponential(key: Array, shape: Shape, lam: Any) -> Array:
    """y ~ Exp(lam), of mean 1 / lam."""
    return jax.random.exponential(key, shape) / lam


def poisson(key: Array, shape: Shape, lam: Any) -> Array:
    """y ~ Poisson(lam)."""
    return jax.random.poisson(key, lam, shape).astype(jnp.float32)


def negative_binomial(key: Array, shape: Shape, k: Any, p: Any) -> Array:
    """y = failures before the k-th success of probability p: Poisson of a Γ(k) (1 - p) / p, of mean k (1 - p) / p."""
    rate, count = jax.random.split(key)
    return poisson(count, shape, gamma(rate, shape, k, (1 - p) / p))


def generalized_negative_binomial(key: Array, shape: Shape, mu: Any, alpha: Any) -> Array:
    """y of mean mu and variance mu + alpha mu²: Poisson of a Γ(1 / alpha) alpha mu; alpha = 0 is Poisson(mu)."""
    rate, count = jax.random.split(key)
    spread = jnp.where(alpha > 0, alpha, jnp.ones_like(alpha))
    mixed = gamma(rate, shape, 1 / spread, spread * mu)
    return poisson(count, shape, jnp.where(alpha > 0, mixed, jnp.broadcast_to(mu, shape)))


class Distribution(NamedTuple):
    """How one distribution is drawn.

    Attributes:
        name: what follows _random_ and _sample_.
        draw: `draw(key, shape, *parameters)` in float32.
        scalars: its parameters as attributes.
        arrays: names of the parameters where they are arrays.
        short: whether the bare name is an alias of _random_*.
        valid: whether the attributes make a distribution.
        need: what they need, for the error sentence.
    """

    name: str
    draw: Callable[..., Array]
    scalars: dict[str, Attr]
    arrays: tuple[str, ...]
    short: bool
    valid: Callable[..., bool]
    need: str


ONE = number(1.0)
TABLE = [
    Distribution(
        "uniform",
        uniform,
        {"low": number(0.0), "high": ONE},
        ("low", "high"),
        True,
        lambda low, high: low <= high,
        "low <= high",
    ),
    Distribution(
        "normal", normal, {"loc": number(0.0), "scale": ONE}, ("mu", "sigma"), True, lambda loc, scale: scale > 0, "scale > 0"
    ),
    Distribution(
        "gamma",
        gamma,
        {"alpha": ONE, "beta": ONE},
        ("alpha", "beta"),
        False,
        lambda alpha, beta: alpha > 0 and beta > 0,
        "alpha > 0 and beta > 0",
    ),
    Distribution("exponential", exponential, {"lam": ONE}, ("lam",), False, lambda lam: lam > 0, "lam > 0"),
    Distribution("poisson", poisson, {"lam": ONE}, ("lam",), False, lambda lam: lam >= 0, "lam >= 0"),
    Distribution(
        "negative_binomial",
        negative_binomial,
        {"k": integer(1), "p": ONE},
        ("k", "p"),
        False,
        lambda k, p: k >= 0 and 0 < p <= 1,
        "k >= 0 and 0 < p <= 1",
    ),
    Distribution(
        "generalized_negative_binomial",
        generalized_negative_binomial,
        {"mu": ONE, "alpha": ONE},
        ("mu", "alpha"),
        False,
        lambda mu, alpha: mu >= 0 and alpha >= 0,
        "mu >= 0 and alpha >= 0",
    ),
]


# ------------------------------------------------------------------------------------------ _random_* and _random_*_like
def shape_of(op: str, attrs: Attrs) -> Shape:
    """The attribute `shape`, which must be there once arrays are made."""
    if attrs.shape is None:
        raise ValueError(f"{op} has no shape, and the graph around it does not tell it; pass shape=")
    return attrs.shape


def drawn_types(attrs: Attrs, ins: list[Any]) -> tuple[list[Any], list[Any]]:
    """Dtype rule: one output of the attribute `dtype`, float32 where it is None, whatever the inputs are."""
    return ins, [DTYPES[attrs.dtype or "float32"]]


def finished(values: Array, dtype: Any) -> Array:
    """Random numbers in the dtype of the output; they pass no gradient on."""
    return lax.stop_gradient(values).astype(dtype)


def _parameters(op: str, law: Distribution, attrs: Attrs) -> Sequence[Array]:
    found = {name: attrs[name] for name in law.scalars}
    if not law.valid(*found.values()):
        raise ValueError(f"{op} has {found}, needed {law.need} because nothing else is a distribution; change the attributes")
    return [jnp.asarray(value, jnp.float32) for value in found.values()]


def _add(law: Distribution) -> None:
    name = f"_random_{law.name}"

    def shaped(ctx: Ctx, attrs: Attrs) -> Array:
        shape, parameters = shape_of(name, attrs), _parameters(name, law, attrs)
        drawn = ctx.random(lambda key, size: law.draw(key, size, *parameters), shape)
        return finished(drawn, dtype_of(attrs.dtype or "float32"))

    def like(ctx: Ctx, attrs: Attrs, data: Array) -> Array:
        if not jnp.issubdtype(data.dtype, jnp.floating):
            raise ValueError(
                f"{name}_like: data is {data.dtype}, needed a float dtype because the numbers get it; cast the data"
            )
        parameters = _parameters(f"{name}_like", law, attrs)
        return finished(ctx.random(lambda key, size: law.draw(key, size, *parameters), data.shape), data.dtype)

    shaped.__doc__ = law.draw.__doc__
    like.__doc__ = f"{(law.draw.__doc__ or '').rstrip('.')}, one for each entry of the data."
    made = {"shape": maybe_shape(), "ctx": text(""), "dtype": maybe_choice(*FLOATS)}
    aliases = (name[1:], law.name) if law.short else (name[1:],)
    record: dict[str, Any] = {"types": drawn_types, "rows": no_rows, "needs_rng": True}
    operator(name, inputs=(), attrs=law.scalars | made, aliases=aliases, **record)(shaped)
    operator(f"{name}_like", attrs=law.scalars, needs_rng=True)(like)


for _law in TABLE:
    _add(_law)


@operator(
    "_random_randint",
    inputs=(),
    attrs={
        "low": integer(),
        "high": integer(),
        "shape": maybe_shape(),
        "ctx": text(""),
        "dtype": maybe_choice("int32", "int64"),
    },
    aliases=("random_randint",),
    types=lambda attrs, ins: (ins, [DTYPES[attrs.dtype or "int32"]]),
    rows=no_rows,
    needs_rng=True,
)
def randint(ctx: Ctx, attrs: Attrs) -> Array:
    """y = a whole number of low, low + 1, ... high - 1, all equally likely."""
    dtype = dtype_of(attrs.dtype or "int32")
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    if not least <= attrs.low < attrs.high <= most:
        raise ValueError(
            f"_random_randint: low is {attrs.low} and high is {attrs.high}, needed low < high, both in the range of {dtype} "
            f"({least} to {most}); change them"
        )
    return ctx.random(lambda key, size: jax.random.randint(key, size, attrs.low, attrs.high, dtype), shape_of(ctx.node, attrs))
