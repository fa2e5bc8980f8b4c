"""The log-likelihood of marked self-exciting point processes."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jfit.ops.registry import operator
from jfit.ops.rows import LOST
from jfit.ops.rules import accumulating, shared_batch_rows


def _shapes(attrs, ins, outs):
    """Rates and states are (sequences, marks), alpha and beta (marks,), lags and marks (sequences, time)."""
    rates = ins[0]
    if rates is None or len(rates) != 2:
        return ins
    sequences, marks = rates
    times = ins[4] if ins[4] is not None else ins[5]
    wanted = [rates, (marks,), (marks,), rates, times, times, (sequences,), (sequences,)]
    return [w if i is None else i for w, i in zip(wanted, ins, strict=True)]


def _types(attrs, ins):
    float_ = ins[0]
    return [float_ if k != 5 or t is not None else np.dtype(np.int32) for k, t in enumerate(ins)], [float_, float_]


def _rows(attrs, rows, shapes, outs):
    """Sequences are the rows; alpha and beta belong to all of them."""
    if any(r is not None for r in rows[1:3]):
        return [LOST] * 2
    return shared_batch_rows(attrs, [*rows[:1], *rows[3:]], shapes, outs)


@operator(
    "_contrib_hawkesll",
    inputs=("lda", "alpha", "beta", "state", "lags", "marks", "valid_length", "max_time"),
    outputs=("output", "out_state"),
    fill=_shapes,
    types=_types,
    rows=_rows,
)
def hawkesll(ctx, attrs, lda, alpha, beta, state, lags, marks, valid_length, max_time):
    """y₀ = Σ ln λ(tᵢ) - ∫ λ dt with λₖ(t) = lda + alpha beta state exp(-beta dt); y₁ = the state at max_time.

    An event of mark k adds 1 to state k, which decays with rate beta.  As in MXNet the state has no gradient on either side.
    """
    dtype, wide = lda.dtype, accumulating(lda.dtype)
    lda, alpha, beta, lags, max_time = (v.astype(wide) for v in (lda, alpha, beta, lags, max_time))
    state = lax.stop_gradient(state).astype(wide)
    grow, decay = alpha.reshape((1, -1)), beta.reshape((1, -1))
    steps = jnp.arange(lags.shape[1], dtype=jnp.int32)
    marked = marks.astype(jnp.int32)[:, :, None] == jnp.arange(lda.shape[1], dtype=jnp.int32).reshape((1, 1, -1))
    valid = steps.reshape((1, -1)) < valid_length.astype(jnp.int32).reshape((-1, 1))

    def passed(state: Array, since: Array) -> tuple[Array, Array]:
        """(state after a pause of each mark, ∫ λ over the pause)."""
        left = jnp.exp(-decay * since)
        return state * left, lda * since + grow * state * (1 - left)

    def event(kept, at):
        total, state, time, last = kept
        lag, own, real = at
        now = time + jnp.where(real, lag, jnp.zeros_like(lag))
        hit = own & real[:, None]
        decayed, area = passed(state, jnp.where(hit, now[:, None] - last, jnp.zeros_like(last)))
        rate = jnp.where(hit, lda + grow * decay * decayed, jnp.ones_like(lda))
        gained = jnp.where(hit, jnp.log(rate) - area, jnp.zeros_like(area))
        state, last = jnp.where(hit, decayed + 1, state), jnp.where(hit, now[:, None], last)
        return (total + jnp.sum(gained, 1), state, now, last), None

    nothing = jnp.zeros_like(lda[:, 0])
    moving = (lags.T, jnp.swapaxes(marked, 0, 1), valid.T)
    (total, state, _, last), _ = lax.scan(event, (nothing, state, nothing, jnp.zeros_like(lda)), moving)
    after, area = passed(state, max_time[:, None] - last)
    return (total - jnp.sum(area, 1)).astype(dtype), lax.stop_gradient(after).astype(dtype)
