"""The benchmark of faults: a short run of all its parts has no failures, and the parts notice what they are to notice."""

from __future__ import annotations

import random

import pytest

from benchmarks.faults import __main__ as faults
from benchmarks.faults import damage, table
from benchmarks.faults.results import Damaged, Results
from benchmarks.faults.signals import Case, cases
from benchmarks.faults.victims import VICTIMS
from jfit.train import saved


@pytest.mark.slow  # starts about ten processes
@pytest.mark.optimized  # digests are compared between processes
def test_a_short_run_of_the_fault_table_has_no_failures(tmp_path):
    page = tmp_path / "faults.md"
    status = faults.main(["--short", "--output", str(page), "--folder", str(tmp_path)])
    text = page.read_text()
    assert status == 0 and text.endswith("No failures.\n"), text
    assert text.count(table.HEADER) == 2 and table.FILE_HEADER in text
    for event, count in (("kill -9", 3), ("SIGTERM", 8), ("Ctrl-C", 9)):
        assert f"| {event}, all |  | {count} | {count} | 0 |" in text
    assert "| all | 300 | " in text and "not begun" not in text
    assert not list(tmp_path.glob("jfit-faults-*"))


def test_cases_depend_on_the_seed_only_and_are_repeated_from_their_text():
    reference = {entry: {"digest": "", "lines": 20_000, "seconds": 0.2} for entry in VICTIMS}
    drawn = [cases(event, 50, 3, reference) for event in ("kill", "SIGTERM", "Ctrl-C")]
    assert drawn == [cases(event, 50, 3, reference) for event in ("kill", "SIGTERM", "Ctrl-C")]
    assert drawn[0] != cases("kill", 50, 4, reference)
    for case in (case for part in drawn for case in part):
        assert Case.parse(case.text) == case
    assert {case.entry for case in drawn[0]} == set(VICTIMS) and {case.number for case in drawn[1]} == {1, 2}
    with pytest.raises(ValueError, match="expected an event of"):
        Case.parse("sneeze | fit | 1 | 3 + 0 line")


@pytest.mark.parametrize("kind", [".params", ".states", "symbol.json", ".rec", "safetensors", "iterator position"])
def test_damaged_files_are_noticed_or_read_as_they_are(kind, tmp_path):
    result = damage.damage(kind, 0, 40, 0, str(tmp_path))
    assert not result["failures"] and sum(result["counts"].values()) == 40 and result["counts"]["noticed"] > 5


def test_a_value_with_more_changes_than_the_file_is_a_failure(tmp_path):
    content = bytes(range(200))
    form = damage.Format(content, content[::-1], lambda path: bytes(b ^ (path.read_bytes() != content) for b in content))
    case = damage._single(lambda folder: form)(tmp_path)
    with pytest.raises(damage.Wrong, match="more changes than the file"):
        for number in range(20):
            case(random.Random(number), [])


@pytest.mark.slow  # trains
def test_a_checkpoint_reader_without_checksums_fails_the_benchmark(tmp_path, monkeypatch):
    assert not damage.damage("checkpoint", 0, 40, 0, str(tmp_path / "a"))["failures"]
    monkeypatch.setattr(saved, "check_content", lambda *args: None)
    assert damage.damage("checkpoint", 0, 40, 0, str(tmp_path / "b"))["failures"]


def test_the_page_names_failures_with_the_command_that_repeats_them():
    results = Results(7, "python -m benchmarks.faults")
    results.cases = [
        Case("kill", "fit", 2, 10, 5, "line", outcome="failed", problem="other bits", where=("SIGKILL loop.py:3",))
    ]
    results.cases += [Case("kill", "fit", 2, 20, 5, "line", outcome="resumed"), Case("Ctrl-C", "step loop", 1, 0.1, 0, "s")]
    results.damaged = [Damaged(".rec", 0, 2, 7, {"same": 1}, [[1, "cut (byte 3)", "KeyError: 3"]])]
    text = table.markdown(results)
    assert "| kill -9, twice | fit | 2 | 1 | 1 |" in text and "Cases that were not begun in time: 1." in text
    assert "| .rec | 2 | 1 | 0 | 0 | 0 | 1 |" in text
    assert "python -m benchmarks.faults --seed 7 --case 'kill | fit | 2 | 10 + 5 line'" in text and "SIGKILL loop.py:3" in text
    assert "--case 'damage | .rec | 1'" in text and "KeyError: 3 (cut (byte 3))" in text
