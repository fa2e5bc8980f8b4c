"""`jfit.sweep`: every member gives the numbers of its own `jfit.fit`, up to rounding."""

from __future__ import annotations

import copy
import itertools
import math
import pickle
import sys

import jax
import numpy as np
import optax
import pytest
from fit_support import blobs, mlp
from sklearn.model_selection import KFold

import jfit
from jfit import counters
from jfit.history.table import History
from jfit.tools.sweep import spaces, training
from jfit.tools.sweep.result import Member

HIDDEN = {"time", "compile_time", "data_time", "samples_per_second"}
X, Y = blobs(50)
EVAL = blobs(21, seed=1)
COMMON = {"batch_size": 16, "num_epoch": 2}


def own_fit(net, member, data=(X, Y), eval_data=EVAL, **settings):
    """The run of `fit` with the settings of a member."""
    params = dict(settings.pop("optimizer_params", None) or {})
    names = [n for n in member.settings if n in ("learning_rate", "momentum", "wd", "beta1", "epsilon", "b1")]
    params |= {n: member.settings[n] for n in names}
    rest = {n: v for n, v in member.settings.items() if n not in (*names, "fold")}
    return jfit.fit(net, data, eval_data, **{**COMMON, **settings, **rest}, optimizer_params=params or None, progress=False)


def assert_same(member, run, rtol=2e-5, atol=2e-6):
    reported = {"first_bad_step"}  # of which `fit` warns
    assert [r.keys() - HIDDEN for r in run.history.epochs] == [r.keys() - reported for r in member.history.epochs]
    for one, other in zip(member.history.epochs, run.history.epochs, strict=True):
        for name in one.keys() - reported:
            np.testing.assert_allclose(one[name], other[name], rtol=rtol, atol=atol, err_msg=name)
    states = [(r.named_params, r.named_aux, r.state.opt_state, r.state.step, r.state.key) for r in (member.run, run)]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=atol), *states)


def swept(net=None, data=(X, Y), eval_data=EVAL, **settings):
    return jfit.sweep(mlp() if net is None else net, data, eval_data, **{**COMMON, **settings}, progress=False)


@pytest.fixture(params=["in turn", pytest.param("at once", marks=pytest.mark.slow)])
def mode(request, monkeypatch):
    """The two forms of the program: for one member, as on a CPU, and vmap over several, as on accelerators."""
    monkeypatch.setattr(training, "members_per_device", lambda *_: 1 if request.param == "in turn" else 256)


@pytest.mark.slow
def test_members_are_their_own_fits_sgd_rates_momenta_decays_seeds_and_dropout(mode):
    net = mlp(dropout=0.3)
    over = [
        {"learning_rate": 0.1, "momentum": 0.9, "wd": 1e-3, "seed": 0},
        {"learning_rate": 0.02, "momentum": 0.5, "wd": 1e-2, "seed": 1, "clip_norm": 0.3},
        {"learning_rate": 0.3, "momentum": 0.8, "wd": 1e-3, "seed": 1, "clip_norm": 0.7},
    ]
    result = swept(net, over=over)
    for member in result:
        assert_same(member, own_fit(net, member))
    assert [row["member"] for row in result.table] == [0, 1, 2] and {m.status for m in result} == {"finished"}


@pytest.mark.parametrize(
    ("optimizer", "over", "settings"),
    [
        ("adam", {"learning_rate": [0.01, 0.1], "beta1": [0.8, 0.95]}, {}),
        ("sgd", {"learning_rate": [0.01, 0.1], "seed": [3, 4]}, {"schedule": "cosine", "optimizer_params": {"momentum": 0.9}}),
        ("lion", {"learning_rate": [0.001, 0.01]}, {"clip_value": 0.1}),
        ("sgd", {"learning_rate": [0.1, 0.2]}, {"ema": 0.9, "micro_batches": 2, "shuffle": False}),
        ("sgd", {"learning_rate": [0.1, 0.2]}, {"class_weight": {0: 1, 1: 2, 2: 3}, "eval_every": 2, "steps_per_call": 1}),
        ("sgd", {"initializer": ["xavier", jfit.init.get("normal", sigma=0.3)]}, {"frozen": ["fc1_*"]}),
    ],
)
@pytest.mark.repetitions(1)
@pytest.mark.slow
def test_members_are_their_own_fits_with(mode, optimizer, over, settings):
    result = swept(over=over, optimizer=optimizer, **settings)
    for member in list(result)[::3] if len(result) > 2 else result:
        assert_same(member, own_fit(mlp(), member, optimizer=optimizer, **settings))


@pytest.mark.slow
def test_members_of_a_function_are_their_own_fits(mode):
    def apply(params, x, key, train):
        hidden = jax.nn.relu(x @ params["a"] + params["b"][None])
        return (hidden * jax.random.bernoulli(key, 0.8, hidden.shape) if train else hidden) @ params["c"]

    def values(seed):
        rng = np.random.default_rng(seed)
        return {n: rng.normal(size=s).astype("float32") for n, s in {"a": (4, 6), "b": (6,), "c": (6, 3)}.items()}

    settings = {"loss": "cross_entropy", "optimizer": "adam"}
    over = [{"learning_rate": 0.01 * (s + 1), "seed": s, "params": values(s)} for s in range(3)]
    with counters.counted() as counts:
        result = swept(apply, over=over, **settings)
    assert counts["traces:sweep_train"] == 1
    for member in result:
        assert_same(member, own_fit(apply, member, **settings))
    assert result[0].run.params.keys() == {"a", "b", "c"}


@pytest.mark.slow
def test_folds_are_fits_of_their_rows(mode):
    pairs = list(KFold(3).split(X))
    result = swept(eval_data=None, over={"learning_rate": [0.1, 0.2]}, folds=pairs, monitor="val_accuracy")
    assert [m.settings["fold"] for m in result] == [0, 1, 2] * 2
    for member in list(result)[1::2]:
        train, test = pairs[member.settings["fold"]]
        assert_same(member, own_fit(mlp(), member, (X[train], Y[train]), (X[test], Y[test])))
    rows = result.summary
    assert len(rows) == 2 and rows[0]["members"] == [0, 1, 2]
    np.testing.assert_allclose(rows[1]["score"], np.mean([m.score for m in list(result)[3:]]))
    counted = swept(eval_data=None, over={"learning_rate": [0.1]}, folds=4, num_epoch=1)
    assert len(counted) == 4  # folds of 12 and 13 rows


@pytest.mark.slow
def test_settings_that_change_the_program_are_grouped():
    over = {"hidden": [4, 8], "batch_size": [10, 25], "learning_rate": [0.05, 0.1, 0.2]}
    with counters.counted() as counts:
        result = swept(lambda hidden: mlp(hidden=hidden), over=over, num_epoch=1)
    assert counts["traces:sweep_train"] == 4 and len(result) == 12
    for member in (result[0], result[11]):
        settings = {k: v for k, v in member.settings.items() if k != "hidden"}
        run = jfit.fit(
            mlp(hidden=member.settings["hidden"]),
            (X, Y),
            EVAL,
            num_epoch=1,
            batch_size=settings["batch_size"],
            optimizer_params={"learning_rate": settings["learning_rate"]},
            progress=False,
        )
        assert_same(member, run)


def test_another_sweep_of_the_same_network_compiles_nothing():
    swept(over={"learning_rate": [0.1, 0.2], "momentum": [0.5]}, num_epoch=1)
    with counters.counted() as counts:
        swept(over={"learning_rate": [0.3, 0.4, 0.5], "momentum": [0.7]}, num_epoch=1)  # on a CPU any number of members
    assert counts["traces"] == 0 and counts["compiles"] == 0


def test_a_diverging_member_changes_no_other_and_is_reported(mode):
    quiet = swept(over={"learning_rate": [0.1, 0.2]})
    result = swept(over={"learning_rate": [0.1, 1e30, 0.2]}, num_epoch=2)
    assert result[1].first_bad_step is not None and result.table[1]["first_bad_step"] == result[1].first_bad_step
    assert math.isnan(result[1].score)
    for one, other in ((quiet[0], result[0]), (quiet[1], result[2])):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6), one.params, other.params)
        assert one.first_bad_step is None
    assert result.best.number in (0, 2)
    result.predict(X)  # without the diverged member
    with pytest.raises(ValueError, match="no member has a finite val_loss"):
        _ = swept(over={"learning_rate": [1e30, 1e31]}).best


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the loss is not finite")
def test_patience_is_early_stopping_of_each_member():
    over, settings = {"learning_rate": [0.3, 1.5, 0.001, 1e30]}, {"num_epoch": 8, "monitor": "val_loss", "patience": 1}
    result = swept(over=over, **settings)
    assert {m.status for m in result} == {"stopped", "finished"}
    for member in result:
        stopping = jfit.callbacks.early_stopping("val_loss", patience=1)
        run = own_fit(mlp(), member, num_epoch=8, callbacks=[stopping])
        assert_same(member, run, rtol=2e-4, atol=2e-5)
        if member.first_bad_step is None:
            assert member.score == pytest.approx(min(run.history.column("val_loss")), rel=1e-4)


@pytest.mark.slow
def test_halving_drops_the_worst_members_and_the_others_train_on_as_if_alone():
    over = {"learning_rate": [1e-5, 0.1, 1e-4, 0.2, 1e-3]}
    result = swept(over=over, num_epoch=5, halving=("val_loss", 2), members_per_call=3)
    assert [m.status for m in result].count("finished") == 1
    assert sorted(len(m.history) for m in result) == [1, 1, 2, 4, 5]
    assert_same(result.best, own_fit(mlp(), result.best, num_epoch=5))
    early = next(m for m in result if len(m.history) == 2)
    assert_same(early, own_fit(mlp(), early, num_epoch=2))


@pytest.mark.slow
def test_members_are_split_over_devices(mode, monkeypatch):
    over, tables, make = {"learning_rate": [0.1, 0.2, 0.3], "seed": [0, 1]}, [], training.batch_table
    monkeypatch.setattr(training, "batch_table", lambda order, layout: tables.append(len(order)) or make(order, layout))
    alone, split = (swept(over=over, devices=devices, patience=3) for devices in (None, 2))
    assert tables.count(len(EVAL[0])) in (2, 6 + 3)  # one for the members of a part, though their seeds differ
    for one, other in zip(alone, split, strict=True):
        assert_same(one, other.run)


@pytest.mark.slow
def test_rows_that_affect_each_other_are_not_padded(mode):
    def apply(params, x):
        return (x - x.mean(axis=0, keepdims=True)) @ params["w"]

    settings = {"loss": "cross_entropy", "params": {"w": np.ones((4, 3), "float32")}}
    result = swept(apply, (X[:40], Y[:40]), (X[:32], Y[:32]), over={"learning_rate": [0.1, 0.2]}, **settings)
    for member in result:
        assert_same(member, own_fit(apply, member, (X[:40], Y[:40]), (X[:32], Y[:32]), **settings))


@pytest.mark.slow
def test_random_combinations_are_drawn_in_their_ranges_and_repeat():
    over = {
        "learning_rate": jfit.log_uniform(1e-4, 1e-1),
        "wd": jfit.uniform(0.1, 0.2),
        "optimizer": jfit.choice(["sgd", "nag"]),
    }
    tables = [swept(over=over | more, n=6, num_epoch=1).table for more in ({}, {"seed": range(3)})]
    assert [r["learning_rate"] for r in tables[0]] == [r["learning_rate"] for r in tables[1]]
    assert all(1e-4 <= r["learning_rate"] < 1e-1 and 0.1 <= r["wd"] < 0.2 for r in tables[0])
    assert {r["optimizer"] for r in tables[0]} == {"sgd", "nag"}


@pytest.mark.slow
def test_an_ensemble_is_the_weighted_mean_of_its_members(tmp_path):
    result = swept(over={"seed": range(3)}, monitor="val_accuracy")
    parts = [m.run.predict(X) for m in result]
    np.testing.assert_allclose(result.predict(X), np.mean(parts, axis=0), rtol=1e-5)
    weighted = result.predict(X, members=[0, 2], weights=[3, 1])
    np.testing.assert_allclose(weighted, 0.75 * parts[0] + 0.25 * parts[2], rtol=1e-5)
    np.testing.assert_array_equal(result.predict(X, members=1), result.best.run.predict(X))
    with pytest.raises(ValueError, match=r"no members to average: members is \[\], and the score of 0 of 3 members is NaN"):
        result.predict(X, members=[])
    np.testing.assert_array_equal(result.predict(X, members=np.int64(1)), result.predict(X, members=1))
    for wrong in (-1, [3], [-1], ["a"], True, 0.5):
        with pytest.raises(ValueError, match="or their numbers, from 0 to 2"):
            result.predict(X, members=wrong)
    assert result.best.run.score(EVAL)["accuracy"] == pytest.approx(result.best.score)
    assert "seed" in str(result) and "<table>" in result._repr_html_() and list(result.to_pandas()["seed"]) == [0, 1, 2]
    result.plot(tmp_path / "sweep.png")
    assert (tmp_path / "sweep.png").stat().st_size > 1000
    folder = result.best.run.save(tmp_path / "best").parent
    np.testing.assert_array_equal(jfit.Run.load(folder).predict(X), result.best.run.predict(X))


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"over": {"learning_rat": [0.1]}}, "'learning_rat', .* or of optimizer 'sgd'; did you mean 'learning_rate'"),
        ({"over": {"batchsize": [8]}}, "over has 'batchsize', which is no argument of fit.* did you mean 'batch_size'"),
        ({"net": lambda hidden: mlp(hidden=hidden), "over": {"hiden": [1, 2]}}, "over has 'hiden'.* did you mean 'hidden'"),
        ({"over": {"seed": [0]}, "callbacks": []}, "callbacks', an argument of fit that sweeps do not support"),
        ({"over": {"seed": [0]}, "zzz": 1}, "zzz', which is no argument of fit; the names are 'batch_size'"),
        ({"over": {"learning_rate": jfit.uniform(0, 1)}}, "is a distribution, so the number of members is unknown"),
        ({"over": {"learning_rate": 0.1}}, "expected a list of values"),
        ({"over": {}, "folds": 1}, "expected a number from 2 to the number of rows, 50"),
        ({"over": {"momentum": [0.1]}, "optimizer": optax.sgd(0.1)}, "the optimizer is an instance"),
        ({"over": {"seed": [0]}, "eval_metric": lambda y, p: 0.0}, "runs on the host"),
        ({"over": {"seed": [0]}, "halving": ("val_loss", 1)}, "halving is"),
        ({"over": {"seed": [0]}, "patience": 0}, "patience is 0"),
        ({"over": [{"seed": 0}], "n": 3}, "n is for a dict"),
        ({"over": {"seed": [0.5]}}, "seed is 0.5; expected an integer"),
        ({"over": {"seed": range(10**9)}}, "over, all combinations of its values, gives 1,000,000,000 members"),
        ({"over": {"seed": range(10**20)}}, f"gives {sys.maxsize:,} members"),
        ({"over": {"seed": itertools.count()}}, r"over\['seed'\] has more than 100,000 values; pass fewer, a range, or"),
        ({"over": ({"seed": k} for k in itertools.count())}, "sweep: over has more than 100,000 values"),
        ({"over": {"seed": [0]}, "n": 10**9}, "n=1000000000 gives 1,000,000,000 members; the limit is 100,000"),
        ({"over": {"seed": [0]}, "folds": 10**9}, "1 combinations in 1000000000 folds gives 1,000,000,000 members"),
    ],
)
@pytest.mark.repetitions(12)
def test_unsupported_settings_raise_sentences(settings, text):
    eval_data = None if "folds" in settings else EVAL
    with pytest.raises((ValueError, TypeError), match=text):
        swept(eval_data=eval_data, **settings)


def test_states_of_members_that_do_not_fit_in_memory_raise_a_sentence(monkeypatch):
    monkeypatch.setattr("jfit.tools.sweep.api._memory_of_host", lambda: 10_000.0)
    with pytest.raises(ValueError, match=r"the states of the 900 members have 0.0 GB, more than the memory of"):
        swept(over={"seed": range(900)})
    for seeds in (range(10**12), list(range(200_000))):  # no list is made of the range
        assert len({row["seed"] for row in spaces.combinations({"seed": seeds}, 3, 0)}) == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings, text",
    [
        ({"monitor": "val_f1", "eval_every": 2}, "^sweep: monitor='val_f1' is not logged"),
        ({"monitor": "val_f1", "patience": 1}, "^sweep: monitor='val_f1' is not logged"),
        ({"halving": ("val_f1", 2)}, "^sweep: metric of halving='val_f1' is not logged"),
        ({"halving": ("confusion_matrix", 2)}, "^sweep: metric of halving='confusion_matrix' is an array; .*, loss"),
    ],
    ids=str,
)
def test_a_score_that_is_not_logged_or_an_array_raises_a_sentence(settings, text):
    with pytest.raises(ValueError, match=text):
        swept(over={"seed": [0]}, eval_metric=["accuracy", "confusion_matrix"], **settings)


@pytest.mark.parametrize(
    "over, text",
    [
        ({"clip_norm": [1.0, 0.0]}, r"member 1 \(clip_norm=0.0\): clip_norm is 0.0; expected a number above 0, or None"),
        ({"clip_value": [np.float32(-1)]}, "clip_value is -1.0; expected a number above 0"),
        ({"clip_norm": [np.nan]}, "clip_norm is nan; expected a number above 0"),
        ({"learning_rate": [0.1, -0.1]}, r"member 1 \(.*\): learning_rate is -0.1; expected a finite number of at least 0"),
        ({"optimizer_params": [{"learning_rate": np.inf}]}, "learning_rate is inf; expected a finite number"),
        ({"weight_decay": [-0.01]}, "wd is -0.01; expected a finite number"),
        ({"momentum": jfit.uniform(-0.9, -0.8)}, "momentum is -0.8.*; expected a number from 0 to below 1"),
    ],
    ids=str,
)
def test_rates_decays_and_limits_that_no_training_needs_raise_before_anything_is_compiled(over, text):
    with counters.counted() as counted, pytest.raises(ValueError, match=text):
        swept(over=over, n=2 if "momentum" in over else None)
    assert not counted["compiles"]


def test_a_sweep_is_not_pickled_but_its_table_is():
    result = jfit.Sweep([Member(0, {"seed": 1}, 0.5, "finished", History(), None, None)], "loss")
    for value, call in itertools.product((result, result[0]), (pickle.dumps, copy.deepcopy)):
        with pytest.raises(TypeError, match=r"cannot be pickled .* pickle result.table, .* member.run.save"):
            call(value)
    assert pickle.loads(pickle.dumps(result.table)) == result.table and copy.copy(result)[0] is result[0]


def test_iterables_of_batches_raise_a_sentence():
    with pytest.raises(ValueError, match="train_data is an iterable of batches"):
        swept(data=[(X[:10], Y[:10])], eval_data=None, over={"seed": [0]})
