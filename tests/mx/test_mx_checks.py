"""Programs in the style of MXNet's unit tests compute what MXNet 1.9.1 computed, see tests/mx/checks/recorded_checks.py."""

import fnmatch
import json

import numpy as np
import pytest
import recorded_checks as suite

import jfit.mx as mx

DIFFERENCES = [
    line.split(":")[0].strip()
    for line in (suite.FOLDER / "differences.txt").read_text().splitlines()
    if line and not line.startswith("#")
]
TOLERANCE = {"float16": 2e-3, "bfloat16": 2e-2}
CASES = [(name, check) for name in suite.files() for check in suite.checks_of(name)]
# Files and single checks that compile the most programs.
SLOW = ("gluon_block_grad", "gluon_block_layers", "gluon_loss", "gluon_nn", "gluon_rnn", "gluon_rnn_training")
SLOW += ("model_zoo", "np_arrays", "np_functions", "old_ops", "operators_more", "suite_more")
SLOW += ("autograd-check_indexing_and_shapes", "autograd-check_layers", "estimator", "gluon_data-check_random_transforms")
SLOW += ("small_names-check_conversions", "small_names-check_update_functions", "symbols-check_topk")
SLOW += ("quantization-check_entropy",)
IDS = [f"{name}-{check}" for name, check in CASES]
MARKED = [
    pytest.param(*case, id=of, marks=[pytest.mark.slow] if of.startswith(SLOW) else [])
    for case, of in zip(CASES, IDS, strict=True)
]


def same(found, recorded):
    """Return what differs between two values in recorded form, as text; None if they agree."""
    if isinstance(recorded, dict) and {"shape", "dtype", "data"} == set(recorded):
        if not isinstance(found, dict) or "data" not in found:
            return f"{found!r} is not an array"
        (shape, dtype, x), (wanted_shape, wanted_dtype, y) = suite.values(found), suite.values(recorded)
        if shape != wanted_shape or dtype.replace("64", "32") != wanted_dtype.replace("64", "32"):
            return f"{dtype}{shape}, MXNet: {wanted_dtype}{wanted_shape}"
        tolerance = TOLERANCE.get(dtype, 2e-5)
        close = np.allclose(
            x, y, rtol=tolerance, atol=tolerance * max(1.0, float(np.abs(y[np.isfinite(y)]).max(initial=0))), equal_nan=True
        )
        return None if close else f"{x[:8]}, MXNet: {y[:8]}; the largest difference is {np.abs(x - y).max()}"
    if isinstance(recorded, dict) and isinstance(found, dict):
        keys = {*recorded, *found}
        return next((f"[{k!r}] {d}" for k in sorted(keys) if (d := same(found.get(k), recorded.get(k)))), None)
    if isinstance(recorded, list) and isinstance(found, list) and len(found) == len(recorded):
        return next((f"[{i}] {d}" for i, (a, b) in enumerate(zip(found, recorded, strict=True)) if (d := same(a, b))), None)
    if isinstance(recorded, float) and isinstance(found, (int, float)):
        return None if np.isclose(found, recorded, rtol=2e-5, atol=2e-6, equal_nan=True) else f"{found!r}, MXNet: {recorded!r}"
    return None if found == recorded else f"{found!r}, MXNet: {recorded!r}"


@pytest.mark.parametrize(("name", "check"), MARKED)
def test_check_agrees_with_mxnet(name, check, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # some checks save files
    recorded = json.loads((suite.GOLDEN / f"{name}.json").read_text())[check]
    found = suite.run(suite.checks_of(name)[check], mx)
    problems = []
    for key, value in ({} if "error" in found else recorded).items():
        difference = same(found.get(key), value)
        decided = any(fnmatch.fnmatch(f"{name}/{check}/{key}", pattern) for pattern in DIFFERENCES)
        if difference and not decided:
            problems.append(f"{key}: {difference}")
    assert "error" not in found, found["error"]
    assert not problems, "\n".join(problems)
