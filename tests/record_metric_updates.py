"""Record metrics over several updates with MXNet 1.9.1: `python tests/record_metric_updates.py`.

Runs in the environment of `record_golden` and writes tests/golden/metric_updates.json: for each case of
tests/cases/metric_updates.py the metric's value after each update and reset.
"""

from __future__ import annotations

import importlib
import json
import sys
import warnings
from pathlib import Path

HERE = Path(__file__).parent


def main() -> None:
    """Write the file."""
    sys.path.insert(0, str(HERE))
    warnings.simplefilter("ignore")
    mx = importlib.import_module("mxnet")
    cases = importlib.import_module("cases.metric_updates")
    found = {n: cases.run(mx.metric, lambda x: mx.nd.array(x, dtype=x.dtype), n) for n in cases.CASES}
    lines = [f"{json.dumps(name)}: {json.dumps(said)}" for name, said in found.items()]
    (HERE / "golden" / "metric_updates.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
