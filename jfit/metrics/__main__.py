"""Print the table of metrics, generated from the registry: `python -m jfit.metrics`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

from jfit.metrics.named import METRICS


def table() -> list[tuple[str, ...]]:
    """Return one row per metric: name, aliases, parameters, formula.

    Example:
        >>> table()[0][:2]
        ('acc', 'accuracy')
    """
    names_of: dict[Callable[..., Any], list[str]] = {}
    for name, make in METRICS.items():
        names_of.setdefault(make, []).append(name)
    rows = []
    for make, (name, *aliases) in names_of.items():
        formula = (inspect.getdoc(make) or "").split("\n\n")[0].replace("\n", " ")
        rows.append((name, ", ".join(aliases), _parameters(make), formula))
    return rows


def _parameters(make: Callable[..., Any]) -> str:
    parameters = inspect.signature(make).parameters.values()
    return ", ".join(f"{p.name}={p.default!r}" for p in parameters if p.name not in ("name", "weighted"))


if __name__ == "__main__":
    sys.stdout.write("\n".join(map("  ".join, table())) + "\n")
