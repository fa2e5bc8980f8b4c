"""The benchmark of faults: short runs of its parts have no failures."""

from __future__ import annotations

import pytest

from benchmarks.faults import __main__ as faults
from benchmarks.faults import damage, table


@pytest.mark.slow  # starts about ten processes
@pytest.mark.optimized  # digests are compared between processes
def test_a_short_run_of_the_fault_table_has_no_failures(tmp_path):
    page = tmp_path / "faults.md"
    size = ["--signals", "4", "--files", "300"]
    status = faults.main([*size, "--output", str(page), "--folder", str(tmp_path)])
    text = page.read_text()
    assert status == 0 and text.endswith("No failures.\n"), text
    assert text.count(table.HEADER) == 2 and table.FILE_HEADER in text
    for event in ("kill -9", "SIGTERM", "Ctrl-C"):
        assert f"| {event}, all |  | 4 | 4 | 0 |" in text
    assert "| all | 300 | " in text and "not begun" not in text
    assert not list(tmp_path.glob("jfit-faults-*"))


@pytest.mark.parametrize("kind", [".params", ".states", "symbol.json", ".rec", "safetensors", "iterator position"])
def test_damaged_files_are_noticed_or_read_as_they_are(kind, tmp_path):
    result = damage.damage(kind, 0, 40, 0, str(tmp_path))
    assert not result["failures"] and sum(result["counts"].values()) == 40 and result["counts"]["noticed"] > 5
