"""Elementwise operators: of one array, of two arrays (of equal shapes, or with broadcasting), of an array and a number."""

from __future__ import annotations

import functools
import math
import operator as python
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.special as special
import numpy as np
from jax import Array, lax
from jax.custom_derivatives import SymbolicZero

from jfit.ops.attributes import CAST_TO, CAST_TO_NUMBERS, DTYPES, choice, flag, integer, number
from jfit.ops.registry import operator
from jfit.ops.rows import LOST, RowLayout, elementwise_rows
from jfit.ops.rules import SEVERAL_INPUTS, dtype_attr_types, dtype_of, same_shape, unify

# ----------------------------------------------------------------------------------------------------
# Elementwise functions of one array.  Each row of the table is one operator, y = f(x).


def sign(x: Array) -> Array:
    """Return -1, 0 or 1; 0 for nan."""
    return (x > 0).astype(x.dtype) - (x < 0).astype(x.dtype)


def magnitude(x: Array) -> Array:
    """Return |x| with the gradient sign(x), which is 0 at 0 (that of jnp.abs is 1 there)."""
    return x * sign(x)


@jax.custom_jvp
def tanh(x: Array) -> Array:
    """Return tanh(x), accurate to the last bit near ±1: XLA on CPU returns 1 for x > 7.9, and so the derivative 1 - y² = 0."""
    if x.dtype != jnp.float32:
        return jnp.tanh(x)
    tail = jnp.copysign(1 - 2 * jnp.exp(-2 * jnp.abs(x)), x)
    return jnp.where(jnp.abs(x) > 5, tail, jnp.tanh(x))  # above 5 the next term of this series, e⁻⁴ˣ, is below rounding


@tanh.defjvp
def _tanh_slope(primals, tangents):
    y = tanh(primals[0])
    return y, tangents[0] * ((1 - y) * (1 + y))


def rounded(x: Array) -> Array:
    """Return the nearest integer, halves away from 0."""
    return lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO)


def _rint(x: Array) -> Array:
    low, high = jnp.floor(x), jnp.ceil(x)
    return jnp.where(x - low <= high - x, low, high)


# name, function, formula, whether a _sparse_ alias exists
UNARY_TABLE: list[tuple[str, Callable[[Array], Array], str, bool]] = [
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
    ("round", rounded, "y = the nearest integer, halves away from 0; zero gradient.", True),
    ("rint", _rint, "y = the nearest integer, halves towards -∞; zero gradient.", True),
    ("fix", jnp.trunc, "y = the nearest integer towards 0; zero gradient.", True),
    ("trunc", jnp.trunc, "y = x without its fraction; zero gradient.", True),
    ("logical_not", lambda x: (x == 0).astype(x.dtype), "y = 1 where x = 0, else 0; zero gradient.", False),
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
ON_INTEGERS = ("relu", "floor", "ceil", "round", "rint", "fix", "trunc", "_copy")  # identities on integers, except relu
# computed in the integer dtype; all operators that are in neither tuple compute integers in float32
INTEGER_TOO = ("square", "abs", "sign", "negative", "logical_not", "ones_like", "zeros_like")


def _add_unary(name: str, function: Callable[[Array], Array], formula: str, sparse: bool) -> None:
    aliases = (*EXTRA_ALIASES.get(name, ()), *((f"_sparse_{name}",) if sparse else ()))

    def fn(ctx: Any, attrs: Any, data: Array) -> Array:
        if name in ON_INTEGERS and not jnp.issubdtype(data.dtype, jnp.floating):
            return jnp.maximum(data, 0) if name == "relu" else data
        floats = data if name in INTEGER_TOO or jnp.issubdtype(data.dtype, jnp.floating) else data.astype(jnp.float32)
        return function(floats).astype(data.dtype)

    fn.__doc__ = formula
    operator(name, aliases=aliases, fill=same_shape, layout="any")(fn)


for row in UNARY_TABLE:
    _add_unary(*row)


@operator("hard_sigmoid", attrs={"alpha": number(0.2), "beta": number(0.5)}, fill=same_shape, layout="any")
def hard_sigmoid(ctx, attrs, data):
    """y = min(max(α x + β, 0), 1)."""
    line = attrs.alpha * data + attrs.beta
    return jnp.where(line <= 0, jnp.zeros_like(line), jnp.where(line >= 1, jnp.ones_like(line), line))


@operator("clip", attrs={"a_min": number(), "a_max": number()}, aliases=("_sparse_clip",), fill=same_shape, layout="any")
def clip(ctx, attrs, data):
    """y = min(max(x, a_min), a_max); the gradient is 1 for a_min <= x <= a_max, else 0."""
    if not jnp.issubdtype(data.dtype, jnp.floating):
        return _clip_integers(data, attrs.a_min, attrs.a_max)
    low, high = jnp.asarray(attrs.a_min, data.dtype), jnp.asarray(attrs.a_max, data.dtype)
    return jnp.where(data > high, high, jnp.where(data < low, low, data))


def _clip_integers(data: Array, low: float, high: float) -> Array:
    """Clip integers; bounds outside the range of the dtype have no effect, and fractional bounds are truncated, as in MXNet."""
    least, most = int(jnp.iinfo(data.dtype).min), int(jnp.iinfo(data.dtype).max)
    clipped = data
    if low > least:
        clipped = jnp.where(data < math.ceil(min(low, most)), jnp.asarray(int(min(low, most)), data.dtype), clipped)
    if high < most:
        clipped = jnp.where(data > math.floor(max(high, least)), jnp.asarray(int(max(high, least)), data.dtype), clipped)
    return clipped


def _cast(ctx, attrs, data):
    """y = x in another dtype; the gradient is cast back, and is 0 for integers."""
    return data.astype(dtype_of(attrs.dtype))


_CAST: dict[str, Any] = {"fill": same_shape, "layout": "any"}
operator("Cast", attrs={"dtype": choice(*CAST_TO)}, aliases=("cast", "_npx_cast"), types=dtype_attr_types, **_CAST)(_cast)


def _amp_cast_types(attrs, ins):
    small = [DTYPES[name] for name in ("float16", "bfloat16", "float32")]
    return ins, [None if ins[0] is None else DTYPES[attrs.dtype] if np.dtype(ins[0]) in small else ins[0]]


@operator("amp_cast", attrs={"dtype": choice(*CAST_TO_NUMBERS)}, types=_amp_cast_types, **_CAST)
def amp_cast(ctx, attrs, data):
    """y = x in another dtype if x is a float of 16 or 32 bits, else y = x."""
    return data.astype(_amp_cast_types(attrs, [data.dtype])[1][0])


# ----------------------------------------------------------------------------------------------------
# Elementwise functions of two arrays, of equal shapes (`elemwise_*`, `_maximum`, ...) or with broadcasting.  As in MXNet, the
# whole gradient of maximum and minimum goes to lhs where lhs = rhs, and nan on either side results in nan.  Comparisons return
# 0 or 1 in the dtype of lhs and have gradient 0.


def maximum(lhs: Array, rhs: Array) -> Array:
    """Return the maximum; where both are equal, the gradient goes to lhs."""
    return jnp.where((lhs >= rhs) | (lhs != lhs), lhs, rhs)


def minimum(lhs: Array, rhs: Array) -> Array:
    """Return the minimum; where both are equal, the gradient goes to lhs."""
    return jnp.where((lhs <= rhs) | (lhs != lhs), lhs, rhs)


@jax.custom_jvp
def mod(lhs: Array, rhs: Array) -> Array:
    """Return lhs - rhs ⌊lhs / rhs⌋, 0 where rhs = 0; the derivatives are 1 and -⌊lhs / rhs⌋, also at rhs = 0, as in MXNet."""
    zero = rhs == 0
    return jnp.where(zero, jnp.zeros_like(lhs), jnp.mod(lhs, jnp.where(zero, jnp.ones_like(rhs), rhs)))


def _mod_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    (lhs, rhs), (d_lhs, d_rhs) = primals, tangents
    out = mod(lhs, rhs)
    change = jnp.zeros(out.shape, jax.dtypes.float0 if not jnp.issubdtype(out.dtype, jnp.floating) else out.dtype)
    if not isinstance(d_lhs, SymbolicZero):
        change = change + d_lhs
    if not isinstance(d_rhs, SymbolicZero):  # symbolic, because a constant divisor of 0 would add inf * 0
        change = change - jnp.floor(lhs / rhs) * d_rhs
    return out, change


mod.defjvp(_mod_jvp, symbolic_zeros=True)


def power(base: Array, exponent: Array) -> Array:
    """Return base ** exponent; negative powers of integers are truncated to integers: 0, except for bases 1 and -1."""
    if jnp.issubdtype(base.dtype, jnp.floating) or jnp.issubdtype(exponent.dtype, jnp.unsignedinteger):
        return jnp.power(base, exponent)
    whole = jnp.power(base, jnp.maximum(exponent, 0))
    odd = jnp.where(exponent % 2 == 0, jnp.ones_like(base), base)
    return jnp.where(exponent >= 0, whole, jnp.where(abs(base) == 1, odd, jnp.zeros_like(base)))


def hypot(lhs: Array, rhs: Array) -> Array:
    """Return √(lhs² + rhs²) without overflow; the gradient at (0, 0) is 0."""
    if not jnp.issubdtype(lhs.dtype, jnp.floating):
        return hypot(lhs.astype(jnp.float32), rhs.astype(jnp.float32)).astype(lhs.dtype)
    big = jnp.maximum(jnp.abs(lhs), jnp.abs(rhs))
    fixed = (big == 0) | jnp.isinf(lhs) | jnp.isinf(rhs)
    scale = jnp.where(fixed, jnp.ones_like(big), big)
    a, b = jnp.where(fixed, jnp.ones_like(lhs), lhs / scale), jnp.where(fixed, jnp.ones_like(rhs), rhs / scale)
    limit = jnp.where(big == 0, jnp.zeros_like(big), jnp.full_like(big, jnp.inf))
    return jnp.where(fixed, limit, scale * jnp.sqrt(a * a + b * b))


def truth(test: Callable[..., Array]) -> Callable[..., Array]:
    """Wrap the comparison `test` to return 0 and 1 in the dtype of its first argument, instead of a bool array."""
    return lambda lhs, rhs: test(lhs, rhs).astype(lhs.dtype)


def _divide(lhs: Array, rhs: Array) -> Array:
    return (lhs / rhs).astype(lhs.dtype)


# name, aliases for equal shapes, aliases with broadcasting, function, formula: `elemwise_<name>` and `broadcast_<name>`
ARITHMETIC_TABLE: list[tuple[str, str, str, Callable[[Array, Array], Array], str]] = [
    ("add", "_Plus _add _plus", "_sparse_broadcast_add _sparse_broadcast_plus broadcast_plus", python.add, "y = lhs + rhs."),
    (
        "sub",
        "_Minus _minus _sub",
        "_sparse_broadcast_minus _sparse_broadcast_sub broadcast_minus",
        python.sub,
        "y = lhs - rhs.",
    ),
    ("mul", "_Mul _mul", "_sparse_broadcast_mul", python.mul, "y = lhs rhs."),
    ("div", "_Div _div", "_sparse_broadcast_div", _divide, "y = lhs / rhs."),
]
# name, function, formula: `_<name>`, `broadcast_<name>`, and `_<name>_scalar` with a number in the place of rhs
PAIR_TABLE: list[tuple[str, Callable[[Array, Array], Array], str]] = [
    ("mod", mod, "y = lhs - rhs ⌊lhs / rhs⌋, 0 where rhs = 0."),
    ("maximum", maximum, "y = max(lhs, rhs); where they are equal, the gradient goes to lhs."),
    ("minimum", minimum, "y = min(lhs, rhs); where they are equal, the gradient goes to lhs."),
    ("power", power, "y = lhs to the power rhs."),
    ("hypot", hypot, "y = √(lhs² + rhs²)."),
    ("equal", truth(python.eq), "y = 1 where lhs = rhs, else 0."),
    ("not_equal", truth(python.ne), "y = 1 where lhs ≠ rhs, else 0."),
    ("greater", truth(python.gt), "y = 1 where lhs > rhs, else 0."),
    ("greater_equal", truth(python.ge), "y = 1 where lhs ≥ rhs, else 0."),
    ("lesser", truth(python.lt), "y = 1 where lhs < rhs, else 0."),
    ("lesser_equal", truth(python.le), "y = 1 where lhs ≤ rhs, else 0."),
    ("logical_and", truth(jnp.logical_and), "y = 1 where lhs and rhs are nonzero, else 0."),
    ("logical_or", truth(jnp.logical_or), "y = 1 where lhs or rhs is nonzero, else 0."),
    ("logical_xor", truth(jnp.logical_xor), "y = 1 where exactly one of lhs and rhs is nonzero, else 0."),
]
BROADCAST: dict[str, Callable[..., Array]] = {}  # operator on two arrays with broadcasting -> its function
WITH_NUMBER: dict[str, Callable[..., Array]] = {}  # operator on an array and a number -> its function


def _add_binary(name: str, aliases: str, function: Callable[[Array, Array], Array], formula: str) -> None:
    def fn(ctx: Any, attrs: Any, lhs: Array, rhs: Array) -> Array:
        return function(lhs, rhs)

    fn.__doc__ = formula
    operator(name, inputs=("lhs", "rhs"), aliases=tuple(aliases.split()), fill=same_shape, layout="any")(fn)


def broadcast_shapes(attrs, ins, outs):
    """Infer (input shapes, [output shape]) of a broadcasting operator.

    An unknown size (0) broadcasts with 1 to an unknown size, and with any other size to that size.
    """
    lhs, rhs = ins
    if lhs is None or rhs is None:
        return ins, [None]
    rank, out = max(len(lhs), len(rhs)), []
    for a, b in zip(*((1,) * (rank - len(s)) + tuple(s) for s in ins), strict=True):
        if a != b and 1 not in (a, b) and 0 not in (a, b):
            raise ValueError(f"the arrays do not broadcast: sizes {a} and {b} differ; sizes must be equal or 1")
        out.append(b if a == 1 else a if b == 1 else max(a, b))
    return ins, [tuple(out)]


def _add_broadcast(name: str, aliases: str, function: Callable[[Array, Array], Array], formula: str) -> None:
    def fn(ctx: Any, attrs: Any, lhs: Array, rhs: Array) -> Array:
        rank = max(lhs.ndim, rhs.ndim)
        lhs, rhs = (x.reshape((1,) * (rank - x.ndim) + x.shape) for x in (lhs, rhs))
        return function(lhs, rhs)

    BROADCAST[name] = function
    fn.__doc__ = formula[:-1] + ", shapes broadcast."
    operator(name, inputs=("lhs", "rhs"), aliases=tuple(aliases.split()), shapes=broadcast_shapes)(fn)


for row_name, equal_aliases, broadcast_aliases, how, words in ARITHMETIC_TABLE:
    _add_binary(f"elemwise_{row_name}", f"{equal_aliases} _sparse_elemwise_{row_name}", how, words)
    _add_broadcast(f"broadcast_{row_name}", broadcast_aliases, how, words)
for row_name, how, words in PAIR_TABLE:
    _add_binary(f"_{row_name}", f"_{row_name.title()}", how, words)
    _add_broadcast(f"broadcast_{row_name}", "", how, words)
_add_binary("_grad_add", "", python.add, "y = lhs + rhs; MXNet's operator for summing gradients.")
_add_binary("_scatter_elemwise_div", "", _divide, "y = lhs / rhs, for all entries (arrays are dense in jfit).")


@operator(
    "add_n",
    attrs={"num_args": integer()},
    aliases=("ElementWiseSum", "_sparse_ElementWiseSum", "_sparse_add_n"),
    fill=same_shape,
    layout="any",
    **SEVERAL_INPUTS,
)
def add_n(ctx, attrs, *args):
    """y = Σᵢ argᵢ, all of one shape."""
    return functools.reduce(python.add, args)


def _where_shapes(attrs, ins, outs):
    condition, *values = ins
    shape = unify([*values, *outs])
    if condition is not None and shape is not None and len(condition) == len(shape):
        condition = unify([condition, shape])
    elif condition is not None and shape is not None and 0 not in (*condition, *shape) and condition != shape[: len(condition)]:
        raise ValueError(f"condition has shape {condition}, expected {shape} or {shape[:1]}")
    return [condition, shape, shape]


def _where_rows(attrs, rows, shapes, outs):
    condition = rows[0]
    if len(shapes[0]) < len(shapes[1]) and isinstance(condition, RowLayout):  # a vector, see `where`
        others = [r for r in rows[1:] if r is not None]
        return [condition if all(r == condition for r in others) else LOST]
    return elementwise_rows(attrs, rows, shapes, outs)


def _where_types(attrs, ins):
    value = ins[1] or ins[2]
    return [ins[0], value, value], [value]


@operator("where", aliases=("_sparse_where",), fill=_where_shapes, types=_where_types, rows=_where_rows)
def where(ctx, attrs, condition, x, y):
    """y = x where condition ≠ 0, else y; a condition with one axis selects along the first axis of x."""
    condition = condition.reshape(condition.shape + (1,) * (x.ndim - condition.ndim))
    return jnp.where(jnp.broadcast_to(condition != 0, x.shape), x, y)


# ----------------------------------------------------------------------------------------------------
# Functions of an array and a number; Python operators between a Symbol and a number create these.

# name, alias, function, formula; s is the attribute `scalar`
SCALAR_TABLE: list[tuple[str, str, Callable[[Array, Array], Array], str]] = [
    ("_plus_scalar", "_PlusScalar", python.add, "y = x + s."),
    ("_minus_scalar", "_MinusScalar", python.sub, "y = x - s."),
    ("_rminus_scalar", "_RMinusScalar", lambda x, s: s - x, "y = s - x."),
    ("_mul_scalar", "_MulScalar", python.mul, "y = s x."),
    ("_div_scalar", "_DivScalar", python.truediv, "y = x / s."),
    ("_rdiv_scalar", "_RDivScalar", lambda x, s: s / x, "y = s / x."),
    ("_rpower_scalar", "_RPowerScalar", lambda x, s: power(jnp.broadcast_to(s, x.shape), x), "y = s to the power x."),
    ("_rmod_scalar", "_RModScalar", lambda x, s: mod(jnp.broadcast_to(s, x.shape), x), "y = s - x ⌊s / x⌋."),
]


def _floats(attrs: Any, dtype: Any) -> bool:
    """Return True if the data are integers and the attribute `scalar` is not (is_int=False): the result is then a float."""
    return not attrs.is_int and np.dtype(dtype).kind in "iub"


def _number(value: Any, dtype: Any) -> Any:
    """Cast the attribute `scalar` to the dtype of the data; for integers it is truncated and wraps around, as in C."""
    if isinstance(value, Array):
        return value.astype(dtype)  # eager calls pass the number as an array, so that a new number does not compile again
    if np.dtype(dtype).kind not in "iu":
        return np.asarray(value, dtype)
    return np.asarray(int(np.clip(np.nan_to_num(value), -(2.0**63), 2.0**63 - 1024)), np.int64).astype(dtype)


def _add_scalar(name: str, alias: str, function: Callable[[Array, Array], Array], formula: str) -> None:
    def fn(ctx: Any, attrs: Any, data: Array) -> Array:
        if _floats(attrs, data.dtype):
            data = data.astype(dtype_of("float64"))
        return function(data, jnp.asarray(_number(attrs.scalar, data.dtype))).astype(data.dtype)

    def types(attrs: Any, ins: list[Any]) -> tuple[list[Any], list[Any]]:
        floats = ins[0] is not None and _floats(attrs, ins[0])
        return ins, [DTYPES["float64"] if floats else ins[0]]

    fn.__doc__ = formula
    WITH_NUMBER[name] = function
    attrs = {"scalar": number(1.0), "is_int": flag(True)}
    operator(name, attrs=attrs, aliases=(alias,) if alias else (), fill=same_shape, types=types, layout="any")(fn)


for row in SCALAR_TABLE:
    _add_scalar(*row)
for row_name, how, words in PAIR_TABLE:
    alias = f"_{row_name.title().replace('_', '')}Scalar"
    _add_scalar(f"_{row_name}_scalar", alias, how, words.replace("lhs", "x").replace("rhs", "s"))
_add_scalar("_scatter_plus_scalar", "", python.add, "y = x + s, for all entries (arrays are dense in jfit).")
_add_scalar("_scatter_minus_scalar", "", python.sub, "y = x - s, for all entries (arrays are dense in jfit).")
