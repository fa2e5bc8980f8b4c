"""How near ONNX Runtime comes to jfit on recorded models, and both to the record.

    python benchmarks/onnx_agreement.py FIXTURES [MODEL ...]

FIXTURES/models holds manifest.json and, for each model, model-symbol.json, model-0000.params and io.npz.  Each model is
exported with an open batch size, checked by onnx.checker, and run by ONNX Runtime; the table shows the largest difference,
absolute and relative to the largest value.
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
    """(model, params, aux, inputs, recorded outputs) of one fixture."""
    symbol = jfit.sym.load(folder / about["symbol"])
    arrays = load_arrays(folder / about["params"])
    params, aux = ({k[4:]: np.asarray(v) for k, v in arrays.items() if k.startswith(p)} for p in ("arg:", "aux:"))
    with np.load(folder / about["io"]) as archive:
        inputs = {k[3:]: archive[k] for k in archive.files if k.startswith("in/") and k[3:] in about["data_shapes"]}
        outputs = [archive[f"eval/{i}"] for i in range(about["n_outputs"])]
    return jfit.lower(symbol, inputs=list(about["data_shapes"])), params, aux, inputs, outputs


def agreement(folder: Path, about: dict[str, Any]) -> list[Any]:
    """One row: nodes, seconds of the export, ONNX Runtime against jfit and against the record."""
    model, params, aux, inputs, outputs = recorded(folder, about)
    data = {k: v for k, v in inputs.items() if k in model.inputs}
    start = time.perf_counter()
    made = jfit.export.onnx(model, data, params, aux)
    seconds = time.perf_counter() - start
    onnx.checker.check_model(made, full_check=True)
    session = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    got = session.run(None, {i.name: data[i.name] for i in session.get_inputs()})
    own = jax.jit(lambda p, a, x: model.apply(p, a, x, train=False)[0])(params, aux, data)
    ours = [difference(g, np.asarray(o)) for g, o in zip(got, own, strict=True)]
    theirs = [difference(g, o) for g, o in zip(got, outputs, strict=True)]
    return [about["name"], len(made.graph.node), f"{seconds:.1f}", *(f"{max(p):.1e}" for p in zip(*ours, strict=True)),
            *(f"{max(p):.1e}" for p in zip(*theirs, strict=True))]  # fmt: skip


def main(arguments: Sequence[str]) -> None:
    """Print the table as Markdown."""
    folder, wanted = Path(arguments[0]), arguments[1:]
    columns = ["model", "nodes", "export s", "jfit abs", "jfit rel", "record abs", "record rel"]
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for about in json.loads((folder / "models" / "manifest.json").read_text())["models"]:
        if not wanted or about["name"] in wanted:
            try:
                row = agreement(folder, about)
            except (ValueError, RuntimeError) as error:
                row = [about["name"], str(error).splitlines()[0], *[""] * (len(columns) - 2)]
            print(f"| {' | '.join(map(str, row))} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
