"""What notebooks and loggers show of a run: plots, HTML tables, the live table of `fit`, trackers of experiments."""

import os
import stat
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest
from docs_scripts import docs_script

import jfit
from jfit.history.display import best_epoch, hyperparameters
from jfit.history.table import History

ROOT = Path(__file__).parents[2]
ODD = '<b>"x"&y'  # a name that HTML must escape


class Table:
    """The texts of the cells of HTML, by row, and the numbers of its bold rows; raises if a tag is not closed."""

    def __init__(self, text):
        rows = list(ElementTree.fromstring(f"<html>{text}</html>").iter("tr"))
        self.rows = [["".join(cell.itertext()) for cell in row] for row in rows]
        self.bold = [number for number, row in enumerate(rows) if row.get("style") == "font-weight: bold"]


def net(name="fc"):
    fc = jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=2, name=name)
    return jfit.sym.SoftmaxOutput(fc, name="softmax")


@pytest.fixture(scope="module")
def run():
    x = np.eye(2, dtype="float32").repeat(8, axis=0)
    settings = {"num_epoch": 3, "batch_size": 8, "progress": False, "optimizer_params": {"learning_rate": 0.5}}
    return jfit.fit(net(), (x, x.argmax(1)), eval_data=(x, x.argmax(1)), schedule="cosine", **settings)


# ------------------------------------------------------------------------------------------------ plots
def rows(**columns):
    epochs = zip(*columns.values(), strict=True)
    return History([{"epoch": i, **dict(zip(columns, values, strict=True))} for i, values in enumerate(epochs)])


@pytest.mark.slow
def test_metrics_with_best_value_one_share_their_axes_and_a_learning_rate_that_changes_has_axes(tmp_path):
    history = rows(
        loss=[2, 1.0], accuracy=[0.5, 0.6], mse=[40.0, 30], f1=[0.1, 0.2], val_f1=[0.2, 0.3], val_loss=[1, 2.0], lr=[0.1, 0.05]
    )
    figure = history.plot(tmp_path / "a.png")
    assert [axis.get_title() for axis in figure.axes] == ["loss", "metrics", "mse", "learning rate"]
    labels = [[line.get_label() for line in axis.lines] for axis in figure.axes[:3]]
    assert labels == [["train", "validation"], ["accuracy (train)", "f1 (train)", "f1 (validation)"], ["train"]]
    one, f1 = figure.axes[1].lines[1:]
    assert one.get_color() == f1.get_color() and one.get_linestyle() == "--" and f1.get_linestyle() == "-"
    np.testing.assert_array_equal(figure.axes[3].lines[0].get_ydata(), [0.1, 0.05])
    constant = rows(loss=[2, 1.0], a_loss=[1, 0.5], lr=[0.1, 0.1]).plot(tmp_path / "a.png")
    assert [axis.get_title() for axis in constant.axes] == ["loss"]
    assert [line.get_label() for line in constant.axes[0].lines] == ["loss (train)", "a_loss (train)"]


@pytest.mark.slow
def test_a_script_gets_a_figure_of_pyplot_and_a_plot_to_a_file_leaves_pyplot_alone(run, tmp_path):
    from matplotlib import pyplot

    pyplot.close("all")
    figure = run.plot()
    assert pyplot.get_fignums() == [figure.number]
    # Outside the inline backend of notebooks, displaying a figure closes nothing.
    with pytest.raises(NotImplementedError):
        figure._ipython_display_()
    assert pyplot.get_fignums() == [figure.number]
    pyplot.close(figure)
    run.plot(tmp_path / "a.png")
    assert pyplot.get_fignums() == []


# ------------------------------------------------------------------------------------------------ HTML
def test_a_run_shows_its_settings_the_last_and_the_best_epoch(run):
    text = run._repr_html_()
    cells = dict(row for row in Table(text).rows if len(row) == 2)
    last, best = run.history.epochs[-1], int(np.argmin(run.history.column("val_loss")))
    assert cells["batch size"] == "8" and cells["parameters"] == "6" and cells["optimizer"] == "sgd"
    assert cells["devices"] == "1 cpu" and cells["metrics"] == "accuracy"
    assert f"loss {last['loss']:.4g}" in cells["last epoch"] and "time" not in cells["last epoch"]
    assert cells["best epoch"] == f"{best} (val_loss {last['val_loss']:.4g})"
    assert len(repr(run)) < 200 and "\n" not in repr(run)


def test_a_history_marks_its_best_epoch_and_leaves_out_the_middle_of_a_long_run():
    history = rows(loss=[0.5, 0.4, 0.6])
    table = Table(history._repr_html_())
    assert table.rows[0] == ["epoch", "loss"] and table.bold == [2]
    long = Table(rows(loss=[1.0] * 50 + [0.5] + [1.0] * 49)._repr_html_())
    epochs = [row[0] for row in long.rows[1:]]
    assert (
        epochs[:20] == [str(i) for i in range(20)]
        and epochs[20] == "... 40 more"
        and epochs[21:] == list(map(str, range(60, 100)))
    )
    assert long.bold == []  # the best epoch is among those that are left out
    near = Table(rows(loss=[1.0] * 99 + [0.5])._repr_html_())
    assert near.bold == [61] and near.rows[61] == ["99", "0.5000"]


def test_the_best_epoch_has_the_lowest_validation_loss_or_the_best_metric():
    assert best_epoch(rows(loss=[3, 2.0], val_loss=[1, 2.0])) == (0, "0 (val_loss 1)")
    assert best_epoch(rows(accuracy=[0.1, 0.9])) == (1, "1 (accuracy 0.9)")
    assert best_epoch(rows(mse=[0.1, 0.9])) == (0, "0 (mse 0.1)")
    assert best_epoch(rows(loss=[float("nan"), 2.0, 3])) == (1, "1 (loss 2)")
    assert best_epoch(rows(loss=[float("nan")])) is best_epoch(History()) is None


def test_html_escapes_names(monkeypatch):
    monkeypatch.setenv("PATH", "")
    symbol = net(ODD)
    run = SimpleNamespace(history=rows(**{ODD: [1.0, 2.0]}))
    for text in (symbol._repr_html_(), jfit.lower(symbol)._repr_html_(), run.history._repr_html_()):
        assert ODD not in text and Table(text)
    model = jfit.lower(symbol)._replace(inputs=(ODD,), labels=(ODD,))
    assert ODD not in model._repr_html_() and ODD in repr(model)


def test_a_model_shows_inputs_labels_and_outputs_with_their_kinds():
    model = jfit.lower(net())
    assert Table(model._repr_html_()).rows == [
        ["input", "data", ""],
        ["label", "softmax_label", ""],
        ["output", "softmax_output", "head, label softmax_label"],
    ]
    assert repr(model) == "<Model: data -> softmax_output>"
    later = jfit.Model.from_function(lambda params, x: {"a": x * params}, loss=lambda out, batch: out["a"], params=np.ones(2))
    assert repr(later) == "<Model: x -> ...>" and Table(later._repr_html_()).rows[0] == ["input", "x", ""]


def test_a_symbol_without_graphviz_is_a_table_of_its_nodes(monkeypatch):
    monkeypatch.setenv("PATH", "")  # no program `dot`
    expected = [
        ["node", "operator", "attributes", "inputs"],
        ["data", "variable", "", ""],
        ["fc", "FullyConnected", "num_hidden=2", "data"],
        ["softmax_label", "variable", "", ""],
        ["softmax", "SoftmaxOutput", "", "fc, softmax_label"],
    ]
    assert Table(net()._repr_html_()).rows == expected
    monkeypatch.setitem(sys.modules, "graphviz", None)  # no package
    assert Table(net()._repr_html_()).rows == expected


def test_a_symbol_is_a_picture_where_graphviz_works_and_a_table_where_it_fails(monkeypatch, tmp_path):
    pytest.importorskip("graphviz")
    dot = tmp_path / "dot"
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    dot.write_text("#!/bin/sh\ncat > /dev/null\necho '<?xml?><!DOCTYPE svg><svg>the graph</svg>'\n")
    dot.chmod(dot.stat().st_mode | stat.S_IXUSR)
    assert net()._repr_html_().split("</p>")[1].strip() == "<svg>the graph</svg>"
    dot.write_text("#!/bin/sh\nexit 1\n")
    assert "<td>fc</td>" in net()._repr_html_()


# ------------------------------------------------------------------------------------------------ the live table
class Notebook:
    """A stand-in for IPython in a kernel: records what is displayed, and how often."""

    def __init__(self, monkeypatch):
        self.shown, self.handles, self.time = [], 0, 0.0
        shell = type("Shell", (type("ZMQInteractiveShell", (), {}),), {})()  # Colab's shell is a subclass
        ipython = ModuleType("IPython")
        vars(ipython).update(get_ipython=lambda: shell, display=ModuleType("IPython.display"))
        vars(ipython.display).update(display=self.display)
        monkeypatch.setitem(sys.modules, "IPython", ipython)
        monkeypatch.setitem(sys.modules, "IPython.display", ipython.display)
        monkeypatch.setattr("jfit.callbacks.live.time", SimpleNamespace(monotonic=lambda: self.time))

    def display(self, data, *, raw, display_id):
        assert raw and display_id
        self.handles += 1
        self.update(data, raw=True)
        return self

    def update(self, data, *, raw):
        assert raw and set(data) == {"text/html", "text/plain"}
        self.shown.append((self.time, data["text/html"], data["text/plain"]))

    def play(self, callback, events, seconds=1.0):
        state = callback.init()
        for one in events:
            if one.kind in callback.events:
                state = callback.on(one, state)
            self.time += seconds


def events_of(epochs, log=(5,), size=10, **values):
    run = SimpleNamespace(num_epoch=epochs, settings=SimpleNamespace(metric_choice="metric: acc, because <classes>"))

    def event(kind, epoch=0, batch=0, **logs):
        return jfit.callbacks.Event(kind, epoch, 10 * epoch + batch, batch, size, logs, run)

    yield event("fit_start")
    for epoch in range(epochs):
        yield event("epoch_start", epoch)
        for batch in log:
            yield event("log", epoch, batch, loss=0.5, samples_per_second=1234.0, **values)
        yield event("epoch_end", epoch, 10, loss=0.4, time=1.0, samples_per_second=1234.0, val_loss=0.6, **values)
    yield event("fit_end", epochs)


def test_a_notebook_has_one_output_with_a_row_per_epoch_and_the_progress_of_the_epoch(monkeypatch, capsys):
    notebook = Notebook(monkeypatch)
    notebook.play(jfit.callbacks.progress(), events_of(3, **{ODD: 0.25}))
    assert notebook.handles == 1 and len(notebook.shown) == 3 * 3 + 1
    htmls = [text for _, text, _ in notebook.shown]
    assert [len(Table(text).rows) for text in htmls] == [0, 0, 2, 2, 2, 3, 3, 3, 4, 4]
    assert 'value="5" max="10"' in htmls[1] and "epoch 0, batch 5 of 10, ETA 0:05, 1,234 samples/s, loss 0.5" in htmls[1]
    assert 'value="0" max="10"' in htmls[3] and "epoch 1, batch 0 of 10" in htmls[3]
    assert "<progress" not in htmls[-1] and "stopped" not in htmls[-1] and "because &lt;classes&gt;" in htmls[-1]
    assert not any(ODD in text for text in htmls) and ODD in notebook.shown[-1][2]
    assert capsys.readouterr().out == ""


def test_a_notebook_gets_at_most_ten_updates_per_second_and_always_the_last(monkeypatch):
    notebook = Notebook(monkeypatch)
    notebook.play(jfit.callbacks.progress(), events_of(300, log=()), seconds=0.003)
    times = [at for at, *_ in notebook.shown]
    assert 15 < len(times) < 20 and min(np.diff(times[:-1])) >= 0.1 and "... 240 more" in notebook.shown[-1][1]
    assert "299" in notebook.shown[-1][2].splitlines()[-1]


def test_the_live_table_shows_where_training_stopped_and_batches_of_unknown_number(monkeypatch):
    notebook = Notebook(monkeypatch)
    events = [one._replace(num_batches=None) for one in events_of(1)]
    notebook.play(jfit.callbacks.progress(), [*events[:3], events[-1]._replace(epoch=0, batch=5)])
    assert "<progress></progress> epoch 0, batch 5, 1,234 samples/s" in notebook.shown[1][1]
    assert "stopped in epoch 0 after batch 5<" in notebook.shown[-1][1]
    notebook.play(jfit.callbacks.progress(bar=False), events_of(1))
    assert notebook.handles == 2 and "progress" not in notebook.shown[-1][1]


def test_the_live_table_waits_for_no_device(monkeypatch):
    def waits(**settings):
        with jfit.counters.counted() as counts:
            train([], **settings)
        return counts["host_syncs"]

    train([])  # compiles
    expected = waits()
    Notebook(monkeypatch)
    assert waits(progress="auto") == expected > 0


# ------------------------------------------------------------------------------------------------ trackers
class Recorder(ModuleType):
    """A stand-in for a package: records every call, as (path, args, kwargs), and returns objects that do the same."""

    def __init__(self, name, calls, **attributes):
        super().__init__(name)
        self.calls = calls
        vars(self).update(attributes)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*args, **kwargs):
            self.calls.append((f"{self.__name__}.{name}", args, kwargs))
            return self.results[name] if name in vars(self).get("results", {}) else None

        return call


def tensorboard_calls(monkeypatch):
    calls = []
    writer = Recorder("writer", calls)
    monkeypatch.setitem(sys.modules, "tensorboardX", Recorder("tensorboardX", calls, results={"SummaryWriter": writer}))
    return calls


def wandb_calls(monkeypatch, active=False):
    calls = []
    session = Recorder("run", calls, id="w1", config=Recorder("config", calls))
    package = Recorder("wandb", calls, run=session if active else None, results={"init": session})
    monkeypatch.setitem(sys.modules, "wandb", package)
    return calls


def mlflow_calls(monkeypatch, active=False):
    calls = []
    session = SimpleNamespace(info=SimpleNamespace(run_id="m1"))
    results = {"start_run": session, "active_run": session if active else None}
    monkeypatch.setitem(sys.modules, "mlflow", Recorder("mlflow", calls, results=results))
    return calls


def train(callbacks, **settings):
    x = np.eye(2, dtype="float32").repeat(8, axis=0)
    return jfit.fit(
        net(), (x, x.argmax(1)), **{"num_epoch": 2, "batch_size": 8, "progress": False, "callbacks": callbacks, **settings}
    )


def scalars_of(row):
    return {name: value for name, value in row.items() if name not in ("epoch", "step")}


def settings(run):
    return hyperparameters(run) | {"learning_rate": 0.01}


def test_tensorboard_gets_settings_once_then_each_value_with_its_step(monkeypatch, tmp_path):
    calls = tensorboard_calls(monkeypatch)
    run = train([jfit.callbacks.tensorboard(tmp_path)])
    text = "\n".join(["| setting | value |", "| --- | --- |", *(f"| {k} | {v} |" for k, v in settings(run).items())])
    assert calls[0] == ("tensorboardX.SummaryWriter", (), {"logdir": str(tmp_path), "purge_step": 0})
    assert calls[1][0] == "writer.add_text" and set(calls[1][1][1].split("\n")) == set(text.split("\n"))
    expected = []
    for row in run.history.epochs:
        expected += [("writer.add_scalar", (name, value, row["step"]), {}) for name, value in scalars_of(row).items()]
        expected += [("writer.flush", (), {})]
    assert calls[2:] == [*expected, ("writer.close", (), {})]


def test_wandb_starts_a_run_logs_and_finishes_it(monkeypatch):
    calls = wandb_calls(monkeypatch)
    run = train([jfit.callbacks.wandb(project="p", config={"seed": 3})])
    logged = [("run.log", ({"epoch": row["epoch"], **scalars_of(row)},), {"step": row["step"]}) for row in run.history.epochs]
    start = ("wandb.init", (), {"project": "p", "config": {**settings(run), "seed": 3}})
    assert calls == [start, *logged, ("run.finish", (), {"exit_code": 0})]


def test_mlflow_starts_a_run_logs_and_ends_it(monkeypatch):
    calls = mlflow_calls(monkeypatch)
    run = train([jfit.callbacks.mlflow(run_name="r")])
    logged = [("mlflow.log_metrics", (scalars_of(row),), {"step": row["step"]}) for row in run.history.epochs]
    start = [
        ("mlflow.active_run", (), {}),
        ("mlflow.start_run", (), {"run_name": "r"}),
        ("mlflow.log_params", (settings(run),), {}),
    ]
    assert calls == [*start, *logged, ("mlflow.end_run", (), {"status": "FINISHED"})]


def test_an_active_run_of_the_tracker_is_used_and_stays_open(monkeypatch):
    calls = wandb_calls(monkeypatch, active=True)
    run = train([jfit.callbacks.wandb()])
    assert calls[0] == ("config.update", (settings(run),), {"allow_val_change": True})
    assert {name for name, *_ in calls[1:]} == {"run.log"}
    calls = mlflow_calls(monkeypatch, active=True)
    run = train([jfit.callbacks.mlflow()])
    assert {name for name, *_ in calls} == {"mlflow.active_run", "mlflow.log_params", "mlflow.log_metrics"}
    calls.clear()
    run.train(1)  # MLflow would raise, because the number of epochs has changed
    assert {name for name, *_ in calls} == {"mlflow.active_run", "mlflow.log_metrics"}


def test_an_exception_closes_the_trackers_as_failed(monkeypatch, tmp_path):
    board, w, m = tensorboard_calls(monkeypatch), wandb_calls(monkeypatch), mlflow_calls(monkeypatch)

    def fail(event):
        raise RuntimeError("mine")

    trackers = [jfit.callbacks.tensorboard(tmp_path), jfit.callbacks.wandb(), jfit.callbacks.mlflow()]
    with pytest.raises(RuntimeError, match="mine"):
        train([*trackers, fail])
    assert board[-1][0] == "writer.close"
    assert w[-1] == ("run.finish", (), {"exit_code": 1}) and m[-1] == ("mlflow.end_run", (), {"status": "FAILED"})
    try:
        raise ValueError("an earlier one")
    except ValueError:
        train(trackers)  # training succeeds while another exception is being handled
    assert w[-1] == ("run.finish", (), {"exit_code": 0}) and m[-1] == ("mlflow.end_run", (), {"status": "FINISHED"})


def test_a_resumed_run_continues_the_run_of_the_tracker(monkeypatch, tmp_path):
    board, w, m = tensorboard_calls(monkeypatch), wandb_calls(monkeypatch), mlflow_calls(monkeypatch)

    def trackers():
        return [
            jfit.callbacks.tensorboard(tmp_path / "t"),
            jfit.callbacks.wandb(project="p"),
            jfit.callbacks.mlflow(run_name="r"),
        ]

    train(trackers(), checkpoint=tmp_path / "c", num_epoch=1)
    board.clear(), w.clear(), m.clear()
    run = train(trackers(), checkpoint=tmp_path / "c", resume=True)
    assert board[0][2]["purge_step"] == 3  # after the step of the checkpoint
    assert w[0][2] == {"project": "p", "id": "w1", "resume": "allow", "config": settings(run)}
    assert m[1:3] == [("mlflow.start_run", (), {"run_id": "m1"}), ("mlflow.log_metrics", m[2][1], {"step": 4})]


@pytest.mark.parametrize(("tracker", "package"), [("tensorboard", "tensorboardX"), ("wandb", "wandb"), ("mlflow", "mlflow")])
def test_a_tracker_that_is_not_installed_raises_with_the_command_to_install_it(monkeypatch, tracker, package):
    monkeypatch.setitem(sys.modules, package, None)
    callback = getattr(jfit.callbacks, tracker)(**({"directory": "runs"} if tracker == "tensorboard" else {}))
    message = f"callbacks.{tracker} needs the package {package}: pip install {package}"
    with pytest.raises(ImportError, match=message):
        train([callback])


# ------------------------------------------------------------------------------------------------ type checkers
def test_the_stub_of_sym_is_up_to_date():
    text = (ROOT / "jfit" / "sym" / "__init__.pyi").read_text(encoding="utf-8")
    assert text == docs_script("sym_stub").stub(), "run: python docs/sym_stub.py > jfit/sym/__init__.pyi"
    assert (ROOT / "jfit" / "py.typed").exists()


# ------------------------------------------------------------------------------------------------ in a real kernel
SETUP = """
import jfit, numpy as np
from jfit.history.table import History
from IPython.display import display
history = History([{"epoch": i, "loss": 1.0 / (i + 1)} for i in range(3)])
"""
FIT = """
net = jfit.sym.SoftmaxOutput(jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=2), name="softmax")
x = np.eye(2, dtype="float32").repeat(8, axis=0)
run = jfit.fit(net, (x, x.argmax(1)), eval_data=(x, x.argmax(1)), num_epoch=4)
"""


@pytest.mark.slow
def test_a_notebook_shows_a_plot_once_each_time_it_should_and_one_table_of_fit_that_was_updated_in_place(tmp_path, monkeypatch):
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    monkeypatch.delenv("MPLBACKEND", raising=False)  # the kernel selects its inline backend
    plots = [
        ("history.plot()", 1),
        ("history.plot();", 1),
        ("figure = history.plot()", 1),
        ("figure", 1),
        ("figure = history.plot()\nfigure", 1),
        ("history.plot()\nhistory.plot()", 2),
        ("from matplotlib import pyplot\npyplot.figure().subplots()\nfigure", 2),
        ("display(history.plot())\n1", 1),
        ("axes = pyplot.subplots(1, 1)[1]\nhistory.plot(axes=axes)", 1),
        ("jfit.tools.lr_find.RateRange([0.1, 1.0, 10.0], [2.0, 1.0, 3.0]).plot()", 1),
    ]
    cells = [nbformat.v4.new_code_cell(cell) for cell in (SETUP, FIT, "run", *(cell for cell, _ in plots))]
    notebook = nbformat.v4.new_notebook(cells=cells)
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    _, first, second, *results = (cell.outputs for cell in notebook.cells)
    pictures = [sum("image/png" in output.get("data", {}) for output in outputs) for outputs in results]
    assert pictures == [count for _, count in plots]
    assert [output["output_type"] for output in first] == ["display_data"]
    rows = Table(first[0]["data"]["text/html"]).rows
    assert [row[0] for row in rows] == ["epoch", "0", "1", "2", "3"] and rows[0][-1] == "val_accuracy"
    assert [output["output_type"] for output in second] == ["execute_result"]
    assert ["num epoch", "4"] in Table(second[0]["data"]["text/html"]).rows
