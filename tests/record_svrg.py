"""Record trainings with SVRGModule with MXNet 1.9.1: `python tests/record_svrg.py` writes tests/golden/svrg.json.

Runs in the environment of `record_golden`.  For each case of tests/cases/svrg.py: log lines and callbacks in order, the
parameters after each epoch, the full gradients at the end.  Where the key-value store updates, MXNet overwrites the devices'
parameters with zeros when the optimizer is created, until the first update; the cases in RESTORED set them again.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def main() -> None:
    """Write the file."""
    sys.path.insert(0, str(HERE))
    mx = importlib.import_module("mxnet")
    real = importlib.import_module("mxnet.contrib.svrg_optimization.svrg_module").SVRGModule
    cases = importlib.import_module("cases.svrg")

    class Restored(real):
        def init_optimizer(self, *args: Any, **kwargs: Any) -> None:
            super().init_optimizer(*args, **kwargs)
            self.set_params(*self.get_params())

    found = {n: cases.train(mx, Restored if n in cases.RESTORED else real, n) for n in cases.CASES}
    mx.nd.waitall()
    lines = [f"{json.dumps(name)}: {json.dumps(case)}" for name, case in found.items()]
    (HERE / "golden" / "svrg.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
