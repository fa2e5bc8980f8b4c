"""Files of MXNet's checkpoints are replaced atomically: a full disk leaves the old content, killed processes leave none."""

from __future__ import annotations

import errno
import os

import numpy as np
import pytest

import jfit
from jfit.formats import atomic, leftovers
from jfit.mxnet import files

NET = {1: jfit.sym.Variable("one"), 2: jfit.sym.Variable("two")}


def write(prefix: str, value: int) -> None:
    files.save_checkpoint(prefix, 3, NET[value], {"w": np.float32([value])}, {})


def test_a_full_disk_leaves_the_old_content_of_a_file(tmp_path, monkeypatch):
    prefix = str(tmp_path / "net")
    write(prefix, 1)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):
        patch.setattr(os, "fsync", full)
        write(prefix, 2)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    (tmp_path / "net-0004.params").mkdir()
    with pytest.raises(IsADirectoryError):
        files.save_checkpoint(prefix, 4, None, {"w": np.zeros(1, "float32")}, {})
    assert not leftovers(tmp_path)


def test_temporary_files_of_killed_processes_are_deleted_by_the_next_save_of_the_same_name(tmp_path):
    machine = atomic._machine()
    token = f"4194304-{machine}01234567"
    for name in (f".net-0009.params.{token}.tmp", f".other.{token}.tmp"):
        (tmp_path / name).write_bytes(b"?")
    alive = f".net-0008.params.{os.getppid()}-{machine}01234567.tmp"
    (tmp_path / alive).write_bytes(b"?")
    write(str(tmp_path / "net"), 1)
    assert {path.name for path in leftovers(tmp_path)} == {f".other.{token}.tmp", alive}
