"""How many floating-point operations a JAX function does, read from its jaxpr: no operator needs a rule of its own.

A multiplication and the addition that follows it are two FLOPs.  Matrix products and convolutions are counted by their
shapes, loops of known length by their body, everything else that computes floats by the size of what it makes (reductions
by the size of what they take).  That is too little for factorizations and eigenvalues, whose work depends on their method.
Moving, reordering, comparing and casting are free, and so are integers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax.numpy as jnp

# primitives that move values or make them up, whatever their dtype
FREE = frozenset((
    "argsort", "axis_index", "bitcast_convert_type", "broadcast_in_dim", "concatenate", "convert_element_type", "copy",
    "copy_p", "device_put", "dynamic_slice", "dynamic_update_slice", "expand_dims", "gather", "imag", "io_callback", "iota",
    "name", "optimization_barrier", "pad", "pure_callback", "random_bits", "random_fold_in", "random_seed", "random_split",
    "random_unwrap", "random_wrap", "real", "reduce_precision", "reshape", "rev", "scatter", "select_n", "slice", "sort",
    "split", "squeeze", "stop_gradient", "tile", "top_k", "transpose",
))  # fmt: skip
WINDOWS = ("reduce_window", "reduce_window_sum", "reduce_window_max", "reduce_window_min")


class Flops(NamedTuple):
    """Floating-point operations, and how many pairs of multiplication and addition of products and convolutions are in them."""

    flops: int
    macs: int

    def times(self, count: int) -> Flops:
        """The same, done `count` times."""
        return Flops(self.flops * count, self.macs * count)

    def plus(self, other: Flops) -> Flops:
        """Both together."""
        return Flops(self.flops + other.flops, self.macs + other.macs)


def flops_of(jaxpr: Any) -> Flops:
    """What one evaluation of a jaxpr costs.

    Args:
        jaxpr: what `jax.make_jaxpr(f)(...)` returns, or its `.jaxpr`.

    Returns:
        The FLOPs and MACs; a `while` loop counts as one pass, a `cond` as its dearest branch.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> flops_of(jax.make_jaxpr(lambda a, b: jnp.tanh(a @ b))(jnp.ones((2, 5)), jnp.ones((5, 3))))
        Flops(flops=66, macs=30)
    """
    found = Flops(0, 0)
    for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        found = found.plus(_equation(eqn))
    return found


def _equation(eqn: Any) -> Flops:
    name = eqn.primitive.name
    if name == "dot_general":
        (contracted, _), _ = eqn.params["dimension_numbers"]
        shape = eqn.invars[0].aval.shape
        return _products(_size(eqn.outvars[0]) * math.prod(shape[k] for k in contracted))
    if name == "conv_general_dilated":
        return _convolution(eqn)
    inner = [flops_of(part) for part in _inner(eqn)]
    if name == "cond":
        return max(inner)
    if inner and name not in WINDOWS and not name.startswith(("scatter", "reduce")):
        return _sum(inner).times(eqn.params["length"] if name == "scan" else 1)
    return Flops(_simple(name, eqn), 0)


def _simple(name: str, eqn: Any) -> int:
    """FLOPs of a primitive without products: one for each float it makes, or takes where it reduces."""
    if name in FREE or not any(jnp.issubdtype(v.aval.dtype, jnp.floating) for v in eqn.outvars):
        return 0
    if name in WINDOWS:
        return _size(eqn.outvars[0]) * math.prod(eqn.params["window_dimensions"])
    if name.startswith(("reduce_", "cum", "arg")) or name == "reduce":
        return _size(eqn.invars[0])
    if name.startswith("scatter"):
        return _size(eqn.invars[2])
    if name.startswith("select_and"):
        return _size(eqn.invars[0])
    return sum(_size(v) for v in eqn.outvars)


def _convolution(eqn: Any) -> Flops:
    """Each output takes the kernel's values for its group; zeros that a transposed convolution puts in are not multiplied."""
    numbers, kernel = eqn.params["dimension_numbers"], eqn.invars[1].aval.shape
    taken = math.prod(kernel) // kernel[numbers.rhs_spec[0]]
    return _products(_size(eqn.outvars[0]) * taken // math.prod(eqn.params["lhs_dilation"]))


def _products(macs: int) -> Flops:
    return Flops(2 * macs, macs)


def _inner(eqn: Any) -> Iterator[Any]:
    """The jaxprs inside an equation (loops, branches, functions with their own derivative)."""
    for key, value in eqn.params.items():
        if key not in ("jvp_jaxpr_thunk", "fwd_jaxpr_thunk", "jvp_jaxpr_fun", "bwd", "cond_jaxpr"):
            for part in value if isinstance(value, tuple | list) else (value,):
                if hasattr(getattr(part, "jaxpr", part), "eqns"):
                    yield part


def _sum(parts: list[Flops]) -> Flops:
    return Flops(sum(p.flops for p in parts), sum(p.macs for p in parts))


def _size(variable: Any) -> int:
    return math.prod(variable.aval.shape)
