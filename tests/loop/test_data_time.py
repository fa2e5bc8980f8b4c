"""Seconds in which the devices wait for batches: the column `data_time` of the history, and the warning."""

import logging
import time

import numpy as np
import pytest

import jfit
from jfit.data.prefetch import Patience, prefetch
from jfit.loop.pace import log_waits

X = np.random.default_rng(0).normal(size=(24, 4)).astype("float32")
Y = (X.sum(1) > 0).astype("int32")


def fit(data, **options):
    net = jfit.sym.SoftmaxOutput(jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=2), name="softmax")
    return jfit.fit(net, data, num_epoch=2, batch_size=8, progress=False, **options)


def slow(epoch):
    for low in range(0, 24, 8):
        time.sleep(0.1)
        yield X[low : low + 8], Y[low : low + 8]


def test_an_epoch_of_a_stream_has_the_seconds_waited_for_its_batches():
    run = fit(slow)
    for row in run.history.epochs:
        assert row["data_time"] <= row["time"]
    assert run.history.epochs[1]["data_time"] > 0.2  # three batches, which are read one after the other
    assert "data (s)" in str(run.history)


def test_arrays_on_the_devices_have_no_such_column():
    assert "data_time" not in fit((X, Y)).history.columns()


def test_a_wait_counts_from_when_the_devices_are_idle():
    def source():
        time.sleep(0.4)
        yield 1

    started = time.monotonic()
    patience = Patience("item {}".format)
    patience.busy = lambda: time.monotonic() < started + 0.3
    with prefetch(source(), patience=patience) as stream:
        assert list(stream) == [1]
    assert 0.05 < stream.waited < time.monotonic() - started - 0.2  # without `busy` it is all of it


def test_a_wait_costs_nothing_while_the_devices_compute():
    patience = Patience(str)
    patience.busy = lambda: True
    with prefetch(iter(range(3)), transform=lambda k: time.sleep(0.02), patience=patience) as stream:
        assert len(list(stream)) == 3
    assert stream.waited == 0


@pytest.mark.parametrize(("seconds", "waited", "logged"), [(4.0, 3.0, True), (4.0, 1.0, False), (1.0, 0.9, False)])
def test_a_warning_says_that_data_are_most_of_an_epoch(caplog, seconds, waited, logged):
    with caplog.at_level(logging.WARNING, "jfit"):
        assert log_waits(2, {"time": seconds, "data_time": waited, "samples_per_second": 100.0}) is logged
    text = "epoch 2: the devices waited for data for 3.0 of 4.0 s; at 100 samples/s"
    assert [record.message.startswith(text) for record in caplog.records] == [True] * logged
    assert all("could do 400" in record.message for record in caplog.records)
