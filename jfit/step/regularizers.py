"""Regularizers: penalties on parameters, chosen by name pattern, that are added to the mean loss."""

from __future__ import annotations

import glob
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jfit.checks import matching
from jfit.lowering.model import Model, Params

__all__ = ["Norm", "l1", "l2"]

Regularizer = Callable[[Array], Any]


class Norm(NamedTuple):
    """A regularizer made by `l1` or `l2`: `norm(param) -> float32 scalar`.

    Attributes:
        strength: factor λ.
        power: 1 or 2.

    Example:
        >>> float(Norm(0.5, 2)(jnp.array([1.0, -2.0])))
        2.5
    """

    strength: float
    power: int

    def __call__(self, param: Array) -> Array:
        wide = param.astype(jnp.promote_types(param.dtype, jnp.float32))
        return self.strength * jnp.sum(jnp.abs(wide) if self.power == 1 else jnp.square(wide))


def l2(strength: float) -> Norm:
    """λ Σ w²: the sum of squares of a parameter times `strength`, as in Keras (without a factor 1/2).

    Args:
        strength: λ, at least 0.

    Returns:
        `Norm`, a function of an array that returns a float32 scalar.

    Example:
        >>> float(l2(0.5)(jnp.array([1.0, -2.0])))
        2.5
    """
    return Norm(strength, 2)


def l1(strength: float) -> Norm:
    """λ Σ |w|: the sum of absolute values of a parameter times `strength`.

    Args:
        strength: λ, at least 0.

    Returns:
        `Norm`, a function of an array that returns a float32 scalar.

    Example:
        >>> float(l1(0.5)(jnp.array([1.0, -2.0])))
        1.5
    """
    return Norm(strength, 1)


def regularized(
    regularizers: Mapping[str, Regularizer], names: Collection[str], tables: Collection[str] = ()
) -> dict[str, tuple[Regularizer, ...]]:
    """Return the regularizers of each parameter, by the patterns that match its name.

    Args:
        regularizers: name or glob pattern -> function of one parameter that returns a scalar.
        names: names of the trainable parameters.
        tables: names of embedding tables with row-sparse gradients.

    Returns:
        dict of parameter name -> its regularizers.

    Raises:
        ValueError: a pattern matches no trainable parameter, or it matches an embedding table with row-sparse gradients.
        TypeError: a regularizer is not a function.

    Example:
        >>> sorted(regularized({"*kernel": l2(0.1), "a*": l1(0.1)}, ["a/kernel", "b/kernel"]))
        ['a/kernel', 'b/kernel']
    """
    found: dict[str, tuple[Regularizer, ...]] = {}
    for pattern, function in regularizers.items():
        if not callable(function):
            expected = "a function of one parameter that returns a scalar, such as jfit.regularizers.l2(1e-4)"
            raise TypeError(f"regularizers[{pattern!r}] is {function!r}; expected {expected}")
        problem = f"regularizers has {pattern!r}, which matches no trainable parameter"
        for name in matching(pattern, list(names), problem):
            if name in tables:
                problem = "its gradients are row-sparse, but a penalty has one in every row; use sparse_grad=False"
                raise ValueError(f"regularizers has {pattern!r}, which matches the embedding table {name}: {problem}")
            found[name] = (*found.get(name, ()), function)
    return found


def by_exact_name(regularizers: Mapping[str, Regularizer] | None, model: Model, trainable: Params) -> dict[str, Regularizer]:
    """Replace each pattern by the names of the trainable parameters that match.

    Evaluation then penalizes the same parameters as training, and no frozen ones.
    """
    found = regularized(regularizers or {}, list(trainable), model.tables)
    return {glob.escape(name): _Sum(functions) for name, functions in found.items()}


class _Sum(NamedTuple):
    functions: tuple[Regularizer, ...]

    def __call__(self, param: Array) -> Array:
        total = sum((jnp.asarray(function(param)) for function in self.functions), jnp.float32(0))
        if total.ndim:
            raise ValueError(f"regularizers: {self.functions!r} returned an array of shape {total.shape} (expected a scalar)")
        return total


def penalty(regularizers: Mapping[str, Regularizer], params: Params) -> Array:
    """Sum of all penalties, Σ λ f(w), a float32 scalar.

    Args:
        regularizers: name or glob pattern -> function of one parameter that returns a scalar.
        params: the parameters to penalize, by name.

    Returns:
        float32 scalar; 0 without regularizers.

    Example:
        >>> float(penalty({"w*": l2(2.0)}, {"w1": jnp.ones(3), "b": jnp.ones(3)}))
        6.0
    """
    found = regularized(regularizers, list(params), ())
    return sum((_Sum(functions)(params[name]) for name, functions in found.items()), jnp.float32(0))


def penalty_and_gradients(regularizers: Mapping[str, Regularizer], trainable: Params, tables: Collection[str]) -> Any:
    """Return (sum of the penalties, its gradients by parameter name); only penalized parameters have a gradient.

    `tables` are the names of the embedding tables with row-sparse gradients: a regularizer that matches one raises.
    """
    names = regularized(regularizers, list(trainable), tables)
    chosen = {name: trainable[name] for name in names}
    return jax.value_and_grad(lambda params: penalty(regularizers, params))(chosen)


def with_penalty(shared: Any, extra: Array) -> Any:
    """Add a penalty to the mean loss of a batch; `shared` are its sums over the rows of all devices, a `Shared`."""
    total, count = shared.loss
    if count.ndim:  # the reported loss is the sum of the means of several losses: the first gets the penalty
        extra = jnp.zeros_like(count).at[0].set(extra)
    return shared._replace(loss=(total + extra * count, count))
