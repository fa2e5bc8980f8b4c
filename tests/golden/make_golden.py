"""Copy the recorded MXNet 1.9.1 results that the tests need: `python tests/golden/make_golden.py FIXTURES`.

Writes tests/golden/symbol_api.json (the parts about graphs), tests/golden/models/*.json (every recorded graph, one old file,
MXNet's shapes and names of each) and tests/golden/models/*.npz (parameters, inputs and results of the small models);
tests/golden/train (trajectories of Module and BucketingModule) and tests/golden/fit (logs, callbacks, scores of fit).
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np

from jfit.formats import load_arrays

GOLDEN = Path(__file__).parent
SMALL = (
    "mlp", "lenet", "shared_weight", "lstm_fused", "gru_unrolled", "lstm_unrolled", "multitask_group", "resnet20_cifar",
    "zoo_dense_mix",
)  # fmt: skip
ABOUT = (
    "auto_names", "prefix", "attrs", "compose", "infer_partial", "infer_full", "infer_type", "scalar_ops_json", "compare_json",
)  # fmt: skip
TRAINED = ("sgd", "nag", "adam", "rmsprop", "ccsgd", "instance")  # optimizers that jfit has
USED = (
    "name", "optimizer", "optimizer_params", "lr_scheduler", "set_lr_mult", "set_wd_mult", "fixed_param_names", "kvstore",
    "explicit_kvstore_object", "kvstore_is_none", "update_on_kvstore", "n_ctx", "work_load_list", "compression_params",
    "grad_req", "zero_grad_every", "batch_size", "n_steps", "checkpoints", "rescale_grad", "optimizer_idx2name",
    "optimizer_wd_mult", "optimizer_lr_mult", "state_counts", "learning_rate_after_step", "slices", "note", "skip_compare",
    "sensitivity_3e-7", "sensitivity_max",
)  # fmt: skip


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n")


def copy(fixtures: Path) -> None:
    """Write all golden files of the graph tests."""
    models = GOLDEN / "models"
    models.mkdir(parents=True, exist_ok=True)
    api = json.loads((fixtures / "symbol_api.json").read_text())
    _write_json(GOLDEN / "symbol_api.json", {key: api[key] for key in ABOUT})
    manifest = json.loads((fixtures / "models" / "manifest.json").read_text())["models"]
    _write_json(models / "manifest.json", [{k: v for k, v in m.items() if k not in ("note", "mxnet_env")} for m in manifest])
    for model in manifest:
        (models / f"{model['name']}.json").write_text(Path(fixtures / model["symbol"]).read_text())
        if model["name"] in SMALL:
            with np.load(fixtures / model["io"]) as archive:
                arrays = {key: archive[key] for key in archive.files}
            arrays |= {key.replace(":", "/"): value for key, value in load_arrays(fixtures / model["params"]).items()}
            np.savez_compressed(models / f"{model['name']}.npz", **arrays)
    for name in ("save_000800", "save_000800_upgraded"):
        (models / f"{name}.json").write_text((fixtures / "checkpoint" / f"{name}.json").read_text())


def copy_training(fixtures: Path) -> None:
    """Write tests/golden/train: Module trajectories of the optimizers that exist, and the bucketing one."""
    source, target = fixtures / "train", GOLDEN / "train"
    cases = []
    for case in json.loads((source / "manifest.json").read_text())["cases"]:
        if case.get("kind") == "gluon" or case["optimizer"] not in TRAINED:
            continue
        file = Path(case["file"]).relative_to("train")
        kept = {key: case[key] for key in case if key in USED}
        kept |= {"file": str(file), "symbol_json": json.dumps(json.loads(case["symbol_json"]), separators=(",", ":"))}
        cases.append(kept)
        (target / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / file, target / file)
    _write_json(target / "manifest.json", cases)
    (target / "bucketing").mkdir(exist_ok=True)
    for name in ("manifest.json", "bucket.npz"):
        shutil.copyfile(source / "bucketing" / name, target / "bucketing" / name)


def copy_fit(fixtures: Path) -> None:
    """Write tests/golden/fit: logs, callbacks, scores and predictions of fit."""
    (GOLDEN / "fit").mkdir(exist_ok=True)
    for path in (fixtures / "fit").iterdir():
        shutil.copyfile(path, GOLDEN / "fit" / path.name)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    for part in (copy, copy_training, copy_fit):
        part(Path(sys.argv[1]))
