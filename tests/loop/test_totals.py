"""Running sums of an epoch are exact and ignore padding rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jfit
from jfit import counters
from jfit.step import Shared, totals

BOTH = jfit.metrics.get(["acc", "ce"])


def test_a_million_losses_are_added_without_drift():
    value = np.float32(0.1)

    def one(_, carry):
        sums, naive = carry
        return totals.fold((), sums, Shared((value, jnp.float32(1)), ()), jnp.int32(0), value), naive + value

    found, naive = jax.jit(lambda: jax.lax.fori_loop(0, 1_000_000, one, (totals.zero_totals(), jnp.float32(0))))()
    mean = totals.values((), counters.read(found))["loss"]
    assert mean == pytest.approx(float(value), rel=1e-7)
    assert abs(float(naive) / 1e6 - value) > 1e-3 * value


def test_an_empty_epoch_has_no_loss_and_its_metrics_are_nan():
    found = totals.values(BOTH, counters.read(totals.zero_totals(BOTH)))
    assert set(found) == {"accuracy", "cross-entropy"} and all(np.isnan(v) for v in found.values())
