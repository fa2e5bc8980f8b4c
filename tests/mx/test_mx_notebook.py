"""`mx.notebook.callback`: DataFrames and charts of a training."""

import sys

import matplotlib
import numpy as np
import pytest

import jfit.mx as mx

pandas = pytest.importorskip("pandas", reason="pip install pandas")
matplotlib.use("agg")


@pytest.fixture
def module():
    net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2, name="fc")
    return mx.mod.Module(mx.sym.SoftmaxOutput(net, name="softmax"))


def data():
    rng = np.random.RandomState(0)
    x = rng.uniform(-1, 1, (40, 3)).astype("float32")
    return mx.io.NDArrayIter(x, (x[:, 0] > 0).astype("float32"), 10)


def test_a_logger_and_a_curve_record_and_draw_the_same_training(module):
    logger = mx.notebook.callback.PandasLogger(batch_size=10, frequent=2)
    curve = mx.notebook.callback.LiveLearningCurve("accuracy", display_freq=0, frequent=2)
    module.fit(data(), data(), num_epoch=3, **mx.notebook.callback.args_wrapper(logger, curve))
    assert list(logger.train_df["minibatch_count"]) == [0, 2] * 3 and list(logger.train_df["epoch"]) == [0, 0, 1, 1, 2, 2]
    assert logger.train_df["accuracy"].between(0, 1).all() and len(logger.eval_df) == len(logger.epoch_df) == 3
    assert set(logger.train_df) == {
        "accuracy", "batches_per_sec", "records_per_sec", "elapsed", "minibatch_count", "epoch",
    }  # fmt: skip
    assert np.allclose(list(logger.train_df["records_per_sec"] / logger.train_df["batches_per_sec"]), 10)
    train, validation = curve.axes.get_lines()
    assert len(train.get_xdata()) == 6 and len(validation.get_ydata()) == 3 and curve.axes.get_ylabel() == "accuracy"


def test_a_time_series_draws_the_numbers_that_it_gets():
    chart = mx.notebook.callback.LiveTimeSeries(title="loss")
    for value in (3.0, 2.0):
        chart.update_chart_data(value)
    assert list(chart.axes.get_lines()[-1].get_ydata()) == [3, 2] and chart.axes.get_title() == "loss"


def test_what_is_missing_is_named(monkeypatch):
    chart = mx.notebook.callback.LiveBokehChart(None, "accuracy", batch_size=4)
    with pytest.raises(NotImplementedError, match="LiveBokehChart has no method update_chart_data"):
        chart.update_chart_data()
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"mx\.notebook\.callback requires pandas.*pip install pandas"):
        mx.notebook.callback.PandasLogger(4)
