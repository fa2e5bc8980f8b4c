"""Differences between exported models in ONNX Runtime, the same models in jfit, and outputs recorded with MXNet.

    python benchmarks/onnx_agreement.py FIXTURES [MODEL ...]

FIXTURES/models has manifest.json and, for each model, model-symbol.json, model-0000.params and io.npz (recorded inputs and
outputs). Each model is exported with a dynamic batch size, checked with onnx.checker and run in ONNX Runtime; the table shows
the largest difference, absolute and relative to the largest value.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import onnx
import onnxruntime

import jfit
from jfit.formats import load_arrays


def difference(got: np.ndarray, want: np.ndarray) -> tuple[float, float]:
    """(largest absolute difference, the same relative to the largest value)."""
    error = float(np.abs(got.astype(np.float64) - want).max())
    return error, error / max(float(np.abs(want).max()), 1e-30)


def recorded(folder: Path, about: dict[str, Any]) -> tuple[Any, dict, dict, dict, list[np.ndarray]]:
    """(model, params, aux, inputs, recorded outputs) of one model; `about` is its entry in the manifest."""
    symbol = jfit.sym.load(folder / about["symbol"])
    arrays = load_arrays(folder / about["params"])
    params, aux = ({k[4:]: np.asarray(v) for k, v in arrays.items() if k.startswith(p)} for p in ("arg:", "aux:"))
    with np.load(folder / about["io"]) as archive:
        inputs = {k[3:]: archive[k] for k in archive.files if k.startswith("in/") and k[3:] in about["data_shapes"]}
        outputs = [archive[f"eval/{i}"] for i in range(about["n_outputs"])]
    return jfit.lower(symbol, inputs=list(about["data_shapes"])), params, aux, inputs, outputs


def agreement(folder: Path, about: dict[str, Any]) -> list[Any]:
    """One row of the table: name, number of ONNX nodes, seconds of the export, differences to jfit and to the record."""
    model, params, aux, inputs, outputs = recorded(folder, about)
    data = {k: v for k, v in inputs.items() if k in model.inputs}
    start = time.perf_counter()
    exported = jfit.export.onnx(model, data, params, aux)
    seconds = time.perf_counter() - start
    onnx.checker.check_model(exported, full_check=True)
    session = onnxruntime.InferenceSession(exported.SerializeToString(), providers=["CPUExecutionProvider"])
    got = session.run(None, {i.name: data[i.name] for i in session.get_inputs()})
    expected = jax.jit(lambda p, a, x: model.apply(p, a, x, train=False)[0])(params, aux, data)
    to_jfit = [difference(g, np.asarray(e)) for g, e in zip(got, expected, strict=True)]
    to_record = [difference(g, o) for g, o in zip(got, outputs, strict=True)]
    return [about["name"], len(exported.graph.node), f"{seconds:.1f}", *(f"{max(p):.1e}" for p in zip(*to_jfit, strict=True)),
            *(f"{max(p):.1e}" for p in zip(*to_record, strict=True))]  # fmt: skip


def main(arguments: Sequence[str]) -> None:
    """Print the table as Markdown."""
    folder, names = Path(arguments[0]), arguments[1:]
    columns = ["model", "nodes", "export s", "jfit abs", "jfit rel", "record abs", "record rel"]
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for about in json.loads((folder / "models" / "manifest.json").read_text())["models"]:
        if not names or about["name"] in names:
            try:
                row = agreement(folder, about)
            except (ValueError, RuntimeError) as error:
                row = [about["name"], str(error).splitlines()[0], *[""] * (len(columns) - 2)]
            print(f"| {' | '.join(map(str, row))} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
