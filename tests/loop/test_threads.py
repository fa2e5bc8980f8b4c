"""A run or module that is used by several threads, and by processes that were forked."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fit_support import blobs, mlp, same, train

import jfit

ROWS = np.ones((40, 1), "float32")


def twins(**options: Any) -> jfit.Run:
    """A run of two parameters that are equal after every step, on batches of one row."""
    params = {"a": np.zeros((1, 1), "float32"), "b": np.zeros((1, 1), "float32")}
    settings = {"optimizer": "adam", "batch_size": 1, "steps_per_call": 1, "progress": False} | options
    return jfit.fit(lambda p, x: x * (p["a"] + p["b"]), (ROWS, ROWS), loss="mse", params=params, **settings)


class Elsewhere:
    """Train a run in another thread until `stop` is called."""

    def __init__(self, run: jfit.Run) -> None:
        self.run, self.error = run, None
        self.thread = threading.Thread(target=self._train, name="trainer")

    def _train(self) -> None:
        try:
            self.run.train(100_000)
        except BaseException as error:
            self.error = error

    def __enter__(self) -> jfit.Run:
        before = self.run.position["step"]
        self.thread.start()
        wait_until(lambda: self.run.position["step"] > before + 5)
        return self.run

    def __exit__(self, *_: object) -> None:
        self.run.stop()
        self.thread.join(60)
        assert not self.thread.is_alive() and self.error is None


def wait_until(done: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not done():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_other_threads_see_the_state_between_two_steps_of_a_run_that_trains():
    run = twins(num_epoch=1)
    run.predict(ROWS)
    run.score((ROWS, ROWS))
    steps = set()
    with Elsewhere(run):
        for _ in range(10):
            snapshot, state, params = run.snapshot(), run.state, run.params
            assert snapshot.params["a"] == snapshot.params["b"]
            assert np.array_equal(params["a"], params["b"]) and np.array_equal(state.params["a"], state.params["b"])
            assert int(state.step) >= int(snapshot.step)
            predicted = run.predict(ROWS)
            assert predicted.shape == (40, 1) and len(np.unique(predicted)) == 1
            assert run.score((ROWS, ROWS))["loss"] >= 0 and run.base_lr is not None
            steps.add(int(snapshot.step))
    assert len(steps) > 1


@pytest.mark.slow
def test_a_prediction_that_began_before_training_ends_with_the_parameters_of_its_start():
    run, started, gate = train(num_epoch=1), threading.Event(), threading.Event()
    x = blobs()[0]
    expected, results = run.predict(x[:16]), []

    def batches():
        yield x[:8]
        started.set()
        assert gate.wait(60)
        yield x[8:16]

    reader = threading.Thread(target=lambda: results.append(run.predict(batches())))
    reader.start()
    assert started.wait(60)
    run.train(1)
    gate.set()
    reader.join(60)
    np.testing.assert_array_equal(results[0], expected)
    assert same(run, train(num_epoch=2))


def test_a_second_thread_cannot_train_or_save_a_run_that_trains(tmp_path):
    run = twins(num_epoch=1)
    with Elsewhere(run):
        with pytest.raises(RuntimeError, match=r"trained by thread 'trainer'; a run has one state.*jfit\.fit, which makes"):
            run.train(1)
        with pytest.raises(RuntimeError, match=r"Run\.save: thread 'trainer' trains this run.*event\.run\.save\(folder\)"):
            run.save(tmp_path)
        with pytest.raises(RuntimeError, match=r"Run\.resume_from: thread 'trainer'"):
            run.resume_from(tmp_path)
        run.set_base_lr(0.125)
        assert run.base_lr == 0.125
    assert run.base_lr == 0.125 and run.num_epoch > 100_000
    run.save(tmp_path)


def test_a_callback_cannot_train_its_own_run():
    def nested(event):
        with pytest.raises(RuntimeError, match="trained by this thread, in one of whose callbacks"):
            event.run.train(1)

    assert same(train(callbacks=[nested]), train())


def test_another_thread_cannot_use_a_module_that_trains():
    x, y = blobs()
    module, problems = jfit.Module(mlp()), []
    other = jfit.NDArrayIter(x, y, 8)

    def uses(_: Any) -> None:
        for use in (module.predict, module.score, module.fit, module.forward):
            arguments = {"eval_metric": "acc"} if use == module.score else {"num_epoch": 1} if use == module.fit else {}
            try:
                use(other if use != module.forward else next(other), **arguments)
            except RuntimeError as error:
                problems.append(str(error))
        assert module.data_shapes

    def in_thread(param: Any) -> None:
        thread = threading.Thread(target=uses, args=(param,))
        thread.start()
        thread.join()

    module.fit(jfit.NDArrayIter(x, y, 8), num_epoch=1, batch_end_callback=in_thread)
    assert len(problems) == 4 * 7
    assert all("in fit of this module" in problem for problem in problems) and "Module.predict: thread 'Main" in problems[0]
    alone = jfit.Module(mlp())
    assert len(module.predict(other)) == 50 and not alone.binded


# ------------------------------------------------------------------------------------------------ forks
def in_child(calls: dict[str, Callable[[], Any]]) -> dict[str, str]:
    """Run functions in a forked process, and return the messages of their exceptions; ends after 60 s at the latest."""
    readable, writable = os.pipe()
    child = os.fork()
    if not child:
        for name, call in calls.items():
            try:
                text = repr(call())
            except BaseException as error:
                text = f"{type(error).__name__}: {error}"
            os.write(writable, f"{name}\t{text[:500]}\n".encode())
        os._exit(0)
    os.close(writable)
    timer = threading.Timer(60, os.kill, (child, 9))
    timer.start()
    with os.fdopen(readable) as file:
        lines = file.read().splitlines()
    os.waitpid(child, 0)
    timer.cancel()
    return dict(line.split("\t") for line in lines)


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@needs_fork
@pytest.mark.filterwarnings("ignore:os.fork")
def test_training_and_prediction_in_a_forked_process_raise_instead_of_waiting_for_ever(tmp_path):
    (x, y), run, module = blobs(), train(num_epoch=1), jfit.Module(mlp())
    data = jfit.NDArrayIter(x, y, 8)
    module.fit(data, num_epoch=1)
    feed_forward = jfit.FeedForward(mlp(), num_epoch=1)
    feed_forward.fit(data)
    calls = {
        "fit": lambda: train(num_epoch=1),
        "train": lambda: run.train(1),
        "score": lambda: run.score((x, y)),
        "predict": lambda: run.predict(x),
        "jfit.predict": lambda: jfit.predict(mlp(), x, params=run.params),
        "Module.fit": lambda: module.fit(data, num_epoch=1),
        "Module.predict": lambda: module.predict(data),
        "Module.score": lambda: module.score(data, "acc"),
        "FeedForward.fit": lambda: feed_forward.fit(data),
        "FeedForward.predict": lambda: feed_forward.predict(data),
        "sweep": lambda: jfit.sweep(mlp(), (x, y), over={"seed": [0, 1]}, num_epoch=1),
    }
    messages = in_child({**calls, "save": lambda: run.save(tmp_path).name})
    assert messages.pop("save") == "'step-00000007'"  # arrays that are computed can be read
    assert list(messages) == list(calls)
    for name, message in messages.items():
        assert message.startswith("RuntimeError: ") and "multiprocessing.get_context('spawn')" in message, (name, message)
    assert "Run.train: process" in messages["train"] and "jfit.fit: process" in messages["fit"]
    assert same(run.train(1), train())  # the parent is as before
