"""The operators of MXNet 1.9.1 that jfit does not support on purpose, with the reason; `lookup` raises `OutOfScope` for them.

`out_of_scope.txt` lists their names under headings, the keys of `REASONS`; every other operator name of MXNet 1.9.1 is the name
or alias of a record.

>>> why_not("sgd_update").split(";")[0]
'it updates parameters, which graphs do not do in jfit'
>>> why_not("relu") is None
True
"""

from __future__ import annotations

import functools
from pathlib import Path

# heading in out_of_scope.txt -> why the operator is unsupported, and what to use instead
REASONS = {
    "gradient": "it is the inner gradient of another operator; jfit differentiates the operator itself",
    "numpy": "it belongs to MXNet's NumPy interface (mx.np, mx.npx), which symbols of mx.sym do not contain; use the "
    "equivalent operator without the prefix",
    "update": "it updates parameters, which graphs do not do in jfit; use jfit.optim, or mx.optimizer",
    "graphs": "it samples or rewrites graphs of the DGL library on the host; preprocess the data before passing it in",
    "host": "it reads or decodes files on the host; preprocess the data before passing it in (jfit.data, mx.io)",
    "internal": "MXNet uses it internally only, and its symbol files do not contain it; no replacement is needed",
    "fused": "it is a subgraph that MXNet fused for oneDNN on one processor; save the graph of plain operators, "
    "before get_backend_symbol",
    "writes": "it writes into its argument in place, which graphs cannot do; assign to the array (`a[:] = ...`) or use one_hot",
    "values": "the shape of its output depends on the values of its input, so it cannot be compiled; mask with `where` instead",
}


@functools.cache
def out_of_scope() -> dict[str, str]:
    """Return a dict from the name of each unsupported MXNet operator to its key in REASONS.

    Example:
        >>> out_of_scope()["adam_update"]
        'update'
    """
    headings: dict[str, str] = {}
    heading = ""
    for line in (Path(__file__).parent / "out_of_scope.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("= "):
            heading = line[2:].strip()
        else:
            headings.update(dict.fromkeys(line.split(), heading))
    return headings


def why_not(name: str) -> str | None:
    """Return the reason why jfit does not support an operator of MXNet on purpose; None if the name is not in that list."""
    heading = out_of_scope().get(name)
    return None if heading is None else REASONS[heading]
