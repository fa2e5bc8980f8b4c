"""The metrics as a table: `python -m jfit.metrics [--markdown]`."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from typing import Any

import jax

from jfit.metrics.named import METRICS, create

HEADER = ("metric", "other names", "settings", "value", "sums", "MXNet", "scikit-learn")

HEAD = """# Metrics

Made by `python -m jfit.metrics --markdown > docs/metrics.md`; do not edit by hand.

`eval_metric=` of `jfit.fit` and `score` takes a name, `jfit.metrics.get(name, **settings)`, a function `(label, output)` of
numpy arrays, or a list of these.  Rows of weight 0 never count; with `weighted=True` the others count by their weights, as
with scikit-learn's `sample_weight`.  `sums` says how many numbers are kept on the devices, K being the number of classes,
which follows from the outputs unless `num_classes` says it.

"macro" and "micro" are MXNet's for `f1`, `mcc` and `pearsonr` (the mean over batches, or one value of everything that was
seen), scikit-learn's for `precision`, `recall` and `roc_auc` (the mean over classes, or from the totals).  A value that is an
array (a confusion matrix, `average=None`) is kept in the history and in JSON; tables, curves and CSV leave it out.

A function runs on the host a few batches behind the devices, in order, with the rows that count; it gives a number or
(sum, count).  The steps then go one a dispatch, and a run that is resumed within an epoch counts the rest of it.  `roc_auc`
with `bins=None` is such a function: exact, it keeps every score.

Where two values have one name, the second is called `name_2`; "loss" without a number is the loss of the training.

"""


def rows() -> list[tuple[str, ...]]:
    """One row a metric: name, other names, settings, what it computes, numbers it keeps, whose it is.

    Example:
        >>> rows()[0][:2]
        ('acc', 'accuracy')
    """
    found: dict[Callable[..., Any], list[str]] = {}
    for name, make in METRICS.items():
        found.setdefault(make, []).append(name)
    table = []
    for make, names in found.items():
        text = inspect.getdoc(make) or ""
        table.append(
            (
                names[0],
                ", ".join(names[1:]),
                _settings(make),
                text.split("\n\n")[0].replace("\n", " "),
                _size(names[0]),
                _source(text, r"MXNet 1\.9\.1, `(\w+)`"),
                _source(text, r"scikit-learn, `(\w+)`"),
            )
        )
    return table


def markdown() -> str:
    """The page docs/metrics.md.

    Example:
        >>> markdown().splitlines()[0]
        '# Metrics'
    """
    table = [HEADER, tuple("---" for _ in HEADER), *((f"`{r[0]}`", _code(r[1]), _code(r[2]), *r[3:]) for r in rows())]
    return HEAD + "\n".join("| " + " | ".join(x.replace("|", "\\|") for x in row) + " |" for row in table) + "\n"


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _settings(make: Callable[..., Any]) -> str:
    parameters = inspect.signature(make).parameters.values()
    return ", ".join(f"{p.name}={p.default!r}" for p in parameters if p.name not in ("name", "weighted"))


def _source(text: str, pattern: str) -> str:
    found = re.search(pattern, text)
    return found[1] if found else ""


def _size(name: str) -> str:
    """How many numbers the sums are: a polynomial of the number of classes."""
    settings: dict[str, Any] = {"top_k": 2} if name.startswith("top_k") else {}
    if "average" in inspect.signature(METRICS[name]).parameters and name in ("precision", "recall"):
        settings["average"] = "macro"
    metric = create(name, **settings)
    if metric.sized is None:
        return str(_count(metric))
    one, two, three = (_count(metric.sized([(8,)], [(8, k)])) for k in (3, 4, 5))
    square = (three - 2 * two + one) // 2
    slope = two - one - 7 * square
    return _polynomial(square, slope, one - 9 * square - 3 * slope)


def _count(metric: Any) -> int:
    return sum(x.size for x in jax.tree.leaves(jax.eval_shape(metric.init)))


def _polynomial(square: int, slope: int, rest: int) -> str:
    def term(factor: int, unit: str) -> str:
        return f"{factor if factor > 1 else ''} {unit}".strip()

    parts = [term(square, "K²")] * (square > 0) + [term(slope, "K")] * (slope > 0) + [str(rest)] * (rest > 0)
    return " + ".join(parts)


if __name__ == "__main__":
    sys.stdout.write(markdown() if "--markdown" in sys.argv else "\n".join("  ".join(row[:4]) for row in rows()) + "\n")
