"""Settings and results of a run as names and values, for loggers and for notebooks."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from jfit.graph import html
from jfit.history.plots import TIMES, is_score
from jfit.lowering.model import count_parameters

_NOT_SETTINGS = ("columns", "eval_every", "metric_choice", "ignores_base_lr")  # what `fit` found out, and options of the data


def hyperparameters(run: Any) -> dict[str, Any]:
    """Return the settings of a run as numbers and strings, and its number of parameters as `parameters`.

    Args:
        run: the `jfit.Run`; settings that are None or empty are left out.

    Returns:
        dict by name: batch_size, num_epoch, optimizer, devices (such as "2 cpu"), metrics (names), parameters, ...

    Example:
        >>> import jfit, numpy as np
        >>> net = jfit.sym.SoftmaxOutput(jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=2), name="softmax")
        >>> run = jfit.fit(net, (np.eye(2, dtype="float32"), [0, 1]), batch_size=2, progress=False)
        >>> hyperparameters(run) | {"devices": "1 cpu"}  # doctest: +NORMALIZE_WHITESPACE
        {'devices': '1 cpu', 'batch_size': 2, 'eval_batch_size': 2, 'metrics': 'accuracy', 'num_epoch': 10,
        'optimizer': 'sgd', 'parameters': 6}
    """
    values = {field.name: getattr(run.settings, field.name) for field in dataclasses.fields(run.settings)}
    texts = {name: _plain(value) for name, value in values.items() if name not in _NOT_SETTINGS}
    kept = {name: value for name, value in texts.items() if value not in (None, "")}
    return kept | {"parameters": count_parameters(run.state.params)}


def _plain(value: Any) -> Any:
    """Return a setting as a number or a string; None for what is neither nor a sequence of objects with names."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if hasattr(value, "compute"):
        return str(value.compute)  # a mixed-precision policy
    if isinstance(value, (list, tuple)) and value:
        if hasattr(value[0], "platform"):
            return f"{len(value)} {value[0].platform}"
        return ", ".join(str(getattr(item, "name", item)) for item in value)
    return None


def best_epoch(history: Any) -> tuple[int, str] | None:
    """Return (index of the row, text such as "3 (val_loss 0.412)") of the best epoch; None without a loss or metric.

    The best epoch is that with the lowest validation loss; without one, that with the best first validation metric, with the
    lowest loss, or with the best first metric.

    Example:
        >>> from jfit.history.table import History
        >>> best_epoch(History([{"epoch": 0, "loss": 0.5}, {"epoch": 1, "loss": 0.4}, {"epoch": 2, "loss": 0.6}]))
        (1, '1 (loss 0.4)')
    """
    columns = [name for name in history.columns() if name not in ("epoch", "step", "lr", "batch", *TIMES)]
    first = [name for name in ("val_loss", *(n for n in columns if n.startswith("val_")), "loss", *columns) if name in columns]
    for name in first:
        values = [value if isinstance(value, (int, float)) else math.nan for value in history.column(name)]
        finite = [i for i, value in enumerate(values) if math.isfinite(value)]
        if finite:
            best = (max if is_score(name) else min)(finite, key=values.__getitem__)
            return best, f"{history.epochs[best].get('epoch', best)} ({name} {values[best]:.4g})"
    return None


def last_values(history: Any) -> str:
    """Return loss, metrics and learning rate of the last epoch as text; "" before the first."""
    last = history.epochs[-1] if history.epochs else {}
    return ", ".join(f"{name} {value:.4g}" for name, value in last.items() if isinstance(value, float) and name not in TIMES)


def run_html(run: Any) -> str:
    """Return a run as HTML: a table of its settings and results, and the table of its epochs."""
    best = best_epoch(run.history)
    rows = [*hyperparameters(run).items(), ("last epoch", last_values(run.history)), ("best epoch", best[1] if best else "")]
    rows += [("metric", run.settings.metric_choice), ("stopped", run.stop_reason or "")]
    pairs = [(name.replace("_", " "), _number(value)) for name, value in rows if value != ""]
    epochs = run.history._repr_html_() if len(run.history) else ""
    return html.title(f"Run of {len(run.history)} epochs") + html.table(pairs) + epochs


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
