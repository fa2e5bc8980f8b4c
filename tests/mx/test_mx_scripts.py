"""Whole programs, written as published examples of MXNet 1.x are, log what MXNet 1.9.1 logged; see tests/mx/scripts/."""

import importlib.util
import json
import math
import re
from pathlib import Path

import pytest

import jfit.mx as mx
from jfit.mx import _alias

spec = importlib.util.spec_from_file_location("record_scripts", Path(__file__).parent / "scripts" / "record_scripts.py")
assert spec and spec.loader
suite = importlib.util.module_from_spec(spec)
spec.loader.exec_module(suite)

RECORDED = json.loads(suite.GOLDEN.read_text())
FAST = {
    "autograd_linear_regression",
    "gluon_mlp_block",
    "linear_regression_module",
    "matrix_factorization",
}
CASES = [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in suite.names()]
NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|nan|inf)(?!\w)")
TOLERANCE = 1e-4  # relative; 5e-6 absolute, a few units of the last digit that "%f" prints


@pytest.fixture
def aliased():
    _alias.install()
    with mx.name.NameManager():  # automatic names are counted from 0, as in a new process
        yield
    mx.util.reset_np()  # scripts may have called npx.set_np()
    _alias.uninstall()


def differs(line, recorded):
    """Whether the texts of two lines differ, spaces aside, or numbers in them by more than the tolerance."""
    line, recorded = (re.sub(r"\s+(?=])|(?<=\[)\s+", "", " ".join(text.split())) for text in (line, recorded))
    numbers = [[float(x) for x in NUMBER.findall(text)] for text in (line, recorded)]
    return NUMBER.sub("#", line) != NUMBER.sub("#", recorded) or not all(
        math.isclose(x, y, rel_tol=TOLERANCE, abs_tol=5e-6) or (math.isnan(x) and math.isnan(y))
        for x, y in zip(*numbers, strict=True)
    )


@pytest.mark.usefixtures("aliased")
@pytest.mark.parametrize("name", CASES)
def test_script_logs_what_mxnet_logs(name):
    mx.random.seed(0)
    lines, recorded = suite.lines_of(name), RECORDED[name]["lines"]
    different = [f"{a}\n  MXNet: {b}" for a, b in zip(lines, recorded, strict=False) if differs(a, b)]
    assert not different and len(lines) == len(recorded), "\n".join(
        [f"{len(lines)} lines, MXNet: {len(recorded)}", *different[:10]]
    )


def test_every_script_is_recorded():
    assert sorted(RECORDED) == suite.names()
