"""Record outputs and trainings of the detectors of `detection_nets` with MXNet 1.9.1: `python tests/record_ssd.py`.

Runs in the environment of `record_golden`, with MXNET_MKLDNN_ENABLED=0; writes tests/golden/detection/NAME.npz.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent


def main() -> None:
    """Record every training, and the detections of the trained single-shot detector."""
    import mxnet as mx

    sys.path.insert(0, str(HERE))
    import detection_nets as nets

    folder = HERE / "golden" / "detection"
    folder.mkdir(exist_ok=True)
    for name in nets.TRAININGS:
        found = nets.run(mx, name, lambda array: array.asnumpy())
        if name == "ssd":
            params = {key[6:]: value for key, value in found.items() if key.startswith("param/")}
            found["detected"] = nets.detect(mx, params, lambda array: array.asnumpy())
        np.savez_compressed(folder / f"{name}.npz", **found)
        print(name, len(found), "arrays")


if __name__ == "__main__":
    main()
