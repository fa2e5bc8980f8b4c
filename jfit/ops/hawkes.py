"""The log-likelihood of marked self-exciting point processes (Hawkes processes with exponential kernels)."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jfit.ops.registry import operator
from jfit.ops.rows import LOST
from jfit.ops.rules import accumulating, shared_batch_rows


def _shapes(attrs, ins, outs):
    """Infer input shapes: lda and state (sequences, marks), alpha and beta (marks,), lags and marks (sequences, time)."""
    rates = ins[0]
    if rates is None or len(rates) != 2:
        return ins
    sequences, marks = rates
    times = ins[4] if ins[4] is not None else ins[5]
    expected = [rates, (marks,), (marks,), rates, times, times, (sequences,), (sequences,)]
    return [e if i is None else i for e, i in zip(expected, ins, strict=True)]


def _types(attrs, ins):
    float_ = ins[0]
    return [float_ if k != 5 or t is not None else np.dtype(np.int32) for k, t in enumerate(ins)], [float_, float_]


def _rows(attrs, rows, shapes, outs):
    """Return where the batch rows are in the outputs (`RowLayout`): on axis 0, the sequences.

    LOST (they cannot be distinguished any more) if alpha or beta depend on the batch: all sequences share them.
    """
    if any(r is not None for r in rows[1:3]):
        return [LOST] * 2
    return shared_batch_rows(attrs, [*rows[:1], *rows[3:]], shapes, outs)


@operator("_contrib_hawkesll", outputs=("output", "out_state"), fill=_shapes, types=_types, rows=_rows)
def hawkesll(ctx, attrs, lda, alpha, beta, state, lags, marks, valid_length, max_time):
    """y₀ = Σ ln λ(tᵢ) - ∫ λ dt with λₖ(t) = lda + alpha beta state exp(-beta dt); y₁ = the state at max_time.

    y₀ is the log-likelihood of each sequence, λₖ the rate of events of mark k and lda its constant part.  An event of mark k
    adds 1 to state k, which decays with rate beta.  As in MXNet, neither the input nor the output state has a gradient.
    """
    dtype, wide = lda.dtype, accumulating(lda.dtype)
    lda, alpha, beta, lags, max_time = (v.astype(wide) for v in (lda, alpha, beta, lags, max_time))
    state = lax.stop_gradient(state).astype(wide)
    grow, decay = alpha.reshape((1, -1)), beta.reshape((1, -1))
    steps = jnp.arange(lags.shape[1], dtype=jnp.int32)
    marked = marks.astype(jnp.int32)[:, :, None] == jnp.arange(lda.shape[1], dtype=jnp.int32).reshape((1, 1, -1))
    valid = steps.reshape((1, -1)) < valid_length.astype(jnp.int32).reshape((-1, 1))

    def wait(state: Array, since: Array) -> tuple[Array, Array]:
        """Return (state of each mark after the time `since` without events, ∫ λ over this time)."""
        remaining = jnp.exp(-decay * since)
        return state * remaining, lda * since + grow * state * (1 - remaining)

    def event(carry, at):
        total, state, time, last = carry
        lag, mark, real = at
        now = time + jnp.where(real, lag, jnp.zeros_like(lag))
        hit = mark & real[:, None]
        decayed, area = wait(state, jnp.where(hit, now[:, None] - last, jnp.zeros_like(last)))
        rate = jnp.where(hit, lda + grow * decay * decayed, jnp.ones_like(lda))
        gained = jnp.where(hit, jnp.log(rate) - area, jnp.zeros_like(area))
        state, last = jnp.where(hit, decayed + 1, state), jnp.where(hit, now[:, None], last)
        return (total + jnp.sum(gained, 1), state, now, last), None

    zero = jnp.zeros_like(lda[:, 0])
    events = (lags.T, jnp.swapaxes(marked, 0, 1), valid.T)
    (total, state, _, last), _ = lax.scan(event, (zero, state, zero, jnp.zeros_like(lda)), events)
    after, area = wait(state, max_time[:, None] - last)
    return (total - jnp.sum(area, 1)).astype(dtype), lax.stop_gradient(after).astype(dtype)
