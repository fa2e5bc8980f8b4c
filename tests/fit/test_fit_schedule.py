"""Learning-rate schedules of `fit`: names, lengths taken from the run, and the reported learning rate of every step."""

import csv
import io
import json

import numpy as np
import optax
import pytest

import jfit
from jfit import sym
from jfit.callbacks import csv_logger, jsonl_logger, lambda_callback, progress
from jfit.loop import pace
from jfit.optim import epochs, fraction


def net():
    return sym.SoftmaxOutput(sym.FullyConnected(sym.Variable("data"), num_hidden=2, name="fc"), name="softmax")


def trained(**given):
    x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
    y = (x[:, 0] > 0).astype("float32")
    data = given.pop("data", (x, y))
    given = {"optimizer_params": {"learning_rate": 0.2}, "num_epoch": 4, "batch_size": 16, "progress": False, **given}
    return jfit.fit(net(), data, **given)


def rates(**given):
    return trained(**given).history.column("lr")


def test_a_named_schedule_starts_at_the_optimizers_rate_and_ends_with_the_run():
    found = rates(schedule="cosine")
    # the rate of the last update of each epoch: updates 4, 8, 12, 16 of 16
    np.testing.assert_allclose(found, 0.1 * (1 + np.cos(np.pi * np.arange(4, 17, 4) / 16)), atol=1e-6)


@pytest.mark.parametrize(
    ("schedule", "params"),
    [
        ("multifactor", {"step": [2, 3], "factor": 0.1, "unit": "epoch"}),
        (jfit.optim.multifactor([fraction(0.5), epochs(3)], 0.1, base_lr=0.3), None),
    ],
)
def test_lengths_may_be_given_in_epochs_or_fractions_of_the_run(schedule, params):
    # the last update of an epoch is the one that a decay comes after; a schedule of its own still starts at the state's rate
    np.testing.assert_allclose(rates(schedule=schedule, schedule_params=params), [0.2, 0.2, 0.02, 0.002], rtol=1e-6)


def test_an_optax_schedule_may_count_epochs():
    found = rates(schedule=optax.exponential_decay(0.8, 1, 0.5, staircase=True), schedule_params={"unit": "epoch"})
    np.testing.assert_allclose(found, [0.8, 0.4, 0.2, 0.1], rtol=1e-6)


def test_schedule_parameters_without_a_schedule_raise():
    with pytest.raises(ValueError, match="needs a schedule by name"):
        rates(schedule=jfit.optim.cosine(16), schedule_params={"max_update": 3})


def stream():
    yield {"data": np.ones((16, 4), "float32"), "softmax_label": np.zeros(16, "float32")}


def test_an_endless_stream_requires_a_schedule_length():
    with pytest.raises(ValueError, match="the number of updates of the run is unknown"):
        rates(schedule="cosine", data=stream)
    with pytest.raises(
        ValueError, match=r"epochs\(1\): the number of updates of an epoch is unknown, because the training data"
    ):
        rates(schedule="factor", schedule_params={"step": epochs(1)}, data=stream)
    with pytest.raises(ValueError, match=r"fraction\(0.5\): the number of updates of the run is unknown"):
        rates(schedule="factor", schedule_params={"step": 0.5}, data=stream)
    assert rates(schedule="factor", schedule_params={"step": 2, "factor": 0.5}, data=stream) == pytest.approx(
        [0.2, 0.2, 0.1, 0.1]
    )


def test_an_unknown_schedule_lists_the_nearest():
    with pytest.raises(ValueError, match="unknown schedule 'cosin'; did you mean 'cosine'"):
        rates(schedule="cosin")


# ------------------------------------------------------------------------------------------------ the rate, seen
class Terminal(io.StringIO):
    def isatty(self):
        return True


OPTIMIZERS = {
    "named": ({"optimizer": "sgd"}, 0.2),
    "optax by name": ({"optimizer": "lion"}, 0.2),
    "scheduled": ({"optimizer": "adam", "schedule": "factor", "schedule_params": {"step": 1, "factor": 0.5}}, 0.2 * 0.5**127),
    "injected": ({"optimizer": optax.inject_hyperparams(optax.sgd)(learning_rate=0.2), "optimizer_params": None}, 0.2),
    "own": ({"optimizer": jfit.optim.sgd(jfit.optim.factor(1, 0.5, base_lr=0.2)), "optimizer_params": None}, 0.2 * 0.5**127),
}


@pytest.mark.repetitions(2)
@pytest.mark.parametrize("which", OPTIMIZERS)
def test_the_learning_rate_is_reported_in_history_logs_and_callbacks(which, tmp_path, monkeypatch):
    monkeypatch.setattr(pace, "LOG_SECONDS", 0.0)
    given, last = OPTIMIZERS[which]
    last = max(last, 1e-8)  # where factor stops
    screen, seen = Terminal(), []

    def look(event):
        seen.append((event.step, event.run.lr, event.logs.get("lr")))

    callbacks = [
        csv_logger(tmp_path / "a.csv"),
        jsonl_logger(tmp_path / "a.jsonl", every="log"),
        progress(file=screen),
        lambda_callback(every=64, step=look, epoch_end=look),
    ]
    run = trained(batch_size=1, num_epoch=2, steps_per_call=1, callbacks=callbacks, **given)
    assert run.lr == run.history.column("lr")[-1] == pytest.approx(last)
    assert len(run.history.points) > 2 and all(row["lr"] > 0 for row in run.history.points)
    assert f"lr {last:.4g}" in repr(run)
    table = csv.DictReader((tmp_path / "a.csv").read_text().splitlines())
    assert [float(row["lr"]) for row in table] == run.history.column("lr")
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert [line["lr"] for line in lines] == run.history.column("lr", "points")
    assert f"lr {last:.4g}" in screen.getvalue()
    assert [step for step, _, _ in seen] == [64, 64, 128, 128]
    for _, rate, logged in seen:
        assert rate > 0 and logged in (None, rate)


def test_an_instance_without_a_readable_rate_shows_none():
    run = trained(optimizer=optax.sgd(0.2), optimizer_params=None, num_epoch=1)
    assert run.lr is None and "lr" not in run.history.columns()


def test_a_loaded_run_has_its_last_learning_rate(tmp_path):
    run = trained(schedule="poly", num_epoch=2, schedule_params={"max_update": 20})
    run.save(tmp_path)
    assert jfit.Run.load(tmp_path).lr == run.lr == pytest.approx(0.2 * 0.6**2)
