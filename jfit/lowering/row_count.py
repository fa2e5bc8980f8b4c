"""Which outputs of a function depend on the number of rows through a constant, such as a loss divided by `x.shape[0]`.

A number read from a shape is a constant in the jaxpr.  It is found by comparison of the jaxprs for two numbers of rows.

>>> import jax, jax.numpy as jnp
>>> fn = lambda x: (x * 2, x / x.shape[0])
>>> uses_row_count(*(jax.make_jaxpr(fn)(jnp.ones((rows, 3))) for rows in (4, 5)))
[False, True]
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from jfit.lowering.dependence import is_literal


def uses_row_count(first: Any, second: Any) -> list[bool]:
    """Whether each output depends on a constant that differs between two jaxprs of one function.

    Args:
        first: result of `jax.make_jaxpr` for one number of rows.
        second: the same for another number of rows.

    Returns:
        list of bool, one for each output; all True if the jaxprs consist of different primitives.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> uses_row_count(*(jax.make_jaxpr(lambda x: x.sum(1) / 3)(jnp.ones((rows, 3))) for rows in (4, 5)))
        [False]
    """
    one, other = first.jaxpr, second.jaxpr
    if [e.primitive for e in one.eqns] != [e.primitive for e in other.eqns]:
        return [True] * len(one.outvars)
    differing = {
        variable for variable, x, y in zip(one.constvars, first.consts, second.consts, strict=False) if not _same_start(x, y)
    }
    for a, b in zip(one.eqns, other.eqns, strict=True):
        if _constants(a) != _constants(b) or any(not is_literal(v) and v in differing for v in a.invars):
            differing.update(a.outvars)
    return [not is_literal(v) and v in differing for v in one.outvars]


def _constants(eqn: Any) -> list[Any]:
    """The scalar constants among the operands of an equation and of the equations inside it."""
    inner = [j for value in eqn.params.values() for j in (value if isinstance(value, (tuple, list)) else (value,))]
    jaxprs = [getattr(j, "jaxpr", j) for j in inner if hasattr(j, "eqns")]
    own = [str(v.val) for v in eqn.invars if is_literal(v) and np.ndim(v.val) == 0]
    return own + [c for jaxpr in jaxprs for e in jaxpr.eqns for c in _constants(e)]


def _same_start(x: Any, y: Any) -> bool:
    """Whether two arrays are equal in the region that both have."""
    if x is y or np.ndim(x) != np.ndim(y):
        return x is y
    region = tuple(slice(min(m, n)) for m, n in zip(np.shape(x), np.shape(y), strict=True))
    try:
        return bool(np.array_equal(np.asarray(x)[region], np.asarray(y)[region]))
    except (TypeError, jax.errors.TracerArrayConversionError):  # typed PRNG keys, values of an outer function
        return False
