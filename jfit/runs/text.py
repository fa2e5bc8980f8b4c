"""Runs as text: the tables of `python -m jfit.runs`."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jfit.checkpoints.fingerprint import short
from jfit.formats.atomic import printable
from jfit.graph.drawing import aligned
from jfit.runs.folders import RunFolder

_MOST_WIDTH = 60  # characters of a value in a column


def list_text(directory: str | Path, runs: Sequence[RunFolder]) -> str:
    """Return a table with one line per run."""
    if not runs:
        return f"no checkpoints in {directory} or in the folders below it"
    rows = [("run", "step", "best epoch", "last checkpoint", "state")]
    for run in runs:
        name = run.path.relative_to(directory).as_posix() if run.path != Path(directory) else str(directory)
        rows.append((name, str(run.step), run.best, _time(run.saved), run.state))
    return _table(rows)


def show_text(run: RunFolder, rows: int) -> str:
    """Return settings, checkpoints and the last rows of the history of a run.

    Raises:
        ValueError: `rows` is negative.
    """
    if rows < 0:
        raise ValueError(f"--rows {rows}: expected the number of epochs to show, at least 0")
    parts = [f"{run.path}: {run.state or 'unknown state'}, step {run.step}, last checkpoint {_time(run.saved)}"]
    parts += [f"damaged: {run.problem}"] if run.problem else []
    parts += ["settings", textwrap.indent(_table(_pairs(run.settings)) or "not saved", "  ")]
    checkpoints = [(f"step {step}", f"{size:,} bytes") for step, size in run.checkpoints]
    parts += ["checkpoints", textwrap.indent(_table(checkpoints), "  ")]
    history = run.history
    if len(history):
        columns = history.columns()
        lines = [[_value(row.get(name, "")) for name in columns] for row in history.epochs[max(len(history) - rows, 0) :]]
        parts += [f"last {len(lines)} of {len(history)} epochs", textwrap.indent(_table([columns, *lines]), "  ")]
    return "\n".join(parts)


def diff_text(a: RunFolder, b: RunFolder, show_all: bool) -> str:
    """Return settings and metrics of two runs side by side: those that differ, or all."""
    sections = []
    for title, left, right in (("settings", a.settings, b.settings), ("metrics", a.metrics, b.metrics)):
        names = [name for name in {**left, **right} if show_all or left.get(name) != right.get(name)]
        lines = [(name, _value(left.get(name, "")), _value(right.get(name, ""))) for name in names]
        if lines:
            sections += [(title, str(a.path), str(b.path)), *[(f"  {name}", *values) for name, *values in lines]]
        else:
            sections.append((f"{title}: no differences", "", ""))
    return _table(sections)


def _pairs(values: dict[str, Any]) -> list[tuple[str, str]]:
    return [(name, _value(value)) for name, value in values.items() if value is not None]


def _value(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else short(value, _MOST_WIDTH)


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _table(rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(aligned([[printable(cell).replace("\n", "\\n") for cell in row] for row in rows]))
