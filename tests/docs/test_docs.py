"""Every example in docstrings, Markdown pages and notebooks runs and prints what it shows."""

import doctest
import importlib
import os
import pkgutil
import re
from pathlib import Path

import jax
import numpy as np
import pytest
import run_readme

import jfit

ROOT = Path(__file__).parents[2]
MODULES = ["jfit", *sorted(module.name for module in pkgutil.walk_packages(jfit.__path__, "jfit."))]
PAGES = [
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "docs/data.md",
    "docs/export.md",
    "docs/files.md",
    "docs/from_mxnet.md",
    "docs/images.md",
    pytest.param("docs/runs.md", marks=pytest.mark.filterwarnings("ignore::jfit.loop.nonfinite.NonFiniteLoss")),
    "docs/scaling.md",
    "docs/training.md",
]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
# Some are compiled as users compile also where the others are not (`.ci/run`).
AS_USERS_COMPILE = {"01_fit", "04_models_from_files", "05_learning"}
NOTEBOOK_CASES = [
    pytest.param(path, id=path.name, marks=[pytest.mark.optimized] if path.stem in AS_USERS_COMPILE else [])
    for path in NOTEBOOKS
]
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


SLOW = {"jfit.mxnet.gluon.model_zoo.vision", "jfit.mxnet.gluon.rnn.cells"}  # they compile the most programs


@pytest.mark.repetitions(110)
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in MODULES])
def test_the_doctests_of_a_module_pass(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    for test in doctest.DocTestFinder().find(importlib.import_module(name), name):
        # Automatic names start at 0 in every docstring, as in a fresh session.
        with jfit.sym.NameManager():
            runner.run(test, out=report.append)
    assert not report, "".join(report)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_a_page_runs_from_top_to_bottom(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_readme.run(ROOT / page)


@pytest.fixture
def rank_promotion():
    """Allow arrays of different rank to be added, as JAX does by default."""
    jax.config.update("jax_numpy_rank_promotion", "allow")
    yield
    jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.mark.slow  # imports five frameworks
@pytest.mark.usefixtures("rank_promotion")  # Keras adds biases to arrays of another rank
def test_the_code_of_the_page_on_models_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_readme.run(ROOT / "docs" / "models.md")


@pytest.mark.slow
@pytest.mark.optimized  # convolutions without optimization take minutes
@pytest.mark.usefixtures("rank_promotion")
@pytest.mark.parametrize(
    "page", [path.name for path in sorted((ROOT / "docs" / "gallery").glob("*.md")) if path.stem != "index"]
)
def test_the_program_of_a_page_of_the_gallery_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XLA_FLAGS", os.environ["XLA_FLAGS"])  # a page sets it
    run_readme.run(ROOT / "docs" / "gallery" / page)


def test_the_first_example_of_readme_prints_the_table_below_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "__page__"}
    for _, code in run_readme.python_blocks(ROOT / "README.md")[:2]:
        exec(code, namespace)
    lines = capsys.readouterr().out.splitlines()
    printed = [line.split() for line in lines[-4:]]
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = [line.split() for line in text.split("```text\n")[1].split("\n```")[0].splitlines()]
    assert printed[0] == shown[0] and len(printed) == len(shown) == 4
    for row, expected in zip(printed[1:], shown[1:], strict=True):
        steady = [0, *range(4, len(row))]  # columns 1, 2 and 3 are times
        np.testing.assert_allclose([float(row[k]) for k in steady], [float(expected[k]) for k in steady], atol=0.005)


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOK_CASES)
def test_a_notebook_runs(path, tmp_path, monkeypatch):
    # The kernel is another process with the temporary folder as its working directory; it must import this checkout.
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    import nbclient
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()


def test_each_difference_from_mxnet_names_a_test_that_exists():
    rows = re.findall(
        r"^\| \w+ \|.*\| `(test_\w+\.py)::(test_\w+)` \|$", (ROOT / "tests" / "decided.md").read_text(encoding="utf-8"), re.M
    )
    sources = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")}
    missing = [row for row in rows if not re.search(rf"^(def {row[1]}\(|{row[1]} = )", sources.get(row[0], ""), re.MULTILINE)]
    assert len(rows) > 40 and not missing


def test_the_files_and_functions_that_architecture_names_exist():
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    places = re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.py)(?::(\w+))?`", text)
    missing = []
    for path, name in places:
        file = ROOT / "jfit" / path if not path.startswith("tests/") else ROOT / path
        source = file.read_text(encoding="utf-8") if file.exists() else ""
        if not source or (name and not re.search(rf"^(def|class) {name}\b", source, re.MULTILINE)):
            missing.append(f"{path}:{name}")
    assert len(places) > 40 and not missing
