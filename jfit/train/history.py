"""What a run recorded: one row an epoch, one row a log point, as numbers, text, files and curves."""

import csv
import html
import io
import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jfit.formats.atomic import atomic_write

# Leading columns in reading order; metrics follow as they came, validation last.
_FIRST = ("epoch", "batch", "step", "time", "samples_per_second", "lr", "loss")
_TITLES = {"samples_per_second": "samples/s", "time": "time (s)"}
_WIDTH = 10

Row = dict[str, Any]


class History:
    """Two append-only tables of a run: `.epochs` (a row an epoch) and `.points` (a row a log point).

    Args:
      epochs: rows to begin with.
      points: rows to begin with; each has the batch within the epoch.

    Example:
      >>> history = History()
      >>> history.add_epoch(epoch=0, step=10, loss=0.5, accuracy=0.8, val_loss=0.6)
      >>> history.column("loss")
      [0.5]
    """

    def __init__(self, epochs: Iterable[Row] = (), points: Iterable[Row] = ()):
        self._epochs: list[Row] = [dict(row) for row in epochs]
        self._points: list[Row] = [dict(row) for row in points]

    @property
    def epochs(self) -> list[Row]:
        """The rows of the epoch table, oldest first (a new list of copies: the table itself only grows)."""
        return [dict(row) for row in self._epochs]

    @property
    def points(self) -> list[Row]:
        """The rows of the log-point table, oldest first (a new list of copies: the table itself only grows)."""
        return [dict(row) for row in self._points]

    def add_epoch(self, **values: Any) -> None:
        """Appends a row to the epoch table.

        Args:
          **values: column -> number, or an array (kept as lists, shown by `column` and in JSON only). Give values that were
            already read.

        Example:
          >>> history = History()
          >>> history.add_epoch(epoch=0, loss=1.0)
          >>> len(history)
          1
        """
        self._epochs.append({name: number(value) for name, value in values.items()})

    def add_point(self, **values: Any) -> None:
        """Appends a row to the log-point table.

        Args:
          **values: column -> number, `epoch` and `batch` among them.

        Example:
          >>> history = History()
          >>> history.add_point(epoch=0, batch=5, loss=1.0)
          >>> history.column("batch", "points")
          [5]
        """
        self._points.append({name: number(value) for name, value in values.items()})

    def __len__(self) -> int:
        return len(self._epochs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, History) and (self._epochs, self._points) == (other._epochs, other._points)

    __hash__ = None  # type: ignore[assignment]

    def columns(self, table: str = "epochs") -> list[str]:
        """Names of all columns, in reading order.

        Args:
          table: "epochs" or "points".

        Returns:
          epoch, step, time, ... first, then metrics, then val_ values.

        Example:
          >>> History([{"val_loss": 2.0, "loss": 1.0, "epoch": 0}]).columns()
          ['epoch', 'loss', 'val_loss']
        """
        seen = list(dict.fromkeys(name for row in self._rows(table) for name in row))
        rest = [name for name in seen if name not in _FIRST]
        return (
            [name for name in _FIRST if name in seen]
            + [name for name in rest if not name.startswith("val_")]
            + [name for name in rest if name.startswith("val_")]
        )

    def column(self, name: str, table: str = "epochs") -> list[Any]:
        """One column, None where a row lacks it.

        Args:
          name: a name in `columns(table)`.
          table: "epochs" or "points".

        Returns:
          One value a row.

        Raises:
          KeyError: no row has such a column.

        Example:
          >>> History([{"loss": 1.0}, {"loss": 0.5}]).column("loss")
          [1.0, 0.5]
        """
        rows = self._rows(table)
        if not any(name in row for row in rows):
            raise KeyError(
                f"history: no column {name!r} in {table}; its columns are {', '.join(self.columns(table)) or '(none yet)'}."
            )
        return [row.get(name) for row in rows]

    def to_csv(self, path: str | Path, table: str = "epochs") -> Path:
        """Writes a table as CSV, header first.

        Args:
          path: the file to write (replaced as a whole).
          table: "epochs" or "points".

        Returns:
          The path.

        Example:
          >>> import tempfile
          >>> path = History([{"epoch": 0, "loss": 1.0}]).to_csv(tempfile.mkdtemp() + "/history.csv")
          >>> path.read_text().splitlines()
          ['epoch,loss', '0,1.0']
        """
        text = io.StringIO()
        writer = csv.DictWriter(text, self._flat(table), extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(self._rows(table))
        return atomic_write(path, text.getvalue())

    def to_json(self) -> str:
        """Both tables as one JSON text; infinities and NaN are kept as the strings "inf", "-inf", "nan".

        Example:
          >>> History.from_json(History([{"epoch": 0}]).to_json()).epochs
          [{'epoch': 0}]
        """
        tables = {"epochs": self._epochs, "points": self._points}
        plain = {table: [{k: to_plain(v) for k, v in row.items()} for row in rows] for table, rows in tables.items()}
        return json.dumps(plain, allow_nan=False)

    @staticmethod
    def from_json(text: str) -> "History":
        """Reads what `to_json` wrote.

        Args:
          text: the JSON text.

        Returns:
          A History with both tables.

        Raises:
          ValueError: the text is not a history.

        Example:
          >>> History.from_json('{"epochs": [{"loss": "nan"}], "points": []}').column("loss")
          [nan]
        """
        try:
            tables = json.loads(text)
            rows = {
                table: [{k: from_plain(v) for k, v in row.items()} for row in tables[table]] for table in ("epochs", "points")
            }
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(
                f"history: the text is not a history ({type(error).__name__}: {error}); needed a JSON object with the lists "
                "'epochs' and 'points', as History.to_json writes it."
            ) from error
        return History(rows["epochs"], rows["points"])

    def header(self, names: Iterable[str] | None = None) -> str:
        """The line of column titles that fits the lines of `row`.

        Args:
          names: the columns to show; all but `step` by default.

        Returns:
          One line.

        Example:
          >>> History([{"epoch": 0, "loss": 1.0}]).header()
          'epoch        loss'
        """
        return _line((name, _TITLES.get(name, name)) for name in self._shown(names))

    def row(self, index: int = -1, names: Iterable[str] | None = None) -> str:
        """One epoch as a line of aligned text.

        Args:
          index: which epoch row.
          names: the columns to show; all but `step` by default.

        Returns:
          One line.

        Example:
          >>> History([{"epoch": 0, "loss": 1.0}]).row()
          '    0      1.0000'
        """
        values = self._epochs[index]
        return _line((name, _cell(name, values.get(name))) for name in self._shown(names))

    def table(self) -> str:
        """The epoch table as aligned text.

        Example:
          >>> print(History([{"epoch": 0, "loss": 1.0}, {"epoch": 1, "loss": 0.5}]).table())
          epoch        loss
              0      1.0000
              1      0.5000
        """
        return "\n".join([self.header(), *(self.row(i) for i in range(len(self)))]) if self._epochs else "(no epochs yet)"

    __str__ = table

    def __repr__(self) -> str:
        return f"History({len(self._epochs)} epochs, {len(self._points)} log points)"

    def _repr_html_(self) -> str:
        names = self._shown(None)
        head = "".join(f"<th>{html.escape(_TITLES.get(name, name))}</th>" for name in names)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(_cell(name, row.get(name)))}</td>" for name in names) + "</tr>"
            for row in self._epochs
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    def to_frame(self, table: str = "epochs") -> Any:
        """A table as a pandas DataFrame.

        Args:
          table: "epochs" or "points".

        Returns:
          pandas.DataFrame, one row an epoch or log point.

        Raises:
          ImportError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise ImportError(
                "history: to_frame needs pandas, which is not installed; pip install pandas, or use to_csv."
            ) from error
        return pandas.DataFrame(self._rows(table), columns=self.columns(table))

    def plot(self, path: str | Path | None = None, axes: Any = None) -> Any:
        """Curves of loss and metrics over epochs, training and validation together.

        Args:
          path: an image file to write as well (no display is needed).
          axes: matplotlib axes to draw into, one for each curve; made when None.

        Returns:
          The matplotlib figure.

        Raises:
          ImportError: matplotlib is not installed.
          ValueError: there is nothing to draw, or too few axes.

        Example:
          >>> import tempfile
          >>> figure = History([{"epoch": 0, "loss": 1.0}]).plot(tempfile.mkdtemp() + "/curves.png")
          >>> len(figure.axes)
          1
        """
        return _plot(self, path, axes)

    def _rows(self, table: str) -> list[Row]:
        if table not in ("epochs", "points"):
            raise ValueError(f"history: there is no table {table!r}; known tables are epochs and points.")
        return self._epochs if table == "epochs" else self._points

    def _shown(self, names: Iterable[str] | None) -> list[str]:
        return [name for name in self._flat("epochs") if name != "step"] if names is None else list(names)

    def _flat(self, table: str) -> list[str]:
        arrays = {name for row in self._rows(table) for name, value in row.items() if isinstance(value, list)}
        return [name for name in self.columns(table) if name not in arrays]


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if not isinstance(value, float):
        return str(value)
    if name == "samples_per_second":
        return f"{value:,.0f}"
    if name == "time":
        return f"{value:.2f}"
    return f"{value:.4f}" if value == 0 or 1e-3 <= abs(value) < 1e5 else f"{value:.2e}"


def _line(cells: Iterable[tuple[str, str]]) -> str:
    def width(name: str) -> int:
        return 5 if name == "epoch" else max(_WIDTH, len(_TITLES.get(name, name)))

    return "  ".join(text.rjust(width(name)) for name, text in cells)


def _plot(history: History, path: str | Path | None, axes: Any) -> Any:
    curves = _curves(history)
    if not curves:
        raise ValueError(
            "history: there is nothing to plot, no epoch with a loss or metric is recorded yet; train for an epoch first."
        )
    figure, axes = axes_for("history", len(curves), path, axes)
    xs = [row.get("epoch", i) for i, row in enumerate(history.epochs)]
    for axis, name in zip(axes, curves, strict=False):
        for label, key in (("train", name), ("validation", f"val_{name}")):
            if key in history.columns():
                ys = [math.nan if value is None else value for value in history.column(key)]
                axis.plot(xs, ys, marker="o", markersize=3, label=label)
        axis.set_xlabel("epoch")
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.set_title(name)
        axis.grid(alpha=0.3)
        axis.legend()
    if path is not None:
        # matplotlib takes the format from the suffix, which atomic_write's temporary file does not have: pass it.
        suffix = Path(path).suffix.lstrip(".") or "png"
        atomic_write(path, lambda file: figure.savefig(file, format=suffix, dpi=120))
    return figure


def _curves(history: History) -> list[str]:
    """Names with a curve: loss first, then every metric that is known for training or validation."""
    hidden = {"epoch", "batch", "step", "time", "samples_per_second", "lr"}
    names = dict.fromkeys(name.removeprefix("val_") for name in history.columns() if name not in hidden)
    return [name for name in names if _is_numeric(history, name)]


def _is_numeric(history: History, name: str) -> bool:
    values = [row[key] for row in history.epochs for key in (name, f"val_{name}") if key in row]
    return any(isinstance(value, (int, float)) for value in values) and not any(isinstance(value, str) for value in values)


def axes_for(who: str, count: int, path: str | Path | None, axes: Any) -> tuple[Any, list[Any]]:
    """(matplotlib figure, axes to draw `count` curves into): those given, or new ones; outside pyplot for a file."""
    if axes is not None:
        flat = list(axes.flat) if hasattr(axes, "flat") else list(axes) if isinstance(axes, (list, tuple)) else [axes]
        if len(flat) < count:
            raise ValueError(
                f"{who}: plot was given {len(flat)} axes but has {count} curves to draw; pass at least {count} axes."
            )
        return flat[0].figure, flat
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(f"{who}: plot needs matplotlib, which is not installed; pip install matplotlib.") from error
    size = (4.5 * count, 3.4)
    if path is not None:
        # A figure outside pyplot: the user's backend and open figures stay as they are.
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(figure)
    else:
        from matplotlib import pyplot

        figure = pyplot.figure(figsize=size, layout="constrained")
    return figure, list(figure.subplots(1, count, squeeze=False).flat)


# ------------------------------------------------------------------------------------------------ numbers in JSON
def number(value: Any) -> Any:
    """A scalar of any library as a Python number, an array as nested lists, anything else as it is.

    Example:
        >>> import numpy as np
        >>> number(np.float32(0.5)), number(np.eye(2))
        (0.5, [[1.0, 0.0], [0.0, 1.0]])
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return value.tolist() if hasattr(value, "tolist") else value


def to_plain(value: Any) -> Any:
    """`number`, with infinities and NaN as the texts "inf", "-inf", "nan", because JSON has no such numbers.

    Example:
        >>> to_plain([1.0, float("nan")])
        [1.0, 'nan']
    """
    value = number(value)
    if isinstance(value, list):
        return [to_plain(each) for each in value]
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value


def from_plain(value: Any) -> Any:
    """What `to_plain` was given.

    Example:
        >>> from_plain([1.0, "-inf"])
        [1.0, -inf]
    """
    if isinstance(value, list):
        return [from_plain(each) for each in value]
    return float(value) if value in ("nan", "inf", "-inf") else value
