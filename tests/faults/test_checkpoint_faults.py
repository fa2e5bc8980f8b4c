"""Faults of checkpoints, each injected: flipped bits, deaths inside a save, and readers during a save."""

from __future__ import annotations

import os
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fit_support import Killed, blobs, dies, same, train
from hypothesis import given
from hypothesis import strategies as st

import jfit
from jfit import checkpoint
from jfit.checkpoints import saved
from jfit.formats import FormatError, atomic, dump_sealed

STATE = {"step": 3, "w": np.arange(6.0, dtype="float32"), "key": np.zeros(2, "uint32")}
META = {"position": {"epoch": 1, "batch": 2, "step": 3}, "symbol": '{"op": "tanh"}', "history": "{}", "callbacks": []}
FILES = ("meta.json", "state.safetensors")


def edit(file: Path, old: bytes, new: bytes) -> None:
    content = file.read_bytes()
    assert old in content
    file.write_bytes(content.replace(old, new, 1))


# ------------------------------------------------------------------------------------------------ damage
@pytest.fixture(scope="module")
def intact(tmp_path_factory):
    folder = checkpoint.save(tmp_path_factory.mktemp("intact"), STATE, meta=META)
    return folder, {name: (folder / name).read_bytes() for name in FILES}


@given(st.sampled_from(FILES), st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=3, unique=True))
def test_no_flipped_bit_is_accepted_and_each_is_a_format_error(intact, name, places):
    folder, contents = intact
    content = bytearray(contents[name])
    for bit in {int(place * len(content) * 8) for place in places}:
        content[bit // 8] ^= 1 << bit % 8
    (folder / name).write_bytes(content)
    try:
        for read in (checkpoint.verify, checkpoint.load_meta, checkpoint.load_arrays):
            with pytest.raises(FormatError):
                read(folder)
    finally:
        (folder / name).write_bytes(contents[name])


@pytest.mark.parametrize(
    ("old", "new"),
    [(b'"step": 3,\n', b'"step": 4,\n'), (b"tanh", b"relu"), (b'"position"', b'"pnsition"'), (b'"crc32": ', b'"crc33": ')],
)
def test_a_change_of_meta_json_is_noticed(tmp_path, old, new):
    folder = checkpoint.save(tmp_path, STATE, meta=META)
    edit(folder / "meta.json", old, new)
    with pytest.raises(FormatError, match=r"meta\.json: field 'sha256': the digest of the file .* does not match its bytes"):
        checkpoint.load_meta(folder)


def test_a_truncated_or_sealed_but_wrong_meta_is_a_format_error(tmp_path):
    folder = checkpoint.save(tmp_path, STATE, meta=META)
    content = (folder / "meta.json").read_bytes()
    for size in (0, 1, 40, len(content) - 1):
        (folder / "meta.json").write_bytes(content[:size])
        with pytest.raises(FormatError):
            checkpoint.verify(folder)
    record = {"format": saved.FORMAT, "step": 3, "keys": {}, "meta": {}}
    for files in ({}, {"../x": {"bytes": 1, "crc32": 0}}, {"state.safetensors": 3}):
        (folder / "meta.json").write_bytes(dump_sealed({**record, "files": files}))
        with pytest.raises(FormatError, match="field 'files'"):
            checkpoint.verify(folder)
    (folder / "meta.json").write_bytes(dump_sealed({**record, "format": 2, "files": {}}))
    with pytest.raises(FormatError, match="found 2, this jfit reads 3 only; a jfit before version"):
        checkpoint.verify(folder)


def test_extra_pytrees_are_saved_with_the_state(tmp_path):
    folder = checkpoint.save(tmp_path, STATE, extra={"target": {"w": np.ones(2)}})
    assert checkpoint.load_extra(tmp_path, "target", {"w": np.zeros(2)})["w"].tolist() == [1, 1]
    with pytest.raises(KeyError, match="has no extra pytree 'other'; it has target"):
        checkpoint.load_extra(tmp_path, "other", {})
    with pytest.raises(ValueError, match="called 'state'"):
        checkpoint.save(tmp_path, STATE, extra={"state": {}})
    edit(folder / "target.safetensors", b"\xf0?", b"\xf0>")
    with pytest.raises(FormatError, match=r"target\.safetensors: crc32"):
        checkpoint.restore(folder, STATE)


# ------------------------------------------------------------------------------------------------ deaths inside a save
class Death(BaseException):
    """The process ends here."""


def die_between_the_renames(monkeypatch, directory: Path, state) -> None:
    """Save the step of an existing checkpoint again, and stop for ever after the first of the two renames."""
    rename, calls = os.rename, []

    def dying(source, target):
        calls.append(target)
        if len(calls) > 1:
            raise Death
        rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", dying)
        with pytest.raises(Death):
            checkpoint.save(directory, state)
    assert [name[-4:] for name in os.listdir(directory)] == [".old"]


def test_a_death_between_two_renames_leaves_the_earlier_checkpoint_for_readers_and_writers(tmp_path, monkeypatch):
    checkpoint.save(tmp_path, STATE, meta=META)
    die_between_the_renames(monkeypatch, tmp_path, STATE | {"w": np.zeros(6, "float32")})
    before = os.listdir(tmp_path)
    latest = checkpoint.latest(tmp_path)
    assert latest is not None and latest.suffix == ".old" and checkpoint.load_meta(latest) == META
    for path in (tmp_path, tmp_path / "step-00000003"):
        np.testing.assert_array_equal(checkpoint.restore(path, STATE)["w"], STATE["w"])
    assert os.listdir(tmp_path) == before  # readers change nothing
    checkpoint.save(tmp_path, STATE | {"step": 4})
    assert sorted(os.listdir(tmp_path)) == ["step-00000003", "step-00000004"]


def test_a_run_resumes_from_a_checkpoint_that_was_being_replaced(tmp_path, monkeypatch):
    run = train(num_epoch=1, checkpoint=tmp_path)
    die_between_the_renames(monkeypatch, tmp_path, run.snapshot())
    assert same(train(num_epoch=2, checkpoint=tmp_path, resume=True), train(num_epoch=2))
    assert sorted(os.listdir(tmp_path)) == ["step-00000007", "step-00000014"]


def test_a_new_run_sets_a_checkpoint_aside_that_was_being_replaced(tmp_path, monkeypatch):
    checkpoint.save(tmp_path, STATE)
    die_between_the_renames(monkeypatch, tmp_path, STATE)
    aside = checkpoint.set_aside(tmp_path)
    assert aside is not None and os.listdir(aside) == ["step-00000003"] and os.listdir(tmp_path) == ["earlier-1"]


def test_resume_in_a_folder_with_traces_of_a_run_but_no_checkpoint_warns(tmp_path):
    (tmp_path / "a" / ".step-00000007.4194304-0123456789ab.tmp").mkdir(parents=True)
    with pytest.warns(UserWarning, match=r"starts at step 0; an earlier run left checkpoints that were not written completely"):
        train(num_epoch=1, checkpoint=tmp_path / "a", resume=True)
    train(num_epoch=1, checkpoint=tmp_path / "b")
    checkpoint.set_aside(tmp_path / "b")
    with pytest.warns(UserWarning, match=r"earlier runs in earlier-1; to continue an earlier run, pass resume=.*b/earlier-1'"):
        train(num_epoch=1, checkpoint=tmp_path / "b", resume=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (tmp_path / "empty").mkdir()
        train(num_epoch=1, checkpoint=tmp_path / "empty", resume=True)


# ------------------------------------------------------------------------------------------------ readers and writers
def test_readers_never_delete_what_another_process_may_be_writing(tmp_path):
    run = train(num_epoch=1)
    run.save(tmp_path)
    dead, foreign = f".step-00000009.4194304-{atomic._machine()}01234567.tmp", ".step-00000009.1-" + "0" * 12 + ".tmp"
    for name in (dead, foreign):
        (tmp_path / name).mkdir()
    before = sorted(os.listdir(tmp_path))
    for read in (checkpoint.load_meta, checkpoint.load_arrays, checkpoint.latest, jfit.Run.load):
        assert read(tmp_path) is not None
    checkpoint.restore(tmp_path, run.snapshot())
    assert sorted(os.listdir(tmp_path)) == before
    assert atomic.sweep(tmp_path) == [dead]  # a process of another machine cannot be looked up
    os.utime(tmp_path / foreign, (0, 0))
    assert atomic.sweep(tmp_path) == [foreign]
    (tmp_path / foreign).mkdir()
    assert atomic.sweep(tmp_path, exclusive=True) == [foreign]


def test_a_reader_gets_state_and_meta_of_one_checkpoint_while_another_thread_replaces_it(tmp_path):
    def write() -> None:
        for value in range(60):
            state = {"step": 1 + value % 2, "w": np.full(1000, value, "float32")}
            checkpoint.save(tmp_path, state, meta={"value": value}, keep=1)

    checkpoint.save(tmp_path, {"step": 1, "w": np.zeros(1000, "float32")}, meta={"value": 0})
    writer = threading.Thread(target=write)
    writer.start()
    try:
        while writer.is_alive():
            read = saved.newest(tmp_path, saved.read)
            assert set(read.arrays["state.safetensors"]["w"]) == {read.meta["value"]}
    finally:
        writer.join()


# ------------------------------------------------------------------------------------------------ what travels with a run
def both(tmp_path, at_step: int, callbacks: Any = list, **options):
    """(uninterrupted run, run that died and was resumed)."""
    with pytest.raises(Killed):
        train(checkpoint=tmp_path, callbacks=[*callbacks(), dies(at_step)], **options)
    resumed = train(checkpoint=tmp_path, resume=True, callbacks=callbacks(), **options)
    return train(callbacks=callbacks(), **options), resumed


def test_the_best_parameters_of_early_stopping_are_those_of_the_uninterrupted_run(tmp_path):
    stops = lambda: [jfit.callbacks.early_stopping("loss", patience=6, mode="max")]  # noqa: E731  the first epoch is best
    straight, resumed = both(tmp_path, 20, stops, num_epoch=4)
    assert same(straight, resumed)
    assert straight.score(blobs()) == resumed.score(blobs())


@pytest.mark.parametrize("checkpoint_every", [7, 4])
def test_a_resumed_run_has_the_history_of_the_uninterrupted_one(tmp_path, checkpoint_every):
    def spread(label, output):
        return float(output.std())

    straight, resumed = both(tmp_path, 13, num_epoch=3, checkpoint_every=checkpoint_every, eval_metric=[spread, "roc_auc"])
    assert same(straight, resumed)
    timing = {"compile_time"}
    assert set(straight.history.columns()) - timing == set(resumed.history.columns()) - timing
