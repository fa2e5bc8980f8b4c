"""The benchmark of peers: a short run works, and its page says what was not measured or did not learn."""

from __future__ import annotations

import json

import pytest

from benchmarks.peers import __main__ as peers
from benchmarks.peers import page, runs
from benchmarks.workloads import WORKLOADS


def record(rates, parameters=10, learned=True):
    values = {
        "metric": 0.1,
        "last": 0.9 if learned else 0.11,
        "peak_mb": 300.0,
        "faults": 5.0,
        "start_cpu_s": 1.5,
        "versions": {},
    }
    return {**values, "rates": rates, "parameters": parameters, "learned": learned}


@pytest.fixture
def result():
    default, kept = runs.SETTINGS
    legs = {
        "jfit": {default: record([100.0, 120.0, 140.0]), kept: record([200.0, 240.0, 280.0])},
        "hand": {default: record([100.0, 100.0, 100.0]), kept: record([200.0, 200.0, 200.0])},
        "torch": {default: record([400.0, 400.0, 400.0], learned=False), kept: {"missing": "failed: no memory"}},
        "mxnet": {default: record([100.0, 160.0, 140.0], parameters=12)},
    }
    head = {"workload": "w2", "cores": 1, "clock": "cpu_s", "steps": 20, "rounds": 3, "date": "2026-01-01"}
    return {
        "machine": {"processor": "A", "cores": 2, "system": "Linux"},
        "quick": False,
        "note": "",
        "runs": [{**head, "legs": legs}],
    }


def test_ratios_are_taken_within_a_round_and_the_fastest_other_is_held_against_the_bar(result):
    text = page.markdown(result, "peers.svg")
    assert "| hand-written JAX | 2.40 (2.20-2.60) |" in text and "| hand-written JAX | 1.20 (1.10-1.30) |" in text
    assert "| jfit.fit | 120 / 240 |" in text
    assert "- W2: 0.60 times the speed of torch eager, bar 1.0: **missed**" in text


def test_the_page_names_legs_that_failed_that_did_not_learn_and_that_have_another_network(result):
    remarks = page.markdown(result, "peers.svg").split("## Remarks")[1]
    assert "torch eager, memory kept: failed: no memory" in remarks
    assert "torch eager, default malloc, **did not learn**: 0.100, then 0.110" in remarks
    assert "10 in jfit.fit, hand-written JAX, torch eager; 12 in MXNet Module.fit" in remarks


def test_the_lines_of_the_readme_are_replaced_between_the_marks(result, tmp_path, monkeypatch):
    monkeypatch.setattr(page, "ROOT", tmp_path)
    (tmp_path / "README.md").write_text("a\n<!-- peers -->\nold\n<!-- /peers -->\nb\n")
    page.write_readme(result, tmp_path / "benchmarks" / "results" / "x-peers.md")
    text = (tmp_path / "README.md").read_text()
    assert (
        text.startswith("a\n<!-- peers -->\n| jfit / other |") and text.endswith("<!-- /peers -->\nb\n") and "old" not in text
    )
    assert "| 2.40 | 0.60 | 2.00 |" in text and "(benchmarks/results/x-peers.md)" in text


def test_a_leg_that_skips_its_updates_has_not_learned():
    assert not WORKLOADS["w1"].learned(0.1, 0.13) and WORKLOADS["w1"].learned(0.1, 0.5)
    assert not WORKLOADS["w4"].learned(9.2, 9.2) and WORKLOADS["w4"].learned(9.2, 7)


@pytest.mark.slow  # starts two processes
def test_a_short_run_measures_and_a_later_one_keeps_its_results(tmp_path):
    short = ["--quick", "--cores", "1", "--malloc", "keep", "--name", "x", "--folder", str(tmp_path)]
    peers.main([*short, "--workload", "w1", "--legs", "jfit,hand"])
    peers.main([*short, "--workload", "w2", "--legs", "mxnet", "--keep"])
    first, second = json.loads((tmp_path / "x.json").read_text())["runs"]
    assert first["workload"] == "w1" and second["legs"] == {}
    jfit, hand = (first["legs"][leg]["memory kept"] for leg in ("jfit", "hand"))
    assert jfit["parameters"] == hand["parameters"] == 109_386
    assert all(r["rates"][0] > 0 and r["peak_mb"] > 50 and r["start_cpu_s"] > 0.2 for r in (jfit, hand))
    assert "](x.svg)" in (tmp_path / "x.md").read_text() and (tmp_path / "x.svg").read_text().startswith("<?xml")
