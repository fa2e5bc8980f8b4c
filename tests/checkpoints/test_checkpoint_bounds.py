"""Bounds of checkpoints: nested JSON, temporary files, folders of earlier runs; meshes of loaded runs; warnings of a resume."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import signal
import time
import warnings
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from fit_support import blobs, mlp, same, train

import jfit
from jfit import checkpoint
from jfit.data.positions import decode, encode
from jfit.formats import FormatError, atomic, dump_sealed
from jfit.formats.manifest import MAX_LEVELS

LEVELS = (199, 201, 990, 5_000, 100_000)


def nested(levels: int, kind: str = "[]") -> str:
    """JSON of lists or dicts within each other."""
    begin, end = ("[", "]") if kind == "[]" else ('{"a": ', "}")
    return begin * levels + "1" + end * levels


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


# ------------------------------------------------------------------------------------------------ deep JSON
@pytest.fixture(scope="module")
def stream_run(tmp_path_factory):
    """(folder, content of meta.json) of a run on a loader whose position is in its checkpoints."""
    folder = tmp_path_factory.mktemp("stream")
    train(data=Loader(), num_epoch=1, checkpoint=folder)
    file = folder / "step-00000007" / "meta.json"
    return folder, file, file.read_bytes()


class Loader:
    """A loader with a position."""

    def __init__(self) -> None:
        self.position: Any = 0

    def __iter__(self):
        x, y = blobs()
        return iter([(x[i : i + 8], y[i : i + 8]) for i in range(0, 50, 8)])

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state["position"]


@pytest.mark.repetitions(2)
@pytest.mark.parametrize("field", ["data", "callbacks", "fingerprint", "position", "history", "columns", "anything"])
def test_deep_json_in_a_checkpoint_is_a_format_error(stream_run, field):
    folder, file, content = stream_run
    record = json.loads(content)
    del record["sha256"]
    sealed = dump_sealed({**record, "meta": {**record["meta"], field: "@"}}).partition(b',\n "sha256"')[0]
    for levels in LEVELS:
        text = nested(levels, "{}" if levels % 2 else "[]").encode()
        file.write_bytes(_seal(sealed.replace(b'"@"', text)))
        for read in (checkpoint.load_meta, jfit.Run.load, _resume)[: 3 if field == "data" else 2]:
            try:
                read(folder)
            except FormatError as error:
                assert levels > MAX_LEVELS
                assert "200 levels deep" in str(error) or "JSON" in str(error)
            except (ValueError, TypeError, KeyError, AttributeError):  # a wrong value, which only a forged checkpoint has
                assert levels < MAX_LEVELS
            else:
                assert levels < MAX_LEVELS
    file.write_bytes(content)


def _seal(text: bytes) -> bytes:
    head = text + b',\n "sha256": "'
    return head + hashlib.sha256(head).hexdigest().encode() + b'"\n}\n'


def _resume(folder: Path) -> None:
    train(data=Loader(), num_epoch=1, checkpoint=folder, resume=True)


def test_deep_positions_and_states_are_noticed_when_they_are_saved(tmp_path):
    for levels in LEVELS[1:]:
        deep: Any = 1
        for _ in range(levels):
            deep = [deep]
        with pytest.raises(TypeError, match="nested more than 150 levels deep"):
            encode({"a": deep})
        with pytest.raises(TypeError, match=r"meta is not JSON-serializable .*nested more than 200 levels"):
            checkpoint.save(tmp_path, {"step": 1}, meta={"a": deep})
        if levels > 900:
            with pytest.raises(ValueError, match="a saved position is damaged: it cannot be decoded"):
                decode(deep)
    callback = jfit.callbacks.Callback(on=lambda event, state: state, init=lambda: deep, events=("epoch_end",))
    with pytest.raises(TypeError, match=r"its state is not JSON-serializable .*nested"):
        train(num_epoch=1, callbacks=[callback], checkpoint=tmp_path)
    loader = Loader()
    loader.position = deep
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert train(data=loader, num_epoch=1, checkpoint=tmp_path).position["step"] == 7  # its batches are counted
    assert checkpoint.load_meta(tmp_path)["data"] is None


def test_an_unsupported_dtype_is_named(tmp_path):
    with pytest.raises(TypeError, match="scale is an array of dtype float8_e4m3fn, which the files"):
        checkpoint.save(tmp_path, {"step": 1, "scale": np.ones(2, ml_dtypes.float8_e4m3fn)})


# ------------------------------------------------------------------------------------------------ what is left on the disk
def test_all_folders_of_earlier_runs_are_kept_and_a_line_has_their_number_and_size(tmp_path, caplog):
    for step in range(1, 9):
        checkpoint.save(tmp_path, {"step": step, "w": np.zeros(100_000)})
        (tmp_path / "earlier-x").mkdir(exist_ok=True)
        with caplog.at_level(logging.WARNING, "jfit"):
            checkpoint.set_aside(tmp_path)
    assert names(tmp_path) == [*[f"earlier-{n}" for n in range(1, 9)], "earlier-x"]
    assert all(names(tmp_path / f"earlier-{n}") == [f"step-0000000{n}"] for n in range(1, 9))
    assert (
        f"keeps the 8 folder(s) of earlier runs there (6.4 MB) until you delete them: rm -r {tmp_path}/earlier-*" in caplog.text
    )


def test_a_checkpoint_whose_folder_has_the_number_of_another_step_is_not_read(tmp_path):
    for step in (3, 4):
        checkpoint.save(tmp_path, {"step": step})
    shutil.copytree(tmp_path / "step-00000003", tmp_path / "step-00009999")
    wrong = "the checkpoint is of step 3, but the name of its folder says 9999; a copied or renamed checkpoint"
    with pytest.warns(UserWarning, match=wrong):
        assert checkpoint.restore(tmp_path, {"step": 0})["step"] == 4
    with pytest.raises(FormatError, match=wrong):
        checkpoint.load_meta(tmp_path / "step-00009999")
    checkpoint.save(tmp_path, {"step": 5}, keep=2)  # the copy takes no place of another
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000004", "step-00000005", "step-00009999"]
    (tmp_path / "step-00009999").rename(tmp_path / "step-00000003 (copy)")
    assert checkpoint.restore(tmp_path / "step-00000003 (copy)", {"step": 0})["step"] == 3
    (tmp_path / "step-00000003 (copy)").rename(tmp_path / "best")
    assert checkpoint.restore(tmp_path / "best", {"step": 0})["step"] == 3


def test_folders_without_a_name_and_resume_from_a_folder_that_does_not_exist_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, problem in {"": "it is empty", "a\0b": "it has a NUL character"}.items():
        for argument in ("checkpoint", "resume"):
            with pytest.raises(ValueError, match=rf"{argument} is '.*', expected the path of a folder .*: {problem}"):
                train(**{argument: name})
        with pytest.raises(ValueError, match=problem):
            checkpoint.save(name, {"step": 1})
    with pytest.raises(TypeError, match="resume is 5, expected the path of a folder of checkpoints, a str or a Path"):
        train(resume=5)
    checkpoint.save("run/a", {"step": 1})
    for missing in ("rum/a", "run/a/step-00000002"):
        with pytest.raises(FileNotFoundError, match=f"resume: '{missing}' does not exist; pass a folder of checkpoints or a"):
            train(checkpoint="new", resume=missing)
    with pytest.warns(UserWarning, match=r"run has no checkpoint .*in a; to continue an earlier run, pass resume='run/a'"):
        train(num_epoch=1, resume="run")
    assert names(tmp_path) == ["new", "run"] and names(tmp_path / "new") == []
    train(num_epoch=1, checkpoint="new", resume="new")
    assert names(tmp_path / "new") == ["step-00000007"]


def test_a_save_of_another_process_without_a_lock_is_not_deleted_by_the_run_that_has_the_lock(tmp_path):
    alive = tmp_path / f".step-00000009.{os.getppid()}-{atomic._machine()}01234567.tmp"
    alive.mkdir()
    assert atomic.sweep(tmp_path, exclusive=True) == []
    os.utime(alive, (0, 0))
    assert atomic.sweep(tmp_path, exclusive=True) == [alive.name]


# ------------------------------------------------------------------------------------------------ meshes, reduce rules
@pytest.mark.slow  # compiles for four devices
def test_a_loaded_run_scores_and_predicts_on_a_mesh(tmp_path):
    mesh = {"mesh": {"data": 2, "model": 2}, "shard": {"fc1_weight": ("model", None)}}
    run = train(num_epoch=1, **mesh)
    run.save(tmp_path)
    x, y = blobs()
    loaded = jfit.Run.load(tmp_path, **mesh)
    assert loaded.params["fc1_weight"].sharding.spec == run.params["fc1_weight"].sharding.spec
    np.testing.assert_array_equal(loaded.predict(x), run.predict(x))
    assert loaded.score((x, y)) == run.score((x, y))
    with pytest.raises(ValueError, match="which matches no parameter"):
        jfit.Run.load(tmp_path, shard={"w": ("model",)})


def test_programs_within_a_mesh_of_explicit_axes_are_refused_with_a_sentence():
    run, (x, y) = train(num_epoch=1), blobs()
    mesh = jax.make_mesh((2,), ("rows",), axis_types=(jax.sharding.AxisType.Explicit,))
    with jax.set_mesh(mesh):
        for call in (train, lambda: run.score((x, y)), lambda: jfit.predict(mlp(), x, params=run.params)):
            with pytest.raises(ValueError, match=r"jax\.set_mesh, with axes of type Explicit: {'rows': 2}"):
                call()
    assert same(run, train(num_epoch=1))


@pytest.mark.slow  # compiles for two devices
def test_the_warning_of_dropped_residuals_comes_after_a_refused_rule(tmp_path):
    train(num_epoch=1, checkpoint=tmp_path, devices=2, reduce="2bit")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match="reduce"):
            train(checkpoint=tmp_path, devices=2, resume=True)
    with pytest.warns(UserWarning, match="they are dropped"):
        train(checkpoint=tmp_path, devices=2, resume=True, resume_with="reduce")


# ------------------------------------------------------------------------------------------------ signals, folders, nan
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_during_the_last_event_is_not_lost(tmp_path, number):
    def at_end(event):
        os.kill(os.getpid(), number)
        time.sleep(0.02)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    options = {"num_epoch": 1, "checkpoint": tmp_path, "callbacks": [jfit.callbacks.lambda_callback(fit_end=at_end)]}
    if number == signal.SIGTERM:
        with pytest.raises(SystemExit) as caught:
            train(**options)
        assert caught.value.code == 143
    else:
        assert train(**options).interrupted
    signal.signal(signal.SIGINT, before)
    assert names(tmp_path) == ["step-00000007"]


def test_a_callback_that_changes_the_current_directory_does_not_move_the_checkpoints(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    move = jfit.callbacks.lambda_callback(epoch_end=lambda event: os.chdir(tmp_path / "other"))
    run = train(checkpoint="run", callbacks=[move])
    assert names(tmp_path / "run") == ["step-00000007", "step-00000014"] and names(tmp_path / "other") == []
    assert same(train(num_epoch=3, checkpoint=tmp_path / "run", resume=True), run.train(1))


def test_a_rollback_that_never_helps_ends_after_three_attempts_also_if_epochs_are_short():
    x, y = blobs()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = train(data=(np.full_like(x, np.nan), y), nan="rollback", num_epoch=6)
    assert run.stop_reason is not None and run.position["epoch"] < 6
    assert all(np.isfinite(value).all() for value in run.params.values())
