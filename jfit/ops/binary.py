"""Functions of two arrays, element by element: equal shapes (`elemwise_*`, `_maximum`, ...) or with broadcasting.

Ties follow MXNet: where lhs = rhs, maximum and minimum give the whole gradient to lhs; nan on either side is the result.
Comparisons give 0 or 1 in the dtype of lhs and have zero gradient.
"""

from __future__ import annotations

import functools
import operator as python
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.custom_derivatives import SymbolicZero

from jfit.ops.attributes import integer
from jfit.ops.registry import operator
from jfit.ops.rows import LOST, RowLayout, elementwise_rows
from jfit.ops.rules import argument_names, same_shape, unify


def maximum(lhs: Array, rhs: Array) -> Array:
    """The larger one; a tie gives its gradient to lhs."""
    return jnp.where((lhs >= rhs) | (lhs != lhs), lhs, rhs)


def minimum(lhs: Array, rhs: Array) -> Array:
    """The smaller one; a tie gives its gradient to lhs."""
    return jnp.where((lhs <= rhs) | (lhs != lhs), lhs, rhs)


@jax.custom_jvp
def mod(lhs: Array, rhs: Array) -> Array:
    """lhs - rhs ⌊lhs / rhs⌋, 0 where rhs = 0; the gradients are 1 and -⌊lhs / rhs⌋, also there, as MXNet has them."""
    none = rhs == 0
    return jnp.where(none, jnp.zeros_like(lhs), jnp.mod(lhs, jnp.where(none, jnp.ones_like(rhs), rhs)))


def _mod_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    (lhs, rhs), (d_lhs, d_rhs) = primals, tangents
    out = mod(lhs, rhs)
    change = jnp.zeros(out.shape, jax.dtypes.float0 if not jnp.issubdtype(out.dtype, jnp.floating) else out.dtype)
    if not isinstance(d_lhs, SymbolicZero):
        change = change + d_lhs
    if not isinstance(d_rhs, SymbolicZero):  # a fixed divisor of 0 must not make 0 times infinity of it
        change = change - jnp.floor(lhs / rhs) * d_rhs
    return out, change


mod.defjvp(_mod_jvp, symbolic_zeros=True)


def power(base: Array, exponent: Array) -> Array:
    """base to the power exponent; integers to negative powers are cut to integers, so they are 0 beside those of 1 and -1."""
    if jnp.issubdtype(base.dtype, jnp.floating) or jnp.issubdtype(exponent.dtype, jnp.unsignedinteger):
        return jnp.power(base, exponent)
    whole = jnp.power(base, jnp.maximum(exponent, 0))
    odd = jnp.where(exponent % 2 == 0, jnp.ones_like(base), base)
    return jnp.where(exponent >= 0, whole, jnp.where(abs(base) == 1, odd, jnp.zeros_like(base)))


def hypot(lhs: Array, rhs: Array) -> Array:
    """√(lhs² + rhs²) without overflow; the gradient at (0, 0) is 0."""
    if not jnp.issubdtype(lhs.dtype, jnp.floating):
        return hypot(lhs.astype(jnp.float32), rhs.astype(jnp.float32)).astype(lhs.dtype)
    big = jnp.maximum(jnp.abs(lhs), jnp.abs(rhs))
    fixed = (big == 0) | jnp.isinf(lhs) | jnp.isinf(rhs)
    scale = jnp.where(fixed, jnp.ones_like(big), big)
    a, b = jnp.where(fixed, jnp.ones_like(lhs), lhs / scale), jnp.where(fixed, jnp.ones_like(rhs), rhs / scale)
    there = jnp.where(big == 0, jnp.zeros_like(big), jnp.full_like(big, jnp.inf))
    return jnp.where(fixed, there, scale * jnp.sqrt(a * a + b * b))


def truth(test: Callable[..., Array]) -> Callable[..., Array]:
    """A comparison that answers with 0 and 1 in the dtype of its first argument."""
    return lambda lhs, rhs: test(lhs, rhs).astype(lhs.dtype)


def both(lhs: Array, rhs: Any) -> Array:
    """1 where both are nonzero."""
    return (lhs != 0) & (jnp.asarray(rhs) != 0)


def either(lhs: Array, rhs: Any) -> Array:
    """1 where at least one is nonzero."""
    return (lhs != 0) | (jnp.asarray(rhs) != 0)


def one_of_two(lhs: Array, rhs: Any) -> Array:
    """1 where exactly one is nonzero."""
    return (lhs != 0) ^ (jnp.asarray(rhs) != 0)


def _divide(lhs: Array, rhs: Array) -> Array:
    return (lhs / rhs).astype(lhs.dtype)


# name for equal shapes, its aliases, name with broadcasting, its aliases, function, formula
TABLE: list[tuple[str, str, str, str, Callable[[Array, Array], Array], str]] = [
    (
        "elemwise_add",
        "_Plus _add _plus _sparse_elemwise_add",
        "broadcast_add",
        "_sparse_broadcast_add _sparse_broadcast_plus broadcast_plus",
        python.add,
        "y = lhs + rhs.",
    ),
    (
        "elemwise_sub",
        "_Minus _minus _sparse_elemwise_sub _sub",
        "broadcast_sub",
        "_sparse_broadcast_minus _sparse_broadcast_sub broadcast_minus",
        python.sub,
        "y = lhs - rhs.",
    ),
    (
        "elemwise_mul",
        "_Mul _mul _sparse_elemwise_mul",
        "broadcast_mul",
        "_sparse_broadcast_mul",
        python.mul,
        "y = lhs rhs.",
    ),
    ("elemwise_div", "_Div _div _sparse_elemwise_div", "broadcast_div", "_sparse_broadcast_div", _divide, "y = lhs / rhs."),
    ("_mod", "_Mod", "broadcast_mod", "", mod, "y = lhs - rhs ⌊lhs / rhs⌋, 0 where rhs = 0."),
    ("_maximum", "_Maximum", "broadcast_maximum", "", maximum, "y = max(lhs, rhs); a tie gives its gradient to lhs."),
    ("_minimum", "_Minimum", "broadcast_minimum", "", minimum, "y = min(lhs, rhs); a tie gives its gradient to lhs."),
    ("_power", "_Power", "broadcast_power", "", power, "y = lhs to the power rhs."),
    ("_hypot", "_Hypot", "broadcast_hypot", "", hypot, "y = √(lhs² + rhs²)."),
    ("_equal", "_Equal", "broadcast_equal", "", truth(python.eq), "y = 1 where lhs = rhs, else 0."),
    ("_not_equal", "_Not_Equal", "broadcast_not_equal", "", truth(python.ne), "y = 1 where lhs ≠ rhs, else 0."),
    ("_greater", "_Greater", "broadcast_greater", "", truth(python.gt), "y = 1 where lhs > rhs, else 0."),
    ("_greater_equal", "_Greater_Equal", "broadcast_greater_equal", "", truth(python.ge), "y = 1 where lhs ≥ rhs, else 0."),
    ("_lesser", "_Lesser", "broadcast_lesser", "", truth(python.lt), "y = 1 where lhs < rhs, else 0."),
    ("_lesser_equal", "_Lesser_Equal", "broadcast_lesser_equal", "", truth(python.le), "y = 1 where lhs ≤ rhs, else 0."),
    ("_logical_and", "_Logical_And", "broadcast_logical_and", "", truth(both), "y = 1 where both are nonzero, else 0."),
    ("_logical_or", "_Logical_Or", "broadcast_logical_or", "", truth(either), "y = 1 where one or both are nonzero, else 0."),
    (
        "_logical_xor",
        "_Logical_Xor",
        "broadcast_logical_xor",
        "",
        truth(one_of_two),
        "y = 1 where exactly one is nonzero, else 0.",
    ),
]


def _add(name: str, aliases: str, function: Callable[[Array, Array], Array], formula: str) -> None:
    def fn(ctx: Any, attrs: Any, lhs: Array, rhs: Array) -> Array:
        return function(lhs, rhs)

    fn.__doc__ = formula
    operator(name, inputs=("lhs", "rhs"), aliases=tuple(aliases.split()), fill=same_shape, layout="any")(fn)


def check_broadcast(attrs, ins, outs):
    """Shape rule of broadcasting: sizes must be equal or 1, aligned from the right."""
    lhs, rhs = ins
    if lhs is not None and rhs is not None:
        for a, b in zip(reversed(lhs), reversed(rhs), strict=False):
            if a != b and 1 not in (a, b) and 0 not in (a, b):
                raise ValueError(
                    f"lhs has shape {lhs} and rhs {rhs}, which do not broadcast because sizes {a} and {b} meet; "
                    "sizes must be equal or 1, so reshape one of them"
                )
    return ins


def broadcast_shapes(attrs, ins, outs):
    """The output as far as both shapes tell it: an open size beside 1 stays open, beside any other size it is that size."""
    lhs, rhs = check_broadcast(attrs, ins, outs)
    if lhs is None or rhs is None:
        return [lhs, rhs], [None]
    rank = max(len(lhs), len(rhs))
    pairs = zip(*((1,) * (rank - len(s)) + tuple(s) for s in (lhs, rhs)), strict=True)
    return [lhs, rhs], [tuple(a if b == 1 or a == b else b if a == 1 else max(a, b) for a, b in pairs)]


def _add_broadcast(name: str, aliases: str, function: Callable[[Array, Array], Array], formula: str) -> None:
    def fn(ctx: Any, attrs: Any, lhs: Array, rhs: Array) -> Array:
        rank = max(lhs.ndim, rhs.ndim)
        lhs, rhs = (x.reshape((1,) * (rank - x.ndim) + x.shape) for x in (lhs, rhs))
        return function(lhs, rhs)

    fn.__doc__ = formula[:-1] + ", shapes broadcast."
    operator(name, inputs=("lhs", "rhs"), aliases=tuple(aliases.split()), shapes=broadcast_shapes)(fn)


for equal, equal_aliases, broadcast, broadcast_aliases, how, words in TABLE:
    _add(equal, equal_aliases, how, words)
    _add_broadcast(broadcast, broadcast_aliases, how, words)
_add("_grad_add", "", python.add, "y = lhs + rhs, as gradients are summed.")
_add("_scatter_elemwise_div", "", _divide, "y = lhs / rhs; all entries of an array are stored here.")


@operator(
    "add_n",
    inputs=argument_names,
    variadic="num_args",
    attrs={"num_args": integer()},
    aliases=("ElementWiseSum", "_sparse_ElementWiseSum", "_sparse_add_n"),
    fill=same_shape,
    layout="any",
)
def add_n(ctx, attrs, *args):
    """y = Σᵢ argᵢ, all of one shape."""
    return functools.reduce(python.add, args)


def _where_shapes(attrs, ins, outs):
    condition, *values = ins
    shape = unify([*values, *outs])
    if condition is not None and shape is not None and len(condition) == len(shape):
        condition = unify([condition, shape])
    return [condition, shape, shape]


def _where_rows(attrs, rows, shapes, outs):
    condition = rows[0]
    if len(shapes[0]) < len(shapes[1]) and isinstance(condition, RowLayout):  # one condition per entry of the leading axis
        others = [r for r in rows[1:] if r is not None]
        return [condition if all(r == condition for r in others) else LOST]
    return elementwise_rows(attrs, rows, shapes, outs)


def _where_types(attrs, ins):
    value = ins[1] or ins[2]
    return [ins[0], value, value], [value]


@operator(
    "where",
    inputs=("condition", "x", "y"),
    aliases=("_sparse_where",),
    fill=_where_shapes,
    types=_where_types,
    rows=_where_rows,
)
def where(ctx, attrs, condition, x, y):
    """y = x where condition ≠ 0, else y; a condition of one axis chooses along the leading axis of x."""
    condition = condition.reshape(condition.shape + (1,) * (x.ndim - condition.ndim))
    return jnp.where(jnp.broadcast_to(condition != 0, x.shape), x, y)
