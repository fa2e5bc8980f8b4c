"""Callbacks of `jfit.fit`: events, progress display, early stopping, loggers, checkpointing."""

import io
import json
import logging
import math
from types import SimpleNamespace

import numpy as np
import pytest

from jfit.callbacks import (
    Callback,
    Event,
    as_callback,
    checkpointing,
    csv_logger,
    early_stopping,
    jsonl_logger,
    lambda_callback,
    progress,
    speedometer,
)


class FakeRun(SimpleNamespace):
    """The part of the run's view that these callbacks use."""

    def __init__(self):
        super().__init__(stopped=None, best=None, restores_best=False, batch_size=10, step=0)

    def snapshot(self):
        return {"step": np.int32(self.step), "w": np.full(2, self.step, np.float32)}

    def stop(self, reason):
        self.stopped = reason

    def set_best(self, snapshot):
        self.best = snapshot


def event(kind="epoch_end", epoch=0, step=0, batch=0, run=None, num_batches=10, **logs):
    return Event(kind, epoch, step, batch, num_batches, logs, run)


def play(callback, events):
    callback = as_callback(callback)
    state = callback.init()
    for one in events:
        if one.kind in callback.events:
            # States are saved in checkpoints: each must survive JSON.
            state = json.loads(json.dumps(callback.on(one, state)))
    return state


def test_a_function_is_called_at_epoch_ends_or_at_its_declared_event():
    seen = []
    play(seen.append, [event("log"), event("epoch_end")])
    assert [one.kind for one in seen] == ["epoch_end"]

    def at_log(one):
        seen.append(one)

    at_log.events = "log"
    assert as_callback(at_log).events == ("log",) and as_callback(at_log).name == "at_log"


def test_an_object_that_is_not_a_callback_raises():
    with pytest.raises(TypeError, match=r"found 3 of type int; expected a Callback, a function f\(event\)"):
        as_callback(3)
    with pytest.raises(TypeError, match="expected a Callback, a function"):
        as_callback(Callback)
    with pytest.raises(ValueError, match="an event of callback lambda is 'epoch_stop'; expected one of 'fit_start', "):
        lambda_callback(epoch_stop=print)
    with pytest.raises(ValueError, match="'step' events need every=N"):
        lambda_callback(step=print)
    with pytest.raises(ValueError, match="every of callback callback is 0; expected an integer"):
        as_callback(Callback(lambda e, s: s, every=0))


def test_early_stopping_stops_after_patience_epochs_and_restores_the_best_state():
    run, callback = FakeRun(), early_stopping("val_loss", patience=2)
    state = callback.init()
    for epoch, value in enumerate([1.0, 0.5, 0.7, 0.6]):
        assert run.stopped is None
        run.step = epoch
        state = callback.on(event(epoch=epoch, run=run, val_loss=value), state)
    assert state == {"best": 0.5, "best_epoch": 1, "waited": 2}
    assert run.best["step"] == 1
    assert run.stopped == "early_stopping: val_loss has not improved for 2 epochs (best 0.5 in epoch 1)."


@pytest.mark.parametrize(
    ("monitor", "mode", "values", "stops"),
    [
        ("val_accuracy", "auto", [0.5, 0.6, 0.7], False),
        ("val_accuracy", "auto", [0.7, 0.6], True),
        ("val_f1", "auto", [0.7, 0.6], True),
        ("val_pcc", "auto", [0.7, 0.6], True),
        ("mse", "auto", [0.7, 0.6], False),
        ("mse", "max", [0.7, 0.6], True),
        ("loss", "auto", [math.nan], True),
        ("loss", "auto", [1.0, math.nan], True),
        ("loss", "auto", [1.0, 1.0], True),
        ("loss", "auto", [1.0, 0.95], True),
    ],
)
def test_the_direction_depends_on_the_monitor_and_nan_is_not_an_improvement(monitor, mode, values, stops):
    run = FakeRun()
    callback = early_stopping(monitor, patience=1, mode=mode, min_delta=0.08, restore_best=False)
    play(callback, [event(epoch=i, run=run, **{monitor: value}) for i, value in enumerate(values)])
    assert (run.stopped is not None) == stops and run.best is None


def test_an_unknown_monitor_raises_with_the_known_names_and_skipped_evaluations_are_ignored():
    callback = early_stopping("val_los")
    with pytest.raises(ValueError, match="monitor='val_los' is not logged; did you mean 'val_loss'"):
        callback.on(event(loss=1.0, val_loss=2.0), callback.init())
    with pytest.raises(ValueError, match="Pass eval_data= to fit"):
        early_stopping().on(event(loss=1.0), callback.init())
    state = {"best": 1.0, "best_epoch": 0, "waited": 0}
    assert early_stopping().on(event(loss=1.0), state) == state


@pytest.mark.parametrize("wrong", [{"patience": 0}, {"min_delta": -1.0}, {"mode": "up"}])
def test_early_stopping_checks_its_arguments(wrong):
    with pytest.raises(ValueError, match=r"patience is 0|min_delta is -1.0|mode is 'up'; expected one of 'auto'"):
        early_stopping(**wrong)


def test_csv_continues_after_a_resume_without_duplicate_header_or_rows(tmp_path):
    path = tmp_path / "runs" / "a.csv"
    play(csv_logger(path), [event("fit_start"), *(event(epoch=i, step=10 * i + 10, loss=1.0) for i in range(3))])
    play(csv_logger(path), [event("fit_start", step=20), event(epoch=2, step=30, loss=0.5)])
    assert path.read_text() == "epoch,step,loss\n0,10,1.0\n1,20,1.0\n2,30,0.5\n"
    play(csv_logger(path), [event("fit_start", step=30), event(epoch=3, step=40, loss=0.5, val_loss=2.0)])
    assert path.read_text().splitlines()[0] == "epoch,step,loss,val_loss"
    assert path.read_text().splitlines()[1::3] == ["0,10,1.0,", "3,40,0.5,2.0"]
    play(csv_logger(path), [event("fit_start"), event(step=10, loss=9.0)])
    assert path.read_text() == "epoch,step,loss\n0,10,9.0\n"


def test_jsonl_writes_epochs_or_log_points_and_tolerates_a_truncated_line(tmp_path):
    path = tmp_path / "a.jsonl"
    play(jsonl_logger(path, every="log"), [event("fit_start"), event("log", step=5, batch=5, loss=math.nan), event(step=10)])
    assert json.loads(path.read_text()) == {"epoch": 0, "step": 5, "batch": 5, "loss": "nan"}
    with path.open("a") as file:
        file.write('{"step": 9}\n{"step"')
    play(jsonl_logger(path), [event("fit_start", step=5), event(step=10, loss=1.0)])
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [5, 10]
    with pytest.raises(ValueError, match="every is 'step'; expected one of 'epoch', 'log'"):
        jsonl_logger(path, every="step")


def test_speedometer_logs_the_lines_of_mxnet(caplog):
    run = FakeRun()
    with caplog.at_level(logging.INFO, logger="jfit"):
        play(
            speedometer(frequent=5),
            [
                event("epoch_start", run=run),
                event("log", batch=4, run=run, loss=1.0, accuracy=0.5, samples_per_second=3.0),
                event("step", batch=5, run=run),
                event("step", batch=10, run=run, accuracy=0.75),
                event(run=run, accuracy=0.8, val_accuracy=0.7, loss=1.0, time=1.5),
            ],
        )
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0].startswith("Epoch[0] Batch [0-5]\tSpeed: ") and lines[0].endswith(" samples/sec\taccuracy=0.500000")
    assert lines[1].startswith("Epoch[0] Batch [5-10]\tSpeed: ") and lines[1].endswith("\taccuracy=0.750000")
    assert lines[2:] == [
        "Epoch[0] Train-accuracy=0.800000",
        "Epoch[0] Time cost=1.500",
        "Epoch[0] Validation-accuracy=0.700000",
    ]
    with pytest.raises(ValueError, match="frequent is 0"):
        speedometer(frequent=0)


@pytest.mark.parametrize("every", [0, True, "step", 2.5])
def test_checkpointing_validates_every(tmp_path, every):
    with pytest.raises(ValueError, match=r"every is .*; expected ('epoch', a number of steps|an integer of at least 1)"):
        checkpointing(tmp_path, every=every)
    with pytest.raises(ValueError, match="keep is 0"):
        checkpointing(tmp_path, keep=0)


class Terminal(io.StringIO):
    def isatty(self):
        return True


RUN = SimpleNamespace(num_epoch=2)
EPOCHS = [
    event("fit_start"),
    *(
        one
        for epoch in range(2)
        for one in (
            event("epoch_start", epoch=epoch, run=RUN),
            event("log", epoch=epoch, run=RUN, batch=4, loss=0.5, accuracy=0.9, samples_per_second=12345.0, lr=0.1),
            event("epoch_end", epoch=epoch, run=RUN, batch=10, time=1.0, loss=0.4, accuracy=0.91, samples_per_second=12345.0),
        )
    ),
    event("fit_end"),
]


def test_progress_shows_speed_eta_and_metrics_on_a_terminal():
    file = Terminal()
    play(progress(file=file), EPOCHS)
    text = file.getvalue()
    assert "epoch 0" in text and "4/20" in text and "ETA" in text
    assert "12,345 samples/s, loss 0.5, accuracy 0.9" in text
    rows = [line.rsplit("\r", 1)[-1] for line in text.split("\n")]
    assert sum("samples/s  " in row and "loss" in row for row in rows) == 1
    assert [row.split()[0] for row in rows if row.endswith("0.9100")] == ["0", "1"]
    file = Terminal()
    play(progress(file=file), [one._replace(num_batches=None) for one in EPOCHS])
    assert "4it" in file.getvalue()


def test_progress_prints_nothing_without_a_terminal_unless_forced():
    quiet, forced, table = io.StringIO(), io.StringIO(), Terminal()
    play(progress(file=quiet), EPOCHS)
    play(progress(file=forced, force=True), EPOCHS)
    play(progress(bar=False, file=table), EPOCHS)
    assert quiet.getvalue() == ""
    assert len(table.getvalue().splitlines()) == 3 and "samples/s," not in table.getvalue()
    assert "samples/s," in forced.getvalue() and all(row in forced.getvalue() for row in table.getvalue().splitlines())
