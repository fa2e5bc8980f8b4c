"""Metrics that are Python functions: same values as batch by batch, in order, without making the devices wait."""

import json
import math

import numpy as np
import pytest
import sklearn.metrics as oracle
from engine_nets import CLASSES, batch_of, mlp

import jfit
from jfit import counters, metrics
from jfit.callbacks import csv_logger, jsonl_logger, progress, speedometer
from jfit.evaluate.host_metrics import HostMetrics, MetricInputs, _row_array
from jfit.history.plots import _groups
from jfit.ops.rows import RowLayout

DATA = batch_of(45)
X, Y = DATA["data"], DATA["softmax_label"]
SETTINGS = {"batch_size": 4, "num_epoch": 2, "progress": False, "shuffle": False, "optimizer_params": {"learning_rate": 0.0}}


class Look:
    """A metric that notes what it was given, and where the run stood."""

    __name__ = "look"

    def __init__(self):
        self.labels, self.outputs, self.steps = [], [], []

    def __call__(self, label, output):
        run = jfit.last_run()
        self.labels.append(label)
        self.outputs.append(output)
        self.steps.append(None if run is None else run.position["step"])
        return float((output.argmax(1) == label).sum()), len(label)


@pytest.mark.repetitions(1)
@pytest.mark.parametrize(("devices", "resident"), [(devices, resident) for devices in (1, 3) for resident in (True, False)])
def test_functions_receive_every_row_once_in_order_without_padding(devices, resident):
    look = Look()
    run = jfit.fit(mlp(), (X, Y), eval_metric=["acc", look, "loss"], devices=devices, data_on_device=resident, **SETTINGS)
    assert [len(x) for x in look.labels] == [*[4] * 11, 1] * 2
    np.testing.assert_array_equal(np.concatenate(look.labels), np.tile(Y, 2))
    np.testing.assert_allclose(np.concatenate(look.outputs[12:]), run.predict(X), rtol=1e-5)
    for row in run.history.epochs:
        assert row["look"] == row["accuracy"]
        assert row["loss_2"] == pytest.approx(1 / CLASSES) and row["loss"] > 1  # the training's loss keeps its name


def test_an_evaluation_and_a_score_run_functions_too():
    look = Look()
    run = jfit.fit(mlp(), (X[:8], Y[:8]), (X, Y), eval_metric=look, **{**SETTINGS, "num_epoch": 1})
    assert run.history.epochs[0]["val_look"] == run.score((X, Y))["look"] == np.mean(run.predict(X).argmax(1) == Y)


def test_the_dispatch_queue_stays_filled_without_additional_waits(monkeypatch):
    monkeypatch.setattr("jfit.loop.pace.LOG_SECONDS", math.inf)  # the first log point of a process compiles a copy
    rows = np.tile(X, (6, 1))[:200], np.tile(Y, 6)[:200]
    seen = {}
    for name, metric in (("device", "acc"), ("host", Look())):
        run = jfit.fit(mlp(), rows, eval_metric=metric, steps_per_call=1, **SETTINGS)
        with counters.counted() as seen[name]:
            run.train()
    assert seen["host"]["host_syncs"] == seen["device"]["host_syncs"]
    assert not seen["host"]["compiles"]
    steps = metric.steps[-50:-8]  # of the last epoch, but for what is read at its end
    ahead = [step - 100 - number for number, step in enumerate(steps)]
    assert min(ahead) > 8, "calls in flight while a function runs"
    np.testing.assert_array_equal(np.concatenate(metric.labels), np.tile(rows[1], 3))
    np.testing.assert_allclose(np.concatenate(metric.outputs[-50:]), run.predict(rows[0]), rtol=1e-5)


def test_an_exception_in_a_function_names_the_metric_and_keeps_the_state():
    def broken(label, output):
        if len(label) == 1:
            raise RuntimeError("no such thing")
        return 0.0

    with pytest.raises(RuntimeError, match="no such thing") as caught:
        jfit.fit(mlp(), (X, Y), eval_metric=broken, **SETTINGS)
    assert any(
        "metric 'broken' raised this for batch 11 of the pass (labels [(1,)], outputs" in n for n in caught.value.__notes__
    )
    assert jfit.last_run().predict(X).shape == (45, CLASSES)
    with pytest.raises(TypeError, match=r"metric custom\(<lambda>\): the function returned None, expected a number"):
        jfit.last_run().score((X, Y), lambda label, output: None)


def seen_batch(rows, label, output, weight):
    return MetricInputs(
        (_row_array(label, RowLayout(0, 1, rows, 1)),),
        (_row_array(output, RowLayout(0, 1, rows, len(output) // rows)),),
        weight,
    )


def test_zero_weight_batches_are_skipped_and_metrics_of_equal_name_stay_separate():
    found = HostMetrics(metrics.get([lambda label, output: label.mean(), lambda label, output: 2.0]), 1)
    for weight in (np.zeros(3), np.array([0, 0, 2.0])):
        found.update([seen_batch(3, np.arange(3.0), np.ones(3), weight)])
    assert found.values() == {"custom(<lambda>)": 2.0, "custom(<lambda>)_2": 2.0}


def test_values_may_be_arrays(tmp_path, capsys):
    x, y = X[:8], Y[:8]
    callbacks = [
        csv_logger(tmp_path / "log.csv"),
        jsonl_logger(tmp_path / "log.jsonl"),
        speedometer(4, 2),
        progress(force=True),
    ]
    settings = {**SETTINGS, "callbacks": callbacks, "checkpoint": tmp_path / "states"}
    run = jfit.fit(mlp(), (x, y), (x, y), eval_metric=["acc", "confusion_matrix"], **settings)
    table = run.score((x, y))["confusion_matrix"]
    assert isinstance(table, np.ndarray) and table.tolist() == oracle.confusion_matrix(y, run.predict(x).argmax(1)).tolist()
    assert run.history.column("confusion_matrix")[-1] == table.tolist()
    assert "confusion" not in repr(run) + run.history.table() + capsys.readouterr().out
    assert run._repr_html_().count("confusion") == 1  # the name among the settings, not the values
    assert "confusion" not in (tmp_path / "log.csv").read_text()
    assert "confusion" not in run.history.to_csv(tmp_path / "history.csv").read_text()
    last = json.loads((tmp_path / "log.jsonl").read_text().splitlines()[-1])
    assert last["val_confusion_matrix"] == table.tolist()
    again = jfit.Run.load(tmp_path / "states", mlp())
    assert again.history.epochs == run.history.epochs
    assert [name for names in _groups(run.history).values() for name in names] == ["loss", "accuracy"]
