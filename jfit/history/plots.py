"""Plots of the training history with matplotlib, which is imported only here and only when something is plotted."""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any

from jfit.formats.atomic import atomic_write

# Metrics whose name contains one of _SCORES are at most 1, the best value; all others are losses or errors.  The end of a name
# decides first, because values of one output begin with its name: "acc_loss" is the loss of the output "acc".
_SCORES = ("acc", "f1", "mcc", "pcc", "auc", "precision", "recall", "top_k", "pearson", "r2")
_ERRORS = ("loss", "mse", "mae", "rmse", "msle", "mape", "error", "err", "entropy", "perplexity", "torch", "caffe")
TIMES = ("time", "compile_time", "data_time", "samples_per_second")  # columns that tell how long an epoch took
_NOT_PLOTTED = {"epoch", "batch", "step", "lr", *TIMES}


def is_score(name: str) -> bool:
    """Return whether larger values of a metric are better, by its name.

    Example:
        >>> is_score("val_accuracy"), is_score("mse"), is_score("val_acc_loss")
        (True, False, False)
    """
    return any(part in name for part in _SCORES) and not name.endswith(_ERRORS)


def draw(history: Any, path: str | Path | None, axes: Any) -> Any:
    """Draw `History.plot`, which describes the arguments."""
    groups = _groups(history)
    if not groups:
        raise ValueError("history: nothing to plot, because no loss or metric is recorded; train for at least one epoch")
    figure, axes = new_axes("history", len(groups), path, axes)
    within = {row["step"] for row in history.evaluations} - {row.get("step") for row in history.epochs}
    unit = "step" if within else "epoch"
    for axis, (title, names) in zip(axes, groups.items(), strict=False):
        _draw_group(history, unit, axis, names)
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.set(xlabel=unit, title=title)
        axis.grid(alpha=0.3)
    save_figure(figure, path)
    return figure


def _draw_group(history: Any, unit: str, axis: Any, names: list[str]) -> None:
    """Draw training and validation values of some columns; of several columns, each has a color, and training is dashed.

    With the unit "step", validation values are those of all evaluations, else those of the epochs.
    """
    several = len(names) > 1
    for number, name in enumerate(names):
        for label, key in (("train", name), ("validation", f"val_{name}")):
            rows = history.evaluations if label == "validation" and unit == "step" else history.epochs
            if any(key in row for row in rows):
                xs = [row.get(unit, i) for i, row in enumerate(rows)]
                ys = [math.nan if row.get(key) is None else row[key] for row in rows]
                style = {"color": f"C{number}", "linestyle": "--" if label == "train" else "-"} if several else {}
                axis.plot(xs, ys, marker="o", markersize=3, label=f"{name} ({label})" if several else label, **style)
    if names != ["lr"]:
        axis.legend()


def _groups(history: Any) -> dict[str, list[str]]:
    """Return the columns to plot, without the prefix "val_", by title of their axes.

    These are the loss with the losses of single outputs, the metrics of which 1 is the best value in one group, every other
    metric with numeric values, and the learning rate if it changes.
    """
    columns = [*history.columns(), *history.columns("evaluations")]
    columns = dict.fromkeys(name.removeprefix("val_") for name in columns if name not in _NOT_PLOTTED)
    names = [name for name in columns if _is_numeric(history, name)]
    losses = [name for name in names if name == "loss" or name.endswith("_loss")]
    scores = [name for name in names if name not in losses and is_score(name)]
    groups: dict[str, list[str]] = {}
    for name in names:
        if name in losses:
            groups["loss"] = losses
        elif name in scores:
            groups[name if len(scores) == 1 else "metrics"] = scores
        else:
            groups[name] = [name]
    rates = [row["lr"] for row in history.epochs if row.get("lr") is not None]
    return groups | {"learning rate": ["lr"]} if groups and len(set(rates)) > 1 else groups


def _is_numeric(history: Any, name: str) -> bool:
    rows = [*history.epochs, *history.evaluations]
    values = [row[key] for row in rows for key in (name, f"val_{name}") if key in row]
    return any(isinstance(value, (int, float)) for value in values) and not any(isinstance(value, str) for value in values)


def new_axes(owner: str, count: int, path: str | Path | None, axes: Any) -> tuple[Any, list[Any]]:
    """Return (matplotlib figure, list of axes) to draw into.

    Args:
        owner: name of the caller, with which error messages begin.
        count: number of axes needed.
        path: image file that the caller will write; the figure then needs no display.  None: a figure of pyplot.
        axes: the caller's matplotlib axes, returned as a list.  None: `count` new ones.
    """
    if axes is not None:
        flat = list(axes.flat) if hasattr(axes, "flat") else list(axes) if isinstance(axes, (list, tuple)) else [axes]
        if len(flat) < count:
            raise ValueError(f"{owner}: plot got {len(flat)} axes, but draws {count} plots; pass at least {count} axes.")
        return _shown_once(flat[0].figure), flat
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(f"{owner}: plot needs matplotlib, which is not installed; pip install matplotlib.") from error
    size = (4.5 * count, 3.4)
    if path is not None:
        # Do not use pyplot here: it would change the user's backend and open figures.
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(figure)
    else:
        from matplotlib import pyplot

        figure = _shown_once(pyplot.figure(figsize=size, layout="constrained"))
    return figure, list(figure.subplots(1, count, squeeze=False).flat)


def save_figure(figure: Any, path: str | Path | None) -> None:
    """Write a matplotlib figure to a file, whose suffix is the format, atomically; do nothing if `path` is None."""
    if path is not None:
        # matplotlib infers the format from the suffix of a path, but here it writes to an open temporary file of atomic_write.
        suffix = Path(path).suffix.lstrip(".") or "png"
        atomic_write(path, lambda file: figure.savefig(file, format=suffix, dpi=120))


def _shown_once(figure: Any) -> Any:
    """Make notebooks show a figure once, although it is the result of a cell and also an open figure of pyplot."""
    figure._ipython_display_ = functools.partial(_close_displayed, figure)
    return figure


def _close_displayed(figure: Any) -> None:
    """Close a figure that IPython is about to display: at the end of a cell its inline backend displays all open figures."""
    from matplotlib import pyplot

    if "inline" in pyplot.get_backend():
        pyplot.close(figure)
    raise NotImplementedError  # IPython then displays the figure as it displays every other
