"""The names of MXNet 1.9.1's registry that jfit leaves out, and why: asking for one raises a sentence that says so.

`out_of_scope.txt` lists them under their reasons; every other name of that registry is an alias of a record.

>>> why_not("sgd_update").split(";")[0]
'it updates parameters, which no graph does in jfit'
>>> why_not("relu") is None
True
"""

from __future__ import annotations

import functools
from pathlib import Path

# heading in out_of_scope.txt -> why, and what to do
REASONS = {
    "gradient": "it is the inner gradient of another operator; jfit differentiates the operator itself",
    "numpy": "it belongs to MXNet's NumPy front end (mx.np, mx.npx), which no Symbol of mx.sym holds; use the operator of the "
    "same meaning without the prefix",
    "update": "it updates parameters, which no graph does in jfit; use jfit.optim, or mx.optimizer",
    "graphs": "it samples or rewrites graphs of the DGL library on the host; prepare such data before it is fed",
    "host": "it reads or decodes files on the host; prepare such data before it is fed (jfit.data, mx.io)",
    "internal": "MXNet uses it inside itself, and its files hold none; nothing needs to take its place",
    "fused": "it stands for a part of a graph that MXNet fused for oneDNN on one processor; save the graph of plain operators, "
    "as it is before get_backend_symbol",
    "calibration": "it finds thresholds of quantisation from histograms on the host; load the model that MXNet calibrated",
    "writes": "it writes into an array that is given, which no graph does; assign to the array (`a[:] = ...`), or use one_hot",
    "values": "the shape of its output depends on the values of its input, so it cannot be compiled; mask with `where` instead",
}


@functools.cache
def out_of_scope() -> dict[str, str]:
    """Every name that is left out -> its heading in REASONS.

    Example:
        >>> out_of_scope()["adam_update"]
        'update'
    """
    found: dict[str, str] = {}
    heading = ""
    for line in (Path(__file__).parent / "out_of_scope.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("= "):
            heading = line[2:].strip()
        else:
            found.update(dict.fromkeys(line.split(), heading))
    return found


def why_not(name: str) -> str | None:
    """Why there is no such operator, None if the name is not one that is left out on purpose."""
    heading = out_of_scope().get(name)
    return None if heading is None else REASONS[heading]
