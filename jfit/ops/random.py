"""Random sampling and probability density operators."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.scipy.special import gammaln

from jfit.ops.attributes import (
    DTYPES,
    REQUIRED,
    Attr,
    Attrs,
    choice,
    flag,
    integer,
    maybe_choice,
    maybe_shape,
    number,
    several,
    shape,
    text,
)
from jfit.ops.context import Ctx
from jfit.ops.registry import Shape, operator
from jfit.ops.rows import LOST, RowLayout, no_rows
from jfit.ops.rules import accumulating, common_rows, dtype_of, fixed_types, last_axis, need_shape, size_of, unify, unmixed

# ----------------------------------------------------------------------------------------------------
# Samples of distributions whose parameters are attributes: _random_* (shape: an attribute), _random_*_like (shape of an input).
# They draw in training and in evaluation, sample in float32 and then cast to their dtype, and have no gradient.

FLOATS = ("float16", "float32", "float64", "bfloat16")


# ------------------------------------------------------------------------------------------ the distributions
def uniform(key: Array, shape: Shape, low: Any, high: Any) -> Array:
    """y ~ U[low, high)."""
    return low + (high - low) * jax.random.uniform(key, shape)


def normal(key: Array, shape: Shape, mean: Any, deviation: Any) -> Array:
    """y ~ N(mean, deviation²)."""
    return mean + deviation * jax.random.normal(key, shape)


def gamma(key: Array, shape: Shape, alpha: Any, beta: Any) -> Array:
    """y ~ Gamma(shape alpha, scale beta), with mean alpha · beta."""
    return jax.random.gamma(key, alpha, shape) * beta


def exponential(key: Array, shape: Shape, lam: Any) -> Array:
    """y ~ Exp(rate lam), with mean 1 / lam."""
    return jax.random.exponential(key, shape) / lam


def poisson(key: Array, shape: Shape, lam: Any) -> Array:
    """y ~ Poisson(lam)."""
    return jax.random.poisson(key, lam, shape).astype(jnp.float32)


def negative_binomial(key: Array, shape: Shape, k: Any, p: Any) -> Array:
    """y = number of failures before the k-th success of probability p; mean k (1 - p) / p. Poisson(Gamma(k) (1 - p) / p)."""
    rate, count = jax.random.split(key)
    return poisson(count, shape, gamma(rate, shape, k, (1 - p) / p))


def generalized_negative_binomial(key: Array, shape: Shape, mu: Any, alpha: Any) -> Array:
    """y with mean mu and variance mu + alpha mu²: Poisson(Gamma(1 / alpha) alpha mu), or Poisson(mu) if alpha = 0."""
    rate, count = jax.random.split(key)
    spread = jnp.where(alpha > 0, alpha, jnp.ones_like(alpha))
    mixed = gamma(rate, shape, 1 / spread, spread * mu)
    return poisson(count, shape, jnp.where(alpha > 0, mixed, jnp.broadcast_to(mu, shape)))


class Distribution(NamedTuple):
    """A distribution and the operators that sample it.

    Attributes:
        draw: `draw(key, shape, *parameters)` -> samples in float32; its name is the suffix of the operator names.
        scalars: attributes that hold the parameters of _random_*.
        arrays: input names of the parameters of _sample_*.
        valid: whether the values of `scalars` are valid parameters.
        need: the condition that `valid` checks, for the error message.
        short: whether the bare name is an alias of _random_*.
    """

    draw: Callable[..., Array]
    scalars: dict[str, Attr]
    arrays: tuple[str, ...]
    valid: Callable[..., bool]
    need: str
    short: bool = False


ONE = number(1.0)
TABLE = [
    Distribution(
        uniform, {"low": number(0.0), "high": ONE}, ("low", "high"), lambda low, high: low <= high, "low <= high", True
    ),
    Distribution(normal, {"loc": number(0.0), "scale": ONE}, ("mu", "sigma"), lambda loc, scale: scale > 0, "scale > 0", True),
    Distribution(gamma, {"alpha": ONE, "beta": ONE}, ("alpha", "beta"), lambda a, b: a > 0 and b > 0, "alpha > 0 and beta > 0"),
    Distribution(exponential, {"lam": ONE}, ("lam",), lambda lam: lam > 0, "lam > 0"),
    Distribution(poisson, {"lam": ONE}, ("lam",), lambda lam: lam >= 0, "lam >= 0"),
    Distribution(
        negative_binomial, {"k": integer(1), "p": ONE}, ("k", "p"), lambda k, p: k >= 0 and 0 < p <= 1, "k >= 0 and 0 < p <= 1"
    ),
    Distribution(
        generalized_negative_binomial,
        {"mu": ONE, "alpha": ONE},
        ("mu", "alpha"),
        lambda mu, alpha: mu >= 0 and alpha >= 0,
        "mu >= 0 and alpha >= 0",
    ),
]


_operator = functools.partial(operator, needs_rng=True)


# ------------------------------------------------------------------------------------------ _random_* and _random_*_like
def shape_of(op: str, attrs: Attrs) -> Shape:
    """Return the attribute `shape` of a node.

    Raises:
        ValueError: the attribute is None: it was neither passed nor inferred from the graph.
    """
    if attrs.shape is None:
        raise ValueError(f"{op} has no shape, and it cannot be inferred from the rest of the graph; pass shape=")
    return attrs.shape


def drawn_types(attrs: Attrs, ins: list[Any]) -> tuple[list[Any], list[Any]]:
    """Infer dtypes: the output has the dtype named by the attribute `dtype` (None: float32), whatever the inputs have."""
    return ins, [DTYPES[attrs.dtype or "float32"]]


def cast_samples(values: Array, dtype: Any) -> Array:
    """Cast samples to the output dtype; the gradient of the result is 0."""
    return lax.stop_gradient(values).astype(dtype)


def _parameters(op: str, law: Distribution, attrs: Attrs) -> Sequence[Array]:
    values = {name: attrs[name] for name in law.scalars}
    if not law.valid(*values.values()):
        raise ValueError(f"{op} has {values}, expected {law.need} for a valid distribution; change the attributes")
    return [jnp.asarray(value, jnp.float32) for value in values.values()]


def _add(law: Distribution) -> None:
    name = f"_random_{law.draw.__name__}"

    def shaped(ctx: Ctx, attrs: Attrs) -> Array:
        shape, parameters = shape_of(name, attrs), _parameters(name, law, attrs)
        drawn = ctx.random(lambda key, size: law.draw(key, size, *parameters), shape)
        return cast_samples(drawn, dtype_of(attrs.dtype or "float32"))

    def like(ctx: Ctx, attrs: Attrs, data: Array) -> Array:
        if not jnp.issubdtype(data.dtype, jnp.floating):
            raise ValueError(f"data has dtype {data.dtype}, expected a float dtype, which the output has too; cast the data")
        parameters = _parameters(f"{name}_like", law, attrs)
        return cast_samples(ctx.random(lambda key, size: law.draw(key, size, *parameters), data.shape), data.dtype)

    shaped.__doc__ = law.draw.__doc__
    like.__doc__ = f"{(law.draw.__doc__ or '').rstrip('.')}; one sample for each entry of the data."
    output = {"shape": maybe_shape(), "ctx": text(""), "dtype": maybe_choice(*FLOATS)}
    aliases = (name[1:], law.draw.__name__) if law.short else (name[1:],)
    _operator(name, inputs=(), attrs=law.scalars | output, aliases=aliases, types=drawn_types, rows=no_rows)(shaped)
    _operator(f"{name}_like", attrs=law.scalars)(like)


for _law in TABLE:
    _add(_law)


@_operator(
    "_random_randint",
    attrs=several(integer, low=REQUIRED, high=REQUIRED)
    | {"shape": maybe_shape(), "ctx": text(""), "dtype": maybe_choice("int32", "int64")},
    aliases=("random_randint",),
    types=lambda attrs, ins: (ins, [DTYPES[attrs.dtype or "int32"]]),
    rows=no_rows,
)
def randint(ctx: Ctx, attrs: Attrs) -> Array:
    """y ~ uniform integers low, low + 1, ..., high - 1."""
    dtype = dtype_of(attrs.dtype or "int32")
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    if not least <= attrs.low < attrs.high <= most:
        raise ValueError(f"low is {attrs.low}, high {attrs.high}; expected low < high, both from {least} to {most} ({dtype})")
    return ctx.random(lambda key, size: jax.random.randint(key, size, attrs.low, attrs.high, dtype), shape_of(ctx.node, attrs))


# ----------------------------------------------------------------------------------------------------
# Samples of distributions whose parameters are inputs: _sample_*, _sample_multinomial; and _sample_unique_zipfian, _shuffle.
# Row i of the result is drawn with the key of row i, so the samples do not depend on the number of devices.


def _batched(ctx: Ctx) -> int:
    """Return the index of the first input that has the batch rows on one of its axes; 0 if none has."""
    return next((i for i, rows in enumerate(ctx.rows) if isinstance(rows, RowLayout)), 0)


# ------------------------------------------------------------------------------------------ _sample_*
def _parameter_types(attrs: Attrs, ins: list[Any]) -> tuple[list[Any], list[Any]]:
    dtype = next((t for t in ins if t is not None), None)
    return [dtype if t is None else t for t in ins], drawn_types(attrs, ins)[1]


def _add_sample(law: Distribution) -> None:
    name = f"_sample_{law.draw.__name__}"

    def sample(ctx: Ctx, attrs: Attrs, *parameters: Array) -> Array:
        lead = parameters[0].shape
        for slot, p in zip(law.arrays, parameters, strict=True):
            need_shape(slot, p.shape, lead)
        # one key per entry, split from the key of its row
        keys = ctx.random(jax.random.split, lead, _batched(ctx)).reshape(-1)
        flat = [p.astype(jnp.float32).reshape(-1) for p in parameters]
        drawn = jax.vmap(lambda key, *values: law.draw(key, attrs.shape, *values))(keys, *flat)
        return cast_samples(drawn.reshape(*lead, *attrs.shape), dtype_of(attrs.dtype or "float32"))

    sample.__doc__ = f"{(law.draw.__doc__ or '').rstrip('.')}; `shape` samples for each entry of the parameters."
    _operator(
        name,
        inputs=law.arrays,
        attrs={"shape": shape(()), "dtype": maybe_choice(*FLOATS)},
        aliases=(name[1:],),
        fill=lambda attrs, ins, outs: [unify(ins, "entry i of every parameter belongs to distribution i")] * len(ins),
        types=_parameter_types,
        rows=lambda attrs, rows, shapes, outs: [common_rows(rows)],
    )(sample)


for _law in TABLE:
    _add_sample(_law)


# ------------------------------------------------------------------------------------------ multinomial
@_operator(
    "_sample_multinomial",
    attrs={
        "shape": shape(()),
        "get_prob": flag(False),
        "dtype": choice("float16", "float32", "float64", "int32", "uint8", default="int32"),
    },
    outputs=lambda attrs: ("output0", "output1") if attrs.get_prob else ("output",),
    aliases=("sample_multinomial",),
    types=lambda attrs, ins: (ins, [DTYPES[attrs.dtype], *([ins[0]] if attrs.get_prob else [])]),
    rows=unmixed(last_axis),
)
def multinomial(ctx: Ctx, attrs: Attrs, data: Array) -> Array | tuple[Array, Array]:
    """y = k with probability x[..., k]; with get_prob also log x[..., y], whose gradient is 1 / x[..., y] (for REINFORCE)."""
    lead, classes = data.shape[:-1], data.shape[-1]
    number = size_of(attrs.shape)
    wide = data.astype(accumulating(data.dtype))
    first = ctx.rows[0]
    which = None if isinstance(first, RowLayout) and first.axis == len(lead) else 0  # None: the rows are on the class axis
    drawn = ctx.random(jax.random.uniform, (*lead, number), which).reshape(-1, number)
    steps = lax.stop_gradient(jnp.cumsum(wide.reshape(-1, classes), axis=1))
    # the first class whose cumulative probability exceeds the drawn number; clip, as rounding may leave a sum below 1
    chosen = jax.vmap(lambda edges, at: jnp.searchsorted(edges, at, side="right"))(steps, drawn.astype(steps.dtype))
    chosen = jnp.clip(chosen, 0, classes - 1)
    out = (*lead, *attrs.shape) or (1,)
    ids = chosen.reshape(out).astype(dtype_of(attrs.dtype))
    if not attrs.get_prob:
        return ids
    probability = jnp.take_along_axis(wide.reshape(-1, classes), chosen, axis=1)
    return ids, jnp.log(probability).astype(data.dtype).reshape(out)


# ------------------------------------------------------------------------------------------ unique ids, random order
@_operator(
    "_sample_unique_zipfian",
    attrs={"range_max": integer(), "shape": maybe_shape()},
    outputs=("output0", "output1"),
    types=fixed_types("int64", "int64"),
    rows=no_rows,
)
def unique_zipfian(ctx: Ctx, attrs: Attrs) -> tuple[Array, Array]:
    """y₀ = distinct ids in each row, p(id) ∝ log((id + 1.5) / (id + 0.5)) within 0 and range_max; y₁ = number of tries per row.

    MXNet draws ids with replacement until a row has enough distinct ones. Here the distinct ids come from the Gumbel top-k
    trick, which has the same distribution, and the number of tries for each id is geometric in the remaining probability.
    """
    rows, count = shape_of("_sample_unique_zipfian", attrs)
    edges = jnp.clip(jnp.arange(attrs.range_max + 1) - 0.5, 0, None) + 1.0
    edges = edges.at[-1].set(float(attrs.range_max))
    chance = jnp.log(edges[1:] / edges[:-1]) / jnp.log(float(max(attrs.range_max, 2)))

    def row(key: Array) -> tuple[Array, Array]:
        order, wait = jax.random.split(key)
        _, ids = lax.top_k(jnp.log(chance) + jax.random.gumbel(order, chance.shape), count)
        taken = jnp.concatenate([jnp.zeros(1), jnp.cumsum(chance[ids])[:-1]])
        noise = jax.random.uniform(wait, (count,), minval=jnp.finfo(jnp.float32).tiny)
        again = jnp.floor(jnp.log(noise) / jnp.log(jnp.clip(taken, jnp.finfo(jnp.float32).tiny, 1 - 1e-6)))
        return ids, jnp.sum(1 + again.astype(jnp.int32))

    ids, tries = jax.vmap(row)(ctx.random(jax.random.split, (rows,)))
    return ids.astype(dtype_of("int64")), tries.astype(dtype_of("int64"))


@_operator("_shuffle", aliases=("shuffle",), rows=unmixed(lambda attrs, ndim: (0,)))
def shuffle(ctx: Ctx, attrs: Attrs, data: Array) -> Array:
    """y[i] = x[π(i)] along the first axis, π a random permutation; it has the true gradient (MXNet has none here)."""
    order = ctx.random(lambda key, size: jax.random.permutation(key, data.shape[0]), (data.shape[0],), which=None)
    return jnp.take(data, order, axis=0)


# ----------------------------------------------------------------------------------------------------
# Densities and probabilities of samples: _random_pdf_*. A parameter has the leading axes of the sample: its entry [i] belongs
# to all samples [i, ...]. As in MXNet, samples outside the support of the distribution are not checked for.

LogDensity = Callable[..., Array]


def _uniform(x: Array, low: Array, high: Array) -> Array:
    """p(x) = 1 / (high - low), the density of the uniform distribution."""
    return jnp.broadcast_to(-jnp.log(high - low), x.shape)


def _normal(x: Array, mu: Array, sigma: Array) -> Array:
    """p(x) = exp(-(x - mu)² / 2 sigma²) / (sigma √2π), the density of the normal distribution."""
    return -0.5 * ((x - mu) / sigma) ** 2 - jnp.log(sigma) - 0.9189385332046727  # log √2π


def _gamma(x: Array, alpha: Array, beta: Array) -> Array:
    """p(x) = beta^alpha x^(alpha - 1) exp(-beta x) / Γ(alpha); beta is a rate here, but a scale in _sample_gamma."""
    return alpha * jnp.log(beta) + (alpha - 1) * jnp.log(x) - beta * x - gammaln(alpha)


def _exponential(x: Array, lam: Array) -> Array:
    """p(x) = lam exp(-lam x), the density of the exponential distribution."""
    return jnp.log(lam) - lam * x


def _poisson(x: Array, lam: Array) -> Array:
    """p(x) = lam^x exp(-lam) / x!; no gradient for the sample."""
    x = lax.stop_gradient(x)
    return x * jnp.log(lam) - lam - gammaln(x + 1)


def _negative_binomial(x: Array, k: Array, p: Array) -> Array:
    """p(x) = Γ(x + k) / (x! Γ(k)) p^k (1 - p)^x; no gradient for the sample."""
    x = lax.stop_gradient(x)
    return gammaln(x + k) - gammaln(x + 1) - gammaln(k) + k * jnp.log(p) + x * jnp.log(1 - p)


def _generalized_negative_binomial(x: Array, mu: Array, alpha: Array) -> Array:
    """p(x) of the negative binomial with k = 1 / alpha and p = 1 / (1 + mu alpha); no gradient for the sample."""
    return _negative_binomial(x, 1 / alpha, 1 / (1 + mu * alpha))


def _same_rows(attrs, rows, shapes, outs):
    """Return where the batch rows are in the output (`RowLayout`).

    As in the inputs, which share their leading axes; LOST (they cannot be distinguished any more) if the inputs differ.
    """
    layout = common_rows(rows)
    return [layout if not isinstance(layout, RowLayout) or layout.axis < len(outs[0]) else LOST]


def _density(logs: Array, attrs: Attrs, dtype: Any) -> Array:
    return (logs if attrs.is_log else jnp.exp(logs)).astype(dtype)


def _add_density(law: Distribution, density: LogDensity) -> None:
    op = f"_random_pdf_{law.draw.__name__}"

    def pdf(ctx: Ctx, attrs: Attrs, sample: Array, *parameters: Array) -> Array:
        wide = sample.astype(accumulating(sample.dtype))
        for slot, p in zip(law.arrays, parameters, strict=True):
            need_shape(slot, p.shape, sample.shape[: p.ndim])
        aligned = [p.astype(wide.dtype).reshape(*p.shape, *(1,) * (sample.ndim - p.ndim)) for p in parameters]
        return _density(density(wide, *aligned), attrs, sample.dtype)

    pdf.__doc__ = density.__doc__
    operator(op, inputs=("sample", *law.arrays), attrs={"is_log": flag(False)}, aliases=(op[1:],), rows=_same_rows)(pdf)


_DENSITIES = (_uniform, _normal, _gamma, _exponential, _poisson, _negative_binomial, _generalized_negative_binomial)
for _law, _law_density in zip(TABLE, _DENSITIES, strict=True):
    _add_density(_law, _law_density)


@operator(
    "_random_pdf_dirichlet",
    attrs={"is_log": flag(False)},
    aliases=("random_pdf_dirichlet",),
    rows=lambda attrs, rows, shapes, outs: (
        [LOST]
        if any(isinstance(r, RowLayout) and r.axis == len(s) - 1 for r, s in zip(rows, shapes, strict=True))
        else _same_rows(attrs, rows, shapes, outs)
    ),
)
def dirichlet(ctx: Ctx, attrs: Attrs, sample: Array, alpha: Array) -> Array:
    """p(x) = Γ(Σ alpha) Πᵢ xᵢ^(alphaᵢ - 1) / Πᵢ Γ(alphaᵢ), i along the last axis."""
    need_shape("alpha", alpha.shape, (*sample.shape[:-1][: alpha.ndim - 1], sample.shape[-1]))
    wide = sample.astype(accumulating(sample.dtype))
    spread = (*alpha.shape[:-1], *(1,) * (sample.ndim - alpha.ndim), alpha.shape[-1])
    a = alpha.astype(wide.dtype).reshape(spread)
    logs = jnp.sum((a - 1) * jnp.log(wide), axis=-1) + gammaln(jnp.sum(a, axis=-1)) - jnp.sum(gammaln(a), axis=-1)
    return _density(logs, attrs, sample.dtype)
