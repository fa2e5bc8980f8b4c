"""The training history: append-only tables, text output, JSON and CSV files, plots."""

import math
import sys

import jax.numpy as jnp
import numpy as np
import pytest

from jfit.history.table import History


@pytest.fixture
def history():
    found = History()
    for epoch in range(3):
        found.add("points", epoch=epoch, batch=5, step=10 * epoch + 5, loss=2.0)
        found.add(
            "epochs",
            epoch=epoch,
            step=10 * (epoch + 1),
            val_loss=1.5 - epoch / 4,
            accuracy=0.5 + epoch / 10,
            loss=1.0 / (epoch + 1),
            samples_per_second=12345.6,
            time=1.234,
            lr=0.01,
            val_accuracy=0.4,
        )
    return found


def test_columns_have_a_fixed_order(history):
    expected = ["epoch", "step", "time", "samples_per_second", "lr", "loss", "accuracy", "val_loss", "val_accuracy"]
    assert history.columns() == expected
    assert history.columns("points") == ["epoch", "batch", "step", "loss"]


def test_rows_are_append_only(history):
    history.epochs[0]["loss"] = 7
    history.epochs.clear()
    assert history.column("loss") == [1.0, 0.5, 1 / 3] and len(history) == 3


def test_array_scalars_become_python_numbers(history):
    history.add("epochs", epoch=np.int64(3), loss=jnp.float32(0.25))
    assert type(history.column("loss")[-1]) is float and type(history.column("epoch")[-1]) is int
    assert history.column("val_loss")[-1] is None


def test_unknown_columns_and_tables_raise(history):
    with pytest.raises(KeyError, match="no column 'acc' in epochs; its columns are epoch, step"):
        history.column("acc")
    with pytest.raises(ValueError, match="table is 'batches'; expected one of 'epochs', 'points', 'steps'"):
        history.columns("batches")


def test_json_round_trips_both_tables_with_infinities(history):
    history.add("epochs", epoch=3, loss=math.inf, accuracy=-math.inf)
    assert History.from_json(history.to_json()) == history
    history.add("epochs", epoch=4, loss=math.nan)
    assert math.isnan(History.from_json(history.to_json()).column("loss")[-1])


def test_histories_with_other_log_points_differ(history):
    assert history == History(history.epochs, history.points) != History(history.epochs, history.points[1:])


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"epochs": 3, "points": []}', '{"epochs": [3], "points": []}'])
def test_other_json_raises(text):
    with pytest.raises(ValueError, match=r"the text is not a history .*expected the JSON object that History.to_json returns"):
        History.from_json(text)


def test_csv_has_a_header_and_one_line_per_row(history, tmp_path):
    lines = history.to_csv(tmp_path / "runs" / "history.csv").read_text().splitlines()
    assert lines[0].startswith("epoch,step,time") and len(lines) == 4
    assert history.to_csv(tmp_path / "points.csv", "points").read_text().splitlines()[1] == "0,5,5,2.0"


def test_the_table_is_aligned_and_streams_line_by_line(history):
    lines = history.table().splitlines()
    assert lines == [history.header(), *(history.row(i) for i in range(3))]
    assert len({len(line) for line in lines}) == 1
    assert "samples/s" in lines[0] and "12,346" in lines[1] and "step" not in lines[0]
    history.add("epochs", epoch=3, loss=1e-9)
    assert "1.00e-09" in history.row() and " -" in history.row()
    assert str(History()) == "(no epochs yet)" and repr(history) == "History(4 epochs, 3 log points)"


def test_plot_draws_into_existing_axes_or_raises_for_missing_columns(history, tmp_path):
    figures = pytest.importorskip("matplotlib.figure")
    axes = figures.Figure().subplots(1, 2)
    assert history.plot(axes=axes) is axes[0].figure and len(axes[1].lines) == 2
    history.plot(tmp_path / "curves.svg")
    assert "<svg" in (tmp_path / "curves.svg").read_text()
    with pytest.raises(ValueError, match="got 1 axes, but draws 2 plots"):
        history.plot(axes=axes[0])
    with pytest.raises(ValueError, match="nothing to plot"):
        History().plot(tmp_path / "a.png")


def test_frames_need_pandas(history, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="to_frame needs pandas; install it"):
        history.to_frame()
