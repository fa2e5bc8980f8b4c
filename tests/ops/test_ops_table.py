"""The table of operators matches the registry, and the generated page in docs/ is up to date."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from docs_scripts import docs_script

from jfit.ops.registry import ALIASES, REGISTRY, OutOfScope, lookup, register
from jfit.ops.scope import REASONS, out_of_scope

ROOT = Path(__file__).parents[2]


def test_every_operator_has_a_row_and_a_description():
    tables = docs_script("tables")
    rows = tables.operator_rows()
    assert [r[0] for r in rows if not r[-1].endswith(".")] == []
    assert {r[0] for r in rows} == set(REGISTRY)
    assert str(len(rows)) in tables.operator_counts()


def test_registering_a_name_twice_raises():
    op = lookup("relu")
    with pytest.raises(ValueError, match="'relu' is already taken by 'relu' of elementwise"):
        register(replace(op, family="elsewhere"))
    with pytest.raises(ValueError, match="'relu' is already taken by 'relu' of elementwise"):
        register(replace(op, name="mine", family="elsewhere", aliases=("relu",)))
    assert "mine" not in REGISTRY
    assert lookup("relu") is register(op)


def test_every_mxnet_operator_is_supported_or_out_of_scope_with_a_reason():
    registry = (Path(__file__).parents[1] / "golden" / "registry_names.txt").read_text().split()
    assert [n for n in registry if n not in ALIASES and n not in out_of_scope()] == []
    assert [n for n in out_of_scope() if n in ALIASES or n not in registry] == []
    assert set(out_of_scope().values()) <= set(REASONS)
    assert dict(docs_script("tables").operator_names()).keys() >= set(registry)


@pytest.mark.parametrize(
    ("name", "reason"), [("sgd_update", "jfit.optim"), ("_backward_Activation", "differentiates"), ("_npi_add", "NumPy")]
)
def test_an_operator_out_of_scope_raises_with_the_reason(name, reason):
    with pytest.raises(OutOfScope, match=f"{name}.*out of scope.*{reason}"):
        lookup(name)


def test_docs_page_is_up_to_date():
    page = ROOT / "docs" / "operators.md"
    assert page.read_text() == docs_script("tables").operators(), "run python docs/tables.py operators > docs/operators.md"
