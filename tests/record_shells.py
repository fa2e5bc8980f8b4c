"""Records optimizer objects by running MXNet 1.9.1 itself: `python tests/record_shells.py` writes tests/golden/shells.npz.

Runs as `tests/record_golden.py` does.  What is run lies in tests/cases/shells.py.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
from cases.shells import CASES, MODULES, trained, updates

FOLDER = Path(__file__).parent / "golden"


def main() -> None:
    """Record every case."""
    import mxnet as mx

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = {name: updates(mx, case) for name, case in CASES.items()}
        found |= {f"module_{name}": trained(mx, name) for name in MODULES}
    np.savez_compressed(FOLDER / "shells.npz", **found)
    print(len(found), "trainings")


if __name__ == "__main__":
    main()
