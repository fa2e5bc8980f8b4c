"""One folder of checkpoints has one writer: locks, and saves that fail while training continues."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fit_support import same, train

import jfit
from jfit import checkpoint
from jfit.callbacks import Callback, lambda_callback
from jfit.checkpoints import locks


class Owner:
    """Stands for a `Run`."""


OWNER = Owner()


def hold(folder: Path, content: str | None = None):
    """Lock a folder as another process would: the lock is that of the open file."""
    path = folder / locks.LOCK_FILE
    path.unlink(missing_ok=True)
    file = open(path, "w", encoding="utf-8")  # noqa: SIM115 (the lock ends when it is closed)
    fcntl.flock(file, fcntl.LOCK_EX)
    file.write(json.dumps({"pid": 7, "host": "node7", "since": time.time() - 300}) if content is None else content)
    file.flush()
    return file


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


TAKE = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("locks", sys.argv[1])
locks = sys.modules["locks"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(locks)
sys.stdin.read(1)
try:
    locks.acquire(sys.argv[2], locks)
    print("has it", flush=True)
except locks.FolderInUse:
    print("refused", flush=True)
sys.stdin.read()
"""


def taking(folder: Path):
    """Start a process that tries to take the lock when it can read a character, and ends with its input."""
    command = [sys.executable, "-S", "-c", TAKE, locks.__file__, str(folder)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def result(process) -> str:
    process.stdin.write("x")
    process.stdin.flush()
    return process.stdout.readline().strip()


def test_a_folder_that_is_deleted_during_training_is_made_again(tmp_path):
    folder = tmp_path / "run"
    locks.acquire(folder, OWNER)
    shutil.rmtree(folder)
    checkpoint.save(folder, {"step": 3})
    assert names(folder) == [".run.lock", "step-00000003"]
    locks.release(OWNER)
    assert names(folder) == ["step-00000003"]


def test_a_second_process_is_refused_with_the_first_ones_pid_host_and_age_until_it_has_ended(tmp_path, caplog):
    with hold(tmp_path):
        for write in (lambda: train(checkpoint=tmp_path), lambda: checkpoint.save(tmp_path, {"step": 1})):
            with pytest.raises(locks.FolderInUse, match=r"process 7 on node7 has been saving .* for 5 min; pass ano"):
                write()
        assert names(tmp_path) == [".run.lock"]
    with taking(tmp_path) as first:
        assert result(first) == "has it"
        with pytest.raises(locks.FolderInUse, match=f"process {first.pid} on {platform.node()} has been saving"):
            locks.acquire(tmp_path, OWNER)
        first.kill()
    with caplog.at_level(logging.WARNING, "jfit"):
        train(num_epoch=1, checkpoint=tmp_path)
    assert f"was locked by process {first.pid} on {platform.node()}, which has ended" in caplog.text
    assert names(tmp_path) == ["step-00000007"]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": 1}', "[" * 100_000])
def test_a_damaged_lock_is_that_of_an_unknown_machine(tmp_path, content):
    with hold(tmp_path, content), pytest.raises(locks.FolderInUse, match="on an unknown machine"):
        locks.acquire(tmp_path, OWNER)
    locks.acquire(tmp_path, OWNER)
    locks.release(OWNER)


def test_a_lock_file_that_is_a_link_is_not_followed(tmp_path):
    (tmp_path / "mine").write_text("text")
    (tmp_path / ".run.lock").symlink_to(tmp_path / "mine")
    with pytest.raises(OSError, match="files cannot be written in the folder"):
        locks.acquire(tmp_path, OWNER)
    assert (tmp_path / "mine").read_text() == "text"


def test_a_file_system_without_locks_is_reported(tmp_path, monkeypatch, caplog):
    def without(file, kind):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", without)
    locks.acquire(tmp_path, OWNER)
    assert "this file system has no locks" in caplog.text
    locks.release(OWNER)


def test_two_runs_of_one_process_cannot_save_in_one_folder(tmp_path):
    seen: list[str] = []

    def second(event):
        with pytest.raises(locks.FolderInUse, match="another run of this process is training and saves"):
            train(num_epoch=1, checkpoint=tmp_path)
        event.run.save(tmp_path)  # the run itself may
        seen.extend(names(tmp_path))

    run = train(num_epoch=1, checkpoint=tmp_path, callbacks=[second])
    assert seen == [".run.lock", "step-00000007"] and names(tmp_path) == ["step-00000007"]
    assert same(run.train(1), train(num_epoch=2)) and names(tmp_path) == ["step-00000007", "step-00000014"]


def test_the_lock_is_released_after_an_error(tmp_path):
    def fail(event):
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        train(checkpoint=tmp_path, callbacks=[fail])
    assert names(tmp_path) == []
    with pytest.raises(ValueError, match=r"has no 'position'"):
        checkpoint.save(tmp_path, train(num_epoch=1).snapshot())
        train(checkpoint=tmp_path, resume=True)
    assert names(tmp_path) == ["step-00000007"]


def test_a_run_whose_lock_was_taken_over_stops_and_one_whose_lock_was_deleted_goes_on(tmp_path):
    def delete(event):
        (tmp_path / ".run.lock").unlink()

    train(num_epoch=1, checkpoint=tmp_path, callbacks=[delete])
    assert names(tmp_path) == ["step-00000007"]

    others = []

    def take_over(event):
        others.append(hold(tmp_path))

    with pytest.raises(locks.FolderInUse, match="process 7 on node7"):
        train(num_epoch=1, checkpoint=tmp_path, callbacks=[take_over])
    others[0].close()
    assert names(tmp_path) == [".run.lock", "earlier-1"]


@pytest.mark.filterwarnings("ignore:os.fork")  # the child does nothing
def test_a_lock_ends_with_its_owner_and_is_not_that_of_a_forked_child(tmp_path):
    owner = Owner()
    locks.acquire(tmp_path, owner)
    if (child := os.fork()) == 0:
        time.sleep(60)
        os._exit(0)
    del owner
    assert names(tmp_path) == []
    locks.acquire(tmp_path, OWNER)
    locks.release(OWNER)
    os.kill(child, 9)
    os.waitpid(child, 0)


def test_of_several_processes_one_takes_over_a_lock_that_is_left(tmp_path):
    hold(tmp_path).close()
    processes = [taking(tmp_path) for _ in range(5)]
    try:
        results = [result(process) for process in processes]
    finally:
        for process in processes:
            process.communicate("", timeout=30)
    assert sorted(results) == ["has it", *["refused"] * 4]


# ------------------------------------------------------------------------------------------------ saves that fail


def test_a_folder_that_cannot_be_written_and_a_state_that_cannot_be_saved_raise_before_the_first_step(tmp_path):
    steps: list[int] = []
    watch = lambda_callback(every=1, step=lambda event: steps.append(event.step))
    (tmp_path / "file").touch()
    for options in (
        {"checkpoint": tmp_path / "file"},
        {"callbacks": [watch, jfit.callbacks.checkpointing(tmp_path / "file" / "deeper")]},
    ):
        with pytest.raises(OSError, match=r"files cannot be written in the folder .*file.*, so no checkpoint could be saved"):
            train(**({"callbacks": [watch]} | options))
    unsaved = Callback(on=lambda event, state: state, init=lambda: {1, 2}, name="mine")
    with pytest.raises(TypeError, match=r"callback mine: its state is not JSON-serializable \(.*set.*\); use numbers"):
        train(checkpoint=tmp_path / "a", callbacks=[watch, unsaved])
    assert steps == [] and names(tmp_path / "a") == []
