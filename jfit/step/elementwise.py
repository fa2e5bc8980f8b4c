"""Which arrays of an optimizer state can be split into chunks, and whether the optimizer updates each element on its own.

An optimizer is any function, so its jaxpr is examined: the update is traced for parameters that are flattened to chunks, and
every operation on them must be elementwise.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jfit.optim import Optimizer
from jfit.step.sharded import check_name, is_split

FIRST_SIZE = 1_000_003  # sizes of the chunks in the trace, from here on, mark arrays of chunks
CALLS = {"jit", "pjit", "closed_call", "core_call", "checkpoint", "custom_jvp_call", "custom_vjp_call", "cond", "while"}
SHAPE_ONLY = {"broadcast_in_dim", "reshape", "squeeze", "expand_dims"}
# fmt: off
ELEMENTWISE = {
    "abs", "acos", "acosh", "add", "add_any", "and", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "ceil", "clamp",
    "convert_element_type", "copy", "copy_p", "cos", "cosh", "digamma", "div", "eq", "erf", "erf_inv", "erfc", "exp", "exp2",
    "expm1", "floor", "ge", "gt", "integer_pow", "is_finite", "le", "lgamma", "log", "log1p", "logistic", "lt", "max", "min",
    "mul", "ne", "neg", "nextafter", "not", "optimization_barrier", "or", "pow", "reduce_precision", "rem", "round", "rsqrt",
    "select_n", "sign", "sin", "sinh", "sqrt", "square", "stop_gradient", "sub", "tan", "tanh", "xor",
}
# fmt: on


def split_leaves(optimizer: Optimizer, params: Mapping[str, Array], opt_state: Any, whole: frozenset[str]) -> list[bool]:
    """Find the arrays of an optimizer state that have the shape of a parameter, and check that chunks can be updated alone.

    Args:
        optimizer: the optimizer of a training step.
        params: trainable parameters by name.
        opt_state: its state for them, with the natural shapes.
        whole: names of parameters that are not cut into chunks.

    Returns:
        For each leaf of `opt_state`, whether it belongs to the elements of one parameter that is cut into chunks.

    Raises:
        ValueError: the optimizer is not elementwise; the message says what it computes.

    Example:
        >>> from jfit import optim
        >>> params = {"w": jnp.ones((2, 3))}
        >>> split_leaves(optim.get("adam"), params, optim.get("adam").init(params), frozenset())  # count, mean, var
        [False, True, True]
    """
    natural = {k: jax.ShapeDtypeStruct(w.shape, w.dtype) for k, w in params.items()}
    chunks, names = {}, {}
    for i, (name, w) in enumerate(natural.items()):
        is_chunk = is_split(w) and name not in whole
        size = FIRST_SIZE + 2 * i
        chunks[name] = jax.ShapeDtypeStruct((*(1,) * (w.ndim - 1), size), w.dtype) if is_chunk else w
        if is_chunk:
            names[size] = name
    try:
        initial = jax.eval_shape(optimizer.init, chunks)
        traced = _trace(optimizer, chunks, initial)
        reference = _trace(optimizer, natural, opt_state)
    except (TypeError, ValueError, IndexError) as error:
        raise _refusal(optimizer, f"it cannot update a part of a parameter ({error})") from error
    split = _compared(optimizer, natural, opt_state, initial, names)
    for primitive in _mixing(traced, set(names)):
        raise _refusal(optimizer, f"its update has the operation {primitive!r}, which is not elementwise")
    original = {chunks[name].shape: natural[name].shape for name in names.values()}
    counts = _operations(traced, original), _operations(reference, {})
    if differ := {name for name, *_ in (counts[0] - counts[1]) + (counts[1] - counts[0])}:
        reason = f"the operations of its update depend on the shapes of the parameters ({', '.join(sorted(differ))})"
        raise _refusal(optimizer, reason)
    return split


def _trace(optimizer: Optimizer, params: Mapping[str, Any], opt_state: Any) -> Any:
    def whole_sum(name: str, x: Array) -> Array:
        check_name(name, set(params))
        return jnp.zeros((), x.dtype)  # the step adds the sums of all chunks, so sums by this function are supported

    def update(grads: Any, state: Any, params: Any, loss: Any, rate: Any) -> Any:
        extra = {"learning_rate": rate} if optimizer.takes_rate else {}
        return optimizer.update(grads, state, params, value=loss, whole_sum=whole_sum, **extra)

    scalar = jax.ShapeDtypeStruct((), jnp.float32)
    return jax.make_jaxpr(update)(params, opt_state, params, scalar, scalar).jaxpr


def _compared(optimizer: Optimizer, params: Mapping[str, Any], state: Any, initial: Any, names: dict[int, str]) -> list[bool]:
    """Compare the state with that for chunks: arrays that changed their shape must have that of a parameter."""
    old, tree = jax.tree_util.tree_flatten_with_path(state)
    new, new_tree = jax.tree.flatten(initial)
    if tree != new_tree:
        raise _refusal(optimizer, f"the structure of its state depends on the shapes of the parameters ({tree} and {new_tree})")
    result = []
    for (path, x), chunk in zip(old, new, strict=True):
        name = names.get(chunk.shape[-1]) if chunk.shape else None
        if x.shape != chunk.shape and (name is None or x.shape != params[name].shape):
            key = jax.tree_util.keystr(path, simple=True, separator="/")
            raise _refusal(optimizer, f"{key} of its state has shape {x.shape}, which is that of no parameter")
        result.append(name is not None)
    return result


def _mixing(jaxpr: Any, sizes: set[int]) -> Iterator[str]:
    """Yield the names of the operations that are not elementwise and have a chunk, an array of one of `sizes`, as argument."""
    for eqn in equations(jaxpr):
        shapes = [v.aval.shape for v in (*eqn.invars, *eqn.outvars) if hasattr(v.aval, "shape")]
        name = eqn.primitive.name
        if not any(set(shape) & sizes for shape in shapes) or name in ELEMENTWISE or name in CALLS:
            continue
        if name not in SHAPE_ONLY or (shapes[0] != shapes[-1] and set(shapes[0]) - {1}):
            yield name


def _operations(jaxpr: Any, original: Mapping[tuple[int, ...], tuple[int, ...]]) -> collections.Counter[Any]:
    """Count the operations of a jaxpr by name, literal numbers among the arguments, and shapes of the results.

    Args:
        jaxpr: jaxpr of an update.
        original: shape of a chunk -> shape of its parameter, which is counted in its place, so that the counts of an update of
            chunks and of one of whole parameters can be compared.
    """

    def described(eqn: Any) -> Any:
        shapes = [getattr(v.aval, "shape", ()) for v in eqn.outvars]
        return eqn.primitive.name, *(original.get(s, s) for s in shapes), *(str(v.val) for v in eqn.invars if hasattr(v, "val"))

    return collections.Counter(described(eqn) for eqn in equations(jaxpr, True) if eqn.primitive.name not in SHAPE_ONLY)


def equations(jaxpr: Any, inner_of_all: bool = False) -> Iterator[Any]:
    """Yield the equations of a jaxpr and of the functions that it calls; `inner_of_all`: also of loop bodies and the like."""
    for eqn in jaxpr.eqns:
        yield eqn
        if inner_of_all or eqn.primitive.name in CALLS:
            for value in eqn.params.values():
                for inner in value if isinstance(value, (tuple, list)) else (value,):
                    inner = getattr(inner, "jaxpr", inner)
                    if hasattr(inner, "eqns"):
                        yield from equations(inner, inner_of_all)


def _refusal(optimizer: Optimizer, reason: str) -> ValueError:
    return ValueError(
        f"reduce='sharded' updates the part of each parameter that a device has, so it needs an optimizer that updates every "
        f"element on its own (or lamb, lars, lbsgd of jfit), but with optimizer {optimizer.name!r} {reason}; pass "
        "reduce='psum' or another optimizer; to clip by the global norm use clip_norm= of fit or train_step"
    )
