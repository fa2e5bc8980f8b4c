"""Settings of optimizers and schedulers read from .states files are validated before use."""

import itertools
import pickle
import signal
from pathlib import Path

import numpy as np
import pytest

from jfit.formats import FormatError, load_states
from jfit.formats.mxnet_states import dump_states
from jfit.formats.pickles import Inert
from jfit.mxnet.optimizer import SGD, Optimizer, create, get_updater
from jfit.mxnet.optimizer.apply import rule_of
from jfit.mxnet.optimizer.lr_scheduler import (
    CosineScheduler,
    FactorScheduler,
    MultiFactorScheduler,
    PolyScheduler,
)
from jfit.mxnet.optimizer.settings import restore_settings

GOLDEN = Path(__file__).parents[1] / "golden"
HOSTILE = [
    *(float("nan"), float("inf"), -float("inf"), 1e39, -1e38, 10**400, 2**62, -1, 0, 1, 0.5, 2.5),
    *("abc", None, [1.0], [], {}, {"a": 1}, True, b"x", (1,)),
]
STEPS = [[0], [1, 1], [3, 2], ["a"], [float("nan")], [1, None], [10**400], [True]]
SCHEDULERS = {
    "FactorScheduler": lambda: FactorScheduler(3, 0.5, base_lr=0.5),
    "MultiFactorScheduler": lambda: MultiFactorScheduler([2, 5], 0.5),
    "PolyScheduler": lambda: PolyScheduler(10, warmup_steps=2),
    "CosineScheduler": lambda: CosineScheduler(10),
}


@pytest.fixture(autouse=True)
def end_what_hangs():
    def stop(*_):
        raise AssertionError("this hangs")

    old = signal.signal(signal.SIGALRM, stop)
    signal.alarm(30)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, old)


def scheduled(attributes, name="FactorScheduler", updates=3, own=None):
    """An optimizer whose scheduler is the one of a file, which tells of so many updates."""
    settings = {"class": "SGD", "lr": 0.5, "lr_scheduler": {**attributes, "class": name}}
    updater = get_updater(SGD(lr_scheduler=own))
    updater.set_states(dump_states({}, {0: updates}, updates, settings), "x.states")
    return updater.optimizer


def taken(name, attribute, value, own):
    """Whether an attribute of a file is accepted; then its scheduler gives rates, and gives them soon."""
    make = SCHEDULERS[name]
    try:
        optimizer = scheduled({**vars(make()), attribute: value}, name, own=make() if own else None)
    except FormatError as error:
        assert str(error).startswith(f"x.states: lr_scheduler {name}, attribute ") and len(str(error)) < 400
        return False
    assert all(type(optimizer.lr_scheduler(n)) in (int, float) for n in (1, 3, 10, 11, 10**4))
    return True


@pytest.mark.parametrize("own", [False, True], ids=["made from the file", "taken over"])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_an_attribute_of_a_scheduler_raises_or_gives_finite_learning_rates(name, own):
    for field, value in vars(SCHEDULERS[name]()).items():
        assert taken(name, field, value, own)
        for hostile in (*HOSTILE, *STEPS):
            accepted = taken(name, field, hostile, own)
            if field == "step" and isinstance(hostile, list):
                assert accepted == (name == "MultiFactorScheduler" and repr(hostile) == "[1.0]")
            elif type(hostile) not in (int, float) or not abs(hostile) < 1e39:
                assert not accepted, (field, hostile)


@pytest.mark.parametrize(
    ("name", "changed", "message"),
    [
        ("FactorScheduler", {"step": 0}, "attribute 'step': found 0, expected a finite number of at least 1; the file is"),
        ("FactorScheduler", {"factor": 2.0}, "attribute 'factor': found 2.0, expected a finite number of at most 1"),
        ("FactorScheduler", {"count": -(10**9)}, "attribute 'count': found -1000000000, expected a number from 0"),
        ("FactorScheduler", {"base_lr": "abc"}, "attribute 'base_lr': found 'abc', expected a finite number"),
        ("MultiFactorScheduler", {"step": [5, 2]}, r"'step': found \[5, 2\], expected an increasing list"),
        ("PolyScheduler", {"max_steps": 3}, r"'max_steps': found 3, expected max_update - warmup_steps \(8\)"),
        (
            "PolyScheduler",
            {"max_update": 2, "max_steps": 0},
            r"'max_steps': found 0, .*, so not 0",
        ),
        ("PolyScheduler", {"power": -1}, "attribute 'power': found -1, expected a finite number of 32 bits of at least 0"),
        ("CosineScheduler", {"warmup_mode": "x"}, "attribute 'warmup_mode': found 'x', expected 'linear' or 'constant'"),
    ],
)
def test_the_error_names_file_scheduler_attribute_and_expected_value(name, changed, message):
    with pytest.raises(FormatError, match=f"^x.states: lr_scheduler {name}, .*{message}"):
        scheduled({**vars(SCHEDULERS[name]()), **changed}, name)


def test_an_update_count_too_far_behind_to_catch_up_raises():
    attributes = vars(FactorScheduler(1, 0.999))
    assert scheduled(attributes, updates=10**5).rate() < 1e-7
    with pytest.raises(
        FormatError, match=r"'count': found 0, expected a count at most 1000000 steps of 1 behind the 1999999999 updates"
    ):
        scheduled(attributes, updates=1_999_999_999)
    settings = {"class": "SGD", "begin_num_update": 10**9, "lr_scheduler": {**attributes, "class": "FactorScheduler"}}
    with pytest.raises(FormatError, match="behind the 1000000000 updates"):
        get_updater(SGD()).set_states(dump_states({}, {}, 1, settings))


def test_an_optimizer_is_unchanged_if_its_scheduler_raises():
    optimizer = SGD(learning_rate=0.25, momentum=0.5, lr_scheduler=FactorScheduler(7))
    settings = {
        "class": "SGD",
        "lr": 9.0,
        "momentum": 0.1,
        "lr_scheduler": {"class": "FactorScheduler", "base_lr": 3, "step": 0},
    }
    with pytest.raises(FormatError):
        restore_settings(optimizer, settings)
    assert (optimizer.lr, optimizer.momentum, optimizer.lr_scheduler.base_lr, optimizer.lr_scheduler.step) == (
        0.25,
        0.5,
        0.25,
        7,
    )


@pytest.mark.parametrize(
    "kind", [k for n, k in sorted(Optimizer.opt_registry.items()) if n[0] != "_" and k.rule], ids=lambda k: k.__name__
)
def test_a_parameter_of_an_optimizer_raises_or_gives_a_valid_rule(kind):
    first = kind()
    for name, value in itertools.product(("lr", "wd", "clip_gradient", "begin_num_update", *first.parameters), HOSTILE):
        optimizer, now = kind(), getattr(first, name)
        try:
            get_updater(optimizer).set_states(dump_states({}, {}, 1, {"class": kind.__name__, name: value}), "x.states")
        except FormatError as error:
            assert str(error).startswith(f"x.states: optimizer {kind.__name__}, attribute {name!r}: found ")
            continue
        found = getattr(optimizer, name)
        assert isinstance(found, str) == isinstance(now, str)
        assert isinstance(found, str) or found is None or abs(found) <= 3.5e38
        rule_of(optimizer.hyper_key())


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"num_update": "abc"}, "optimizer: .*'num_update' is 'abc'; expected non-negative whole numbers of updates"),
        ({"_index_update_count": [3]}, r"optimizer: '_index_update_count' is \[3\]"),
        ({"_index_update_count": {0: -1}}, "optimizer: '_index_update_count' is {0: -1}"),
        ({"_index_update_count": {"w": 2**40}}, "update count of 'w': found 1099511627776, expected a whole number from 0 to"),
        ({"num_update": 2**40}, "num_update: found 1099511627776, expected a whole number from 0 to"),
    ],
)
def test_update_counts_of_an_mxnet_trainer_are_validated(attributes, message):
    data = dump_states({}, optimizer=Inert("mxnet.optimizer.optimizer.SGD", attributes))
    with pytest.raises(FormatError, match=f"^x.states: {message}"):
        get_updater(SGD()).set_states(data, "x.states")


@pytest.mark.parametrize("state", ["abc", 5, {"a": 1}, (None, "x"), 10**5000], ids=["text", "number", "dict", "nested", "huge"])
def test_a_state_that_is_not_an_array_raises(state):
    with pytest.raises(FormatError, match=r"^x.states: state '?0'?: found .*, (needed|expected) (an array|arrays)"):
        get_updater(SGD(momentum=0.5)).set_states(pickle.dumps({0: state}), "x.states")


def test_an_integer_too_large_to_print_raises_a_format_error():
    assert load_states(pickle.dumps({0: 10**5000, "__jfit__": {"digest": 0}})).states == {0: 10**5000}
    for settings in ({"class": 10**5000}, {"class": "SGD", "lr_scheduler": {"class": 10**5000}}):
        with pytest.raises(ValueError, match=r"(saved with|found class) an integer of 16610 bits"):
            restore_settings(SGD(), settings)


@pytest.mark.parametrize(("name", "kind"), [("train/gluon/sched_mult", "sgd"), ("checkpoint/trainer_adam", "adam")])
def test_a_damaged_file_of_mxnets_trainer_raises_or_gives_finite_learning_rates(name, kind):
    data, random = (GOLDEN / f"{name}.states").read_bytes(), np.random.default_rng(0)
    optimizer = create(kind)
    get_updater(optimizer).set_states(data)
    assert optimizer.lr_scheduler is not None and optimizer.rate() > 0
    for _ in range(400):
        mutant, optimizer = bytearray(data), create(kind)
        for at in random.integers(len(data) - 600, len(data), 2):
            mutant[at] = random.choice([random.integers(256), *b"\x00\xffNKG\x88"])
        try:
            get_updater(optimizer).set_states(bytes(mutant), "damaged")
        except FormatError as error:
            assert error.path == "damaged"
        except ValueError as error:
            assert "load them into an object of that class" in str(error)
        else:
            optimizer.count([0])
            assert np.isfinite(optimizer.rate())
