"""The benchmarks run and write complete reports.  Timings are not asserted: the test machine is shared."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jfit
from benchmarks import measure, peers, report, size, step_overhead, walks
from benchmarks.workloads import WORKLOADS

ROOT = Path(__file__).resolve().parent.parent


class Recorder:
    """A leg that only writes down when it ran."""

    accuracy = 1.0

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    def setup(self) -> None: ...

    def epoch(self) -> int:
        self.log.append(self.name)
        return 10


def _run(rates: dict[str, list[float]], workload: str = "w1") -> dict[str, Any]:
    legs: dict[str, Any] = {
        n: {"title": n, "rates": r, "rate": measure.summary(np.array(r)), "accuracy": 1.0} for n, r in rates.items()
    }
    return {"workload": workload, "rows": 64, "cores": 1, "clock": "cpu_s", "rounds": 2, "legs": legs}


@pytest.mark.slow
def test_every_round_runs_every_variant_once_and_rotates_their_order():
    log: list[str] = []
    epochs = measure.interleave({n: Recorder(n, log) for n in "abc"}, rounds=2)
    assert log == ["a", "b", "c", "b", "c", "a"]
    assert [len(e) for e in epochs.values()] == [2, 2, 2]
    assert all(e.rows == 10 for rounds in epochs.values() for e in rounds)


def test_a_threshold_is_compared_with_the_fastest_variant_of_its_group():
    run = _run({"jfit_auto": [400.0, 400.0], "hand": [200.0, 200.0], "keras": [100.0, 100.0], "keras_spe20": [300.0, 300.0]})
    bars = report.verdicts([run], step_overhead._ratio)
    against_keras = next(b for b in bars if b["group"] == "b")
    assert against_keras["rival"] == "keras_spe20"
    assert against_keras["ratio"]["median"] == pytest.approx(4 / 3)
    assert against_keras["passed"] is False
    assert next(b for b in bars if b["group"] == "a" and b["leg"] == "jfit_auto")["passed"] is True


def test_a_variant_that_was_not_measured_has_no_verdict():
    bars = report.verdicts([_run({"hand": [200.0, 200.0]})], step_overhead._ratio)
    assert {b["passed"] for b in bars} == {None}


def test_ratios_are_taken_within_a_round():
    run = _run({"jfit_step1": [100.0, 10.0, 1.0], "hand": [50.0, 5.0, 0.5]})
    assert step_overhead._ratio(run, "jfit_step1", "hand") == {"median": 2.0, "q1": 2.0, "q3": 2.0}


def test_an_unknown_variant_raises_with_the_known_ones():
    with pytest.raises(KeyError, match="No leg is called 'hnad'; the legs are jfit_step1, jfit_auto, module_fit, "):
        peers.entry("hnad")


def test_workload_data_are_the_same_each_time_and_shaped_for_the_layout():
    small = WORKLOADS["w2"].resized(32)
    first, labels = small.shaped("NCHW")
    again, _ = small.shaped("NCHW")
    assert first.shape == (32, 1, 28, 28) and labels.shape == (32,) and labels.max() < 10
    np.testing.assert_array_equal(first, again)
    assert small.shaped("NHWC")[0].shape == (32, 28, 28, 1)
    assert WORKLOADS["w1"].resized(32).shaped("NCHW")[0].shape == (32, 784)


def test_code_lines_leave_out_docstrings_comments_and_blanks():
    documented = '"""Doc."""\n\nimport os  # why\n\n\ndef f():\n    """Two\n    lines."""\n    # note\n'
    source = documented + "    return (\n        os.sep,\n    )\n"
    assert size.code_lines(source) == 5


def test_the_walk_report_lists_the_files_in_which_a_function_runs():
    x = jfit.sym.Variable("x")
    assert walks.files_run(x.list_arguments) == {"graph/nodes.py"}


def test_size_report_names_the_core_and_long_files():
    drawing = {"jfit/graph/drawing.py": (50, 60)}  # no part of the core
    text = size.report(
        {"jfit/step/train.py": (90, 120), "jfit/graph/symbol.py": (2_700, 401), "tests/test_a.py": (5, 9)} | drawing
    )
    assert "core (graph, lowering, step, parallel, train/loop.py, train/run.py): 2,790 code lines" in text
    assert "over 400 lines: jfit/graph/symbol.py (401)" in text


@pytest.mark.slow
@pytest.mark.repetitions(slow=1)
@pytest.mark.parametrize("workload", ["w2", "w1"])
def test_a_quick_run_writes_json_and_markdown_with_every_field(workload: str, tmp_path: Path):
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
