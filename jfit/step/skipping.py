"""Steps whose loss or new state is not finite, and which therefore change nothing."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax


def unless_bad(after: Any, before: Any, loss: Array, count: Array, step: Array, axis_name: str | None) -> Any:
    """Return the state after a step, or that before it if the loss or a new array is nan or infinite.

    Args:
        after: (parameters, optimizer state, auxiliary states, per-device state, `Totals`) after the step.
        before: the same before it.  Arrays that are not finite there, such as initial values of an optimizer, may stay so.
        loss: mean loss of the batch.
        count: sum of the row weights of the loss; 0 if there is none, whose mean is nan.
        step: number of the step, int32 scalar.
        axis_name: name of the device axis, if the arrays are those of the chunks of a device; else None.
    """
    pairs = zip(jax.tree.leaves(after[:3]), jax.tree.leaves(before[:3]), strict=True)
    good = jnp.isfinite(loss) | (count == 0)
    for new, old in pairs:
        if jnp.issubdtype(new.dtype, jnp.inexact):
            good &= jnp.isfinite(new).all() | ~jnp.isfinite(old).all()
    if axis_name is not None:
        good = lax.pmin(good.astype(jnp.int32), axis_name) > 0
    first = before[4].first_bad_step
    skipped = *before[:4], before[4]._replace(first_bad_step=jnp.where(first < 0, step, first))
    # A select would be compiled into the update, which then rounds differently than without `skip_nonfinite`.
    return lax.cond(good, lambda: after, lambda: skipped)
