"""Whole models recorded from MXNet 1.9.1: their graphs, inputs and results."""

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np

import jfit

MODELS = Path(__file__).parent / "models"
MANIFEST = {m["name"]: m for m in json.loads((MODELS / "manifest.json").read_text())}
# MXNet 1.9.1 overwrites the data of this prelu with its output before the backward pass reads it, so its recorded gradient is
# slope * the true one; the recorded case of the operator alone has the true one.
NOT_COMPARED = {"zoo_dense_mix": ("prelu0_alpha",)}
RECORDED = sorted(p.stem for p in MODELS.glob("*.npz"))


def near(what, got, want, tolerance, floor=0.0):
    """max |got - want| <= tolerance * max(max |want|, floor)."""
    got, want = np.asarray(got, np.float64), want.astype(np.float64)
    assert got.shape == want.shape, what
    if want.size:
        error = np.abs(got - want).max() / max(np.abs(want).max(), floor, 1e-30)
        assert error <= tolerance, f"{what}: relative error {error:.2g}, allowed {tolerance:.2g}"


def loaded(name):
    with np.load(MODELS / f"{name}.npz") as archive:
        arrays = {k: archive[k] for k in archive.files}
    symbol = jfit.sym.load(MODELS / f"{name}.json")
    fed = list(MANIFEST[name]["data_shapes"])
    model = jfit.lower(symbol, inputs=fed)
    part = lambda kind: {k[len(kind) :]: jnp.asarray(v) for k, v in arrays.items() if k.startswith(kind)}  # noqa: E731
    return MANIFEST[name], model, part("arg/"), part("aux/"), part("in/"), arrays
