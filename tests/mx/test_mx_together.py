"""The files of MXNet's checkpoints are replaced together: a full disk or a death in between leaves no mixture."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest
from fit_support import blobs, mlp

import jfit
import jfit.mx as mx
from jfit.formats import atomic, atomic_together, atomic_write, complete_file, dump_states, leftovers, load_states, sweep
from jfit.mxnet import files

NET = {1: jfit.sym.Variable("one"), 2: jfit.sym.Variable("two")}


def write(prefix: str, value: int) -> None:
    """Save a checkpoint whose three files have one number."""
    with files.replaced_together(prefix):
        files.save_checkpoint(prefix, 3, NET[value], {"w": np.float32([value])}, {})
        atomic_write(f"{prefix}-0003.states", dump_states({0: np.float32([value])}))


def values(prefix: str) -> list[int]:
    """The numbers of the three files, and of the first two as `jfit.load` and mx.model read them."""
    symbol, params, _ = files.load_checkpoint(prefix, 3)
    states = load_states(complete_file(f"{prefix}-0003.states")).states
    loaded = jfit.load(prefix, 3, allow_extra=True)
    assert loaded.symbol is not None
    graph, arrays, _ = mx.model.load_checkpoint(prefix, 3)
    names = [net.name for net in NET.values()]
    numbers = [names.index(s.name) + 1 for s in (symbol, loaded.symbol, graph)]
    return [*numbers, int(params["w"][0]), int(arrays["w"].asnumpy()[0]), int(states[0][0])]


def die_at(call: int, prefix: str) -> bool:
    """Save new files in a forked process that ends, without cleaning up, before a call that renames or deletes; did it?"""
    child = os.fork()
    if not child:
        calls = [0]

        def dying(function):
            def replacement(*args, **kwargs):
                calls[0] += 1
                if calls[0] == call:
                    os._exit(9)
                return function(*args, **kwargs)

            return replacement

        for name in ("rename", "replace", "unlink", "fsync"):
            setattr(os, name, dying(getattr(os, name)))
        write(prefix, 2)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:os.fork")
def test_a_process_that_dies_while_it_saves_leaves_the_old_files_or_the_new_ones(tmp_path):
    results = []
    for call in range(1, 30):
        folder = tmp_path / str(call)
        folder.mkdir()
        prefix = str(folder / "net")
        write(prefix, 1)
        dead, before = die_at(call, prefix), sorted(os.listdir(folder))
        found = set(values(prefix))
        assert len(found) == 1 and sorted(os.listdir(folder)) == before  # readers change nothing
        results.append((found.pop(), dead, len(before)))
        write(prefix, 1)
        assert set(values(prefix)) == {1} and not leftovers(folder)
        if not dead:
            break
    states, deaths, counts = zip(*results, strict=True)
    assert sorted(states) == list(states) and {*states} == {1, 2} and deaths.count(True) > 10 and max(counts) == 6
    assert states[-2] == 2 and not deaths[-1]


def test_a_full_disk_leaves_the_old_files(tmp_path, monkeypatch):
    prefix = str(tmp_path / "net")
    write(prefix, 1)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for failing in range(1, 4):
        calls, fsync = [0], os.fsync

        def full(handle, failing=failing, calls=calls, fsync=fsync):
            calls[0] += 1
            if calls[0] == failing:
                raise OSError(errno.ENOSPC, "No space left on device")
            fsync(handle)

        with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):
            patch.setattr(os, "fsync", full)
            write(prefix, 2)
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    (tmp_path / "net-0004.params").mkdir()
    with pytest.raises(IsADirectoryError):
        files.save_checkpoint(prefix, 4, NET[2], {"w": np.zeros(1, "float32")}, {})
    assert (tmp_path / "net-symbol.json").read_bytes() == before["net-symbol.json"] and not leftovers(tmp_path)


def test_a_module_replaces_parameters_and_optimizer_states_together(tmp_path, monkeypatch):
    x, y = blobs()
    data, prefix = jfit.NDArrayIter(x, y, 8), str(tmp_path / "net")
    options = {"optimizer": "adam", "optimizer_params": {"learning_rate": 0.1}}
    module = jfit.Module(mlp())
    module.fit(data, num_epoch=1, **options)
    module.save_checkpoint(prefix, 1, save_optimizer_states=True)
    saved = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    module.fit(data, num_epoch=1)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):
        patch.setattr(jfit.mxnet.module.module, "save_states_of", full)
        module.save_checkpoint(prefix, 1, save_optimizer_states=True)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == saved
    loaded = jfit.Module.load(prefix, 1, load_optimizer_states=True)
    loaded.fit(data, num_epoch=1, **options)
    for one, two in zip(module.get_params(), loaded.get_params(), strict=True):
        assert all(np.array_equal(one[name], two[name]) for name in one)


def test_temporary_files_of_killed_processes_are_deleted_by_the_next_save_of_the_same_name(tmp_path):
    machine = atomic._machine()
    token = f"4194304-{machine}01234567"
    for name in (f".net-0009.params.{token}.tmp", f".net-0009.states.{token}.new", f".other.{token}.tmp"):
        (tmp_path / name).write_bytes(b"?")
    alive = f".net-0008.params.{os.getppid()}-{machine}01234567.tmp"
    (tmp_path / alive).write_bytes(b"?")
    write(str(tmp_path / "net"), 1)
    assert {path.name for path in leftovers(tmp_path)} == {f".other.{token}.tmp", alive}
    assert not (tmp_path / "net-0009.states").exists()


def test_a_file_that_was_written_again_since_is_not_replaced_by_an_old_one(tmp_path):
    new = tmp_path / f".a.txt.4194304-{atomic._machine()}01234567.new"
    new.write_text("new")
    assert complete_file(tmp_path / "a.txt") == str(new)
    (tmp_path / "a.txt").write_text("newer")
    os.utime(new, (0, 0))
    assert complete_file(tmp_path / "a.txt") == str(tmp_path / "a.txt")
    sweep(tmp_path)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["newer"]


def test_a_file_may_be_written_twice_in_one_block(tmp_path):
    with atomic_together(), atomic_together():
        atomic_write(tmp_path / "a.txt", "1")
        atomic_write(tmp_path / "a.txt", "2")
        assert Path(atomic_write(tmp_path / "b.txt", "3")).name == "b.txt" and not (tmp_path / "b.txt").exists()
    assert [(tmp_path / name).read_text() for name in ("a.txt", "b.txt")] == ["2", "3"] and len(list(tmp_path.iterdir())) == 2
