"""Schedules: MXNet 1.9.1's values at any update number, traced or not."""

import json
from pathlib import Path

import jax
import numpy as np
import optax
import pytest

from jfit.optim import as_schedule
from jfit.optim import schedules as room

GOLDEN = json.loads((Path(__file__).parent / "golden" / "lr_schedulers.json").read_text())
MAKE = {
    "FactorScheduler": room.factor,
    "MultiFactorScheduler": room.multifactor,
    "PolyScheduler": room.poly,
    "CosineScheduler": room.cosine,
}


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda c: f"{c['cls']}-{len(c['kwargs'])}")
def test_values_are_mxnets_and_the_number_may_be_traced(case):
    schedule = jax.jit(jax.vmap(MAKE[case["cls"]](**case["kwargs"])))
    counts, want = zip(*case["sequential"], strict=True)
    np.testing.assert_allclose(schedule(np.asarray(counts, np.int32)), want, rtol=2e-6, atol=1e-8)


def test_base_replaces_base_lr_without_a_second_trace():
    traces = []

    @jax.jit
    def rate(count, base):
        traces.append(1)
        return room.factor(step=2, factor=0.5, base_lr=1.0)(count, base)

    assert float(rate(1, 0.5)) == 0.5
    assert float(rate(3, 0.1)) == pytest.approx(0.05)
    assert len(traces) == 1


def test_overridden_follows_mxnets_learning_rate_argument():
    late = room.factor(step=100, base_lr=0.1, warmup_steps=10).overridden(0.5)
    assert float(late(5)) == pytest.approx(0.05)  # the warm-up still climbs to the old base
    assert float(late(20)) == 0.5
    assert float(room.poly(max_update=10, base_lr=0.1).overridden(0.5)(1)) == pytest.approx(0.081)


def test_an_optax_schedule_counts_from_zero_and_knows_no_base():
    schedule = as_schedule(optax.linear_schedule(1.0, 0.0, 10))
    assert schedule.absolute
    assert float(schedule(1, base=9.0)) == 1.0


def test_names_numbers_and_functions_of_two_are_schedules():
    assert float(as_schedule("cosine", max_update=4, base_lr=1.0)(2)) == pytest.approx(0.5)
    assert float(as_schedule(0.25)(7)) == 0.25
    assert float(as_schedule(lambda count, base: base / count)(2, 1.0)) == 0.5
    assert float(room.warmup_linear(4, base_lr=1.0)(9)) == 1.0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: room.factor(step=2, factor=1.5), "factor is 1.5, it needs to be at most 1"),
        (lambda: room.factor(step=0), "step is 0, at least 1"),
        (lambda: room.multifactor([5, 3]), r"step is \[5, 3\], an increasing list"),
        (lambda: room.constant(0.1, warmup_begin_lr=0.5), "base_lr 0.1 is below warmup_begin_lr 0.5"),
        (lambda: room.constant(0.1, warmup_mode="odd"), "warmup_mode is 'odd'"),
        (lambda: room.poly(max_update=3, warmup_steps=5), "max_update is 3"),
        (lambda: as_schedule("cosin"), "unknown schedule 'cosin': the nearest names are 'cosine'"),
        (lambda: as_schedule("factor"), "its parameters are step, factor"),
    ],
)
def test_errors_say_what_was_found_and_needed(make, message):
    with pytest.raises(ValueError, match=message):
        make()
