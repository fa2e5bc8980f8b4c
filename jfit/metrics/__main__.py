"""Print the table of metrics, generated from the registry: `python -m jfit.metrics [--markdown]`."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from typing import Any

import jax

from jfit.metrics.named import METRICS, create
from jfit.ops.tables import code, markdown_table

HEADER = ("metric", "aliases", "parameters", "value", "sums", "MXNet", "scikit-learn")


def rows() -> list[tuple[str, ...]]:
    """Return one row per metric: name, aliases, parameters, formula, number of sums, its names in MXNet and in scikit-learn.

    Example:
        >>> rows()[0][:2]
        ('acc', 'accuracy')
    """
    names_of: dict[Callable[..., Any], list[str]] = {}
    for name, make in METRICS.items():
        names_of.setdefault(make, []).append(name)
    table = []
    for make, (name, *aliases) in names_of.items():
        text = inspect.getdoc(make) or ""
        formula = text.split("\n\n")[0].replace("\n", " ")
        sources = [re.search(pattern, text) for pattern in (r"MXNet 1\.9\.1, `(\w+)`", r"scikit-learn, `(\w+)`")]
        table.append((name, ", ".join(aliases), _parameters(make), formula, _size(name), *(m[1] if m else "" for m in sources)))
    return table


def markdown() -> str:
    """Return the table at the end of docs/metrics.md."""
    return markdown_table(HEADER, ((f"`{r[0]}`", code(r[1]), code(r[2]), *r[3:]) for r in rows()))


def _parameters(make: Callable[..., Any]) -> str:
    parameters = inspect.signature(make).parameters.values()
    return ", ".join(f"{p.name}={p.default!r}" for p in parameters if p.name not in ("name", "weighted"))


def _size(name: str) -> str:
    """Return the number of running sums of the metric `name` as text, a polynomial of the number of classes K."""
    metric = create(name, **({"average": "macro"} if name in ("precision", "recall") else {}))
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
