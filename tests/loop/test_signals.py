"""Ctrl-C and SIGTERM while fit trains, evaluates, compiles, saves and waits for data; own loops; stalled loaders."""

import logging
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import jfit
import jfit.checkpoints.writing
import jfit.evaluate.scorer
import jfit.loop.dispatch
import jfit.programs
from jfit import interrupts
from jfit.callbacks import lambda_callback
from jfit.data import DataTimeout
from jfit.data.prefetch import Patience
from jfit.interrupts import StopFlag

X = np.random.default_rng(0).normal(size=(40, 4)).astype("float32")
Y = (X[:, 0] > 0).astype("float32")


def net():
    return jfit.sym.SoftmaxOutput(jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=2, name="fc"), name="softmax")


def train(data=(X, Y), **options):
    return jfit.fit(net(), data, batch_size=8, num_epoch=2, **{"steps_per_call": 1, "progress": False, **options})


def bits(run):
    return {k: np.asarray(v).tobytes() for k, v in run.snapshot().params.items()}


def press(number):
    """Send a signal to this process, and wait until Python has called its handler."""
    os.kill(os.getpid(), number)
    time.sleep(0.02)


@pytest.fixture(autouse=True)
def _handlers():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    yield
    after = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    signal.signal(signal.SIGTERM, before[1])
    assert after == before


# ------------------------------------------------------------------------------------------------ SIGTERM
def test_sigterm_saves_the_step_closes_the_callbacks_and_exits_with_143(tmp_path):
    events: list[str] = []
    at_step = lambda_callback(
        every=1,
        step=lambda event: press(signal.SIGTERM) if event.step == 3 else None,
        fit_end=lambda event: events.append("fit_end"),
    )
    with pytest.raises(SystemExit) as caught:
        train(callbacks=[at_step], checkpoint=tmp_path)
    assert caught.value.code == 143 and events == ["fit_end"]
    run = jfit.last_run()
    assert run is not None and run.interrupted and run.stop_reason == "ended by SIGTERM"
    assert jfit.checkpoint.load_meta(tmp_path)["position"] == {"epoch": 0, "batch": 3, "step": 3}
    assert bits(train(checkpoint=tmp_path, resume=True)) == bits(train())


@pytest.mark.parametrize("moment", ["evaluation", "save", "fit_start"])
def test_sigterm_at_other_moments_loses_nothing(moment, tmp_path, monkeypatch):
    options: dict = {"eval_data": (X, Y), "checkpoint": tmp_path}
    whole = train(eval_data=(X, Y))
    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        if moment == "evaluation":
            arguments, scorer = jfit.evaluate.scorer.Scorer.arguments, jfit.evaluate.scorer.Scorer
            patch.setattr(scorer, "arguments", lambda self, state: press(signal.SIGTERM) or arguments(self, state))
        elif moment == "save":
            write = jfit.checkpoints.writing.save_tensors
            patch.setattr(jfit.checkpoints.writing, "save_tensors", lambda *a, **k: press(signal.SIGTERM) or write(*a, **k))
        train(
            **options, callbacks=[lambda_callback(fit_start=lambda e: press(signal.SIGTERM))] if moment == "fit_start" else []
        )
    assert all(jfit.checkpoint.verify(folder) for folder in tmp_path.glob("step-*"))
    resumed = train(**options, resume=True)
    assert bits(resumed) == bits(whole)
    assert resumed.history.column("val_loss") == whole.history.column("val_loss")


def test_a_handler_of_the_user_is_left_alone(tmp_path):
    got: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: got.append(number))
    run = train(callbacks=[lambda_callback(every=2, step=lambda event: press(signal.SIGTERM))], checkpoint=tmp_path)
    signal.signal(signal.SIGTERM, before)
    assert not run.interrupted and len(got) == 5


def test_without_checkpoints_sigterm_is_not_handled():
    handlers: list = []
    train(callbacks=[lambda event: handlers.append(signal.getsignal(signal.SIGTERM))])
    assert handlers == [signal.SIG_DFL] * 2


# ------------------------------------------------------------------------------------------------ loops of one's own
def test_graceful_stop_is_true_after_sigterm_and_a_second_one_is_not_handled():
    with jfit.graceful_stop() as stop:
        assert not stop and stop.exit_code == 0
        press(signal.SIGTERM)
        assert stop and stop.signal == signal.SIGTERM and stop.exit_code == 143
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_graceful_stop_handles_ctrl_c_if_asked_to():
    with jfit.graceful_stop(interrupt=True) as stop:
        press(signal.SIGINT)
        assert stop.exit_code == 130
        with pytest.raises(KeyboardInterrupt):
            press(signal.SIGINT)


def test_fit_in_graceful_stop_saves_and_returns(tmp_path):
    with jfit.graceful_stop() as stop:
        run = train(callbacks=[lambda_callback(every=2, step=lambda event: press(signal.SIGTERM))], checkpoint=tmp_path)
        assert stop and run.interrupted and (tmp_path / "step-00000002").is_dir()


def test_a_signal_that_the_process_ignores_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with StopFlag().watching() as flag, interrupts.defer_interrupts():
            press(signal.SIGINT)
        assert not flag and not train(callbacks=[lambda event: press(signal.SIGINT)]).interrupted
    finally:
        signal.signal(signal.SIGINT, before)


# ------------------------------------------------------------------------------------------------ waits
def later(seconds, *numbers):
    def send():
        for number in numbers:
            time.sleep(seconds)
            os.kill(os.getpid(), number)

    threading.Thread(target=send, daemon=True).start()


def stalling(after, gate):
    """A function that returns 5 batches for each epoch, and waits for `gate` before batch `after`."""

    def batches(epoch):
        for i in range(5):
            if i == after:
                gate.wait(30)
            yield X[8 * i : 8 * i + 8], Y[8 * i : 8 * i + 8]

    return batches


def seconds_of(call):
    started = time.monotonic()
    result = call()
    return time.monotonic() - started, result


def test_ctrl_c_ends_the_wait_for_data_and_training_continues_where_it_stopped():
    gate = threading.Event()
    data = stalling(2, gate)
    start = lambda_callback(every=2, step=lambda event: later(0.1, signal.SIGINT) if not gate.is_set() else None)
    seconds, run = seconds_of(lambda: train(data, callbacks=[start]))
    assert run.interrupted and run.position["batch"] == 2 and seconds < 20
    gate.set()
    assert bits(run.train(2)) == bits(train(data))


def test_ctrl_c_ends_the_wait_for_evaluation_data():
    gate = threading.Event()
    start = lambda_callback(every=5, step=lambda event: later(0.3, signal.SIGINT) if not gate.is_set() else None)
    run = train(eval_data=stalling(2, gate), callbacks=[start])
    assert run.interrupted and run.position == {"epoch": 0, "batch": 5, "step": 5} and not len(run.history)
    gate.set()
    assert len(run.train(1).history) == 1 and run.position["epoch"] == 1
    assert "val_loss" in run.history.epochs[0] and run.history.epochs[0]["samples_per_second"] > 0


def test_ctrl_c_ends_the_wait_for_the_first_batch():
    gate = threading.Event()
    later(0.3, signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        train(stalling(0, gate))
    gate.set()


def test_a_time_limit_names_the_batch_and_saves(tmp_path):
    gate = threading.Event()
    ended: list[bool] = []
    options: dict = {"checkpoint": tmp_path, "callbacks": [lambda_callback(fit_end=lambda event: ended.append(True))]}
    with pytest.raises(DataTimeout, match=r"0\.2 s for batch 3 of epoch 0 \(batches\)") as caught:
        train(stalling(3, gate), data_timeout=0.2, **options)
    assert any("after step 3" in note for note in caught.value.__notes__) and ended
    assert (tmp_path / "step-00000003").is_dir()
    gate.set()
    data = stalling(3, gate)
    assert bits(train(data, data_timeout=60, checkpoint=tmp_path, resume=True)) == bits(train(data))


@pytest.mark.parametrize("seconds", [0, -1, True, "1"])
def test_a_time_limit_is_a_number_of_seconds(seconds):
    with pytest.raises(ValueError, match="expected a number above 0, or None for no limit"):
        train(data_timeout=seconds)


def test_long_waits_are_logged_more_and_more_rarely(caplog):
    patience = Patience("item {}".format)
    with caplog.at_level(logging.WARNING, "jfit"):
        for seconds in range(0, 500, 10):
            patience(7, seconds)
    assert [record.getMessage().split(";")[0] for record in caplog.records] == [
        f"waiting for item 7 for {seconds} s" for seconds in (60, 120, 240, 480)
    ]


def test_ctrl_c_ends_the_wait_for_the_compiler_and_the_result_is_used_later(monkeypatch):
    gate, compile_ = threading.Event(), jfit.programs._compile

    def interrupted(*args):
        if not gate.is_set():
            os.kill(os.getpid(), signal.SIGINT)
        gate.wait(30)
        compile_(*args)

    monkeypatch.setattr(jfit.programs, "_compile", interrupted)
    jfit.clear_programs()
    run = train(stalling(9, gate))
    assert run.interrupted and run.position["step"] == 0
    gate.set()
    with jfit.counters.counted() as counts:
        run.train(2)
    assert counts["traces:train"] == 0 and bits(run) == bits(train(stalling(9, gate)))


def test_a_second_ctrl_c_ends_at_once_with_the_state_of_the_last_step():
    gate = threading.Event()

    def wait(event):
        if event.step == 2:
            later(0.1, signal.SIGINT, signal.SIGINT)
            gate.wait(30)

    slow = lambda_callback(every=2, step=wait)
    with pytest.raises(KeyboardInterrupt):
        train(callbacks=[slow])
    run = jfit.last_run()
    assert run is not None and run.position["step"] == int(run.state.step) == 2
    assert bits(run.train(2)) == bits(train())


def test_two_ctrl_c_during_a_dispatch_lose_no_state(monkeypatch):
    dispatches = jfit.loop.dispatch.ResidentDispatcher.dispatches

    def pressed(self, *args):
        for number, dispatch in enumerate(dispatches(self, *args)):

            def run(state, dispatch=dispatch, number=number):
                result = dispatch.run(state)
                if number == 2:
                    press(signal.SIGINT)
                    press(signal.SIGINT)
                return result

            yield dispatch._replace(run=run)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(jfit.loop.dispatch.ResidentDispatcher, "dispatches", pressed)
        train()
    run = jfit.last_run()
    assert run is not None and run.position["step"] == int(run.state.step) == 3
    assert bits(run.train(2)) == bits(train())


def test_ctrl_c_in_a_module_that_waits_for_its_iterator():
    gate = threading.Event()

    class Stalling(jfit.NDArrayIter):
        def next(self):
            if self.batches_read == 2:
                later(0.1, signal.SIGINT)
                gate.wait(30)
            return super().next()

    module = jfit.Module(net())
    with pytest.raises(KeyboardInterrupt, match="stopped by Ctrl-C"):
        module.fit(Stalling(X, Y, 8), num_epoch=1, batch_end_callback=lambda param: None)
    gate.set()
    module.fit(jfit.NDArrayIter(X, Y, 8), num_epoch=1)


# ------------------------------------------------------------------------------------------------ processes
CHILD = """
import itertools, sys, time, numpy as np, jfit
import jfit.checkpoints.writing
if {slow_save}:
    jfit.checkpoints.writing.save_tensors = lambda *a, **k: (print("saving", flush=True), time.sleep(60))
x = np.zeros((8, 4), "float32")
def batches():
    for i in itertools.count():
        if i == 5:
            print("ready", flush=True)
        time.sleep(0.01)
        yield x, x[:, 0]
net = jfit.sym.SoftmaxOutput(jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=2), name="softmax")
jfit.fit(net, batches(), steps_per_epoch=10**6, checkpoint={folder!r}, checkpoint_every=1000, progress=False)
"""


@pytest.mark.slow  # starts processes that import jax
@pytest.mark.parametrize("twice", [False, True])
def test_a_process_ends_with_the_exit_code_of_its_signals(twice, tmp_path):
    text = CHILD.format(folder=str(tmp_path), slow_save=twice)
    with subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None and child.stdout.readline() == b"ready\n"
            child.send_signal(signal.SIGTERM)
            if twice:
                assert child.stdout.readline() == b"saving\n"
                child.send_signal(signal.SIGTERM)
            assert child.wait(20) == (-signal.SIGTERM if twice else 143)
        finally:
            child.kill()
    if twice:
        assert jfit.checkpoint.latest(tmp_path) is None
    else:
        assert jfit.checkpoint.load_meta(tmp_path)["position"]["step"] >= 1
