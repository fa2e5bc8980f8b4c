"""Steps whose loss, gradients or new state are not finite, and which therefore change nothing."""

from __future__ import annotations

from typing import Any, cast

import jax
import jax.numpy as jnp
from jax import Array, lax

from jfit.lowering.model import Policy
from jfit.step.loss_scale import LossScale, adjusted
from jfit.step.state import TrainState


def unless_bad(after: TrainState, before: TrainState, loss: Array, count: Array) -> tuple[TrainState, Array]:
    """Return the state after a step, or that before it if the loss or a new array is nan or infinite; the step counts anyway.

    The second result is whether it is the state after the step, a bool scalar.

    Args:
        after: state after the step.
        before: state before it.  Arrays that are not finite there, such as initial values of an optimizer, may stay so.
        loss: mean loss of the batch.
        count: sum of the row weights of the loss; 0 if there is none, whose mean is nan.
    """
    good = jnp.isfinite(loss) | (count == 0)
    learned = [(s.params, s.opt_state, s.aux) for s in (after, before)]
    for new, old in zip(*map(jax.tree.leaves, learned), strict=True):
        if jnp.issubdtype(new.dtype, jnp.inexact):
            good &= jnp.isfinite(new).all() | ~jnp.isfinite(old).all()
    skipped = before
    if before.metrics is not None:
        first = before.metrics.first_bad_step
        skipped = before._replace(metrics=before.metrics._replace(first_bad_step=jnp.where(first < 0, before.step, first)))

    return chosen(good, after, skipped), good


def unless_overflow(after: TrainState, before: TrainState, good: Array, policy: Policy) -> TrainState:
    """Return the state after a step with a loss scale, or that before it if a gradient is not finite (`good` is False).

    The running sums are those after the step in any case, because they do not depend on the gradients.
    """
    scale = cast(LossScale, before.loss_scale)
    return chosen(good, after, before._replace(metrics=after.metrics))._replace(loss_scale=adjusted(scale, good, policy))


def counting_updates(state: TrainState) -> TrainState:
    """Return a state whose step, which schedules read, is the number of updates, without the steps that were skipped."""
    return state._replace(step=state.step - cast(LossScale, state.loss_scale).skipped)


def chosen(good: Array, after: TrainState, before: TrainState) -> TrainState:
    """Return the state after a step if `good`, else with parameters, optimizer, auxiliary states and sums of that before it."""

    def changed(state: TrainState) -> dict[str, Any]:
        return {name: getattr(state, name) for name in ("params", "opt_state", "aux", "local", "metrics")}

    # A select would be compiled into the update, which then rounds differently than without it.
    return after._replace(**lax.cond(good, lambda: changed(after), lambda: changed(before)))
