"""One folder of checkpoints has one writer: locks, and saves that fail while training continues."""

from __future__ import annotations

import json
import logging
import os
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


def hold(folder: Path, **fields) -> Path:
    """Write the lock file that another process would have written."""
    pid = fields.get("pid", 1)
    holder = locks.Holder(pid, "node7", locks._machine(), locks._started(pid), time.time() - 300, "other")
    folder.mkdir(exist_ok=True)
    (folder / locks.LOCK_FILE).write_text(json.dumps(holder._replace(**fields)._asdict()))
    return folder / locks.LOCK_FILE


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_a_folder_that_is_deleted_during_training_is_made_again(tmp_path):
    folder = tmp_path / "run"
    locks.acquire(folder, OWNER)
    shutil.rmtree(folder)
    checkpoint.save(folder, {"step": 3})
    assert names(folder) == [".run.lock", "step-00000003"]
    locks.release(OWNER)
    assert names(folder) == ["step-00000003"]


def test_a_second_process_is_refused_with_the_first_ones_pid_host_and_age_until_it_has_ended(tmp_path, caplog):
    with subprocess.Popen(["sleep", "60"]) as first:
        hold(tmp_path, pid=first.pid)
        for write in (lambda: train(checkpoint=tmp_path), lambda: checkpoint.save(tmp_path, {"step": 1})):
            with pytest.raises(
                locks.FolderInUse, match=rf"process {first.pid} on node7 has been saving .* for 5 min; pass ano"
            ):
                write()
        assert names(tmp_path) == [".run.lock"]
        first.kill()
        os.waitid(os.P_PID, first.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and its parent has not noticed
        with caplog.at_level(logging.WARNING, "jfit"):
            train(num_epoch=1, checkpoint=tmp_path)
    assert f"was locked by process {first.pid} on node7, which has ended" in caplog.text
    assert names(tmp_path) == ["step-00000007"]


def test_a_lock_of_another_machine_is_taken_over_when_it_is_not_touched_any_more(tmp_path):
    lock = hold(tmp_path, machine="another", pid=os.getpid())
    with pytest.raises(locks.FolderInUse, match=r"its lock expires 120 s after its last sign of life; pass another folder"):
        locks.acquire(tmp_path, OWNER)
    old = time.time() - 200
    os.utime(lock, (old, old))
    run = train(num_epoch=1, checkpoint=tmp_path)
    assert names(tmp_path) == ["step-00000007"] and run.position["step"] == 7


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": 1}', "[" * 100_000])
def test_a_damaged_lock_is_that_of_an_unknown_machine(tmp_path, content):
    (tmp_path / ".run.lock").write_text(content)
    with pytest.raises(locks.FolderInUse, match="on an unknown machine"):
        locks.acquire(tmp_path, OWNER)
    os.utime(tmp_path / ".run.lock", (0, 0))
    locks.acquire(tmp_path, OWNER)
    locks.release(OWNER)


def test_an_id_that_another_process_got_since_is_not_that_of_the_writer(tmp_path):
    hold(tmp_path, pid=os.getppid(), started=(locks._started(os.getppid()) or 0) + 1)
    locks.acquire(tmp_path, OWNER)
    locks.release(OWNER)
    hold(tmp_path, pid=os.getpid())  # a restarted container often has the same process id
    locks.acquire(tmp_path, OWNER)
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

    def take_over(event):
        hold(tmp_path, pid=os.getppid())

    with pytest.raises(locks.FolderInUse, match=rf"process {os.getppid()} on node7"):
        train(num_epoch=1, checkpoint=tmp_path, callbacks=[take_over])
    assert names(tmp_path) == [".run.lock", "earlier-1"]


def test_the_lock_file_is_touched_while_its_owner_lives(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "BEAT_SECONDS", 0.01)
    owner, lock = Owner(), tmp_path / ".run.lock"
    locks.acquire(tmp_path, owner)
    os.utime(lock, (0, 0))
    deadline = time.monotonic() + 30
    while lock.stat().st_mtime == 0 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert lock.stat().st_mtime > 0
    del owner
    while lock.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not lock.exists()


TAKE = """
import importlib.util, pathlib, sys
spec = importlib.util.spec_from_file_location("locks", sys.argv[1])
locks = importlib.util.module_from_spec(spec)
spec.loader.exec_module(locks)
sys.stdin.read(1)
try:
    locks.acquire(sys.argv[2], locks)
    print("has it", flush=True)
except locks.FolderInUse:
    print("refused", flush=True)
sys.stdin.read()
"""


def test_of_several_processes_one_takes_over_a_lock_that_is_left(tmp_path):
    hold(tmp_path, pid=2**22 - 1, started=1)
    command = [sys.executable, "-S", "-c", TAKE, locks.__file__, str(tmp_path)]
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(5)]
    try:
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("x")
            process.stdin.flush()
        results = [process.stdout.readline().strip() for process in processes if process.stdout is not None]
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
    with pytest.raises(TypeError, match=r"callback mine: its state is not JSON-serializable \(.*set.*\), so it could not be"):
        train(checkpoint=tmp_path / "a", callbacks=[watch, unsaved])
    assert steps == [] and names(tmp_path / "a") == []


def test_temporary_lock_files_of_ended_processes_are_deleted(tmp_path, monkeypatch):
    ended, alive = hold(tmp_path, pid=2**22 + 1), hold(tmp_path / "b", pid=os.getppid())
    ended.rename(tmp_path / f"{locks.LOCK_FILE}.1")
    alive.rename(tmp_path / f"{locks.LOCK_FILE}.2")
    (tmp_path / "b").rmdir()
    locks.acquire(tmp_path, OWNER)
    locks.release(OWNER)
    assert names(tmp_path) == [f"{locks.LOCK_FILE}.2"]
    write = Path.write_text
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "write_text", lambda *args, **kwargs: (write(*args, **kwargs), interrupt()))
        locks.acquire(tmp_path, OWNER)
    assert names(tmp_path) == [f"{locks.LOCK_FILE}.2"]


def interrupt():
    raise KeyboardInterrupt
