"""Schedules: values around their steps and warm-ups, traced base rates; lengths in updates, epochs and fractions of the run."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from refusals import refused

from jfit.optim import as_optax, as_schedule, epochs, fraction, run_schedule, schedules

# ------------------------------------------------------------------------------------------------ any schedule


def rates(schedule, counts, base=None):
    """Many rates in one program, without a compile for each schedule."""
    with jax.disable_jit():
        return np.asarray(jax.vmap(lambda n: schedule(n, base))(jnp.asarray(counts, jnp.int32)))


def test_base_lr_can_be_replaced_without_retracing():
    traces = []

    @jax.jit
    def rate(count, base):
        traces.append(1)
        return schedules.factor(step=2, factor=0.5, base_lr=1.0)(count, base)

    assert float(rate(1, 0.5)) == 0.5
    assert float(rate(3, 0.1)) == pytest.approx(0.05)
    assert len(traces) == 1


def test_decays_follow_the_given_update_and_warm_ups_end_at_it():
    multi, warm = schedules.multifactor([3], 0.5, base_lr=1.0), schedules.constant(1.0, warmup_steps=4)
    assert rates(multi, [1, 2, 3, 4]).tolist() == [1, 1, 1, 0.5]
    assert rates(schedules.factor(3, 0.5, base_lr=1.0), [3, 4, 6, 7]).tolist() == [1, 0.5, 0.5, 0.25]
    assert rates(warm, [1, 2, 3, 4, 5]).tolist() == [0.25, 0.5, 0.75, 1, 1]
    held = schedules.constant(1.0, warmup_steps=3, warmup_begin_lr=0.25, warmup_mode="constant")
    assert rates(held, [1, 2, 3]).tolist() == [0.25, 0.25, 1]
    assert rates(schedules.cosine(4, base_lr=1.0), [4, 5, 1000]).tolist() == [0, 0, 0]


# ------------------------------------------------------------------------------------------------ optax
def test_an_optax_schedule_counts_from_zero_and_has_no_base_learning_rate():
    schedule = as_schedule(optax.linear_schedule(1.0, 0.0, 10))
    assert schedule.absolute
    assert float(schedule(1, base=9.0)) == 1.0


def test_a_schedule_in_an_optax_optimizer_is_counted_from_one():
    transform, params = optax.sgd(as_optax("multifactor", step=[2], factor=0.5, base_lr=1.0)), {"w": jnp.ones(())}
    state, found = transform.init(params), []
    for _ in range(4):
        updates, state = transform.update({"w": jnp.ones(())}, state)
        found.append(-float(updates["w"]))
    assert found == [1, 1, 0.5, 0.5]


def test_converting_to_optax_and_back_gives_the_same_schedule():
    twice = as_schedule(as_optax(schedules.cosine(20, base_lr=0.4)))
    np.testing.assert_array_equal(rates(twice, range(1, 25)), rates(schedules.cosine(20, base_lr=0.4), range(1, 25)))


def test_names_numbers_and_functions_of_two_arguments_are_schedules():
    assert float(as_schedule("cosine", max_update=4, base_lr=1.0)(2)) == pytest.approx(0.5)
    assert float(as_schedule(0.25)(7)) == 0.25
    assert float(as_schedule(lambda count, base: base / count)(2, 1.0)) == 0.5
    assert float(schedules.warmup_linear(4, base_lr=1.0)(9)) == 1.0


# ------------------------------------------------------------------------------------------------ epochs, parts of the run
RUN = {"updates": 60, "updates_per_epoch": 20}


@pytest.mark.repetitions(3)
@pytest.mark.parametrize(
    ("asked", "plain"),
    [
        (schedules.factor(epochs(1), 0.5, base_lr=1.0), schedules.factor(20, 0.5, base_lr=1.0)),
        (schedules.factor(1, 0.5, base_lr=1.0, unit="epoch"), schedules.factor(20, 0.5, base_lr=1.0)),
        (schedules.multifactor([0.5, 0.75], 0.1, base_lr=1.0), schedules.multifactor([30, 45], 0.1, base_lr=1.0)),
        (schedules.multifactor([epochs(1), 30], 0.1, base_lr=1.0), schedules.multifactor([20, 30], 0.1, base_lr=1.0)),
        (
            schedules.cosine(1, base_lr=1.0, warmup_steps=0.1, unit="fraction"),
            schedules.cosine(60, base_lr=1.0, warmup_steps=6),
        ),
        (schedules.poly(fraction(1), 1.0, warmup_steps=epochs(0.5)), schedules.poly(60, 1.0, warmup_steps=10)),
        (schedules.warmup_linear(epochs(2), base_lr=1.0), schedules.warmup_linear(40, base_lr=1.0)),
        (as_schedule("constant", base_lr=1.0, warmup_steps=0.25), schedules.constant(1.0, warmup_steps=15)),
    ],
)
def test_lengths_in_epochs_and_fractions_of_the_run_become_updates(asked, plain):
    known = asked.over(**RUN)
    assert known.pending is None and known.over(1, 1) is known
    np.testing.assert_array_equal(rates(known, range(1, 70)), rates(plain, range(1, 70)))


def test_lengths_are_rounded_to_the_nearest_update():
    assert [fraction(p).updates(total=7) for p in (0.0, 0.5, 1.0)] == [0, 4, 7]
    assert [epochs(e).updates(per_epoch=10) for e in (0.04, 0.25, 2)] == [0, 3, 20]


def test_functions_may_count_in_epochs_or_fractions_of_the_run():
    decay = as_schedule(optax.exponential_decay(1.0, 1, 0.5), unit="epoch").over(**RUN)
    np.testing.assert_allclose(rates(decay, [1, 21, 41]), [1, 0.5, 0.25])
    linear = run_schedule(lambda done, base: base * (1 - done), {"unit": "fraction"}, None, 60, 20)
    np.testing.assert_allclose(rates(linear, [1, 31], base=2.0), [2, 1])


def test_a_named_schedule_gets_its_end_and_base_learning_rate_from_the_run():
    found = run_schedule("cosine", {"warmup_steps": 1, "unit": "epoch"}, 0.4, 60, 20)
    np.testing.assert_array_equal(rates(found, range(1, 61)), rates(schedules.cosine(60, 0.4, warmup_steps=20), range(1, 61)))


test_errors_name_the_actual_and_expected_value = refused(
    (lambda: schedules.factor(step=0), "step is 0; it must be at least 1"),
    (lambda: schedules.multifactor([5, 3]), r"step is \[5, 3\]; it must be a strictly increasing list"),
    (lambda: schedules.constant(0.1, warmup_mode="odd"), "warmup_mode is 'odd'"),
    (lambda: schedules.poly(max_update=3, warmup_steps=5), "max_update is 3"),
    (lambda: as_schedule("cosin"), "unknown schedule 'cosin'; did you mean 'cosine'"),
    (lambda: as_schedule("factor"), "its parameters are step, factor"),
    (lambda: epochs(-1), r"epochs\(-1\) is -1; expected a finite number of at least 0"),
    (lambda: fraction(30), r"fraction\(30\): a fraction of the run must be at most 1; use epochs\(n\) for epochs"),
    (lambda: schedules.factor(3, unit="epochs"), "unit is 'epochs'; expected one of 'step', 'epoch', 'fraction'"),
    (lambda: schedules.factor(epochs(3))(1), "a run of unknown length; pass the schedule to jfit.fit, or call .over"),
    (lambda: as_optax("cosine", max_update=0.9)(0), "a run of unknown length"),
    (lambda: as_schedule(lambda n: n, unit="epoch")(1), "a run of unknown length"),
    (lambda: schedules.factor(epochs(3)).over(updates=9), r"epochs\(3\): the number of updates of an epoch is unknown"),
    (
        lambda: schedules.factor(0.5).over(updates_per_epoch=9),
        r"fraction\(0.5\): the number of updates of the run is unknown",
    ),
    (lambda: schedules.multifactor([0.1, 0.2]).over(updates=3), r"step is \[0, 1\]"),
    (lambda: run_schedule("poly", {}, 0.1), "the number of updates of the run is unknown"),
    (lambda: run_schedule(schedules.poly(3), {"unit": "epoch"}), "needs a schedule by name"),
)


def test_an_invalid_schedule_raises():
    with pytest.raises(TypeError, match="a schedule must be a name, a number, a Schedule or a function"):
        as_schedule([0.1])


@pytest.mark.parametrize(
    "schedule",
    [
        schedules.factor(10**10, 0.5, base_lr=0.5),
        schedules.multifactor([10**10], 0.5, base_lr=0.5),
        schedules.poly(10**10, base_lr=0.5),
        schedules.cosine(10**10, base_lr=0.5),
        schedules.warmup_linear(10**10, base_lr=0.5, warmup_begin_lr=0.5),
    ],
    ids=lambda schedule: schedule.name,
)
def test_lengths_of_more_than_32_bits_are_never_reached(schedule):
    assert float(schedule(3)) == float(jax.jit(schedule)(jnp.int32(3))) == 0.5
