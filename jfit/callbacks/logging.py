"""Callbacks that log the values of a run: to a CSV file, to a JSON lines file, or with `logging` in MXNet's format."""

import csv
import json
import logging
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jfit.callbacks.base import Callback, Event, lambda_callback, scalars
from jfit.checks import one_of, positive_integer
from jfit.formats.atomic import atomic_write
from jfit.history.plots import TIMES
from jfit.history.table import csv_text, to_json_value

Row = dict[str, Any]
_TIMING = ("loss", "lr", *TIMES)


def csv_logger(path: str | os.PathLike[str]) -> Callback:
    """Append a row with epoch, step, loss and metrics to a CSV file after each epoch, and after each evaluation within one.

    A value that is first logged in a later epoch adds a column, and earlier rows get an empty cell.  Arrays are left out.

    Args:
        path: the file.  A run that starts at step 0 deletes its rows; a resumed run deletes only the rows after its step.

    Returns:
        A `Callback`.

    Example:
        >>> csv_logger("runs/a/history.csv").events
        ('fit_start', 'evaluation', 'epoch_end')
    """
    path = Path(path)

    def start(event: Event) -> None:
        _rewind(path, event, _csv_rows, _csv)

    def log(event: Event) -> None:
        if event.ends_epoch:
            return
        row, header = {"epoch": event.epoch, "step": event.step, **scalars(event.logs)}, _csv_header(path)
        if header and set(row) <= set(header):
            _append(path, _csv([row], below=header))
        else:
            atomic_write(path, _csv([*_csv_rows(path), row]))

    return lambda_callback(fit_start=start, evaluation=log, epoch_end=log, name="csv_logger", main_only=True)


def jsonl_logger(path: str | os.PathLike[str], every: str = "epoch") -> Callback:
    """Append a JSON object with epoch, step, batch, loss and metrics to a file, one per line (JSON lines).

    nan and infinities are written as the strings "nan", "inf", "-inf", because JSON has no such numbers.

    Args:
        path: the file.  A run that starts at step 0 deletes its lines; a resumed run deletes only the lines after its step.
        every: "epoch" (a line after each epoch) or "log" (a line per "log" event, at most about two per second).  Each
            evaluation within an epoch has a line too.

    Returns:
        A `Callback`.

    Raises:
        ValueError: `every` is neither "epoch" nor "log".

    Example:
        >>> jsonl_logger("runs/a/log.jsonl", every="log").events
        ('fit_start', 'evaluation', 'log')
    """
    one_of(("epoch", "log"), every=every)
    path = Path(path)

    def start(event: Event) -> None:
        _rewind(path, event, _json_rows, _json_lines)

    def log(event: Event) -> None:
        if not event.ends_epoch:
            row = {"epoch": event.epoch, "step": event.step, "batch": event.batch, **event.logs}
            _append(path, _json_lines([row]))

    regular: dict[str, Any] = {"epoch_end" if every == "epoch" else "log": log}
    return lambda_callback(fit_start=start, evaluation=log, **regular, name="jsonl_logger", main_only=True)


def speedometer(batch_size: int | None = None, frequent: int = 50) -> Callback:
    """Log speed and running metrics every `frequent` batches, and metrics after each epoch and evaluation, in MXNet's format.

    The lines go to `logging.getLogger("jfit")` at level INFO.  Running metrics are those of the last "log" event (up to
    about half a second old), because reading newer ones would make the host wait for the devices.

    Args:
        batch_size: number of rows per batch, for the samples per second.  None: that of the run.
        frequent: number of batches between two lines.

    Returns:
        A `Callback`.

    Raises:
        ValueError: `frequent` is below 1.

    Example:
        >>> speedometer(frequent=100).every
        100

    Source: MXNet 1.9.1, callback.Speedometer and Module.fit (the lines' format).
    """
    positive_integer(frequent=frequent)
    clock = {"time": 0.0, "batch": 0}
    latest: dict[str, float] = {}

    def on(event: Event, state: Any) -> Any:
        if event.kind == "epoch_start":
            latest.clear()
        elif event.kind == "log" or event.ends_epoch:
            latest.update({} if event.ends_epoch else scalars(event.logs))
            return state
        elif event.kind == "step":
            size = event.run.batch_size if batch_size is None else batch_size
            _speed_line(event, clock, size, latest | event.logs)
        else:
            _epoch_lines(event)
        clock.update(time=time.perf_counter(), batch=event.batch)
        return state

    events = ("epoch_start", "log", "step", "evaluation", "epoch_end")
    return Callback(on=on, events=events, every=frequent, name="speedometer", main_only=True)


def _speed_line(event: Event, clock: dict[str, Any], batch_size: int, logs: dict[str, float]) -> None:
    elapsed = time.perf_counter() - clock["time"]
    speed = (event.batch - clock["batch"]) * batch_size / elapsed if elapsed > 0 else math.inf
    shown = {name: value for name, value in logs.items() if name not in _TIMING and not name.startswith("val_")}
    metrics = "".join(f"\t{name}={value:f}" for name, value in shown.items())
    line = "Epoch[%d] Batch [%d-%d]\tSpeed: %.2f samples/sec%s"
    logging.getLogger("jfit").info(line, event.epoch, clock["batch"], event.batch, speed, metrics)


def _epoch_lines(event: Event) -> None:
    log = logging.getLogger("jfit")
    metrics = {name: value for name, value in scalars(event.logs).items() if name not in _TIMING and value is not None}
    for name, value in metrics.items():
        if not name.startswith("val_"):
            log.info("Epoch[%d] Train-%s=%f", event.epoch, name, value)
    if "time" in event.logs:
        log.info("Epoch[%d] Time cost=%.3f", event.epoch, event.logs["time"])
    for name, value in metrics.items():
        if name.startswith("val_"):
            log.info("Epoch[%d] Validation-%s=%f", event.epoch, name.removeprefix("val_"), value)


def _rewind(path: Path, event: Event, read: Callable[[Path], list[Row]], text: Callable[[list[Row]], str]) -> None:
    """Delete the rows of a log file that a run logs again: those after its step, all if it is 0.

    Args:
        path: the file; it need not exist.
        event: the "fit_start" event, whose step is above 0 for a resumed run.
        read: returns the rows of the file.
        text: returns the content of a file with these rows.
    """
    rows, step, history = read(path), event.step, getattr(event.run, "history", None)
    # A checkpoint may have been saved before the evaluation, or the end of the epoch, at its step: they are logged again.
    done = [] if history is None else [row.get("step") for row in (*history.epochs, *history.evaluations)]
    last = step if history is None or step in done else step - 1
    earlier = [row for row in rows if step > 0 and _step_of(row) <= last]
    if len(earlier) != len(rows):
        atomic_write(path, text(earlier))


def _step_of(row: dict[str, Any]) -> float:
    try:
        return float(row["step"])
    except (KeyError, TypeError, ValueError):
        return 0


def _append(path: Path, line: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a", encoding="utf-8", newline="") as file:
        file.write(line)


def _csv_header(path: Path) -> list[str]:
    if not path.exists():
        return []
    with open(path, encoding="utf-8", newline="") as file:
        return next(csv.reader(file), [])


def _csv_rows(path: Path) -> list[Row]:
    if not path.exists():
        return []
    with open(path, encoding="utf-8", newline="") as file:
        # If a process was killed while it wrote, DictReader yields None for missing cells and a None key for surplus cells.
        return [{name: cell or "" for name, cell in row.items() if name is not None} for row in csv.DictReader(file)]


def _csv(rows: list[Row], below: list[str] | None = None) -> str:
    """Return rows as CSV, with a header unless they come below one with these names."""
    return csv_text(rows, below or dict.fromkeys(name for row in rows for name in row), header=bool(rows) and below is None)


def _json_rows(path: Path) -> list[Row]:
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue  # an incomplete line: the process was killed while it wrote
        if isinstance(row, dict):
            rows.append(row)
    return rows


def _json_lines(rows: list[Row]) -> str:
    return "".join(json.dumps(to_json_value(row), allow_nan=False) + "\n" for row in rows)
