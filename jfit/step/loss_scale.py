"""The loss scale of float16 training: the loss is multiplied by it, so that small gradients do not become 0 in float16."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jfit.checks import positive, positive_integer
from jfit.lowering.model import Policy
from jfit.optim.core import wide


class LossScale(NamedTuple):
    """State of a loss scale.

    Attributes:
        scale: the factor of the loss in the next step, float32 scalar.
        good_steps: number of updates in a row without overflow since the scale changed, int32 scalar.
        skipped: number of steps that changed nothing, because a gradient was not finite, int32 scalar.

    Example:
        >>> state = first_scale(Policy("float16"))
        >>> float(state.scale), float(adjusted(state, jnp.bool_(False), Policy("float16")).scale)
        (32768.0, 16384.0)
    """

    scale: Array
    good_steps: Array
    skipped: Array


def first_scale(policy: Policy | str | None) -> LossScale | None:
    """Return the loss scale before the first step; None if the policy has none.

    Raises:
        ValueError: a scale that is not above 0, or a number of updates that is not an integer of at least 1.
    """
    policy = Policy(policy) if isinstance(policy, str) else policy
    if policy is None or policy.scaling is None:
        return None
    scale, growth = policy.scaling
    positive(loss_scale=scale)
    if growth is not None:
        positive_integer(**{"loss_scale[1]": growth})
    return LossScale(jnp.full((), scale, jnp.float32), jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32))


def scale_of(policy: Policy | None, state: Any) -> Array | None:
    """Return the scale in a `TrainState`; None if the policy has none.

    Raises:
        ValueError: the state was made without the policy.
    """
    if policy is None or policy.scaling is None:
        return None
    if state.loss_scale is None:
        problem = f"policy {policy.compute!r} needs a loss scale, which the state does not have"
        raise ValueError(f"{problem}; pass policy= to jfit.init_state as well")
    return state.loss_scale.scale


def adjusted(state: LossScale, good: Array, policy: Policy) -> LossScale:
    """Return the loss scale after a step: doubled after enough updates in a row, halved (to at least 1) if it was skipped.

    A fixed scale does not change.

    Args:
        state: the loss scale of the step.
        good: whether all gradients of the step were finite, bool scalar.
        policy: the policy, which has the number of updates.

    Source: Micikevicius et al. 2018, Mixed Precision Training, https://arxiv.org/abs/1710.03740; jmp.DynamicLossScale.
    """
    scale, good_steps, skipped = state
    skipped = skipped + ~good
    _, growth = policy.scaling or (scale, None)
    if growth is None:
        return LossScale(scale, good_steps + good, skipped)
    grows = good & (good_steps + 1 >= growth)
    larger = jnp.where(grows, jnp.minimum(2 * scale, 2.0**127), scale)
    return LossScale(jnp.where(good, larger, jnp.maximum(scale / 2, 1)), jnp.where(good & ~grows, good_steps + 1, 0), skipped)


def unscaled(gradients: Any, scale: Array) -> Any:
    """Divide gradients by the scale, in float32."""
    return jax.tree.map(lambda g: (wide(g) / scale).astype(g.dtype), gradients)


def all_finite(tree: Any) -> Array:
    """Whether all floating-point arrays of a pytree are finite, bool scalar."""
    leaves = [jnp.isfinite(x).all() for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.inexact)]
    return jnp.stack(leaves).all()
