"""The rule that selects the fast tests."""

import itertools
import subprocess
import sys
from pathlib import Path

import pytest
from selection import fast_cases

HERE = Path(__file__).parent


def product(**sizes):
    """The cases of a test with these parameters, each with so many values."""
    places = itertools.product(*(range(size) for size in sizes.values()))
    return [(f"test[{p}]", frozenset(zip(sizes, p, strict=True))) for p in places]


def shown(cases, chosen):
    return set().union(*(values for name, values in cases if name in chosen))


@pytest.mark.parametrize("sizes", [{"a": 7}, {"a": 5, "b": 4}, {"a": 2, "b": 3, "c": 4}, {"a": 9, "b": 1}], ids=str)
def test_few_cases_cover_every_value_of_every_parameter(sizes):
    cases = product(**sizes)
    chosen = fast_cases(cases)
    assert cases[0][0] in chosen and shown(cases, chosen) == shown(cases, [name for name, _ in cases])
    assert max(sizes.values()) <= len(chosen) <= max(sizes.values()) + len(sizes) - 1


def test_a_limit_keeps_that_many_cases_with_different_values_first():
    cases = product(a=4, b=4)
    assert [len(fast_cases(cases, limit)) for limit in (1, 3, 16, 99)] == [1, 3, 16, 16]
    assert fast_cases(cases, 1) == {cases[0][0]}
    assert len(shown(cases, fast_cases(cases, 3))) == 6


def test_the_selection_depends_only_on_names():
    cases = product(a=6, b=6)
    turned = [cases[0], *reversed(cases[1:])]
    assert fast_cases(cases) == fast_cases(turned) and fast_cases(cases, 4) == fast_cases(turned, 4)


def test_markers_apply_in_a_pytest_session(tmp_path):
    (tmp_path / "conftest.py").write_text(
        "import selection\n\ndef pytest_collection_modifyitems(items):\n    selection.mark_repetitions(items)\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    slow: s\n    repetitions(k): r\n    exhaustive: e\n")
    (tmp_path / "test_it.py").write_text(
        "import pytest\n"
        "many = pytest.mark.parametrize('n', range(9))\n"
        "@many\ndef test_each(n): pass\n"
        "@many\n@pytest.mark.repetitions(2)\ndef test_two(n): pass\n"
        "@many\n@pytest.mark.slow\ndef test_none(n): pass\n"
        "@many\n@pytest.mark.parametrize('m', range(9))\ndef test_nine(n, m): pass\n"
        "@many\n@pytest.mark.repetitions(2, slow=5)\ndef test_five(n): pass\n"
        "@many\n@pytest.mark.slow\n@pytest.mark.repetitions(slow=3)\ndef test_three(n): pass\n"
        "@pytest.mark.parametrize('n', [pytest.param(0, marks=pytest.mark.slow), 1])\ndef test_one(n): pass\n"
        "def test_plain(): pass\n"
    )

    def counts(expression):
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "--collect-only",
            "-m",
            expression,
            "-p",
            "no:cacheprovider",
            str(tmp_path),
        ]
        listed = subprocess.run(command, cwd=HERE, env={"PYTHONPATH": str(HERE)}, capture_output=True, text=True, timeout=120)
        names = [line.split("::")[1].split("[")[0] for line in listed.stdout.splitlines() if "::" in line]
        return {name: names.count(name) for name in dict.fromkeys(names)}

    fast = {"test_each": 9, "test_two": 2, "test_nine": 9, "test_five": 2, "test_one": 1, "test_plain": 1}
    assert counts("not slow") == fast
    assert counts("slow and not exhaustive") == {
        "test_two": 7,
        "test_none": 9,
        "test_nine": 72,
        "test_five": 3,
        "test_three": 3,
        "test_one": 1,
    }
    assert counts("exhaustive") == {"test_five": 4, "test_three": 6}
    assert counts("not slow and exhaustive") == {}
