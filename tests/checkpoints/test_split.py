"""Checkpoints with split arrays, which orbax writes and reads: same bits on every layout, the rest as of whole ones."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fit_support import blobs, mlp, train
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jfit
from jfit import checkpoint
from jfit.callbacks import checkpointing
from jfit.checkpoints import checkpoint as checkpoints
from jfit.checkpoints import split, writing
from jfit.checkpoints.saved import folders_of, read
from jfit.formats import FormatError
from jfit.formats.manifest import dump_sealed
from jfit.runs.folders import open_run

WAYS: dict[str, dict[str, Any]] = {
    "mesh": {"mesh": {"data": 2, "model": 2}, "shard": {"fc*_weight": ("model", None)}},
    "sharded": {"devices": 4, "reduce": "sharded"},
    "sharded_parameters": {"devices": 4, "reduce": "sharded_parameters"},
}
NAMES = [pytest.param(name, marks=pytest.mark.slow) if name == "sharded" else name for name in WAYS]
LAYOUTS: dict[str, dict[str, Any]] = {
    "whole": {},
    "2 devices": {"devices": 2, "reduce": "sharded_parameters"},
    "8 devices": {"devices": 8, "reduce": "sharded"},
    "columns": {"mesh": {"model": 4}, "shard": {"fc*_weight": (None, "model")}},
    "one mesh device": {"mesh": {"model": 1}, "shard": {"fc*_weight": ("model", None)}},
}


def fitted(**given: Any) -> jfit.Run:
    return train(mlp(classes=4, dropout=0.5), blobs(48, classes=4), **{"optimizer": "adam", "optimizer_params": None, **given})


def equal(a: Any, b: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """name -> (folder of checkpoints of the steps 4, 8, 12, the run) of a training with split checkpoints."""

    class Runs(dict[str, tuple[Path, jfit.Run]]):
        def __missing__(self, name: str) -> tuple[Path, jfit.Run]:
            folder = tmp_path_factory.mktemp(name)
            self[name] = folder, fitted(checkpoint=checkpointing(folder, 4, split=True), **WAYS[name])
            return self[name]

    return Runs()


# ------------------------------------------------------------------------------------------------ layouts
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("way", NAMES)
@pytest.mark.repetitions(3)
def test_a_split_checkpoint_has_the_same_bits_on_every_layout(runs, way, layout):
    folder, run = runs[way]
    equal(fitted(resume=folder, **LAYOUTS[layout]).snapshot(), run.snapshot())
    assert {file.name for file in (folder / "step-00000012").iterdir()} == {"arrays", "meta.json", "state.safetensors"}


@pytest.mark.parametrize("way", NAMES)
@pytest.mark.repetitions(1)
def test_a_resumed_run_has_the_bits_of_the_uninterrupted_one(runs, way):
    folder, run = runs[way]
    equal(fitted(resume=folder / "step-00000008", **WAYS[way]).snapshot(), run.snapshot())


@pytest.mark.optimized
def test_whole_and_split_checkpoints_load_into_each_other(tmp_path, runs):
    folder, run = runs["mesh"]
    fitted(checkpoint=tmp_path / "whole", checkpoint_every=4, **WAYS["mesh"])
    saves = checkpointing(tmp_path / "from whole", split=True)
    equal(fitted(resume=tmp_path / "whole/step-00000004", checkpoint=saves, **WAYS["mesh"]).snapshot(), run.snapshot())
    whole, parts, again = (read(checkpoint.latest(f)) for f in (tmp_path / "whole", folder, tmp_path / "from whole"))
    assert {file.name for file in whole.folder.iterdir()} == {"meta.json", "state.safetensors"}
    equal(checkpoint.load_arrays(folder), whole.arrays["state.safetensors"])
    assert again.record["arrays"] == parts.record["arrays"] and "params/fc1_weight" in parts.record["arrays"]


def test_a_state_without_split_arrays_is_saved_whole(tmp_path):
    fitted(checkpoint=checkpointing(tmp_path, split=True), devices=2)
    assert {file.name for file in checkpoint.latest(tmp_path).iterdir()} == {"meta.json", "state.safetensors"}


def test_a_pytree_is_restored_into_the_shardings_of_like(tmp_path):
    mesh = Mesh(np.array(jax.devices()[:4]), ("x",))
    rows, columns = (NamedSharding(mesh, PartitionSpec(*spec)) for spec in (("x",), (None, "x")))
    w = jax.device_put(jnp.arange(32, dtype=jnp.bfloat16).reshape(8, 4), rows)
    state = {"step": np.int64(7), "w": w, "key": jax.random.key(1), "empty": jnp.zeros((0, 4))}
    folder = checkpoint.save(tmp_path, state, split=True)
    found = checkpoint.restore(folder, state | {"w": jax.ShapeDtypeStruct((8, 4), jnp.bfloat16, sharding=columns)})
    assert found["w"].sharding == columns and found["step"].dtype == np.int64 and found["empty"].shape == (0, 4)
    equal([found["w"], jax.random.key_data(found["key"])], [w, jax.random.key_data(state["key"])])
    assert isinstance(checkpoint.restore(folder, state | {"w": np.zeros((8, 4), jnp.bfloat16)})["w"], np.ndarray)


def test_no_whole_state_is_copied_to_the_host(tmp_path, monkeypatch):
    def refuse(*arguments):
        raise AssertionError("a whole copy of the state")

    monkeypatch.setattr(jfit.run, "host_state", refuse)
    sizes = []
    save, tensors = split.save_split, writing.save_tensors
    monkeypatch.setattr(writing, "save_split", lambda folder, parts: (sizes.extend(parts), save(folder, parts)))
    monkeypatch.setattr(
        writing, "save_tensors", lambda file, arrays, **k: (sizes.append([*arrays]), tensors(file, arrays, **k))
    )
    fitted(checkpoint=checkpointing(tmp_path, split=True), **WAYS["sharded_parameters"], num_epoch=1)
    *parts, whole = sizes
    assert "params/fc1_weight" in parts and "opt_state/slots/mean/fc1_weight" in parts
    assert not [name for name in whole if "fc1_weight" in name]


# ------------------------------------------------------------------------------------------------ the folder
def test_the_newest_and_the_best_are_kept(tmp_path):
    data = {"eval_data": blobs(24, classes=4, seed=1), "num_epoch": 4, **WAYS["mesh"]}
    run = fitted(checkpoint=checkpointing(tmp_path, keep=1, keep_best=1, split=True), **data)
    losses = run.history.column("val_loss")
    best = 6 * (int(np.argmin(losses)) + 1)
    assert checkpoint.best(tmp_path).name == f"step-{best:08d}"
    assert {folder.name for folder in folders_of(tmp_path)} == {f"step-{best:08d}", "step-00000024"}
    assert jfit.Run.load(tmp_path, which="best").position["step"] == best
    loaded = jfit.Run.load(tmp_path, **WAYS["mesh"])
    equal(loaded.predict(data["eval_data"][0]), run.predict(data["eval_data"][0]))


@pytest.mark.optimized
def test_verify_and_the_list_of_runs_read_it(runs):
    folder, run = runs["mesh"]
    assert jfit.verify(folder, blobs(48, classes=4), **WAYS["mesh"]).same
    assert checkpoint.verify(folder / "step-00000012")["step"] == 12
    assert open_run(folder).history.column("loss") == run.history.column("loss")[:1]
    assert run.replay(9).epoch == 1 and run.replay(9).first_bad is None


def test_states_that_are_copied_anyway_are_saved_whole(tmp_path):
    fitted(checkpoint=checkpointing(tmp_path, split=True), nan="rollback", **WAYS["mesh"])
    assert not (checkpoint.latest(tmp_path) / "arrays").exists()


def test_a_state_that_is_not_finite_is_marked(tmp_path, runs):
    bad = {"params": {"fc1_weight": np.full((8, 4), np.nan, "float32")}, "nan": "skip", "num_epoch": 1}
    with pytest.warns(UserWarning, match="not finite"):
        fitted(checkpoint=checkpointing(tmp_path, split=True), **bad, **WAYS["mesh"])
    assert checkpoint.load_meta(tmp_path)["finite"] is False
    with pytest.warns(UserWarning, match="nan or infinite values in a split array, and no other one in this folder is finite"):
        fitted(resume=tmp_path, **WAYS["mesh"], num_epoch=1)


# ------------------------------------------------------------------------------------------------ faults
def test_a_save_that_fails_leaves_the_older_ones(tmp_path, monkeypatch):
    save, steps = writing.save_split, []

    def fails(folder: Path, parts: Any) -> None:
        save(folder, parts)
        steps.append(folder)
        if len(steps) == 2:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(writing, "save_split", fails)
    with pytest.warns(UserWarning, match="step 8 could not be saved .*No space left on device.*; training continues"):
        fitted(checkpoint=checkpointing(tmp_path, 4, split=True), **WAYS["mesh"])
    assert sorted(os.listdir(tmp_path)) == ["step-00000004", "step-00000012"]


def test_an_error_of_orbax_is_an_error_of_the_save(tmp_path, monkeypatch):
    def full(path, args):
        raise ValueError("RESOURCE_EXHAUSTED: Error writing: No space left on device [os_error_code='28']")  # as tensorstore

    monkeypatch.setattr(split.orbax().PyTreeCheckpointHandler, "save", staticmethod(full))
    with pytest.raises(OSError, match="the split arrays cannot be written: RESOURCE_EXHAUSTED"):
        split.save_split(tmp_path, {"w": jnp.ones(3)})
    with pytest.raises(OSError, match=r"elsewhere, which rank 0 made, is not on this host; pass a folder that all hosts see"):
        split.save_split(tmp_path / "elsewhere", {"w": jnp.ones(3)})


@pytest.mark.parametrize("change", [lambda data: data[:-1], lambda data: data[:-1] + bytes([data[-1] ^ 1])], ids=["cut", "bit"])
def test_a_damaged_checkpoint_is_left_out(tmp_path, runs, change):
    mesh = Mesh(np.array(jax.devices()[:2]), ("x",))
    for step in (1, 2):
        w = jax.device_put(np.full((4, 4), step, "float32"), NamedSharding(mesh, PartitionSpec("x")))
        checkpoint.save(tmp_path, {"step": step, "w": w}, split=True)
    file = max((tmp_path / "step-00000002" / "arrays").rglob("*"), key=lambda file: file.stat().st_size * file.is_file())
    file.write_bytes(change(file.read_bytes()))
    with pytest.warns(UserWarning, match=r"step-00000002 is damaged .*Restored .*step-00000001 instead"):
        assert checkpoint.load_arrays(tmp_path)["w"][0, 0] == 1
    with pytest.raises(FormatError, match=r"crc32|size"):
        checkpoint.verify(tmp_path / "step-00000002")


def rewritten(folder: Path, **fields: Any) -> Path:
    """Change fields of the meta.json of a checkpoint, with a valid checksum."""
    record = {k: v for k, v in checkpoint.verify(folder).items() if k != "sha256"}
    (folder / "meta.json").write_bytes(dump_sealed(record | fields))
    return folder


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"w": [[1 << 40, 4], "float32"]}, "the arrays have 17592186044416 bytes, their files"),
        ({"w": [[-(1 << 40), 4], "float32"]}, "the arrays have 17592186044416 bytes, their files"),
        ({"w": [[2, 4], "float32"]}, "orbax cannot read them"),
        ({"other": [[4, 4], "float32"]}, "orbax cannot read them"),
        ({"w": [["4", 4], "float32"]}, "no shapes and dtypes"),
        ({"w": 3}, "no shapes and dtypes"),
        ({"w": [[4, 4], "nothing"]}, "no shapes and dtypes"),
        ([1], "no shapes and dtypes"),
    ],
    ids=str,
)
def test_shapes_are_checked_before_arrays_are_read(tmp_path, arrays, message):
    w = jax.device_put(np.ones((4, 4), "float32"), NamedSharding(Mesh(np.array(jax.devices()[:2]), ("x",)), PartitionSpec("x")))
    folder = rewritten(checkpoint.save(tmp_path, {"step": 1, "w": w}, split=True), arrays=arrays)
    with pytest.raises(FormatError, match=message):
        checkpoint.load_arrays(folder)


@pytest.mark.parametrize("name", ["arrays/../../x", "other/x", "/etc/passwd"])
def test_files_outside_of_the_folder_are_refused(tmp_path, name):
    folder = checkpoint.save(tmp_path, {"step": 1})
    files = checkpoint.verify(folder)["files"]
    with pytest.raises(FormatError, match="field 'files', entry"):
        read(rewritten(folder, files=files | {name: {"bytes": 1, "crc32": 0}}))


def test_another_model_is_refused_before_arrays_are_read(runs, monkeypatch):
    monkeypatch.setattr(checkpoints, "load_split", None)
    with pytest.raises(ValueError, match=r"params/fc2_bias has shape \(4,\) in the checkpoint, expected \(3,\)"):
        train(mlp(classes=3), optimizer="adam", optimizer_params=None, resume=runs["mesh"][0])


def test_without_orbax_a_message_names_the_extra(runs, monkeypatch):
    monkeypatch.setitem(sys.modules, "orbax.checkpoint", None)
    message = r"split arrays of checkpoints need orbax-checkpoint; run pip install 'jfit\[sharded\]'"
    with pytest.raises(ImportError, match=message):
        checkpointing("folder", split=True)
    with pytest.raises(ImportError, match=message):
        jfit.Run.load(runs["mesh"][0])


@pytest.mark.parametrize("options", [{"checkpoint_every": 5}, {"checkpoint_best": "val_loss"}, None], ids=str)
def test_settings_of_checkpoints_are_passed_once(tmp_path, options):
    callback = checkpointing(tmp_path) if options else jfit.callbacks.early_stopping()
    with pytest.raises(
        ValueError, match=r"checkpoint is the callback .*; expected checkpointing\(folder, every=, keep_best=\)"
    ):
        fitted(checkpoint=callback, **(options or {}))


CHILD = """
import sys, time, numpy as np, jfit, jfit.checkpoints.writing
save, count = jfit.checkpoints.writing.save_split, 0
def slow(folder, parts):
    global count
    count += 1
    save(folder, parts)  # the arrays are complete, but not the checkpoint
    if count == 3:
        print("saving", flush=True)
        time.sleep(60)
jfit.checkpoints.writing.save_split = slow
net = jfit.sym.SoftmaxOutput(jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=2), name="softmax")
saves = jfit.callbacks.checkpointing(sys.argv[1], split=True)
x = np.zeros((40, 4), "float32")
options = dict(mesh={"model": 2}, shard={"*_weight": "model"}, progress=False)
jfit.fit(net, (x, x[:, 0]), batch_size=8, num_epoch=5, checkpoint=saves, **options)
"""


@pytest.mark.slow  # starts a process that imports jax
def test_kill_9_during_a_save_leaves_the_checkpoint_before_it(tmp_path):
    with subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path)], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline() == b"saving\n"
        child.kill()
    latest = checkpoint.latest(tmp_path)
    assert latest is not None and latest.name == "step-00000010" and checkpoint.verify(latest)
    assert jfit.Run.load(tmp_path).position["step"] == 10
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        checkpoint.save(tmp_path, {"step": 11})
    assert [f.name for f in folders_of(tmp_path)] == ["step-00000005", "step-00000010", "step-00000011"]
