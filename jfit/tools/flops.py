"""Count the floating-point operations of a traced function from its jaxpr.

XLA's own count (`compiled.cost_analysis()`) counts the body of a loop once, and calls of libraries such as cuBLAS not at all.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax.numpy as jnp

# these move or describe values
_FREE = """broadcast_in_dim concatenate convert_element_type copy device_put dynamic_slice dynamic_update_slice gather iota pad
reshape rev slice split squeeze stop_gradient transpose bitcast_convert_type all_gather expand_dims random_wrap random_unwrap"""


class Flops(NamedTuple):
    """Floating-point operations of a function.

    Attributes:
        count: number of operations; a multiplication and an addition are two.
        loops: whether the function has loops of more than one iteration.
        unbounded: whether it has loops whose number of iterations depends on the data, whose bodies are counted once.
    """

    count: int
    loops: bool = False
    unbounded: bool = False


def count_flops(jaxpr: Any) -> Flops:
    """Count the operations of a jaxpr: 2mnk for matrix products, one per element of the result of elementwise functions.

    A scan counts its body once per iteration, a branch the most expensive alternative.

    Args:
        jaxpr: result of `jax.make_jaxpr`.

    Returns:
        `Flops`.

    Example:
        >>> import jax
        >>> f = lambda x: jax.lax.fori_loop(0, 5, lambda i, h: jnp.tanh(h @ x), x)
        >>> count_flops(jax.make_jaxpr(f)(jnp.ones((10, 10)))).count == 5 * (2 * 10**3 + 10**2)
        True
    """
    total, loops, unbounded = 0, False, False
    for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        inner = [count_flops(body) for body in bodies(equation.params)]
        if not inner:
            total += _own(equation)
            continue
        counts = [f.count for f in inner]
        name, length = equation.primitive.name, equation.params.get("length", 1)
        if name == "scan":
            counts = [c * length for c in counts]
        total += max(counts) if name == "cond" else _of_function(name, equation) if name in _PER_ELEMENT else sum(counts)
        loops |= any(f.loops for f in inner) or (name == "scan" and length > 1) or name == "while"
        unbounded |= any(f.unbounded for f in inner) or name == "while"
    return Flops(total, loops, unbounded)


_PER_ELEMENT = frozenset({"reduce", "reduce_window", "scatter-add", "scatter_add", "scatter", "sort", "reduce_precision"})


def bodies(params: dict[str, Any]) -> list[Any]:
    """The jaxprs among the parameters of an equation."""
    values = [v for p in params.values() for v in (p if isinstance(p, tuple | list) else (p,))]
    return [v for v in values if hasattr(getattr(v, "jaxpr", v), "eqns")]


def _of_function(name: str, equation: Any) -> int:
    """Operations of an equation with a function of scalars, such as a scatter: one per element that it reads."""
    read = equation.invars[-1] if name.startswith("scatter") else equation.invars[0]
    return math.prod(read.aval.shape)


def _own(equation: Any) -> int:
    name, params = equation.primitive.name, equation.params
    shapes: list[tuple[int, ...]] = [tuple(getattr(v.aval, "shape", ())) for v in equation.invars]
    result = equation.outvars[0].aval if equation.outvars else None
    size: int = math.prod(getattr(result, "shape", ()))
    if name == "dot_general":
        contracted = params["dimension_numbers"][0][0]
        return 2 * size * math.prod(shapes[0][axis] for axis in contracted)
    if name == "conv_general_dilated":
        channels = params["dimension_numbers"].rhs_spec[0]
        kernel = math.prod(n for axis, n in enumerate(shapes[1]) if axis != channels)
        # the gradient of a strided convolution is dilated with zeros, which are not multiplied
        return 2 * size * kernel // (math.prod(params["lhs_dilation"]) * params["batch_group_count"])
    if name in _FREE.split() or result is None or not jnp.issubdtype(getattr(result, "dtype", jnp.int32), jnp.inexact):
        return 0
    if name.startswith(("reduce_", "arg", "cum", "scatter", "select_and_scatter")):
        size = math.prod(shapes[-1] if name.startswith("scatter") else shapes[0])
    return size
