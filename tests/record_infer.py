"""Record shape and dtype inference of MXNet 1.9.1 over the table of tests/infer_nets.py: `python tests/record_infer.py`.

Runs as `tests/record_golden.py` does, and writes tests/golden/infer.json: for each graph and each set of known shapes
(dtypes) the lists of arguments, outputs and auxiliary states, or "error".
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
from infer_nets import NETS, SHAPES, TYPES


def build(mx, name):
    """The graph of a case; each variable is made once."""
    made = {}
    symbol = NETS[name](mx, lambda n: made.setdefault(n, mx.sym.Variable(n)))
    return mx.sym.Group(symbol) if isinstance(symbol, list) else symbol


def main() -> None:
    """Record every case."""
    import mxnet as mx

    warnings.simplefilter("ignore")
    found = {}
    for name in NETS:
        symbol = build(mx, name)
        shapes, types = [], []
        for given in SHAPES[name]:
            try:
                shapes.append([[list(s or ()) for s in part] for part in symbol.infer_shape_partial(**given)])
            except mx.base.MXNetError:
                shapes.append("error")
        for given in TYPES[name]:
            try:
                made = symbol.infer_type_partial(**given)
                types.append([[None if t is None else np.dtype(t).name for t in part] for part in made])
            except mx.base.MXNetError:
                types.append("error")
        found[name] = {"arguments": symbol.list_arguments(), "shapes": shapes, "types": types}
    path = Path(__file__).parent / "golden" / "infer.json"
    path.write_text(json.dumps(found, separators=(",", ":"), sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
