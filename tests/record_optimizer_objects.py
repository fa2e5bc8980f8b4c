"""Record trainings with MXNet 1.9.1's optimizer objects: `python tests/record_optimizer_objects.py`.

Writes tests/golden/shells.npz and runs as `tests/record_golden.py` does; the cases are in tests/cases/optimizer_objects.py.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
from cases.optimizer_objects import CASES, MODULES, trained, updates

FOLDER = Path(__file__).parent / "golden"


def main() -> None:
    """Record every case."""
    import mxnet as mx

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        arrays = {name: updates(mx, case) for name, case in CASES.items()}
        arrays |= {f"module_{name}": trained(mx, name) for name in MODULES}
    np.savez_compressed(FOLDER / "shells.npz", **arrays)
    print(len(arrays), "trainings")


if __name__ == "__main__":
    main()
