"""Record trainings with BatchNorm(fix_gamma=True) with MXNet 1.9.1: `python tests/record_fixed_gammas.py`.

Runs as `tests/record_golden.py` does, with MXNET_SUBGRAPH_BACKEND=NONE, and writes tests/golden/fixed_gammas.npz.  The cases
are in tests/cases/fixed_gammas.py.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
from cases.fixed_gammas import CASES, fed_forward, own_rule, trained, trainers

FOLDER = Path(__file__).parent / "golden"


def main() -> None:
    """Record every case."""
    import mxnet as mx

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = {name: trained(mx, name) for name in CASES} | {"feedforward": fed_forward(mx), "own": own_rule(mx)}
        found |= {f"trainer_{on_store}": trainers(mx, on_store) for on_store in (False, True)}
    np.savez_compressed(FOLDER / "fixed_gammas.npz", **found)
    print(len(found), "trainings")


if __name__ == "__main__":
    main()
