"""Slow compilations are announced, and their time is kept apart from that of training; waits, traces and compilations are
counted, each once."""

import io
import logging
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jfit
from jfit import counters
from jfit.callbacks import progress


@pytest.fixture
def slow_at_once(monkeypatch):
    monkeypatch.setattr(counters, "SLOW_SECONDS", 0.0)


def wait_for(condition):
    timers = [t for t in threading.enumerate() if isinstance(t, threading.Timer)]
    for thread in timers:
        thread.join()
    assert condition()


def test_a_slow_compilation_is_logged_twice(slow_at_once, caplog):
    with caplog.at_level(logging.INFO, "jfit"), counters.compiling("train"):
        wait_for(lambda: caplog.messages == ["compiling the program 'train' (0 s so far)"])
    assert caplog.messages[1].startswith("compiled the program 'train' after ")


def test_a_fast_compilation_is_not_mentioned(caplog):
    with caplog.at_level(logging.INFO, "jfit"), counters.compiling("train"):
        pass
    assert caplog.messages == []


def test_a_compilation_that_fails_is_measured_and_not_said_to_be_done(slow_at_once, caplog):
    before = counters.compile_seconds()
    with caplog.at_level(logging.INFO, "jfit"), pytest.raises(ValueError, match="no"), counters.compiling("train"):
        wait_for(lambda: len(caplog.messages) == 1)
        raise ValueError("no")
    assert caplog.messages[1].startswith("stopped compiling the program 'train' after ")
    assert counters.compile_seconds() > before


def test_seconds_in_which_several_threads_compile_count_once():
    inside, end = threading.Barrier(4), threading.Event()

    def compile_something():
        with counters.compiling("train"):
            inside.wait()
            end.wait()

    before, started = counters.compile_seconds(), time.perf_counter()
    threads = [threading.Thread(target=compile_something) for _ in range(3)]
    for thread in threads:
        thread.start()
    inside.wait()
    end.set()
    for thread in threads:
        thread.join()
    assert 0 < counters.compile_seconds() - before <= time.perf_counter() - started


def test_the_progress_bar_says_what_is_compiled(slow_at_once):
    file = io.StringIO()
    callback = progress(file=file, force=True)
    event = jfit.callbacks.Event("fit_start", 0, 0, 0, 1, {}, None)
    state = callback.on(event, callback.init())
    with counters.compiling("my_program"):
        wait_for(lambda: "compiling the program 'my_program'" in file.getvalue())
    assert "compiled the program 'my_program' after" in file.getvalue()
    callback.on(event._replace(kind="fit_end"), state)
    text = file.getvalue()
    with counters.compiling("my_program"):
        pass
    assert file.getvalue() == text
    assert not counters._compiling.watchers


def test_an_epoch_has_its_compile_time_apart_from_its_time():
    jfit.clear_programs()
    history = small_run().history
    assert history.epochs[0]["compile_time"] > 0
    assert "compile_time" not in history.epochs[1]
    total = history.epochs[0]["time"] + history.epochs[0]["compile_time"]
    assert history.epochs[0]["samples_per_second"] == pytest.approx(4 / history.epochs[0]["time"])
    assert history.epochs[0]["samples_per_second"] > 4 / total
    assert "compile (s)" in history.table()


def small_run() -> jfit.Run:
    net = jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=5, name="compile_time")
    net = jfit.sym.SoftmaxOutput(net, name="softmax")
    x = np.eye(4, dtype="float32")
    return jfit.fit(net, (x, [0, 1, 0, 1]), batch_size=2, num_epoch=2, progress=False)


def test_backend_compiles_are_counted_once():
    fn = jax.jit(lambda x: x * 3 + 1)
    x = jnp.ones(3)
    with counters.counted() as first:
        fn(x)
    with counters.counted() as second:
        fn(x)
    assert first["compiles"] == 1 and second["compiles"] == 0
