"""Functions of an array and a number: what Python operators between a Symbol and a number make."""

from __future__ import annotations

import operator as python
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from jfit.ops import binary
from jfit.ops.attributes import DTYPES, flag, number
from jfit.ops.registry import operator
from jfit.ops.rules import dtype_of, same_shape

# name, alias, function, formula; s is the attribute `scalar`
TABLE: list[tuple[str, str, Callable[[Array, Array], Array], str]] = [
    ("_plus_scalar", "_PlusScalar", python.add, "y = x + s."),
    ("_minus_scalar", "_MinusScalar", python.sub, "y = x - s."),
    ("_rminus_scalar", "_RMinusScalar", lambda x, s: s - x, "y = s - x."),
    ("_mul_scalar", "_MulScalar", python.mul, "y = s x."),
    ("_div_scalar", "_DivScalar", python.truediv, "y = x / s."),
    ("_rdiv_scalar", "_RDivScalar", lambda x, s: s / x, "y = s / x."),
    ("_power_scalar", "_PowerScalar", binary.power, "y = x to the power s."),
    ("_rpower_scalar", "_RPowerScalar", lambda x, s: binary.power(jnp.broadcast_to(s, x.shape), x), "y = s to the power x."),
    ("_maximum_scalar", "_MaximumScalar", binary.maximum, "y = max(x, s); the gradient passes where x = s."),
    ("_minimum_scalar", "_MinimumScalar", binary.minimum, "y = min(x, s); the gradient passes where x = s."),
    ("_mod_scalar", "_ModScalar", binary.mod, "y = x - s ⌊x / s⌋, 0 where s = 0."),
    ("_rmod_scalar", "_RModScalar", lambda x, s: binary.mod(jnp.broadcast_to(s, x.shape), x), "y = s - x ⌊s / x⌋."),
    ("_hypot_scalar", "_HypotScalar", lambda x, s: binary.hypot(x, jnp.broadcast_to(s, x.shape)), "y = √(x² + s²)."),
    ("_equal_scalar", "_EqualScalar", binary.truth(python.eq), "y = 1 where x = s, else 0."),
    ("_not_equal_scalar", "_NotEqualScalar", binary.truth(python.ne), "y = 1 where x ≠ s, else 0."),
    ("_greater_scalar", "_GreaterScalar", binary.truth(python.gt), "y = 1 where x > s, else 0."),
    ("_greater_equal_scalar", "_GreaterEqualScalar", binary.truth(python.ge), "y = 1 where x ≥ s, else 0."),
    ("_lesser_scalar", "_LesserScalar", binary.truth(python.lt), "y = 1 where x < s, else 0."),
    ("_lesser_equal_scalar", "_LesserEqualScalar", binary.truth(python.le), "y = 1 where x ≤ s, else 0."),
    ("_logical_and_scalar", "_LogicalAndScalar", binary.truth(binary.both), "y = 1 where x and s are nonzero, else 0."),
    ("_logical_or_scalar", "_LogicalOrScalar", binary.truth(binary.either), "y = 1 where x or s is nonzero, else 0."),
    (
        "_logical_xor_scalar",
        "_LogicalXorScalar",
        binary.truth(binary.one_of_two),
        "y = 1 where exactly one of x and s is nonzero, else 0.",
    ),
]


def _floats(attrs: Any, dtype: Any) -> bool:
    """True where integers and a number that is no integer make floats: arithmetic and comparisons alike."""
    return not attrs.is_int and np.dtype(dtype).kind in "iub"


def _number(value: Any, dtype: Any) -> Any:
    """The number in the dtype of the data: integers lose the fraction and wrap round, as in C."""
    if isinstance(value, Array):
        return value.astype(dtype)  # eager calls pass the number as data, so that another one compiles nothing
    if np.dtype(dtype).kind not in "iu":
        return np.asarray(value, dtype)
    return np.asarray(int(np.clip(np.nan_to_num(value), -(2.0**63), 2.0**63 - 1024)), np.int64).astype(dtype)


def _add(name: str, alias: str, function: Callable[[Array, Array], Array], formula: str) -> None:
    def fn(ctx: Any, attrs: Any, data: Array) -> Array:
        if _floats(attrs, data.dtype):
            data = data.astype(dtype_of("float64"))
        return function(data, jnp.asarray(_number(attrs.scalar, data.dtype))).astype(data.dtype)

    def types(attrs: Any, ins: list[Any]) -> tuple[list[Any], list[Any]]:
        known = ins[0] is not None and _floats(attrs, ins[0])
        return ins, [DTYPES["float64"] if known else ins[0]]

    fn.__doc__ = formula
    attrs = {"scalar": number(1.0), "is_int": flag(True)}
    operator(name, attrs=attrs, aliases=(alias,) if alias else (), fill=same_shape, types=types, layout="any")(fn)


for row in TABLE:
    _add(*row)
_add("_scatter_plus_scalar", "", python.add, "y = x + s; all entries of an array are stored here.")
_add("_scatter_minus_scalar", "", python.sub, "y = x - s; all entries of an array are stored here.")
