"""Functions of one array, element by element.  Each row of the table is one operator: y = f(x)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.special as special
from jax import Array, lax

from jfit.ops.attributes import choice, number
from jfit.ops.registry import operator
from jfit.ops.rules import dtype_of, made_types, same_shape

CAST_TO = ["bfloat16", "bool", "float16", "float32", "float64", "int32", "int64", "int8", "uint8"]


def sign(x: Array) -> Array:
    """-1, 0 or 1; 0 for nan."""
    return (x > 0).astype(x.dtype) - (x < 0).astype(x.dtype)


def magnitude(x: Array) -> Array:
    """|x| with gradient sign(x), so 0 at 0 (JAX's own has 1 there)."""
    return x * sign(x)


@jax.custom_jvp
def tanh(x: Array) -> Array:
    """tanh(x), to the last bit where it is nearly 1: on a CPU XLA's is 1 from 7.9 on, where the slope 1 - y² is not 0 yet."""
    if x.dtype != jnp.float32:
        return jnp.tanh(x)
    tail = jnp.copysign(1 - 2 * jnp.exp(-2 * jnp.abs(x)), x)
    return jnp.where(jnp.abs(x) > 5, tail, jnp.tanh(x))  # the next term of the tail is e⁻⁴ˣ, below half a bit from 5 on


@tanh.defjvp
def _tanh_slope(primals, tangents):
    y = tanh(primals[0])
    return y, tangents[0] * ((1 - y) * (1 + y))


def _rint(x: Array) -> Array:
    low, high = jnp.floor(x), jnp.ceil(x)
    return jnp.where(x - low <= high - x, low, high)


def _logical_not(x: Array) -> Array:
    return (x == 0).astype(x.dtype)


# name, function, formula, whether a _sparse_ alias exists
TABLE: list[tuple[str, Callable[[Array], Array], str, bool]] = [
    ("relu", jax.nn.relu, "y = max(x, 0); the gradient at 0 is 0.", True),
    ("sigmoid", jax.nn.sigmoid, "y = 1 / (1 + exp(-x)).", True),
    ("tanh", tanh, "y = tanh(x).", True),
    ("softsign", jax.nn.soft_sign, "y = x / (1 + |x|).", False),
    ("exp", jnp.exp, "y = exp(x).", True),
    ("log", jnp.log, "y = ln(x).", True),
    ("log2", jnp.log2, "y = ln(x) / ln(2).", True),
    ("log10", jnp.log10, "y = ln(x) / ln(10).", True),
    ("log1p", jnp.log1p, "y = ln(1 + x).", True),
    ("expm1", jnp.expm1, "y = exp(x) - 1.", True),
    ("sqrt", jnp.sqrt, "y = √x.", True),
    ("rsqrt", lax.rsqrt, "y = 1 / √x.", True),
    ("cbrt", jnp.cbrt, "y = ∛x.", True),
    ("rcbrt", lambda x: 1 / jnp.cbrt(x), "y = 1 / ∛x.", False),
    ("square", jnp.square, "y = x².", True),
    ("abs", magnitude, "y = |x|; the gradient at 0 is 0.", True),
    ("sign", sign, "y = -1, 0 or 1 as x < 0, x = 0, x > 0; zero gradient.", True),
    ("negative", jnp.negative, "y = -x.", True),
    ("reciprocal", lambda x: 1 / x, "y = 1 / x.", False),
    ("sin", jnp.sin, "y = sin(x), x in radians.", True),
    ("cos", jnp.cos, "y = cos(x), x in radians.", True),
    ("tan", jnp.tan, "y = tan(x), x in radians.", True),
    ("arcsin", jnp.arcsin, "y = arcsin(x) in [-π/2, π/2].", True),
    ("arccos", jnp.arccos, "y = arccos(x) in [0, π].", True),
    ("arctan", jnp.arctan, "y = arctan(x) in (-π/2, π/2).", True),
    ("sinh", jnp.sinh, "y = (exp(x) - exp(-x)) / 2.", True),
    ("cosh", jnp.cosh, "y = (exp(x) + exp(-x)) / 2.", True),
    ("arcsinh", jnp.arcsinh, "y = ln(x + √(x² + 1)).", True),
    ("arccosh", jnp.arccosh, "y = ln(x + √(x² - 1)).", True),
    ("arctanh", jnp.arctanh, "y = ln((1 + x) / (1 - x)) / 2.", True),
    ("degrees", jnp.degrees, "y = 180 x / π.", True),
    ("radians", jnp.radians, "y = π x / 180.", True),
    ("erf", special.erf, "y = 2/√π ∫₀ˣ exp(-t²) dt.", False),
    ("erfinv", special.erfinv, "y with erf(y) = x.", False),
    ("gamma", special.gamma, "y = Γ(x).", True),
    ("gammaln", special.gammaln, "y = ln|Γ(x)|.", True),
    ("floor", jnp.floor, "y = ⌊x⌋; zero gradient.", True),
    ("ceil", jnp.ceil, "y = ⌈x⌉; zero gradient.", True),
    (
        "round",
        lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO),
        "y = the nearest integer, halves away from 0; zero gradient.",
        True,
    ),
    ("rint", _rint, "y = the nearest integer, halves towards -∞; zero gradient.", True),
    ("fix", jnp.trunc, "y = the nearest integer towards 0; zero gradient.", True),
    ("trunc", jnp.trunc, "y = x without its fraction; zero gradient.", True),
    ("logical_not", _logical_not, "y = 1 where x = 0, else 0; zero gradient.", False),
    ("ones_like", jnp.ones_like, "y = 1 everywhere; zero gradient.", False),
    ("zeros_like", jnp.zeros_like, "y = 0 everywhere; zero gradient.", True),
    ("_copy", lambda x: x, "y = x.", False),
]
EXTRA_ALIASES = {
    "erf": ("_npx_erf",),
    "erfinv": ("_npx_erfinv",),
    "gamma": ("_npx_gamma",),
    "gammaln": ("_npx_gammaln",),
    "_copy": ("identity",),
}
ON_INTEGERS = ("relu", "floor", "ceil", "round", "rint", "fix", "trunc", "_copy")  # leave integers as exact as they are
INTEGER_TOO = ("square", "abs", "sign", "negative", "logical_not", "ones_like", "zeros_like")  # the others go through floats


def _add(name: str, function: Callable[[Array], Array], formula: str, sparse: bool) -> None:
    aliases = (*EXTRA_ALIASES.get(name, ()), *((f"_sparse_{name}",) if sparse else ()))

    def fn(ctx: Any, attrs: Any, data: Array) -> Array:
        if name in ON_INTEGERS and not jnp.issubdtype(data.dtype, jnp.floating):
            return jnp.maximum(data, 0) if name == "relu" else data
        floats = data if name in INTEGER_TOO or jnp.issubdtype(data.dtype, jnp.floating) else data.astype(jnp.float32)
        return function(floats).astype(data.dtype)

    fn.__doc__ = formula
    operator(name, aliases=aliases, fill=same_shape, layout="any")(fn)


for row in TABLE:
    _add(*row)


@operator("hard_sigmoid", attrs={"alpha": number(0.2), "beta": number(0.5)}, fill=same_shape, layout="any")
def hard_sigmoid(ctx, attrs, data):
    """y = min(max(α x + β, 0), 1)."""
    line = attrs.alpha * data + attrs.beta
    return jnp.where(line <= 0, jnp.zeros_like(line), jnp.where(line >= 1, jnp.ones_like(line), line))


@operator(
    "clip",
    attrs={"a_min": number(), "a_max": number()},
    aliases=("_sparse_clip",),
    fill=same_shape,
    layout="any",
)
def clip(ctx, attrs, data):
    """y = min(max(x, a_min), a_max); the gradient passes at the bounds themselves."""
    if not jnp.issubdtype(data.dtype, jnp.floating):
        return _clip_integers(data, attrs.a_min, attrs.a_max)
    low, high = jnp.asarray(attrs.a_min, data.dtype), jnp.asarray(attrs.a_max, data.dtype)
    return jnp.where(data > high, high, jnp.where(data < low, low, data))


def _clip_integers(data: Array, low: float, high: float) -> Array:
    """Bounds that no integer of the dtype reaches do nothing; fractions are cut off towards 0, as in MXNet."""
    least, most = int(jnp.iinfo(data.dtype).min), int(jnp.iinfo(data.dtype).max)
    clipped = data
    if low > least:
        clipped = jnp.where(data < math.ceil(min(low, most)), jnp.asarray(int(min(low, most)), data.dtype), clipped)
    if high < most:
        clipped = jnp.where(data > math.floor(max(high, least)), jnp.asarray(int(max(high, least)), data.dtype), clipped)
    return clipped


def _cast(ctx, attrs, data):
    """y = x in another dtype; the gradient is cast back, integers pass none."""
    return data.astype(dtype_of(attrs.dtype))


operator(
    "Cast",
    attrs={"dtype": choice(*CAST_TO)},
    aliases=("cast", "_npx_cast"),
    fill=same_shape,
    types=made_types,
    layout="any",
)(_cast)
operator(
    "amp_cast",
    attrs={"dtype": choice(*(t for t in CAST_TO if t != "bool"))},
    fill=same_shape,
    types=made_types,
    layout="any",
)(_cast)
