"""Operator results recorded from MXNet 1.9.1 in tests/golden/ops: load them, compare an operator with them.

A test replays them with

    @pytest.mark.parametrize(("case", "arrays"), load_cases("nn"), ids=case_id)
    def test_recorded_case(case, arrays):
        run_case(case, arrays)
"""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jfit.ops.attributes import Attrs
from jfit.ops.context import Ctx
from jfit.ops.registry import Op, lookup

GOLDEN = Path(__file__).parent / "ops"
CANONICAL = {"float64": "float32", "int64": "int32", "uint64": "uint32"}

Case = dict[str, Any]
Arrays = dict[str, np.ndarray]


def load_cases(*names: str) -> list[tuple[Case, Arrays]]:
    """(case, its arrays by key such as 'in/data') for every case in these files."""
    return [pair for name in names for pair in _load(name)]


@functools.cache
def _load(name: str) -> list[tuple[Case, Arrays]]:
    with np.load(GOLDEN / f"{name}.npz") as archive:
        stored = {key: archive[key] for key in archive.files}
    cases = json.loads((GOLDEN / f"{name}.json").read_text())
    arrays: dict[str, Arrays] = {case["id"]: {} for case in cases}
    for key, value in stored.items():
        for slash in re.finditer("/", key):  # an id may contain slashes too
            if key[: slash.start()] in arrays:
                arrays[key[: slash.start()]][key[slash.end() :]] = value
    return [(case, arrays[case["id"]]) for case in cases]


def spread_out(cases: list[tuple[Case, Arrays]], each: int = 3) -> list[Any]:
    """Parameters of a test: `each` cases of every operator, far apart in its table, run at once; the others are slow ones."""
    places: dict[str, list[int]] = {}
    for i, (case, _) in enumerate(cases):
        places.setdefault(case["op"], []).append(i)
    steps = np.linspace(0, 1, each)
    at_once = {of[round(step * (len(of) - 1))] for of in places.values() for step in steps}
    return [pytest.param(*pair, marks=() if i in at_once else pytest.mark.slow) for i, pair in enumerate(cases)]


def case_id(value: Any) -> str:
    """Test id of a case; nothing for its arrays."""
    return value.get("id", "")


def run_case(case: Case, arrays: Arrays, tolerance: float = 1e-4) -> None:
    """Replay one case: outputs in evaluation and training, gradients, auxiliary states before and after."""
    op = lookup(case["op"])
    attrs, args, aux = _prepare(op, case, arrays)
    skip = case.get("skip_compare") or ()

    def compare(key: str, got: Any, recorded: str | None = None) -> None:
        if key not in skip:
            assert_near(f"{case['id']} {key}", got, arrays[recorded or key], tolerance)

    found = _replay(op, case, attrs, args, aux, arrays)
    outputs, moved = found["eval"]
    assert len(outputs) == case["n_outputs"], "number of visible outputs"
    for i, out in enumerate(outputs):
        compare(f"eval/{i}", out)
    for name, value in zip(case["list_auxiliary_states"], moved, strict=True):
        key = f"aux_eval/{name}"
        compare(key, value, key if key in arrays else f"aux/{name}")
    if not case["has_train"]:
        return
    outputs, moved = found["train"]
    for i, out in enumerate(outputs):
        compare(f"train/{i}", out)
    for name, value in zip(case["list_auxiliary_states"], moved, strict=True):
        compare(f"aux_train/{name}", value)
    for name, value in found.get("grad", {}).items():
        compare(f"grad/{name}", value)


def _replay(op: Op, case: Case, attrs: Attrs, args: list[jax.Array], aux: list[jax.Array], arrays: Arrays) -> dict[str, Any]:
    """Everything a case records, as one program: compiling primitive by primitive is what would take the time."""

    def everything(args: list[jax.Array], aux: list[jax.Array]) -> dict[str, Any]:
        found: dict[str, Any] = {"eval": _call(op, attrs, args, aux, train=False)}
        if case["has_train"]:
            found["train"] = _call(op, attrs, args, aux, train=True)
            if case["has_grad"]:
                found["grad"] = _gradients(op, case, attrs, args, aux, arrays)
        return found

    return jax.jit(everything)(args, aux)


def assert_near(what: str, got: Any, want: np.ndarray, tolerance: float = 1e-4) -> None:
    """|got - want| <= tolerance * |want| + tolerance / 10 * max(1, max |want|), same shape, same dtype (64-bit aside)."""
    got = np.asarray(got)
    assert got.shape == want.shape, f"{what}: shape {got.shape}, recorded {want.shape}"
    dtypes = (str(want.dtype), CANONICAL.get(str(want.dtype)))
    assert str(got.dtype) in dtypes, f"{what}: dtype {got.dtype}, recorded {want.dtype}"
    if np.float16 in (got.dtype, want.dtype):
        tolerance = max(tolerance, 3e-3)
    g, w = got.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(w)
    np.testing.assert_array_equal(g[~finite], w[~finite], err_msg=what)
    size = float(np.abs(w[finite]).max()) if finite.any() else 0.0
    np.testing.assert_allclose(g[finite], w[finite], rtol=tolerance, atol=tolerance / 10 * max(1.0, size), err_msg=what)


def _prepare(op: Op, case: Case, arrays: Arrays) -> tuple[Attrs, list[jax.Array], list[jax.Array]]:
    given = [i["name"] for i in case["inputs"] if i["name"] not in case["list_auxiliary_states"]]
    count = {op.variadic: len(given)} if op.variadic else {}
    attrs = op.parse(count | case["attrs"])
    names = op.input_names(attrs)
    order = names if set(names) == set(given) else given
    args = [jnp.asarray(arrays[f"in/{name}"]) for name in order]
    case["order"] = list(order)
    return attrs, args, [jnp.asarray(arrays[f"aux/{name}"]) for name in case["list_auxiliary_states"]]


def _call(op: Op, attrs: Attrs, args: list[jax.Array], aux: list[jax.Array], train: bool) -> tuple[tuple, tuple]:
    ctx = Ctx(train=train, key=jax.random.key(0), rows=(None,) * len(args), node="op0")
    result = op.fn(ctx, attrs, *args, *aux)
    outputs, moved = result if op.aux else (result, ())
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    return outputs[: op.num_visible(attrs)], moved


def _gradients(op: Op, case: Case, attrs: Attrs, args: list[jax.Array], aux: list[jax.Array], arrays: Arrays) -> dict[str, Any]:
    req = {i["name"]: i["grad_req"] for i in case["inputs"]}
    # MXNet leaves the gradient buffer of a label as it was, so what is recorded there is no gradient
    label = op.label if op.kind == "head" else None
    learned = [k for k, name in enumerate(case["order"]) if req[name] in ("write", "add") and name != label]

    def forward(*values: jax.Array) -> list[jax.Array]:
        full = list(args)
        for k, value in zip(learned, values, strict=True):
            full[k] = value
        return list(_call(op, attrs, full, aux, train=True)[0])

    outputs, pull = jax.vjp(forward, *[args[k] for k in learned])
    heads = [
        jnp.asarray(arrays[f"og/{i}"]).astype(o.dtype)
        if jnp.issubdtype(o.dtype, jnp.inexact)
        else np.zeros(o.shape, jax.dtypes.float0)
        for i, o in enumerate(outputs)
    ]
    names = [case["order"][k] for k in learned]
    started = {name: case["grad_init"] if req[name] == "add" else 0 for name in names}
    return {name: grad + jnp.asarray(started[name], grad.dtype) for name, grad in zip(names, pull(heads), strict=True)}
