"""`mx.notebook.callback`: metrics of a training as pandas tables, and charts that are drawn while a network trains."""

from __future__ import annotations

import datetime
import importlib
import math
import time
from typing import Any

from jfit.callbacks.live import in_notebook
from jfit.history.plots import new_axes
from jfit.lazy import optional


class PandasLogger:
    """Log a training in pandas DataFrames, with the callbacks that `callback_args` returns.

    Rows of `train_df` and `eval_df` have the metrics, `elapsed` (a timedelta), `minibatch_count`, `epoch`, `batches_per_sec`
    and `records_per_sec`; rows of `epoch_df` have `elapsed` and `epoch_time`.  A metric is reset when it is logged, so that a
    row is the mean since the row before.

    Args:
        batch_size: rows of a batch, for `records_per_sec`.
        frequent: number of batches between two rows of `train_df`.

    Attributes:
        all_dataframes: {"train": train_df, "eval": eval_df, "epoch": epoch_df}.

    Raises:
        ImportError: pandas is not installed.

    Example:
        >>> logger = PandasLogger(batch_size=32, frequent=10)
        >>> sorted(logger.callback_args())
        ['batch_end_callback', 'epoch_end_callback', 'eval_end_callback']
    """

    def __init__(self, batch_size: int, frequent: int = 50) -> None:
        pandas = optional("pandas", "mx.notebook.callback requires pandas, which is not installed; pip install pandas")
        self.batch_size, self.frequent = batch_size, frequent
        self.all_dataframes = {name: pandas.DataFrame() for name in ("train", "eval", "epoch")}
        self.train_df, self.eval_df, self.epoch_df = self.all_dataframes.values()
        self.start_time = self.last_time = self.last_epoch_time = datetime.datetime.now()

    def elapsed(self) -> datetime.timedelta:
        """Return the time since this logger was made."""
        return datetime.datetime.now() - self.start_time

    def append_metrics(self, metrics: dict[str, Any], df_name: str) -> None:
        """Append a row to the DataFrame "train", "eval" or "epoch"; new names become columns."""
        frame = self.all_dataframes[df_name]
        for name in metrics.keys() - set(frame.columns):
            frame[name] = None
        frame.loc[len(frame)] = metrics

    def train_cb(self, param: Any) -> None:
        """Log a batch, as a batch callback."""
        if param.nbatch % self.frequent == 0:
            self._log(param, "train")

    def eval_cb(self, param: Any) -> None:
        """Log the metrics of a validation, as a callback at its end."""
        self._log(param, "eval")

    def epoch_cb(self, *args: Any) -> None:
        """Log the time of an epoch, as an epoch callback, whose arguments are not used."""
        now = datetime.datetime.now()
        self.append_metrics({"elapsed": self.elapsed(), "epoch_time": now - self.last_epoch_time}, "epoch")
        self.last_epoch_time = now

    def _log(self, param: Any, df_name: str) -> None:
        metric, metrics, now = param.eval_metric, dict[str, Any](), datetime.datetime.now()
        if metric is not None:
            metrics |= metric.get_name_value()
            metric.reset()
        speed = self.frequent / ((now - self.last_time).total_seconds() or math.nan)
        metrics |= {"batches_per_sec": speed, "records_per_sec": speed * self.batch_size, "elapsed": self.elapsed()}
        self.append_metrics(metrics | {"minibatch_count": param.nbatch, "epoch": param.epoch}, df_name)
        self.last_time = now

    def callback_args(self) -> dict[str, Any]:
        """Return the arguments of `fit` with all callbacks: `module.fit(data, **logger.callback_args())`."""
        own = {"batch_end_callback": self.train_cb, "eval_end_callback": self.eval_cb}
        return own | {"epoch_end_callback": self.epoch_cb}


class LiveBokehChart:
    """Base of charts that are drawn while a network trains; in notebooks the figure is updated in place.

    They are drawn with matplotlib: bokeh is not used.  A derived class defines `update_chart_data`, which draws into `axes`.

    Args:
        pandas_logger: the `PandasLogger` that has the data; None: a new one, which logs what the callbacks of the chart get.
        metric_name: metric to draw.
        display_freq: seconds between two updates.
        batch_size, frequent: arguments of the new logger.

    Attributes:
        fig: the matplotlib figure.
        axes: its axes.

    Example:
        >>> class Rows(LiveBokehChart):
        ...     def update_chart_data(self):
        ...         self.axes.plot(self.pandas_logger.train_df["elapsed"])
    """

    def __init__(
        self, pandas_logger: Any, metric_name: str, display_freq: float = 10, batch_size: int = 1, frequent: int = 50
    ) -> None:
        self.pandas_logger, self._logs = pandas_logger or PandasLogger(batch_size, frequent), pandas_logger is None
        self.metric_name, self.display_freq, self.last_update = metric_name, display_freq, time.time()
        self.fig, (self.axes,) = new_axes(type(self).__name__, 1, None, None)
        self.handle = self.setup_chart()

    def setup_chart(self) -> Any:
        """Display the figure, and return the handle by which a notebook updates it."""
        return importlib.import_module("IPython.display").display(self.fig, display_id=True) if in_notebook() else None

    def update_chart_data(self) -> None:
        """Draw the data."""
        raise NotImplementedError(f"{type(self).__name__} has no method update_chart_data, which draws into self.axes.")

    def interval_elapsed(self) -> bool:
        """Return whether the last update was more than `display_freq` seconds ago."""
        return time.time() - self.last_update > self.display_freq

    def _push_render(self) -> None:
        self.fig.canvas.draw_idle()
        if self.handle is not None:
            self.handle.update(self.fig)
        self.last_update = time.time()

    def _do_update(self) -> None:
        self.update_chart_data()
        self._push_render()

    def batch_cb(self, param: Any) -> None:
        """Update the chart if it is time, as a batch callback."""
        if self._logs:
            self.pandas_logger.train_cb(param)
        if self.interval_elapsed():
            self._do_update()

    def eval_cb(self, param: Any) -> None:
        """Update the chart, as a callback at the end of a validation."""
        if self._logs:
            self.pandas_logger.eval_cb(param)
        self._do_update()

    def callback_args(self) -> dict[str, Any]:
        """Return the arguments of `fit` with all callbacks."""
        return {"batch_end_callback": self.batch_cb, "eval_end_callback": self.eval_cb}


class LiveTimeSeries(LiveBokehChart):
    """A chart of one number over time, see `LiveBokehChart`.

    Args:
        fig_params: properties of the axes, as of matplotlib's `Axes.set`, such as title.

    Example:
        >>> chart = LiveTimeSeries(title="loss")  # doctest: +SKIP
        >>> chart.update_chart_data(0.5)  # doctest: +SKIP
    """

    def __init__(self, **fig_params: Any) -> None:
        super().__init__(None, "")
        self._points: list[tuple[float, float]] = []
        self.axes.set(xlabel="elapsed seconds", **fig_params)

    def update_chart_data(self, value: float) -> None:
        """Add a number, and draw it."""
        self._points.append((self.pandas_logger.elapsed().total_seconds(), value))
        for line in [*self.axes.lines]:
            line.remove()
        self.axes.plot(*zip(*self._points, strict=True), "C0-")
        self._push_render()


class LiveLearningCurve(LiveBokehChart):
    """A chart of a metric over time, in training and in validation, see `LiveBokehChart`.

    Args:
        metric_name: name of the metric, such as "accuracy".
        display_freq: seconds between two updates.
        frequent: number of batches between two points of the training.

    Example:
        >>> curve = LiveLearningCurve("accuracy")  # doctest: +SKIP
        >>> module.fit(data, eval_data, num_epoch=5, **curve.callback_args())  # doctest: +SKIP
    """

    def __init__(self, metric_name: str, display_freq: float = 10, frequent: int = 50) -> None:
        super().__init__(None, metric_name, display_freq, frequent=frequent)

    def update_chart_data(self) -> None:
        """Draw the metric, dotted for the training."""
        self.axes.clear()
        self.axes.set(xlabel="training seconds", ylabel=self.metric_name)
        data = self.pandas_logger
        for label, frame, style in (("train", data.train_df, "C0:"), ("validation", data.eval_df, "C2-")):
            if self.metric_name in frame:
                seconds = [elapsed.total_seconds() for elapsed in frame["elapsed"]]
                self.axes.plot(seconds, list(frame[self.metric_name]), style, marker=".", label=label)
        if self.axes.lines:
            self.axes.legend()


def args_wrapper(*args: Any) -> dict[str, list[Any]]:
    """Return the arguments of `fit` with the callbacks of several objects.

    Args:
        args: objects with a method `callback_args`.

    Returns:
        Lists of callbacks by name of the argument.

    Example:
        >>> sorted(args_wrapper(PandasLogger(32), PandasLogger(32)))
        ['batch_end_callback', 'epoch_end_callback', 'eval_end_callback']
    """
    lists: dict[str, list[Any]] = {}
    for name, callback in (pair for callbacks in args for pair in callbacks.callback_args().items()):
        lists.setdefault(name, []).append(callback)
    return lists
