"""The operator table says what the records say, and the page in docs/ is the current one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from jfit.ops.__main__ import counts, load_all, markdown, plain, table
from jfit.ops.registry import REGISTRY

ROOT = Path(__file__).parents[1]
load_all()


def test_every_operator_has_a_row_and_a_sentence():
    rows = table()
    assert [r[0] for r in rows if not r[-1].endswith(".")] == []
    assert {r[0] for r in rows} == set(REGISTRY)
    assert str(len(rows)) in counts()


def test_names_differ_from_each_other():
    names = [n for op in REGISTRY.values() for n in (op.name, *op.aliases)]
    assert len(names) == len(set(names))


def test_plain_table_shows_attributes_with_defaults():
    assert "scalar=1.0, is_int=True" in plain()


def test_docs_page_is_up_to_date():
    page = ROOT / "docs" / "operators.md"
    if not page.parent.exists():
        pytest.skip("an installed package has no docs folder")
    assert page.read_text() == markdown(), "run python -m jfit.ops --markdown > docs/operators.md"


def test_module_runs_as_a_command():
    done = subprocess.run([sys.executable, "-m", "jfit.ops"], capture_output=True, text=True, cwd=ROOT, check=True)
    assert "operators under" in done.stdout
