"""Large states are written on another thread: same files, no donated buffers, and faults, each injected, lose nothing."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from fit_support import same, train
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jfit
import jfit.checkpoints.writing
from jfit import checkpoint, counters
from jfit.callbacks import Callback, Event, checkpointing, lambda_callback
from jfit.checkpoints import locks
from jfit.history.table import History

WAIT = 20.0  # seconds after which a gate opens in any case


class Disk:
    """The disk of these tests: each write of a state first calls the function `during`, with the number of the write."""

    def __init__(self, monkeypatch):
        self.gate, self.started, self.writes, self.ended = threading.Event(), threading.Event(), 0, 0
        self.during = lambda number: None
        write = jfit.checkpoints.writing.save_tensors

        def save_tensors(*arguments, **options):
            self.writes += 1
            self.started.set()
            try:
                self.during(self.writes)
                return write(*arguments, **options)
            finally:
                self.ended += 1

        monkeypatch.setattr(jfit.checkpoints.writing, "save_tensors", save_tensors)

    def full(self, *numbers: int) -> None:
        def during(number):
            if number in numbers:
                raise OSError(errno.ENOSPC, "No space left on device")

        self.during = during

    def slow(self, *numbers: int) -> None:
        """These writes wait for the gate."""
        self.during = lambda number: number in numbers and self.gate.wait(WAIT)


@pytest.fixture
def disk(monkeypatch):
    return Disk(monkeypatch)


def saves(folder: Path, every: int | str = "epoch", **options) -> Callback:
    return checkpointing(folder, every, **{"background_bytes": 0, **options})


def at(step: int, function) -> Callback:
    return lambda_callback(every=step, step=lambda event: function() if event.step == step else None)


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def press(*numbers: int) -> None:
    for number in numbers:
        os.kill(os.getpid(), number)
        time.sleep(0.05)


# ------------------------------------------------------------------------------------------------ the state that is saved
def test_a_save_has_the_bits_of_its_step_although_later_steps_donate_the_state(disk, tmp_path):
    steps: list[int] = []  # that were done when the write began

    def during(number):
        disk.gate.wait(WAIT)
        steps.append(number)

    disk.during = during

    def at_step(event):
        disk.gate.set() if event.step % 4 == 3 or event.kind == "fit_end" else disk.gate.clear()

    release = lambda_callback(every=1, step=at_step, fit_end=at_step)
    run = train(callbacks=[release, saves(tmp_path / "a", 4, keep=None)], steps_per_call=1)
    disk.during = lambda number: None
    straight = train(callbacks=[saves(tmp_path / "b", 4, keep=None, background_bytes=None)], steps_per_call=1)
    assert same(run, straight) and len(steps) == 4
    assert names(tmp_path / "a") == names(tmp_path / "b") == [f"step-000000{step}" for step in ("04", "08", "12", "14")]
    for name in names(tmp_path / "a"):
        files = [(tmp_path / folder / name / "state.safetensors").read_bytes() for folder in "ab"]
        assert files[0] == files[1]
        metas = [checkpoint.verify(tmp_path / folder / name) for folder in "ab"]
        assert metas[0]["files"] == metas[1]["files"] and list(metas[0]["meta"]) == list(metas[1]["meta"])
        assert metas[0]["meta"]["position"] == metas[1]["meta"]["position"]


def test_a_save_has_the_callback_states_of_its_step(disk, tmp_path):
    def append(event, state):
        state.append(event.step)
        if event.step == 3:
            disk.gate.set()
        return state

    disk.slow(1)
    grows = Callback(on=append, init=list, events=("step",), every=1, name="grows")
    train(callbacks=[grows, saves(tmp_path, 2, keep=None)], steps_per_call=1, num_epoch=1)
    assert dict(checkpoint.load_meta(tmp_path / "step-00000002")["callbacks"])["grows"] == [1, 2]


def test_a_copy_to_the_host_needs_memory_for_itself_and_one_more_array():
    sharding = NamedSharding(Mesh(np.array(jax.devices()[:4]), ("data",)), PartitionSpec("data"))
    values = [np.full((4, 1 << 14), i, np.float32) for i in range(8)]
    arrays = [jax.device_put(x, sharding) for x in values[:6]] + [jax.device_put(x) for x in values[6:]]
    jax.block_until_ready(arrays)
    counters.copy(arrays[:1])
    tracemalloc.start()
    try:
        with counters.counted() as counts:
            copies = counters.copy(arrays)
        current, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    total, largest, slack = sum(x.nbytes for x in values), values[0].nbytes, 1 << 17
    assert counts["host_syncs"] == 1 and peak <= total + largest + slack and current <= total + slack
    for x, copy, value in zip(arrays, copies, values, strict=True):
        assert copy.flags.writeable and not any(
            np.shares_memory(copy, np.asarray(shard.data)) for shard in x.addressable_shards
        )
        np.testing.assert_array_equal(copy, value)


# ------------------------------------------------------------------------------------------------ one after the other
def test_training_goes_on_during_a_save_and_the_next_save_waits_for_it(disk, tmp_path):
    seen: list[tuple[int, int, list[str]]] = []
    disk.slow(1)

    def watch(event):
        seen.append((event.step, disk.ended, names(tmp_path)))
        if event.step == 3:
            latest = checkpoint.latest(tmp_path)
            assert latest is None and disk.started.wait(WAIT)  # a checkpoint that is not complete has no name
            threading.Timer(0.1, disk.gate.set).start()
        if event.step == 5:
            latest = checkpoint.latest(tmp_path)
            assert latest is not None and latest.name in ("step-00000002", "step-00000004")
            assert jfit.Run.load(tmp_path).position["step"] in (2, 4)

    train(callbacks=[lambda_callback(every=1, step=watch), saves(tmp_path, 2, keep=1)], steps_per_call=1, num_epoch=1)
    ended = {step: number for step, number, _ in seen}
    assert ended[3] == 0 and ended[5] >= 1 and disk.ended == 4
    assert names(tmp_path) == ["step-00000007"]


def test_small_states_are_written_at_once_and_large_ones_in_the_background(monkeypatch, tmp_path):
    threads: list[bool] = []
    write = jfit.checkpoints.writing.save_tensors
    main = threading.main_thread()
    record = lambda *a, **k: (threads.append(threading.current_thread() is main), write(*a, **k))[1]  # noqa: E731
    monkeypatch.setattr(jfit.checkpoints.writing, "save_tensors", record)
    run = train(checkpoint=tmp_path / "a", num_epoch=1)
    nbytes = sum(x.nbytes for x in checkpoint.load_arrays(tmp_path / "a").values())
    for limit in (nbytes, nbytes + 1, None):
        train(callbacks=[saves(tmp_path / "b", background_bytes=limit)], num_epoch=1)
    assert threads == [True, False, True, True]
    assert run.save(tmp_path / "c").is_dir() and threads[-1]
    for limit in (-1, True):
        with pytest.raises(ValueError, match=f"background_bytes is {limit}; expected a finite number of at least 0"):
            checkpointing(tmp_path, background_bytes=limit)


def fake_event(kind: str, step: int, value: float = 0.0, **logs) -> Event:
    state = {"step": np.int32(step), "w": np.full(2, value, np.float32)}
    run = SimpleNamespace(snapshot=lambda: state, extra=dict, keep_finite=lambda state: False, restores_best=False)
    run.meta = lambda: {"position": {"step": step}, "history": History().to_json(), "callbacks": []}
    return Event(kind, epoch=step, step=step, batch=0, num_batches=1, logs=logs, run=run)


# ------------------------------------------------------------------------------------------------ the disk is full
@pytest.mark.parametrize("limit", [0, None], ids=["background", "at once"])
def test_training_continues_after_a_save_that_failed_and_the_next_one_is_tried(disk, tmp_path, limit):
    disk.full(2)
    with pytest.warns(UserWarning, match=r"step 14 could not be saved in .*No space left.*; training continues, and the next"):
        run = train(num_epoch=3, callbacks=[saves(tmp_path, background_bytes=limit)])
    assert names(tmp_path) == ["step-00000007", "step-00000021"] and same(run, train(num_epoch=3))
    assert dict(checkpoint.load_meta(tmp_path)["callbacks"])["checkpointing"] == str(tmp_path / "step-00000021")


@pytest.mark.parametrize("limit", [0, None], ids=["background", "at once"])
def test_the_last_save_is_tried_again_if_it_failed_and_raises_if_it_fails_again(disk, tmp_path, limit):
    disk.full(2)
    with pytest.warns(UserWarning, match=r"step 14 could not be saved in "):
        train(callbacks=[saves(tmp_path / "a", background_bytes=limit)])
    assert names(tmp_path / "a") == ["step-00000007", "step-00000014"]
    disk.full(5, 6)
    with (
        pytest.warns(UserWarning, match="step 14 could not be saved"),
        pytest.raises(OSError, match=r"step 14 could not be saved in .*, and training has ended; jfit.last_run\(\) has it"),
    ):
        train(callbacks=[saves(tmp_path / "b", background_bytes=limit)])
    assert names(tmp_path / "b") == ["step-00000007"]
    run = jfit.last_run()
    assert run is not None and run.save(tmp_path / "c").name == "step-00000014"


def test_a_checkpoint_that_could_not_be_written_is_not_among_the_best(disk, tmp_path):
    callback = saves(tmp_path, keep=1, keep_best=1, monitor="loss")
    state = callback.init()
    disk.full(2)
    for step, loss in enumerate([3.0, 1.0]):
        state = callback.on(fake_event("epoch_end", step, loss=loss), state)
    while disk.ended != 2:
        time.sleep(0.001)
    with pytest.warns(UserWarning, match="step 1 could not be saved"):
        while state["best"] == [[1.0, 1]]:
            state = callback.on(fake_event("log", 1), state)  # reported before the next save
    assert state == {"last": str(tmp_path / "step-00000000"), "best": [[3.0, 0]]}
    state = callback.on(fake_event("epoch_end", 2, loss=2.0), state)
    callback.on(fake_event("fit_end", 2), state)
    assert names(tmp_path) == ["step-00000002"] and checkpoint.best(tmp_path).name == "step-00000002"


def test_another_process_that_took_the_folder_over_ends_training(tmp_path, monkeypatch):
    def in_use(directory):
        raise checkpoint.FolderInUse("process 7 saves in this folder")

    monkeypatch.setattr(jfit.checkpoints.writing, "check_lock", in_use)
    with pytest.raises(checkpoint.FolderInUse, match="process 7"):
        train(callbacks=[saves(tmp_path)])


# ------------------------------------------------------------------------------------------------ training ends early
def test_ctrl_c_during_a_save_finishes_it(disk, tmp_path):
    disk.during = lambda number: press(signal.SIGINT) if number == 1 else None
    run = train(callbacks=[saves(tmp_path, 3, keep=None)], steps_per_call=1)
    assert run.interrupted and "step-00000003" in names(tmp_path) and not any(name.startswith(".") for name in names(tmp_path))
    assert same(train(callbacks=[saves(tmp_path, 3)], resume=tmp_path), train())


def test_a_second_ctrl_c_abandons_the_save_and_the_checkpoint_before_it_stays(disk, tmp_path):
    disk.during = lambda number: (press(signal.SIGINT, signal.SIGINT), disk.gate.wait(WAIT)) if number == 2 else None
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        train(callbacks=[saves(tmp_path)])
    assert time.monotonic() - started < WAIT / 2
    assert not (tmp_path / ".run.lock").exists()
    run = jfit.last_run()
    assert run is not None and run.position["step"] == 14
    disk.gate.set()
    while disk.ended < 2 or any(name.startswith(".") for name in names(tmp_path)):
        time.sleep(0.001)
    time.sleep(0.01)
    assert names(tmp_path) == ["step-00000007"]
    assert same(train(callbacks=[saves(tmp_path)], resume=tmp_path), train())


def test_sigterm_during_a_save_saves_the_last_step_too(disk, tmp_path):
    disk.during = lambda number: press(signal.SIGTERM) if number == 1 else None
    with pytest.raises(SystemExit) as caught:
        train(callbacks=[saves(tmp_path, 3, keep=None), lambda_callback(every=1, step=lambda event: disk.started.wait(0.01))])
    run = jfit.last_run()
    assert caught.value.code == 143 and run is not None and checkpoint.verify(tmp_path / "step-00000003")
    assert checkpoint.load_meta(tmp_path)["position"] == run.position
    assert same(train(callbacks=[saves(tmp_path, 3)], resume=tmp_path), train())


def test_sigterm_saves_the_state_again_if_the_save_of_its_step_failed(disk, tmp_path):
    disk.full(1)
    stop = at(3, lambda: press(signal.SIGTERM))  # before the checkpoint of this step, in the same event
    with pytest.raises(SystemExit), pytest.warns(UserWarning, match="step 3 could not be saved.*; it is tried again"):
        train(callbacks=[stop, saves(tmp_path, 3)], steps_per_call=1)
    assert names(tmp_path) == ["step-00000003"]


@pytest.mark.parametrize("when", [{"every": 1, "step": 3}, {"fit_end": 14}])
def test_an_exception_of_another_callback_does_not_lose_the_save(disk, tmp_path, when):
    def fail(event):
        if event.step == 3 or event.kind == "fit_end":
            threading.Timer(0.1, disk.gate.set).start()
            raise RuntimeError("a callback failed")

    events: dict[str, Any] = {name: fail for name in when if name != "every"}
    disk.slow(1, 7)
    if "fit_end" in when:
        disk.slow(2)
    with pytest.raises(RuntimeError, match="a callback failed"):
        train(callbacks=[lambda_callback(every=when.get("every"), **events), saves(tmp_path, 2 if "step" in when else "epoch")])
    assert "step-00000014" in names(tmp_path) if "fit_end" in when else names(tmp_path) == ["step-00000002"]
    assert not (tmp_path / ".run.lock").exists()


CHILD = """
import sys, time, numpy as np, jfit, jfit.checkpoints.writing
write, count = jfit.checkpoints.writing.save_tensors, 0
def slow(*arguments, **options):
    global count
    count += 1
    path = write(*arguments, **options)  # the file is complete, but not the checkpoint
    if count == 3:
        print("saving", flush=True)
        time.sleep(60)
    return path
jfit.checkpoints.writing.save_tensors = slow
net = jfit.sym.SoftmaxOutput(jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=2), name="softmax")
saves = jfit.callbacks.checkpointing(sys.argv[1], background_bytes=0)
x = np.zeros((40, 4), "float32")
jfit.fit(net, (x, x[:, 0]), batch_size=8, num_epoch=5, callbacks=[saves], progress=False)
"""


@pytest.mark.slow  # starts a process that imports jax
def test_kill_9_during_a_save_in_the_background_leaves_the_checkpoint_before_it(tmp_path):
    with subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path)], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline() == b"saving\n"
        child.kill()
    latest = checkpoint.latest(tmp_path)
    assert latest is not None and latest.name == "step-00000010" and checkpoint.verify(latest)
    left = [name for name in names(tmp_path) if name.endswith(".tmp")]
    assert len(left) == 1 and (tmp_path / left[0] / "state.safetensors").is_file()
    assert jfit.Run.load(tmp_path).position["step"] == 10
    owner = threading.Event()
    locks.acquire(tmp_path, owner)  # the lock of a process that has ended is taken over
    locks.release(owner)
    checkpoint.save(tmp_path, {"step": 11})
    assert names(tmp_path) == ["step-00000005", "step-00000010", "step-00000011"]
