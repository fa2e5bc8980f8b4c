"""Programs that other threads compile before they are needed: results, counts, errors and the end of the threads."""

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
import pytest

import jfit
from jfit import counters, sym
from jfit.loop import threads as loop_threads
from jfit.programs import Program, clear_programs

x = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
y = (x[:, 0] > 0).astype(np.float32)


def net(width: int = 3):
    hidden = sym.Activation(sym.FullyConnected(sym.Variable("data"), num_hidden=width, name="a"), act_type="tanh")
    return sym.SoftmaxOutput(sym.FullyConnected(hidden, num_hidden=2, name="b"), name="softmax")


def fit(width: int = 3, **options):
    """16 + 16 + 8 training rows: a program for full batches, one for the incomplete batch, one for the evaluation."""
    options = {"batch_size": 16, "num_epoch": 2, "progress": False, "eval_data": (x[:20], y[:20])} | options
    return jfit.fit(net(width), (x, y), **options)


@pytest.fixture
def threads(monkeypatch):
    """Names of the programs that were compiled on other threads; the process has two cores, whatever the machine has."""
    clear_programs()
    monkeypatch.setattr(loop_threads, "cores", lambda: 2)
    prepared: list[str] = []
    original = Program.prepare

    def prepare(self, *args, submit):
        def record(*call) -> Future[Any]:
            prepared.append(self._name)
            return submit(*call)

        original(self, *args, submit=record)

    monkeypatch.setattr(Program, "prepare", prepare)
    return prepared


def compiling() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("jfit-compile")]


def weights(run) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(run.params)]


def test_the_programs_of_a_run_are_compiled_on_threads_that_end_with_the_same_bits_and_counts(threads, monkeypatch):
    monkeypatch.setattr(loop_threads, "cores", lambda: 1)
    fit()  # compiles what is not cleared, such as initial values
    clear_programs()
    with counters.counted() as alone:
        expected = fit()
    assert threads == []
    clear_programs()
    monkeypatch.setattr(loop_threads, "cores", lambda: 2)
    with counters.counted() as counts:
        run = fit()
    assert threads == ["train", "train_tail", "eval"] and compiling() == []
    assert weights(run) == weights(expected) and run.history.column("val_loss") == expected.history.column("val_loss")
    assert {k: n for k, n in counts.items() if k != "disk_hits"} == {k: n for k, n in alone.items() if k != "disk_hits"}


def test_only_programs_that_the_run_will_need_are_compiled(threads):
    fit(batch_size=20, eval_data=None)
    assert threads == ["train"]
    fit(batch_size=20, num_epoch=1)  # the same training program, which is kept
    assert threads == ["train", "eval"]
    with counters.counted() as counts:
        fit(batch_size=20, num_epoch=1)
    assert counts["compiles"] == counts["traces"] == 0 and len(threads) == 2


@pytest.mark.slow
def test_a_compilation_that_fails_on_a_thread_is_repeated_where_the_program_is_needed(threads, monkeypatch):
    expected = weights(fit())
    clear_programs()
    compile_ = jax.stages.Lowered.compile

    def broken(self, *args, **kwargs):
        if threading.current_thread().name.startswith("jfit-compile"):
            raise MemoryError("no memory on this thread")
        return compile_(self, *args, **kwargs)

    monkeypatch.setattr(jax.stages.Lowered, "compile", broken)
    assert weights(fit()) == expected and len(threads) == 6


def test_an_error_of_a_callback_ends_the_threads_and_a_later_run_trains(threads):
    def stop(event, state):
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        fit(callbacks=[jfit.callbacks.Callback(on=stop, events=("step",), every=1)])
    for thread in threading.enumerate():
        if thread.name.startswith("jfit-compile"):
            thread.join(60)
    assert compiling() == []
    assert fit().position["epoch"] == 2


def test_a_prepared_program_is_traced_once_and_its_arguments_are_not_donated():
    def build(fn, more=0):
        return jax.jit(fn, donate_argnums=0)

    program, start = Program(lambda a: a * 2.5 + 1, build, name="ahead"), jax.device_put(np.arange(3, dtype=np.float32))
    with counters.counted() as counts, ThreadPoolExecutor(1) as pool:
        program.prepare(start, submit=pool.submit)
        program.prepare(start, submit=pool.submit)
        assert np.asarray(start).tolist() == [0, 1, 2]
        assert np.asarray(program(start)).tolist() == [1, 3.5, 6]
    assert counts["traces:ahead"] == counts["compiles"] == 1
