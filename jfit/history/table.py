"""`History`: the losses and metrics of a run by epoch, evaluation, log point and step; CSV, JSON, text, pandas and plots."""

import csv
import io
import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jfit.checks import one_of
from jfit.formats.atomic import atomic_write
from jfit.graph.html import table
from jfit.history.display import best_epoch
from jfit.history.plots import draw
from jfit.lazy import optional

# Order of the first columns; metrics follow in the order in which they were first logged, then validation values.
_LEADING = ("epoch", "batch", "step", "time", "compile_time", "data_time", "samples_per_second", "lr", "loss")
_TITLES = {"samples_per_second": "samples/s", "time": "time (s)", "compile_time": "compile (s)", "data_time": "data (s)"}
_WIDTH = 10
_MOST_SHOWN = 60  # rows of the table in notebooks

Row = dict[str, Any]


class History:
    """Losses and metrics of a run in four tables: `epochs`, `evaluations`, `points` (one row per log point) and `steps`.

    A row is a dict from column name to value.  Log points are times within an epoch, at most about two per second, at which the
    running loss and metrics are read from the devices.  The table `evaluations` has the values of every evaluation, within
    epochs and at their ends; the row of an epoch has those of the evaluation at its end too.  The table `steps` has the loss,
    learning rate and metrics of every k-th batch, with `jfit.fit(..., log_every=k)`; otherwise it is empty.

    Args:
        epochs: initial rows of the epoch table.
        points: initial rows of the log-point table, each with the columns "epoch" and "batch" (batches done in the epoch).
        steps: initial rows of the step table, each with the columns "epoch", "batch" and "step".
        evaluations: initial rows of the evaluation table, each with the columns "epoch" and "step".

    Example:
        >>> history = History()
        >>> history.add("epochs", epoch=0, step=10, loss=0.5, accuracy=0.8, val_loss=0.6)
        >>> history.column("loss")
        [0.5]
    """

    def __init__(
        self, epochs: Iterable[Row] = (), points: Iterable[Row] = (), steps: Iterable[Row] = (), evaluations: Iterable[Row] = ()
    ):
        tables = {"epochs": epochs, "points": points, "steps": steps, "evaluations": evaluations}
        self._tables: dict[str, list[Row]] = {name: [dict(row) for row in rows] for name, rows in tables.items()}

    @property
    def epochs(self) -> list[Row]:
        """Rows of the epoch table (one row per epoch), oldest first, as a new list of copies."""
        return [dict(row) for row in self._tables["epochs"]]

    @property
    def points(self) -> list[Row]:
        """Rows of the log-point table (one row per log point within an epoch), oldest first, as a new list of copies."""
        return [dict(row) for row in self._tables["points"]]

    @property
    def steps(self) -> list[Row]:
        """Rows of the step table (one row per recorded step, see `log_every` of `fit`), oldest first, as a list of copies."""
        return [dict(row) for row in self._tables["steps"]]

    @property
    def evaluations(self) -> list[Row]:
        """Rows of the evaluation table (one row per evaluation, with epoch and step), oldest first, as a list of copies."""
        return [dict(row) for row in self._tables["evaluations"]]

    def last_step(self, table: str) -> int | None:
        """Return the step of the last row of a table; None without one.

        Args:
            table: "epochs", "evaluations", "points" or "steps".

        Returns:
            Number of updates that were done then.

        Example:
            >>> History([{"epoch": 0, "step": 10}]).last_step("epochs")
            10
        """
        rows = self._rows(table)
        return rows[-1].get("step") if rows else None

    def add(self, table: str, **values: Any) -> None:
        """Append a row to a table.

        Args:
            table: "epochs", "evaluations", "points" or "steps".
            **values: the row: column name -> value.  NumPy and JAX scalars are stored as Python numbers, arrays as lists.

        Example:
            >>> history = History()
            >>> history.add("points", epoch=0, batch=5, loss=1.0)
            >>> history.points
            [{'epoch': 0, 'batch': 5, 'loss': 1.0}]
        """
        self._rows(table).append({name: to_python(value) for name, value in values.items()})

    def drop_epoch(self, epoch: int) -> None:
        """Remove the last row of the epoch table, if it is that of `epoch`: training goes on within this epoch.

        Args:
            epoch: number of the epoch.

        Example:
            >>> history = History([{"epoch": 0}])
            >>> history.drop_epoch(0)
            >>> len(history)
            0
        """
        rows = self._tables["epochs"]
        if rows and rows[-1].get("epoch") == epoch:
            rows.pop()

    def __len__(self) -> int:
        return len(self._tables["epochs"])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, History) and self._tables == other._tables

    __hash__ = None  # type: ignore[assignment]

    def columns(self, table: str = "epochs") -> list[str]:
        """Return the names of the columns that occur in a table.

        Args:
            table: "epochs", "evaluations", "points" (one row per log point within an epoch) or "steps" (one per recorded step).

        Returns:
            List of the names that occur, in this order: epoch, batch, step, time (seconds of training), compile_time (seconds
            in which programs were compiled, which `time` and samples_per_second leave out), data_time (seconds of `time` in
            which the devices waited for a batch of a stream), samples_per_second, lr, loss, then training metrics, then
            evaluation values ("val_" + name).

        Example:
            >>> History([{"val_loss": 2.0, "loss": 1.0, "epoch": 0}]).columns()
            ['epoch', 'loss', 'val_loss']
        """
        names = list(dict.fromkeys(name for row in self._rows(table) for name in row))
        rest = [name for name in names if name not in _LEADING]
        return (
            [name for name in _LEADING if name in names]
            + [name for name in rest if not name.startswith("val_")]
            + [name for name in rest if name.startswith("val_")]
        )

    def column(self, name: str, table: str = "epochs") -> list[Any]:
        """Return the values of one column.

        Args:
            name: a name in `columns(table)`.
            table: "epochs", "evaluations", "points" (one row per log point within an epoch) or "steps" (one per recorded step).

        Returns:
            List with one value per row; None for rows without the column.

        Raises:
            KeyError: no row has the column.
            ValueError: `table` is not one of these.

        Example:
            >>> History([{"loss": 1.0}, {"loss": 0.5}]).column("loss")
            [1.0, 0.5]
        """
        rows = self._rows(table)
        if not any(name in row for row in rows):
            names = ", ".join(self.columns(table)) or "(none yet)"
            raise KeyError(f"history: no column {name!r} in {table}; its columns are {names}.")
        return [row.get(name) for row in rows]

    def to_csv(self, path: str | Path, table: str = "epochs") -> Path:
        """Write a table to a CSV file with a header line.  Columns with arrays are left out.

        Args:
            path: the file; an existing one is replaced atomically.
            table: "epochs", "evaluations", "points" (one row per log point within an epoch) or "steps" (one per recorded step).

        Returns:
            `path` as a pathlib.Path.

        Example:
            >>> import tempfile
            >>> path = History([{"epoch": 0, "loss": 1.0}]).to_csv(tempfile.mkdtemp() + "/history.csv")
            >>> path.read_text().splitlines()
            ['epoch,loss', '0,1.0']
        """
        return atomic_write(path, csv_text(self._rows(table), self._scalar_columns(table)))

    def to_json(self) -> str:
        """Return the tables as a JSON string, nan and infinities as the strings "nan", "inf", "-inf".

        Returns:
            The string, which `from_json` reads.

        Example:
            >>> History.from_json(History([{"epoch": 0}]).to_json()).epochs
            [{'epoch': 0}]
        """
        tables = {name: rows for name, rows in self._tables.items() if rows or name in ("epochs", "points")}
        return json.dumps(to_json_value(tables), allow_nan=False)

    @staticmethod
    def from_json(text: str) -> "History":
        """Create a History from a result of `to_json`.

        Args:
            text: JSON object with the lists "epochs" and "points", and "steps" and "evaluations" if they have rows.

        Returns:
            A `History` with these tables.

        Raises:
            ValueError: `text` is not valid JSON, or lacks one of the lists "epochs" and "points".

        Example:
            >>> History.from_json('{"epochs": [{"loss": "nan"}], "points": []}').column("loss")
            [nan]
        """
        try:
            tables = json.loads(text)
            names = ("epochs", "points", *(name for name in ("steps", "evaluations") if name in tables))
            rows = {name: [{k: from_json_value(v) for k, v in row.items()} for row in tables[name]] for name in names}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            problem = f"the text is not a history ({type(error).__name__}: {error})"
            raise ValueError(f"history: {problem}; expected the JSON object that History.to_json returns.") from error
        return History(**rows)

    def header(self, names: Iterable[str] | None = None) -> str:
        """Return the column titles of the epoch table as one line of text, aligned with the lines of `row`.

        Args:
            names: column names.  None: all columns except `step` and those with arrays.

        Returns:
            String without a newline.

        Example:
            >>> History([{"epoch": 0, "loss": 1.0}]).header()
            'epoch        loss'
        """
        return _line((name, _TITLES.get(name, name)) for name in self._text_columns(names))

    def row(self, index: int = -1, names: Iterable[str] | None = None) -> str:
        """Return a row of the epoch table as one line of text.

        Args:
            index: index of the row; the last one by default.
            names: column names.  None: all columns except `step` and those with arrays.

        Returns:
            String without a newline; "-" for missing values.

        Example:
            >>> History([{"epoch": 0, "loss": 1.0}]).row()
            '    0      1.0000'
        """
        values = self._tables["epochs"][index]
        return _line((name, _cell(name, values.get(name))) for name in self._text_columns(names))

    def table(self) -> str:
        """Return the epoch table as aligned text: the header, then one line per epoch.

        Returns:
            String of several lines.

        Example:
            >>> print(History([{"epoch": 0, "loss": 1.0}, {"epoch": 1, "loss": 0.5}]).table())
            epoch        loss
                0      1.0000
                1      0.5000
        """
        return self._text(len(self))

    __str__ = table

    def _text(self, count: int = _MOST_SHOWN) -> str:
        """Return the table of the last `count` epochs as text; the line before them counts the earlier ones."""
        if not len(self):
            return "(no epochs yet)"
        names, hidden = self._text_columns(None), len(self) - count
        lines = [self.header(names)] + [f"... {hidden:,} more"] * (hidden > 0)
        return "\n".join([*lines, *(self.row(i, names) for i in range(max(hidden, 0), len(self)))])

    def __repr__(self) -> str:
        return f"History({len(self)} epochs, {len(self._tables['points'])} log points)"

    def _repr_html_(self) -> str:
        names, rows = self._text_columns(None), list(enumerate(self._tables["epochs"]))
        # A notebook stores its outputs: of a long run, the first and the last epochs are enough.
        hidden = len(rows) - _MOST_SHOWN
        shown = rows if hidden <= 0 else [*rows[: _MOST_SHOWN // 3], *rows[-(_MOST_SHOWN - _MOST_SHOWN // 3) :]]
        cells = [[_cell(name, row.get(name)) for name in names] for _, row in shown]
        best = best_epoch(self) if len(rows) > 1 else None
        strong = [i for i, (index, _) in enumerate(shown) if best is not None and index == best[0]]
        if hidden > 0:
            cells.insert(_MOST_SHOWN // 3, [f"... {hidden:,} more"] + [""] * (len(names) - 1))
            strong = [i + (i >= _MOST_SHOWN // 3) for i in strong]
        return table(cells, [_TITLES.get(name, name) for name in names], strong)

    def to_frame(self, table: str = "epochs") -> Any:
        """Return a table as a pandas DataFrame.

        Args:
            table: "epochs", "evaluations", "points" (one row per log point within an epoch) or "steps" (one per recorded step).

        Returns:
            pandas.DataFrame with one row per epoch, evaluation, log point or recorded step.

        Raises:
            ImportError: pandas is not installed.
        """
        pandas = optional("pandas", "history: to_frame needs pandas; install it (pip install pandas) or use to_csv")
        return pandas.DataFrame(self._rows(table), columns=self.columns(table))

    def plot(self, path: str | Path | None = None, axes: Any = None) -> Any:
        """Plot the loss, the metrics and, if it changes, the learning rate over the epochs.

        If there were evaluations within epochs, the axis is the number of steps.

        Training and validation values of a metric are in the same axes.  The losses of single outputs share the axes of loss.
        Metrics of which 1 is the best value, such as accuracy and f1, share their axes; each other metric has separate axes.

        Args:
            path: image file to write in addition, or None; with a path no display is needed.
            axes: sequence of matplotlib axes to draw into: for the loss, the metrics, the learning rate.  None: new ones.

        Returns:
            The matplotlib figure.  As the last value of a notebook cell it is displayed once, not twice.

        Raises:
            ImportError: matplotlib is not installed.
            ValueError: the epoch table has no loss or metric, or there are fewer axes than plots.

        Example:
            >>> import tempfile
            >>> figure = History([{"epoch": 0, "loss": 1.0}]).plot(tempfile.mkdtemp() + "/curves.png")
            >>> len(figure.axes)
            1
        """
        return draw(self, path, axes)

    def _rows(self, table: str) -> list[Row]:
        one_of(list(self._tables), table=table)
        return self._tables[table]

    def _text_columns(self, names: Iterable[str] | None) -> list[str]:
        return [name for name in self._scalar_columns("epochs") if name != "step"] if names is None else list(names)

    def _scalar_columns(self, table: str) -> list[str]:
        arrays = {name for row in self._rows(table) for name, value in row.items() if isinstance(value, list)}
        return [name for name in self.columns(table) if name not in arrays]


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if not isinstance(value, float):
        return str(value)
    if name == "samples_per_second":
        return f"{value:,.0f}"
    if name in ("time", "data_time"):
        return f"{value:.2f}"
    return f"{value:.4f}" if value == 0 or 1e-3 <= abs(value) < 1e5 else f"{value:.2e}"


def _line(cells: Iterable[tuple[str, str]]) -> str:
    def width(name: str) -> int:
        return 5 if name == "epoch" else max(_WIDTH, len(_TITLES.get(name, name)))

    return "  ".join(text.rjust(width(name)) for name, text in cells)


def csv_text(rows: Iterable[Row], names: Iterable[str], header: bool = True) -> str:
    """Return the columns of these names as CSV text, with or without a header line."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(names), extrasaction="ignore", lineterminator="\n")
    if header:
        writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


# ------------------------------------------------------------------------------------------------ numbers in JSON
def to_python(value: Any) -> Any:
    """Convert a NumPy or JAX scalar to a Python number and an array to nested lists; return other values unchanged.

    Example:
        >>> import numpy as np
        >>> to_python(np.float32(0.5)), to_python(np.eye(2))
        (0.5, [[1.0, 0.0], [0.0, 1.0]])
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return value.tolist() if hasattr(value, "tolist") else value


def to_json_value(value: Any) -> Any:
    """Convert like `to_python`, and nan and infinities to "nan", "inf", "-inf", because JSON has no such numbers.

    Example:
        >>> to_json_value([1.0, float("nan")])
        [1.0, 'nan']
    """
    value = to_python(value)
    if isinstance(value, dict):
        return {name: to_json_value(item) for name, item in value.items()}
    if isinstance(value, list):
        return [to_json_value(item) for item in value]
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value


def from_json_value(value: Any) -> Any:
    """Convert the strings "nan", "inf", "-inf" back to floats, also inside lists: the inverse of `to_json_value`.

    Example:
        >>> from_json_value([1.0, "-inf"])
        [1.0, -inf]
    """
    if isinstance(value, list):
        return [from_json_value(item) for item in value]
    return float(value) if value in ("nan", "inf", "-inf") else value
