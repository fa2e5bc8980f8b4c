"""MXNet's callbacks: log lines, when they are called, and the checkpoint files."""

import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jfit
from jfit import counters
from jfit.formats.atomic import FormatError
from jfit.formats.mxnet_arrays import load_arrays, save_arrays
from jfit.formats.sparse import SparseArray
from jfit.mxnet import callback as C
from jfit.mxnet import files, metric
from jfit.mxnet.mutable import MutableArray


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.INFO)
    return lambda: [record.getMessage() for record in caplog.records]


@pytest.fixture
def clock(monkeypatch):
    """Seconds pass only where a test says so."""

    class Clock:
        now = 100.0

    monkeypatch.setattr(C.time, "time", lambda: Clock.now)
    return Clock


def run(callback, counted, batches, epoch=0, clock=None, seconds=0.5, first=0):
    for nbatch in range(first, first + batches):
        if counted is not None:
            counted.update([np.array([nbatch % 2])], [np.array([[1.0, 0.0]], "float32")])
        if clock is not None:
            clock.now += seconds
        callback(C.BatchEndParam(epoch=epoch, nbatch=nbatch, eval_metric=counted, locals=None))


def test_a_speedometer_logs_windows_and_the_first_has_one_more_batch(log, clock):
    acc = metric.create("acc")
    meter = C.Speedometer(8, frequent=2)
    run(meter, acc, 5, clock=clock)
    assert log() == [
        "Epoch[0] Batch [0-2]\tSpeed: 16.00 samples/sec\taccuracy=0.666667",
        "Epoch[0] Batch [2-4]\tSpeed: 16.00 samples/sec\taccuracy=0.500000",
    ]
    assert acc.get_global() == ("accuracy", 0.6)
    run(meter, acc, 3, epoch=1, clock=clock)  # the count went back: the clock starts anew
    assert log()[2:] == ["Epoch[1] Batch [0-2]\tSpeed: 16.00 samples/sec\taccuracy=0.666667"]


def test_without_auto_reset_a_line_reports_the_epoch_so_far(log, clock):
    run(C.Speedometer(8, 2, auto_reset=False), metric.create(["acc", "ce"]), 5, clock=clock)
    assert log()[1].startswith("Epoch[0] Batch [0-4]\tSpeed: 16.00 samples/sec\taccuracy=0.600000\tcross-entropy=")


def test_speed_is_infinite_after_no_time_and_needs_no_metric(log, clock):
    run(C.Speedometer(8, 2), None, 3, epoch=4)
    assert log() == ["Iter[4] Batch [2]\tSpeed: inf samples/sec"]


def test_training_metrics_are_logged_every_period(log):
    acc = metric.create("acc")
    run(C.log_train_metric(2, auto_reset=True), acc, 4, epoch=3)
    assert log() == ["Iter[3] Batch[0] Train-accuracy=1.000000", "Iter[3] Batch[2] Train-accuracy=0.500000"]
    assert acc.num_inst == 1


def test_between_its_lines_a_speedometer_never_waits():
    acc, meter = metric.create("acc"), C.Speedometer(8, frequent=50)
    run(meter, acc, 1)
    with counters.counted() as seen:
        run(meter, acc, 9, first=1)
    assert not seen["host_syncs"]


def test_the_progress_bar_grows_to_its_length(log):
    bar = C.ProgressBar(total=4, length=8)
    run(bar, None, 4, first=1)
    assert log() == ["[==------] 25%\r", "[====----] 50%\r", "[======--] 75%\r", "[========] 100%\r"]


def test_validation_metrics_are_logged_by_name(log):
    acc = metric.create(["acc", "ce"])
    acc.update([np.array([0])], [np.array([[1.0, 0.0]])])
    C.LogValidationMetricsCallback()(C.BatchEndParam(2, 1, acc, None))
    C.LogValidationMetricsCallback()(C.BatchEndParam(2, 1, None, None))
    assert log()[0] == "Epoch[2] Validation-accuracy=1.000000"
    assert len(log()) == 2


def test_checkpoints_are_written_every_period_with_the_number_of_epochs(tmp_path, log):
    net = jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=2, name="fc")
    save = C.do_checkpoint(str(tmp_path / "net"), period=2)
    for epoch in range(4):
        save(epoch, net, {"fc_weight": MutableArray(jnp.full((2, 2), float(epoch)))}, {"m": np.zeros(2, "float32")})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["net-0002.params", "net-0004.params", "net-symbol.json"]
    assert log() == [f'Saved checkpoint to "{tmp_path}/net-000{e}.params"' for e in (2, 4)]
    symbol, args, auxs = files.load_checkpoint(str(tmp_path / "net"), 4)
    assert symbol.tojson() == net.tojson()
    assert args["fc_weight"].tolist() == [[3.0, 3.0], [3.0, 3.0]]
    assert list(auxs) == ["m"]
    assert sorted(load_arrays(tmp_path / "net-0004.params")) == ["arg:fc_weight", "aux:m"]


def test_casts_of_mixed_precision_are_saved_only_on_request(tmp_path):
    net = jfit.sym.relu(jfit.sym.amp_cast(jfit.sym.Variable("data"), dtype="float16", name="c"), name="r")
    files.save_checkpoint(str(tmp_path / "x"), 1, net, {}, {})
    files.save_checkpoint(str(tmp_path / "y"), 1, net, {}, {}, remove_amp_cast=False)
    assert jfit.sym.load(tmp_path / "x-symbol.json").get_internals().list_outputs() == ["data", "r_output"]
    assert jfit.sym.load(tmp_path / "y-symbol.json").get_internals().list_outputs() == ["data", "c_output", "r_output"]


def test_a_module_saves_itself_every_period():
    calls = []

    class Net:
        def save_checkpoint(self, *args):
            calls.append(args)

    save = C.module_checkpoint(Net(), "net", period=0, save_optimizer_states=True)
    save(0)
    save(1, None, None, None)
    assert calls == [("net", 1, True), ("net", 2, True)]


def test_saving_waits_once_for_all_arrays(tmp_path):
    arrays = {k: jax.device_put(np.ones(3, "float32")) for k in "abc"}
    with counters.counted() as seen:
        files.save_checkpoint(str(tmp_path / "x"), 1, None, arrays, arrays)
    assert seen["host_syncs"] == 1


def test_files_of_other_names_raise_with_the_name(tmp_path):
    path = str(tmp_path / "x-0001.params")
    save_arrays(path, {"weight": np.ones(2, "float32")})
    with pytest.raises(FormatError, match=r"x-0001.params: name 'weight': Invalid param file"):
        files.load_params(str(tmp_path / "x"), 1)
    save_arrays(path, [np.ones(2, "float32")])
    with pytest.raises(FormatError, match="name '': Invalid param file"):
        files.read_params(path)


def test_an_empty_file_only_warns(tmp_path, log):
    files.save_checkpoint(str(tmp_path / "x"), 1, None, {}, {})
    assert files.load_params(str(tmp_path / "x"), 1) == ({}, {})
    assert log()[-1] == f"Params file '{tmp_path}/x-0001.params' is empty"


def test_sparse_parameters_are_read_as_dense_ones(tmp_path):
    sparse = SparseArray("row_sparse", np.ones((1, 2), "float32"), (np.array([1]),), (3, 2))
    save_arrays(tmp_path / "x-0001.params", {"arg:w": sparse})
    assert files.load_params(str(tmp_path / "x"), 1)[0]["w"].tolist() == [[0, 0], [1, 1], [0, 0]]
