"""Steps whose loss or new state is not finite, and which therefore change nothing."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

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


def chosen(good: Array, after: TrainState, before: TrainState) -> TrainState:
    """Return the state after a step if `good`, else with parameters, optimizer, auxiliary states and sums of that before it."""

    def changed(state: TrainState) -> dict[str, Any]:
        return {name: getattr(state, name) for name in ("params", "opt_state", "aux", "local", "metrics")}

    # A select would be compiled into the update, which then rounds differently than without it.
    return after._replace(**lax.cond(good, lambda: changed(after), lambda: changed(before)))
