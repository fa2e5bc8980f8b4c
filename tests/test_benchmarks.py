"""A short run of the benchmark of steps: all variants train, and the report is complete.  Timings are not asserted."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import peers

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.slow
@pytest.mark.repetitions(slow=1)
@pytest.mark.parametrize("workload", ["w2", "w1"])
def test_a_quick_run_writes_json_and_markdown_with_every_field(workload, tmp_path):
    target, page = tmp_path / "out.json", tmp_path / "out.md"
    legs = ",".join(peers.names("w1", variants=False)) if workload == "w1" else "jfit_auto,hand"
    command = [sys.executable, "-m", "benchmarks.step_overhead", "--quick", "--cores", "1", "--workload", workload]
    command += ["--legs", legs, "--json", str(target), "--markdown", str(page)]
    subprocess.run(command, check=True, cwd=ROOT, capture_output=True, text=True, timeout=600)
    result = json.loads(target.read_text())
    assert {"machine", "quick", "runs", "bars", "imports"} <= set(result)
    (run,) = result["runs"]
    assert (run["workload"], run["cores"], run["clock"], run["rounds"]) == (workload, 1, "cpu_s", 1)
    assert set(run["legs"]) == set(legs.split(","))
    for leg in run["legs"].values():
        assert "skipped" in leg or (leg["rate"]["median"] > 0 and leg["ratio"]["median"] > 0 and 0 <= leg["accuracy"] <= 1)
    assert "rate" in run["legs"]["hand"]
    assert {bar["workload"] for bar in result["bars"]} == {workload}
    assert "Smoke run" in page.read_text()
