"""Stateful learning-rate schedulers: MXNet 1.9.1's values, errors and log lines, and their equivalent pure schedules."""

import json
import logging
from pathlib import Path

import numpy as np
import pytest
from refusals import refused

from jfit.mxnet.optimizer import lr_scheduler
from jfit.optim import schedules

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "lr_schedulers.json").read_text())
every_case = pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda c: f"{c['cls']}-{len(c['kwargs'])}")
ERRORS = {
    "factor_gt1": lambda: lr_scheduler.FactorScheduler(1, 2.0),
    "step0": lambda: lr_scheduler.FactorScheduler(0),
    "multi_unsorted": lambda: lr_scheduler.MultiFactorScheduler([3, 3]),
    "warm_gt_base": lambda: lr_scheduler.CosineScheduler(10, base_lr=0.1, warmup_begin_lr=0.2, warmup_steps=2),
    "bad_mode": lambda: lr_scheduler.PolyScheduler(10, warmup_mode="x"),
}


def make(case):
    return getattr(lr_scheduler, case["cls"])(**case["kwargs"])


@every_case
def test_values_and_base_learning_rate_in_sequence_are_mxnets(case):
    scheduler = make(case)
    counts, want = zip(*case["sequential"], strict=True)
    np.testing.assert_allclose([scheduler(n) for n in counts], want, rtol=1e-15, atol=1e-18)
    assert scheduler.base_lr == pytest.approx(case["base_lr_after"], rel=1e-15, abs=1e-18)


@every_case
def test_values_when_numbers_are_skipped_are_mxnets(case):
    scheduler = make(case)
    counts, want = zip(*case["skipping"], strict=True)
    np.testing.assert_allclose([scheduler(n) for n in counts], want, rtol=1e-15, atol=1e-18)


@pytest.mark.parametrize("name", sorted(GOLDEN["errors"]))
def test_errors_have_mxnets_classes_and_name_the_expected_value(name):
    assert GOLDEN["errors"][name][0] == "ValueError"
    with pytest.raises(ValueError, match=r"need|expected"):
        ERRORS[name]()


test_values_that_a_saved_state_cannot_have_raise = refused(
    (lambda: lr_scheduler.MultiFactorScheduler([]), r"update numbers from 1 as step, found \[\]"),
    (lambda: lr_scheduler.PolyScheduler(1e2), AssertionError, r"PolyScheduler: max_update is 100\.0, expected an int"),
    (lambda: lr_scheduler.CosineScheduler(0), r"max_update \(0\) of at least 1"),
    (lambda: lr_scheduler.FactorScheduler(2, warmup_steps=2.5), AssertionError, r"warmup_steps is 2\.5"),
    (lambda: lr_scheduler.FactorScheduler(2, warmup_steps=-5), r"warmup_steps \(-5\) of at least 0"),
)


def test_a_smaller_update_count_does_not_restore_the_old_learning_rate():
    scheduler = lr_scheduler.FactorScheduler(2, 0.5, base_lr=1.0)
    assert [scheduler(3), scheduler(1)] == [0.5, 0.5]


def test_after_max_update_poly_and_cosine_keep_their_last_learning_rate():
    for scheduler in (lr_scheduler.PolyScheduler(10, pwr=1), lr_scheduler.CosineScheduler(10)):
        assert [scheduler(5), scheduler(30)] == [0.005, 0.005]


def test_changes_are_logged_as_mxnet_logs_them(caplog):
    caplog.set_level(logging.INFO)
    scheduler = lr_scheduler.FactorScheduler(2, 0.1, stop_factor_lr=1e-3, base_lr=0.1)
    for n in range(9):
        scheduler(n)
    lr_scheduler.MultiFactorScheduler([2], 0.1)(3)
    assert caplog.messages == [
        "Update[3]: Change learning rate to 1.00000e-02",
        "Update[5]: Change learning rate to 1.00000e-03",
        "Update[7]: now learning rate arrived at 1.00000e-03, will not change in the future",
        "Update[3]: Change learning rate to 1.00000e-03",
    ]


@every_case
def test_values_of_the_pure_schedules_are_mxnets(case):
    pure = getattr(schedules, case["cls"].removesuffix("Scheduler").lower())(**case["kwargs"])
    counts, want = zip(*case["sequential"], strict=True)
    np.testing.assert_allclose([float(pure(n)) for n in counts], want, rtol=2e-6, atol=1e-8)
