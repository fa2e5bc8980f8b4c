"""Loggers: CSV, JSON lines, and MXNet's log lines."""

import csv
import io
import json
import logging
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jfit.formats.atomic import atomic_write
from jfit.train.callbacks.base import Callback, Event, numbers
from jfit.train.history import to_plain

_TIMING = ("loss", "lr", "samples_per_second", "time")


def csv_logger(path: str | os.PathLike[str]) -> Callback:
    """Appends a row to a CSV file after each epoch.

    Args:
      path: the file. A run that starts at step 0 begins it anew; one that continues keeps the rows up to its step.

    Returns:
      A callback for "fit_start" and "epoch_end". A column that first shows later is added to the header.

    Example:
      >>> csv_logger("runs/a/history.csv").events
      ('fit_start', 'epoch_end')
    """
    path = Path(path)

    def on(event: Event, state: Any) -> Any:
        if event.kind == "fit_start":
            _rewind(path, event.step, _csv_rows, _write_csv)
            return state
        row = {"epoch": event.epoch, "step": event.step, **numbers(event.logs)}
        header = _csv_header(path)
        if header and set(row) <= set(header):
            _append(path, _csv_line([row.get(name, "") for name in header]))
        else:
            _write_csv(path, [*_csv_rows(path), row])
        return state

    return Callback(on=on, events=("fit_start", "epoch_end"), name="csv_logger")


def jsonl_logger(path: str | os.PathLike[str], every: str = "epoch") -> Callback:
    """Appends a JSON object to a file, a line each, after each epoch or at each log point.

    Args:
      path: the file. A run that starts at step 0 begins it anew; one that continues keeps the lines up to its step.
      every: "epoch" or "log".

    Returns:
      A callback. NaN and infinities are written as the texts "nan", "inf", "-inf", because JSON has no such numbers.

    Raises:
      ValueError: `every` is neither.

    Example:
      >>> jsonl_logger("runs/a/log.jsonl", every="log").events
      ('fit_start', 'log')
    """
    if every not in ("epoch", "log"):
        raise ValueError(f"jsonl_logger: every is {every!r}, needed 'epoch' or 'log'.")
    path = Path(path)

    def on(event: Event, state: Any) -> Any:
        if event.kind == "fit_start":
            _rewind(path, event.step, _json_rows, _write_json)
        else:
            row = {"epoch": event.epoch, "step": event.step, "batch": event.batch, **event.logs}
            _append(path, _json_line(row))
        return state

    return Callback(on=on, events=("fit_start", "epoch_end" if every == "epoch" else "log"), name="jsonl_logger")


def speedometer(batch_size: int | None = None, frequent: int = 50) -> Callback:
    """MXNet's log lines: speed and running metrics every `frequent` batches, a summary after each epoch.

    Args:
      batch_size: rows in a batch; the run's when None.
      frequent: batches between two lines.

    Returns:
      A callback that logs to `logging.getLogger("jfit")` at level INFO. Metrics are those of the last log point: reading
      them at each line would make the host wait.

    Raises:
      ValueError: `frequent` is below 1.

    Example:
      >>> speedometer(frequent=100).every
      100

    Source: MXNet 1.9.1, callback.Speedometer and Module.fit (the lines' format).
    """
    if frequent < 1:
        raise ValueError(f"speedometer: frequent is {frequent}, needed a number of batches of at least 1.")
    clock = {"time": 0.0, "batch": 0}
    latest: dict[str, float] = {}

    def on(event: Event, state: Any) -> Any:
        if event.kind == "epoch_start":
            latest.clear()
        elif event.kind == "log":
            latest.update(numbers(event.logs))
            return state
        elif event.kind == "step":
            size = event.run.batch_size if batch_size is None else batch_size
            _speed_line(event, clock, size, latest | event.logs)
        else:
            _epoch_lines(event)
        clock.update(time=time.perf_counter(), batch=event.batch)
        return state

    return Callback(on=on, events=("epoch_start", "log", "step", "epoch_end"), every=frequent, name="speedometer")


def _speed_line(event: Event, clock: dict[str, Any], batch_size: int, logs: dict[str, float]) -> None:
    elapsed = time.perf_counter() - clock["time"]
    speed = (event.batch - clock["batch"]) * batch_size / elapsed if elapsed > 0 else math.inf
    metrics = "".join(
        f"\t{name}={value:f}" for name, value in logs.items() if name not in _TIMING and not name.startswith("val_")
    )
    logging.getLogger("jfit").info(
        "Epoch[%d] Batch [%d-%d]\tSpeed: %.2f samples/sec%s", event.epoch, clock["batch"], event.batch, speed, metrics
    )


def _epoch_lines(event: Event) -> None:
    log = logging.getLogger("jfit")
    metrics = {name: value for name, value in numbers(event.logs).items() if name not in _TIMING and value is not None}
    for name, value in metrics.items():
        if not name.startswith("val_"):
            log.info("Epoch[%d] Train-%s=%f", event.epoch, name, value)
    if "time" in event.logs:
        log.info("Epoch[%d] Time cost=%.3f", event.epoch, event.logs["time"])
    for name, value in metrics.items():
        if name.startswith("val_"):
            log.info("Epoch[%d] Validation-%s=%f", event.epoch, name.removeprefix("val_"), value)


def _rewind(
    path: Path, step: int, read: Callable[[Path], list[dict[str, Any]]], write: Callable[[Path, list[dict[str, Any]]], None]
) -> None:
    """A run that continues from a checkpoint repeats the steps after it: their rows go, or they would stand there twice."""
    if not path.exists():
        return
    rows = read(path)
    kept = [row for row in rows if step > 0 and _step_of(row) <= step]
    if len(kept) != len(rows):
        write(path, kept)


def _step_of(row: dict[str, Any]) -> float:
    try:
        return float(row["step"])
    except (KeyError, TypeError, ValueError):
        return 0


def _append(path: Path, line: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a", encoding="utf-8", newline="") as file:
        file.write(line)


def _csv_line(cells: list[Any]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()


def _csv_header(path: Path) -> list[str]:
    if not path.exists():
        return []
    with open(path, encoding="utf-8", newline="") as file:
        return next(csv.reader(file), [])


def _csv_rows(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    with open(path, encoding="utf-8", newline="") as file:
        # A line that a killed process cut short has empty cells, one with too many has a None column.
        return [{name: cell or "" for name, cell in row.items() if name is not None} for row in csv.DictReader(file)]


def _write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = [_csv_line([row.get(name, "") for name in names]) for row in rows]
    atomic_write(path, "".join([_csv_line(names), *lines] if names else []))


def _json_line(row: dict[str, Any]) -> str:
    return json.dumps({name: to_plain(value) for name, value in row.items()}, allow_nan=False) + "\n"


def _json_rows(path: Path) -> list[dict[str, Any]]:
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue  # the last line of a process that was killed while it wrote
        if isinstance(row, dict):
            rows.append(row)
    return rows


def _write_json(path: Path, rows: list[dict[str, Any]]) -> None:
    atomic_write(path, "".join(_json_line(row) for row in rows))
